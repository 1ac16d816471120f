"""Published training steps beside their prediction: seconds, tokens per second, peak memory, and their order.

Constants were fitted on the rows whose line has an even CRC-32 (`gnomon/training/data/constants.yaml`); only the others
are judged.
"""

import csv
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.core.errors import DataError, GnomonError
from gnomon.core.text import own_yaml
from gnomon.core.units import GIB
from gnomon.report.blocks import Block, Line, Table
from gnomon.training import TrainConfig, TrainStep, train_step
from gnomon.training.constants import constants
from gnomon.verify.findings import Findings, Progress, each, proof, reference

DATA = Path(__file__).parent / "data"
MODELS, DEVICES, PRECISIONS = own_yaml(DATA / "training_names.yaml").values()


@dataclass(frozen=True)
class Row:
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
        return zlib.crc32(self.line.encode()) % 2 == 0

    @property
    def group(self) -> tuple[str, str, int]:
        """Rows whose order is compared: one model on one system."""
        return self.source, f"{self.config['model']} {self.config['device']}", int(self.config["gpus"])


def read_rows(folder: Path) -> list[Row]:
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


CONSTANTS = "gnomon/training/data/constants.yaml"
SLACK = 0.003  # By how much a figure may be worse than recorded: rounding of constants.
FAR_ENOUGH = 0.10  # Two steps of one model on one system are compared where they differ by more than this.


@dataclass(frozen=True)
class Scored:
    row: Row
    step: TrainStep | None
    problem: str = ""
    """Why there is none."""

    @property
    def step_error(self) -> float | None:
        return _relative(self.step.step_s if self.step else None, self.row.step_s)

    @property
    def memory_error(self) -> float | None:
        return _relative(self.step.memory.peak_bytes if self.step else None, self.row.peak_bytes)

    def phase_error(self, phase: str) -> float | None:
        return _relative(self.step.phases[phase] * 1e3 if self.step else None, self.row.phases_ms.get(phase))


def _relative(ours: float | None, published: float | None) -> float | None:
    return None if ours is None or published is None else ours / published - 1.0


def score(row: Row) -> Scored:
    """Predict one row; one that Gnomon has no model or GPU for is said."""
    try:
        return Scored(row, train_step(build(TrainConfig, row.config), check=False))
    except GnomonError as error:
        return Scored(row, None, error.what)


@dataclass(frozen=True)
class Figure:
    """One figure that is judged (or only told): the median of absolute errors, or a share."""

    name: str
    count: int
    value: float
    bar: float | None
    is_share: bool = False
    """A share that must be reached, rather than an error that must not be passed."""

    @property
    def recorded(self) -> float | None:
        """What was found when these rows were last looked at; none for other rows."""
        known = recorded().get(self.name, {})
        return float(known["value"]) if known.get("rows") == self.count else None

    @property
    def passed(self) -> bool:
        """Whether it is within its bar, and not worse than it was."""
        if self.bar is None or not self.count:
            return True
        limit = self.bar
        if self.recorded is not None:
            limit = max(limit, self.recorded - SLACK) if self.is_share else min(limit, self.recorded + SLACK)
        return self.value >= limit if self.is_share else self.value <= limit


@cache
def recorded() -> dict[str, dict[str, float]]:
    """Figures by name, with the number of rows behind them."""
    return own_yaml(DATA / "training.yaml")


def figures(scored: Sequence[Scored]) -> list[Figure]:
    """What is judged: over rows that nothing was fitted on."""
    held = [one for one in scored if not one.row.is_fitted and one.row.is_gated]

    def of(family: str) -> list[float | None]:
        return [one.step_error for one in held if one.row.family == family]

    single = [one for one in held if one.row.family == "single"]
    found = [
        _median("step time, dense", of("dense"), 0.08),
        _median("step time, mixture of experts", of("moe"), 0.15),
        _median("step time, LoRA", of("lora"), 0.15),
        _median("peak memory", [one.memory_error for one in held if one.row.family != "single"], 0.07),
        *(
            _median(f"one H200: {phase}", [one.phase_error(phase) for one in single], 0.08)
            for phase in ("forward", "backward", "optimizer")
        ),
        _median("one H200: peak memory", [one.memory_error for one in single], 0.05),
    ]
    right, pairs = _order(scored)
    found.append(Figure("order of two configurations", pairs, right / max(1, pairs), 0.9, is_share=True))
    ungated = [one for one in scored if not one.row.is_gated]
    titan = [one for one in ungated if one.row.source == "torchtitan"]
    return [
        *found,
        _median("torchtitan, told: step time", [one.step_error for one in titan], None),
        _median("torchtitan, told: memory", [one.memory_error for one in titan], None),
        _median("AMD and other rows, told", [one.step_error for one in ungated if one not in titan], None),
    ]


def _median(name: str, errors: Iterable[float | None], bar: float | None) -> Figure:
    known = [abs(one) for one in errors if one is not None]
    return Figure(name, len(known), float(np.median(known)) if known else 0.0, bar)


def _order(scored: Sequence[Scored]) -> tuple[int, int]:
    """Pairs of configurations of one model on as many GPUs of one kind: how many are predicted in their order (by
    tokens per second), and how many there are. The same configuration under two releases is no such pair."""
    groups: dict[tuple[str, str, int], list[Scored]] = {}
    for one in scored:
        if one.step is not None and one.row.step_s is not None and one.row.is_gated and not one.row.is_fitted:
            groups.setdefault(one.row.group, []).append(one)
    right = pairs = 0
    for group in groups.values():
        for a, b in combinations(group, 2):
            if _layout(a) == _layout(b):
                continue
            measured, predicted = _speed(a, measured=True) / _speed(b, measured=True), _speed(a) / _speed(b)
            if max(measured, 1 / measured) > 1 + FAR_ENOUGH:
                pairs += 1
                right += (measured > 1) == (predicted > 1)
    return right, pairs


def _layout(one: Scored) -> dict[str, Any]:
    return {name: value for name, value in one.row.config.items() if name != "release"}


def _speed(one: Scored, measured: bool = False) -> float:
    assert one.step is not None and one.row.step_s is not None
    seconds = one.row.step_s if measured else one.step.step_s
    return one.step.config.tokens_per_step / seconds


def by_group(scored: Sequence[Scored]) -> dict[tuple[str, str, str, str], list[Scored]]:
    """Rows by source, model, GPU and precision."""
    groups: dict[tuple[str, str, str, str], list[Scored]] = {}
    for one in scored:
        c = one.row.config
        key = (one.row.source, str(c["model"]), str(c["device"]), str(c.get("precision", "bf16")))
        groups.setdefault(key, []).append(one)
    return groups


@proof("training")
def prove(*, data: str | Path | None = None, on_progress: Progress | None = None) -> Findings:
    """Published training steps in the folder `training` of `data` (or in `data` itself) beside their prediction."""
    folder = reference(data)
    rows = read_rows(folder / "training" if (folder / "training").is_dir() else folder)
    return findings([score(row) for row in each([*rows, *torchtitan_rows()], on_progress)])


def findings(scored: Sequence[Scored]) -> Findings:
    found = figures(scored)
    rows = [_row(one) for one in scored if one.step is not None]
    missing = [one for one in scored if one.step is None]
    groups = [_group(key, ones) for key, ones in sorted(by_group(scored).items()) if any(one.step for one in ones)]
    table = [_figure(one) for one in found]
    blocks: list[Block] = [
        Table(groups, "Rows by model, GPU and precision", "Median absolute errors; held out: rows not fitted on."),
        Table(table, "Judged: rows that nothing was fitted on"),
        Table(_fitted(), "Fitted constants", f"On rows whose line has an even CRC-32; {CONSTANTS}."),
    ]
    if missing:
        reasons = sorted({one.problem for one in missing})
        blocks.append(Line(f"{len(missing)} rows are not predicted: {'; '.join(reasons)}", "note"))
    data = {
        "figures": table, "groups": groups, "rows": rows, "constants": constants(),
        "not_predicted": [{"row": one.row.name, "reason": one.problem} for one in missing],
    }  # fmt: skip
    return Findings(scored, rows, data, blocks, [one.name for one in found if not one.passed])


def _figure(one: Figure) -> dict[str, Any]:
    bar = "–" if one.bar is None else f"{'at least' if one.is_share else 'at most'} {100 * one.bar:.0f} %"
    recorded = "–" if one.recorded is None else f"{100 * one.recorded:.1f} %"
    return {
        "figure": one.name, "rows": one.count, "found": f"{100 * one.value:.1f} %", "bar": bar, "recorded": recorded,
        "passed": one.passed if one.bar is not None else None,
    }  # fmt: skip


def _row(one: Scored) -> dict[str, Any]:
    row, step = one.row, one.step
    assert step is not None
    return {
        "source": row.source, "row": row.name, "family": row.family, "fitted": row.is_fitted,
        "judged": row.is_gated and not row.is_fitted, "step_s": row.step_s, "predicted_s": step.step_s,
        "tokens_per_gpu_s": step.config.tokens_per_step / row.step_s / step.config.gpus if row.step_s else None,
        "predicted_tokens_per_gpu_s": step.tokens_per_gpu_s, "step_error": one.step_error,
        "peak_gib": row.peak_bytes / GIB if row.peak_bytes else None, "predicted_gib": step.memory.peak_bytes / GIB,
        "memory_error": one.memory_error,
    } | {f"{phase}_error": one.phase_error(phase) for phase in ("forward", "backward", "optimizer")}  # fmt: skip


def _group(key: tuple[str, str, str, str], ones: Sequence[Scored]) -> dict[str, Any]:
    held = [one for one in ones if not one.row.is_fitted]
    return dict(zip(("source", "model", "GPU", "precision"), key, strict=True)) | {
        "rows": len(ones),
        "step time": _percent([one.step_error for one in ones]),
        "held out": _percent([one.step_error for one in held]),
        "memory": _percent([one.memory_error for one in ones]),
    }


def _percent(errors: Sequence[float | None]) -> str:
    found = _median("", errors, None)
    return f"{100 * found.value:.1f} %" if found.count else "–"


def _fitted() -> list[dict[str, Any]]:
    return [
        {"device": device, "attention": rates.attention, "fitted on": rates.fitted_on}
        | {str(name): rate for name, rate in rates.products.items()}
        for device, rates in constants().devices.items()
    ]
