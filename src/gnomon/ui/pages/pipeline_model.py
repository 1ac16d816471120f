"""The Pipeline page's model on GPUs: controls, and their answer: speed, time by part, memory by part and over time."""

from __future__ import annotations

from typing import Any

from gnomon import catalog
from gnomon.api.pipeline import schedules
from gnomon.api.train import PRECISIONS, SHARDINGS, train
from gnomon.ui.blocks import cards, notice
from gnomon.ui.controls import Choice, Control, Number, Switch
from gnomon.ui.pages.pieces import split_bars, tall


def _degree(name: str, label: str, most: int = 4096, **more: Any) -> Number:
    return Number(name, label, 1, least=1, most=most, whole=True, field=name, group="Layout", **more)


def _orders() -> dict[str, str]:
    return {USUAL: "1f1b or interleaved"} | {row["name"]: row["name"] for row in schedules()}


USUAL = "usual"
CONTROLS: tuple[Control, ...] = (
    Choice("model", "Model", "llama-3-70b", options=catalog.model_names, field="model", wide=True),
    Choice("device", "GPU", "h100", options=catalog.device_names, field="device"),
    Number("gpus", "GPUs", 64, least=1, most=1e6, whole=True, field="gpus"),
    Number("batch", "Batch", 128, least=1, most=1e6, whole=True, field="batch", help="sequences per step"),
    Number("sequence", "Tokens", 8192, least=1, most=1e7, whole=True, field="sequence", help="per sequence"),
    Choice("precision", "Products in", "bf16", options=PRECISIONS, field="precision"),
    Number("tensor_parallel", "Tensor parallel", 8, least=1, most=64, whole=True, field="tensor_parallel",
           group="Layout"),
    Number("pipeline_parallel", "Pipeline parallel", 4, least=1, most=512, whole=True, group="Layout",
           field="pipeline_parallel"),
    _degree("virtual_stages", "Virtual stages", 64),
    Choice("order", "Schedule", USUAL, options=_orders, field="schedule", group="Layout"),
    _degree("context_parallel", "Context parallel"),
    _degree("expert_parallel", "Expert parallel"),
    _degree("micro_batch", "Micro-batch", 1024, help="sequences"),
    Choice("sharding", "Copies divide", "optimizer", options=SHARDINGS, field=("sharding", "shard_gpus"),
           group="Memory"),
    Choice("recompute", "Recompute", "none", options=("none", "selective", "full"), field="recompute", group="Memory"),
    Switch("offload", "Activations wait on the host", group="Memory"),
    Number("lora_rank", "LoRA rank", 0, least=0, most=1024, whole=True, help="0 trains all weights", group="Memory"),
)  # fmt: skip


NAMES = tuple(one.name for one in CONTROLS)


def drawn(values: dict[str, Any]) -> dict[str, Any]:
    """Figures, time and memory by part, memory over the step, the same as a command."""
    asked = {name: values[name] for name in NAMES if name != "order"}
    if values["order"] != USUAL:
        asked["schedule"] = values["order"]
    result = train(asked, check=False)
    shown = result.summary
    memory = f"{shown['peak_memory_gb']:.1f} GB"
    room = (
        f"of {shown['device_memory_gb']:.1f} GB"
        if shown["fits"]
        else f"does not fit {shown['device_memory_gb']:.1f} GB"
    )
    figures = (
        ("step", f"{shown['step_s']:.4g} s", f"{shown['micro_batches']} micro-batches"),
        ("tokens/s/GPU", f"{shown['tokens_per_gpu_s']:,.0f}", f"{shown['tokens_per_s']:,.0f} in all"),
        ("MFU", f"{100 * shown['mfu']:.1f} %", f"{shown['tflops_per_gpu_s']:,.0f} TFLOP/s/GPU"),
        ("peak memory", memory, room),
    )
    told = [] if shown["fits"] else [notice(result.misfit, "error")]
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in asked.items() if _matters(name, value))
    return {
        "cards": cards(figures),
        "notes": [*told, *(notice(text) for text in shown["notes"])],
        "time": split_bars(*result.time_bars),
        "memory": split_bars(*result.memory_bars),
        "over_time": tall(result.memory_drawn()),
        "command": f"gnomon train step {flags}",
    }


def _matters(name: str, value: Any) -> bool:
    defaults = {"virtual_stages": 1, "context_parallel": 1, "expert_parallel": 1, "micro_batch": 1, "lora_rank": 0}
    return value is not False and defaults.get(name) != value
