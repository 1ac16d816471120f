"""Held-out errors of the silicon source's tables, and the roofline's, as rows and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.report.blocks import Block, Table
from gnomon.report.verify.told import Told
from gnomon.verify.kernels import LIMIT, ROOFLINE_LIMIT, TableScore

_CAPTION = (
    "Every fifth point left out; the roofline on all points, where a table holds single kernels. Left out: points whose"
    " time falls when work grows. Over several tables every measured point counts the same."
)


def told(scores: Sequence[TableScore]) -> Told:
    """One row per table, and one per device over all of its tables."""
    tables = [_row(one.device, one.engine, one.name, [one]) for one in scores]
    devices = [
        _row(name, "all", "all", [one for one in scores if one.device == name])
        for name in dict.fromkeys(one.device for one in scores)
    ]
    failures = [f"{row['device']} held out" for row in devices if row["held out"] > 100 * LIMIT]
    failures += [f"{row['device']} roofline" for row in devices if (row["roofline"] or 0.0) > 100 * ROOFLINE_LIMIT]
    worst = sorted(tables, key=lambda row: -row["held out"])[:5]
    blocks: list[Block] = [
        Table(tables, "Median error of every table, %", _CAPTION),
        Table(devices, "Median error by device, %", ""),
        Table(worst, "Worst tables", ""),
    ]
    return Told(tables, {"tables": tables, "devices": devices}, blocks, failures)


def _row(device: str, engine: str, name: str, scores: list[TableScore]) -> dict[str, Any]:
    held, formula = ([getattr(one, kind) for one in scores] for kind in ("held_out", "roofline"))
    return {
        "device": device,
        "engine": engine,
        "table": name,
        "points": sum(len(one) for one in held),
        "held out": _percent(held, scores, 0.5),
        "90th": _percent(held, scores, 0.9),
        "roofline": _percent(formula, scores, 0.5),
        "left out": sum(one.left_out for one in scores),
    }


def _percent(errors: list[Floats], scores: list[TableScore], share: float) -> float | None:
    """A quantile in which every measured point counts the same, however many of its table were looked at."""
    together = np.concatenate(errors)
    if together.size == 0:
        return None
    weights = np.repeat([one.weight for one in scores], [len(one) for one in errors])
    return round(100 * float(np.quantile(together, share, weights=weights, method="inverted_cdf")), 1)
