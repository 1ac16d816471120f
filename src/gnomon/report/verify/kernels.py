"""Held-out errors of the silicon source's tables, and the roofline's, as rows and text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gnomon.report.blocks import Block, Table
from gnomon.report.verify.told import Told
from gnomon.verify.kernels import LIMIT, ROOFLINE_LIMIT, TableScore

_CAPTION = (
    "Every fifth point left out; the roofline on all points, where a table holds single kernels. Left out: points whose"
    " time falls when work grows."
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
    held = np.concatenate([one.held_out for one in scores])
    formula = np.concatenate([one.roofline for one in scores])
    return {
        "device": device,
        "engine": engine,
        "table": name,
        "points": len(held),
        "held out": round(100 * float(np.median(held)), 1),
        "90th": round(100 * float(np.quantile(held, 0.9)), 1),
        "roofline": round(100 * float(np.median(formula)), 1) if formula.size else None,
        "left out": sum(one.left_out for one in scores),
    }
