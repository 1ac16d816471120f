"""`gnomon verify training` in words, tables and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gnomon.core.units import GIB
from gnomon.report.blocks import Block, Line, Table
from gnomon.report.verify.told import Told
from gnomon.training.constants import constants
from gnomon.verify.training import Figure, Scored, by_group, figures


def told(scored: Sequence[Scored]) -> Told:
    """What was found."""
    found = figures(scored)
    rows = [_row(one) for one in scored if one.step is not None]
    missing = [one for one in scored if one.step is None]
    groups = [_group(key, ones) for key, ones in sorted(by_group(scored).items()) if any(one.step for one in ones)]
    table = [_figure(one) for one in found]
    blocks: list[Block] = [
        Table(groups, "Rows by model, GPU and precision", "Median absolute errors; held out: rows not fitted on."),
        Table(table, "Judged: rows that nothing was fitted on"),
        Table(
            _fitted(), "Fitted constants", "On rows whose line has an even CRC-32; gnomon/training/data/constants.yaml."
        ),
    ]
    if missing:
        reasons = sorted({one.problem for one in missing})
        blocks.append(Line(f"{len(missing)} rows are not predicted: {'; '.join(reasons)}", "note"))
    data = {
        "figures": table,
        "groups": groups,
        "rows": rows,
        "constants": constants().model_dump(),
        "not_predicted": [{"row": one.row.name, "reason": one.problem} for one in missing],
    }
    return Told(rows, data, blocks, [one.name for one in found if not one.passed])


def _figure(one: Figure) -> dict[str, Any]:
    bar = "–" if one.bar is None else f"{'at least' if one.is_share else 'at most'} {100 * one.bar:.0f} %"
    return {
        "figure": one.name,
        "rows": one.count,
        "found": f"{100 * one.value:.1f} %",
        "bar": bar,
        "passed": one.passed if one.bar is not None else None,
    }


def _row(one: Scored) -> dict[str, Any]:
    row, step = one.row, one.step
    assert step is not None
    return {
        "source": row.source,
        "row": row.name,
        "family": row.family,
        "fitted": row.is_fitted,
        "judged": row.is_gated and not row.is_fitted,
        "step_s": row.step_s,
        "predicted_s": step.step_s,
        "tokens_per_gpu_s": step.config.tokens_per_step / row.step_s / step.config.gpus if row.step_s else None,
        "predicted_tokens_per_gpu_s": step.tokens_per_gpu_s,
        "step_error": one.step_error,
        "peak_gib": row.peak_bytes / GIB if row.peak_bytes else None,
        "predicted_gib": step.memory.peak_bytes / GIB,
        "memory_error": one.memory_error,
    } | {f"{phase}_error": one.phase_error(phase) for phase in ("forward", "backward", "optimizer")}


def _group(key: tuple[str, str, str, str], ones: Sequence[Scored]) -> dict[str, Any]:
    source, model, device, precision = key
    held = [one for one in ones if not one.row.is_fitted]
    return {
        "source": source,
        "model": model,
        "GPU": device,
        "precision": precision,
        "rows": len(ones),
        "step time": _percent([one.step_error for one in ones]),
        "held out": _percent([one.step_error for one in held]),
        "memory": _percent([one.memory_error for one in ones]),
    }


def _percent(errors: Sequence[float | None]) -> str:
    known = [abs(one) for one in errors if one is not None]
    return f"{100 * float(np.median(known)):.1f} %" if known else "–"


def _fitted() -> list[dict[str, Any]]:
    return [
        {"device": device, "attention": rates.attention, "fitted on": rates.fitted_on}
        | {str(name): rate for name, rate in rates.products.items()}
        for device, rates in constants().devices.items()
    ]
