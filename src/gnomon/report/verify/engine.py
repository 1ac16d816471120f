"""Recorded engines and their simulation, as tables."""

from __future__ import annotations

from typing import Any

from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table
from gnomon.report.verify.told import Told
from gnomon.verify.engine import Comparison

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def told(found: list[Comparison], tolerances: dict[str, float]) -> Told:
    """A table per load; means are judged."""
    blocks: list[Block] = []
    for one in found:
        blocks += [Line(f"{one.name}: {one.num_requests:,} requests"), Table(_rows(one, tolerances))]
    rows = [{"run": one.name, **row} for one in found for row in _data(one)]
    failures = [
        f"{one.name} {NAMES[metric]} mean ({one.figures.error(metric):+z.1%})"
        for one in found
        for metric in one.beyond(tolerances)
    ]
    return Told(rows=rows, data={"runs": rows}, blocks=blocks, failures=failures)


def _rows(one: Comparison, tolerances: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for metric, statistics in one.figures.values.items():
        for name, (recorded, simulated) in statistics.items():
            error = one.figures.error(metric, name)
            judged = "yes" if abs(error) <= tolerances[metric] else f"no ({tolerances[metric]:.0%})"
            rows.append({
                "metric": NAMES[metric], "of": name, "recorded": units.seconds(recorded),
                "simulated": units.seconds(simulated), "error": f"{error:+z.1%}",
                "within": judged if name == "mean" else None,
            })  # fmt: skip
    return rows


def _data(one: Comparison) -> list[dict[str, Any]]:
    return [
        {"metric": metric, "of": name, "recorded_s": recorded, "simulated_s": simulated,
         "error": one.figures.error(metric, name)}
        for metric, statistics in one.figures.values.items()
        for name, (recorded, simulated) in statistics.items()
    ]  # fmt: skip
