"""Published and measured training steps as questions: rows of the reference files with what each was run with."""

import csv
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gnomon.core.errors import DataError
from gnomon.core.units import GIB

DATA = Path(__file__).parent / "data"
MODELS, DEVICES, PRECISIONS = yaml.safe_load((DATA / "training_names.yaml").read_text(encoding="utf-8")).values()


@dataclass(frozen=True)
class Row:
    """One published step."""

    source: str
    family: str
    """dense, moe, lora or single: by which it is judged."""
    name: str
    """Model, GPUs and precision in words."""
    config: dict[str, Any]
    line: str = field(repr=False)
    step_s: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    peak_bytes: float | None = None
    is_gated: bool = True
    """Counted in a gate: not ambiguous, and of a GPU that is catalogued with measured kernels."""

    @property
    def is_fitted(self) -> bool:
        """Whether constants may be fitted on it."""
        return zlib.crc32(self.line.encode()) % 2 == 0

    @property
    def group(self) -> tuple[str, str, int]:
        """Rows whose order is compared: one model on one system."""
        return self.source, f"{self.config['model']} {self.config['device']}", int(self.config["gpus"])


def read_rows(folder: Path) -> list[Row]:
    """All rows of the files that are there."""
    readers = {"h200_single_gpu.csv": _h200, "prime_rl.csv": _prime, "mlperf_v5.1.csv": _mlperf}
    rows: list[Row] = []
    for file in sorted(folder.glob("*")):
        if file.name in readers:
            rows += readers[file.name](file)
        elif file.name.startswith("megatron_bridge") and file.suffix == ".md":
            rows += _bridge(file)
    if not rows:
        raise DataError("no file of training steps.", where=str(folder), fix="It has h200_single_gpu.csv, ...")
    return rows


def _records(file: Path) -> Iterator[tuple[dict[str, str], str]]:
    text = file.read_text(encoding="utf-8").splitlines()
    for line, record in zip(text[1:], csv.DictReader(text), strict=True):
        yield record, line


def _device(words: str) -> str:
    return next(str(name) for key, name in DEVICES.items() if key in words) if words else ""


def _h200(file: Path) -> Iterator[Row]:
    for r, line in _records(file):
        given = {
            "model": r["model"], "device": "h200", "gpus": 1, "framework": "transformers", "sharding": "none",
            "micro_batch": int(r["micro_batch"]), "sequence": int(r["sequence"]), "compile": r["compile"] == "1",
            "recompute": "full" if r["checkpointing"] == "1" else "none",
        }  # fmt: skip
        phases = {name: float(r[f"{name}_ms"]) for name in ("forward", "backward", "optimizer")}
        name = f"{r['model']} {r['micro_batch']} x {r['sequence']}"
        yield Row("h200", "single", name, given, line, float(r["step_ms"]) / 1e3, phases, float(r["peak_gib"]) * GIB)


def _prime(file: Path) -> Iterator[Row]:
    for r, line in _records(file):
        gpus, device = int(r["hardware"].partition("x")[0]), _device(r["hardware"])
        is_lora, is_sft = "LoRA" in r["type"], r["type"].startswith("SFT")
        given = {
            "model": MODELS[r["model"]], "device": device, "gpus": gpus, "framework": "fsdp",
            "sharding": "parameters", "batch": 2 * gpus, "sequence": int(r["sequence"]), "recompute": "full",
            "attention_kernel": "fa2" if r["attention"] == "FA2" else "newest",
            "offload": r["activations"] == "Offload", "lora_rank": 16 if is_lora else 0,
            "head_chunk": 0 if is_sft else 1024,
        }  # fmt: skip
        seconds = 2.0 * float(r["microbatch_step_s"][:-1]) if r["microbatch_step_s"] else None
        name = f"{r['model']} {r['type']} {r['sequence']} {r['hardware']}"
        gated = device != "a6000"
        peak = float(r["peak_memory"].split()[0]) * GIB
        yield Row("prime-rl", "lora" if is_lora else "dense", name, given, line, seconds, {}, peak, gated)


def _mlperf(file: Path) -> Iterator[Row]:
    for r, line in _records(file):
        device, gpus = _device(r["accelerator"]), int(r["nodes"]) * int(r["gpus_per_node"])
        given = {
            "model": MODELS[r["benchmark"]], "device": device, "gpus": gpus, "batch": int(r["global_batch"]),
            "sequence": int(r["sequence"]), "micro_batch": int(r["micro_batch"]), "tensor_parallel": int(r["tp"]),
            "pipeline_parallel": int(r["pp"]), "virtual_stages": int(r["vp"] or 1), "context_parallel": int(r["cp"]),
            "precision": "nvfp4" if r["fp4"] == "True" else "fp8", "lora_rank": 16 if "lora" in r["benchmark"] else 0,
            "release": "mlperf-5.1", "gradients": "bf16",
        }  # fmt: skip
        name = f"{r['benchmark']} {r['org']} {r['system']}"
        gated = r["ambiguous"] == "False" and r["complete"] == "True" and not device.startswith("mi")
        family = "lora" if given["lora_rank"] else "dense"
        yield Row("mlperf", family, name, given, line, float(r["step_s"]), is_gated=gated)


def torchtitan_rows() -> Iterator[Row]:
    """Steps that torchtitan's repository publishes (github.com/pytorch/torchtitan, benchmarks and docs/performance.md):
    told, not judged. Its H100s run at 500 W, with 96 GB at 2.4 TB/s."""
    same: dict[str, Any] = {"framework": "torchtitan", "sharding": "parameters", "attention_kernel": "fa2"}
    for r, line in _records(DATA / "torchtitan.csv"):
        words = {name: r[name] for name in ("model", "device", "recompute", "precision", "release")}
        flags = {name: r[name] == "1" for name in ("compile", "tensor_overlap")}
        beside = (*words, *flags, "tokens_per_gpu_s", "memory_gib", "source")
        sizes = {name: int(value) for name, value in r.items() if name not in beside}
        given = same | words | flags | sizes
        seconds = sizes["batch"] * sizes["sequence"] / (float(r["tokens_per_gpu_s"]) * sizes["gpus"])
        peak = float(r["memory_gib"]) * GIB if r["memory_gib"] else None
        name = f"{r['model']} {r['gpus']} x {r['device']} {r['sequence']} {r['precision']}"
        yield Row("torchtitan", "dense", name, given, line, seconds, peak_bytes=peak, is_gated=False)


def _bridge(file: Path) -> Iterator[Row]:
    """Tables of Megatron-Bridge: sections by release, then by model or system."""
    release = method = model = system = ""
    header: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"## ([\d.]+) NeMo", line):
            release = found[1]
        elif found := re.match(r"### (Pre-Training|SFT|LoRA)", line):
            method = found[1]
        elif found := re.match(r"#### (Model|System): (.+)", line):
            model, system = (found[2].strip(), "") if found[1] == "Model" else ("", found[2].strip())
        elif line.startswith("|") and "GPUs" in line:
            header = [cell.strip() for cell in line.strip("|").split("|")]
        elif line.startswith("|") and not line.startswith("|-"):
            cells = dict(zip(header, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
            cells.setdefault("Model", model)
            cells.setdefault("System", system)
            yield from _bridge_rows(cells, release, method, line)


def _bridge_rows(cells: dict[str, str], release: str, method: str, line: str) -> Iterator[Row]:
    """One row, or two where a second recipe stands in parentheses."""
    plain, _, kind = cells["Model"].partition(" (")
    if plain not in MODELS:
        return
    device = _device(cells["System"])
    precision = cells.get("Precision", "FP8-CS" + (" (FP8-MX)" if device != "h100" else ""))
    has_second = "(" in cells["Tokens / sec / GPU"]
    for which in range(2 if has_second else 1):

        def number(column: str, which: int = which) -> int:
            first, _, second = re.sub(r"\[.*", "", cells.get(column, "0")).partition("(")
            text = second.rstrip(") ") if which and second else first.strip()
            return int(text) if text and text != "n/a" else 0

        word = precision.split("(")[which].strip(") ") if "(" in precision else precision
        gpus, batch, sequence = number("#-GPUs"), number("GBS"), number("Sequence Length")
        fsdp = number("FSDP")
        given = {
            "model": MODELS[plain], "device": device, "gpus": gpus, "batch": batch, "micro_batch": number("MBS"),
            "sequence": sequence, "tensor_parallel": number("TP"), "pipeline_parallel": number("PP"),
            "context_parallel": number("CP"), "virtual_stages": max(1, number("VP")),
            "expert_parallel": max(1, number("EP")), "precision": PRECISIONS[word], "release": release,
            "gradients": "bf16",
            "sharding": "parameters" if fsdp else "optimizer", "lora_rank": 16 if method == "LoRA" else 0,
        }  # fmt: skip
        if "tokendrop" in kind:
            given["expert_capacity"] = 1.0
        if fsdp:
            given["shard_gpus"] = fsdp
        moe = plain not in ("LLAMA3_8B", "LLAMA3_70B", "LLAMA3.1_405B")
        family = "lora" if method == "LoRA" else "moe" if moe else "dense"
        step_s = batch * sequence / (number("Tokens / sec / GPU") * gpus)
        name = f"{plain}{' (' + kind if kind else ''} {release} {gpus} {device} {PRECISIONS[word]}"
        yield Row("bridge", family, name, given, line, step_s)
