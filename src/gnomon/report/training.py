"""A training step in words and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnomon.core.units import GB
from gnomon.report import look
from gnomon.report.blocks import Block, Html, Line, Plot, Section, Table, lines
from gnomon.report.page import write_page
from gnomon.report.splits import Causes, SplitRow, split_table
from gnomon.training.memory import memory_over_time
from gnomon.training.step import TrainStep

ABOUT = {
    "products": "matrix products of layers",
    "attention": "attention and its gradients",
    "recurrence": "linear attention and its gradients",
    "elementwise": "norms, activations, rotary embeddings",
    "casts": "quantising inputs and gradients",
    "accumulation": "gradients added to those of earlier micro-batches",
    "experts": "grouped products of experts",
    "permutation": "rows sorted by expert and back",
    "adapters": "low-rank adapters",
    "loss": "embedding, head and loss",
    "recomputation": "forward passes run again",
    "offload": "activations to the host and back that nothing hides",
    "tensor": "tensor-parallel communication that nothing hides",
    "context": "context-parallel communication that nothing hides",
    "expert_exchange": "tokens to their experts and back",
    "host": "launching kernels",
    "bubble": "waiting for other pipeline stages",
    "data": "gradients and weights between copies that nothing hides",
    "optimizer": "optimizer and gradient norm",
    "loading": "waiting for data",
}


def step_data(step: TrainStep) -> dict[str, Any]:
    """Everything as plain data."""
    memory = step.memory
    return {
        "step_s": step.step_s,
        "tokens_per_s": step.tokens_per_s,
        "tokens_per_gpu_s": step.tokens_per_gpu_s,
        "tflops_per_gpu_s": step.flops_per_gpu_s / 1e12,
        "mfu": step.mfu,
        "peak_memory_gb": memory.peak_bytes / GB,
        "device_memory_gb": memory.device_bytes / GB,
        "fits": step.fits,
        "data_parallel": step.config.data_parallel,
        "micro_batches": step.config.num_microbatches,
        "phases_s": step.phases,
        "time": [
            {"part": part, "seconds": seconds, "share": seconds / step.step_s, "": ABOUT[part]}
            for part, seconds in step.parts.items()
        ],
        "memory": [{"part": part, "GB": size / GB} for part, size in memory.parts.items()],
        "ranks_gb": [peak / GB for peak in memory.peaks],
        "notes": step.notes,
    }


def step_blocks(step: TrainStep) -> list[Block]:
    """Figures, then tables of time and memory."""
    data, c = step_data(step), step.config
    head = (
        f"step {step.step_s:.4g} s   {step.tokens_per_gpu_s:,.0f} tokens/s/GPU"
        f"   {data['tflops_per_gpu_s']:,.0f} TFLOP/s/GPU   MFU {100 * step.mfu:.1f} %"
        f"   peak memory {data['peak_memory_gb']:.1f} of {data['device_memory_gb']:.1f} GB"
    )
    layout = (
        f"{c.gpus} GPUs: tensor {c.tensor_parallel} x pipeline {c.pipeline_parallel} x context {c.context_parallel}"
        f" x data {c.data_parallel}; {c.num_microbatches} micro-batches of {c.micro_batch} x {c.sequence:,} tokens"
    )
    time = [row | {"share": f"{100 * row['share']:.1f} %"} for row in data["time"]]
    return [
        Line(head),
        Line(layout),
        Table(
            time, "Where the time goes", "The slowest pipeline rank. MFU: over the peak of the products' number format."
        ),
        Table(data["memory"], f"Memory of a GPU of pipeline rank {step.memory.fullest} at its peak"),
        *lines(step.notes, "note"),
    ]


def time_bars(step: TrainStep) -> tuple[Causes, list[SplitRow]]:
    """The parts of the slowest rank's step."""
    causes = {part: (ABOUT[part], look.COLOURS[at % len(look.COLOURS)]) for at, part in enumerate(step.parts)}
    useful = sum(step.parts.get(part, 0.0) for part in ("products", "experts", "attention"))
    words = f"{100 * useful / step.step_s:.0f} % products and attention"
    return causes, [SplitRow("step", dict(step.parts), step.step_s, words, " s")]


def memory_bars(step: TrainStep) -> tuple[Causes, list[SplitRow]]:
    """What fills the fullest GPU, and what is left of its memory."""
    memory = step.memory
    sizes = {part: size / GB for part, size in memory.parts.items() if size > 0}
    sizes["allocator and context"] = (memory.reserved_bytes - memory.peak_bytes) / GB
    whole = max(memory.device_bytes, memory.reserved_bytes) / GB
    sizes["free"] = max(0.0, whole - sum(sizes.values()))
    causes = {part: (part, look.COLOURS[at % len(look.COLOURS)]) for at, part in enumerate(sizes)}
    causes["free"] = ("free", "#E6E9EE")
    words = f"{memory.reserved_bytes / GB:.1f} of {memory.device_bytes / GB:.1f} GB"
    return causes, [SplitRow(f"rank {memory.fullest}", sizes, whole, words, " GB")]


def memory_figure(step: TrainStep) -> dict[str, Any]:
    """Memory of the fullest pipeline rank over the step by part, the totals of the others, and the GPU's memory."""
    assert step.run is not None
    curves = memory_over_time(step.config, step.run)
    fullest = curves[step.memory.fullest]
    colours = dict(zip(fullest.parts, look.COLOURS, strict=False))
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": part, "stackgroup": "fullest", "x": _short(fullest.times),
            "y": _short(sizes / GB), "line": {"width": 0, "color": colours[part]}, "fillcolor": colours[part],
            "hovertemplate": f"{part}: %{{y:.1f}} GB<extra></extra>",
        }
        for part, sizes in fullest.parts.items() if sizes.max() > 0.0
    ]  # fmt: skip
    others = [(rank, curve) for rank, curve in enumerate(curves) if rank != step.memory.fullest]
    for rank, curve in others:
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": "other ranks", "showlegend": rank == others[0][0],
                "x": _short(curve.times), "y": _short(curve.total / GB), "line": {"width": 1, "color": "#7A8594"},
                "hovertemplate": f"rank {rank}: %{{y:.1f}} GB<extra></extra>",
            }
        )  # fmt: skip
    limit = step.memory.device_bytes / GB
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
            "line": {"color": look.COLOURS[3], "dash": "dash", "width": 1.5}}  # fmt: skip
    ran = 1 + max(label.microbatch for label in step.run.labels)
    every = ran == step.config.num_microbatches
    words = "seconds" if every else f"seconds of a step with {ran} of {step.config.num_microbatches} micro-batches"
    layout = look.LOOK | {
        "height": 360,
        "margin": {"l": 64, "r": 16, "t": 44, "b": 48},
        "xaxis": look.AXIS | {"title": {"text": words}},
        "yaxis": look.AXIS | {"title": {"text": f"GB of a GPU of rank {step.memory.fullest}"}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [line],
    }
    return {"data": traces, "layout": layout}


def _short(values: Any) -> list[float]:
    """Numbers as a page needs them."""
    return [float(f"{value:.5g}") for value in values]


def write_step(step: TrainStep, path: str | Path) -> Path:
    """The page of a step: figures, time by part, memory by part and over time."""
    head, *_ = step_blocks(step)
    assert isinstance(head, Line)
    data = step_data(step)
    time = [row | {"share": f"{100 * row['share']:.1f} %"} for row in data["time"]]
    held = f"Memory of a GPU of pipeline rank {step.memory.fullest} at its peak, GB"
    blocks: list[Block] = [
        Section("Where the time goes", [Html(split_table(*time_bars(step), "figure")), Table(time, left=("part", ""))]),
        Section("Memory of the fullest GPU", [Html(split_table(*memory_bars(step), "figure"))]),
        Section("Memory over the step", [Plot("memory", lambda: memory_figure(step)), Table(data["memory"], held)]),
        *lines(step.notes, "note"),
    ]
    title = f"{step.config.shape.name} on {step.config.gpus:,} x {step.config.device}"
    return write_page(path, title, blocks, lede=head.text)
