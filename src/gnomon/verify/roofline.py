"""The roofline alone against every measured table: Vidur's, LLMServingSim's, and those of aiconfigurator-core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.arrays import Floats
from gnomon.core.errors import MissingExtraError
from gnomon.report.blocks import Table as Rows
from gnomon.timing.operators import (
    Decode,
    Gemm,
    Kind,
    Operator,
    Prefill,
    Work,
    mixed_attention,
    stage_operators,
)
from gnomon.timing.sources import silicon
from gnomon.timing.sources.profile import servingsim
from gnomon.timing.sources.roofline import Roofline
from gnomon.verify.findings import Findings, Progress, each, proof, reference
from gnomon.verify.timing import Table, vidur_tables

SILICON_DEVICES = ("a100-80gb", "h100", "h200", "b200", "l40s")
MIN_WIDTH = 512
"""Matrix products with fewer rows or columns of weights than this are no layers of any model."""


def roofline_errors(data: Path) -> list[dict[str, Any]]:
    """One row per device, data set and kind of operator; then one per device over all of its tables."""
    errors: dict[tuple[str, str, str], list[Floats]] = {}
    for table, origin in [*_vidur(data), *_servingsim(data), *_silicon()]:
        key = (table.roofline.device.name, origin, _kind(table.operator))
        errors.setdefault(key, []).append(_errors(table))
    rows = [_row(*key, found) for key, found in sorted(errors.items())]
    for name in sorted({key[0] for key in errors}):
        found = [one for key, tables in errors.items() if key[0] == name for one in tables]
        rows.append(_row(name, "all", "all", found))
    return rows


def _row(device_name: str, origin: str, kind: str, found: list[Floats]) -> dict[str, Any]:
    pooled = np.concatenate(found)
    return {
        "device": device_name, "measured by": origin, "operators": kind, "tables": len(found), "points": len(pooled),
        "median": round(100 * float(np.median(np.abs(pooled))), 1),
        "mean": round(100 * float(np.mean(np.abs(pooled))), 1),
        "bias (median)": round(100 * float(np.median(pooled)), 1),
    }  # fmt: skip


def _kind(operator: Operator) -> str:
    if operator.kind in ("token", "sequence"):
        return "gemm" if isinstance(operator.work, Gemm) else "elementwise"
    return operator.kind


def _errors(table: Table) -> Floats:
    operator = replace(table.operator, is_fused=False)
    predicted = table.roofline.seconds(operator, *table.samples.sizes.T)
    return predicted / table.samples.seconds - 1.0


def _vidur(data: Path) -> Iterator[tuple[Table, str]]:
    for table in vidur_tables(data):
        yield table, "Vidur"


def _servingsim(data: Path) -> Iterator[tuple[Table, str]]:
    for path in sorted(data.glob("**/tp*/dense.csv")):
        *_, device_name, owner, name, _variant, degree, _ = path.parts
        gpu, shape = device(device_name), model(f"{owner}/{name}")
        roofline = Roofline(gpu, default_node(gpu))
        bundle = servingsim.read(path.parents[4], shape, gpu, "bf16", int(degree.removeprefix("tp")))
        graph = stage_operators(shape, Parallelism(tensor_parallel=int(degree.removeprefix("tp"))))
        for operator in (*graph, mixed_attention(graph)):
            samples = bundle.find(operator, roofline.node) if operator else None
            if operator and samples is not None and operator.name != "experts":
                yield Table(operator, operator.kind, str(path.parent), samples, roofline), "LLMServingSim"


def _silicon() -> Iterator[tuple[Table, str]]:
    try:
        silicon.data_folder()
    except MissingExtraError:
        return
    for name in SILICON_DEVICES:
        gpu = device(name)
        roofline = Roofline(gpu, default_node(gpu))
        bundle = silicon.read_bundle(gpu)
        for key, samples in bundle.samples.items():
            work = _work(*key)
            if work is not None:
                operator = Operator(str(key[0]), _KINDS[str(key[0])], 1, work)
                yield Table(operator, operator.kind, bundle.where, samples, roofline), "silicon (vLLM)"


_KINDS: dict[str, Kind] = {
    "gemm": "token",
    "attention_prefill": "attention_prefill",
    "attention_decode": "attention_decode",
}


def _work(kind: str | int, *shape: str | int) -> Work | None:
    numbers = [int(value) for value in shape]
    if kind == "gemm" and min(numbers) >= MIN_WIDTH:
        n, k = numbers
        return Gemm(n, k)
    if kind in ("attention_prefill", "attention_decode") and numbers[2] == 128:
        heads, kv_heads, dim = numbers
        made = Prefill if kind == "attention_prefill" else Decode
        return made(heads, kv_heads, dim, dim, 2.0 * kv_heads * dim * 2.0)
    return None


@proof("roofline")
def prove(*, data: str | Path | None = None, on_progress: Progress | None = None) -> Findings:
    """The roofline alone against every measured table below `data`; it has no gate."""
    return told([row for folder in each([reference(data)], on_progress) for row in roofline_errors(folder)])


def told(rows: list[dict[str, Any]]) -> Findings:
    """One row per device and kind of operator."""
    title = "The roofline alone against measured kernels, error in %"
    caption = "Points of every table count alike within a device and operator."
    return Findings(rows, rows, {"operators": rows}, [Rows(rows, title, caption)], [])
