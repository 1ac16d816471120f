"""Stages of load and their simulation, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gnomon.report.blocks import Line, Table
from gnomon.report.verify.told import Told
from gnomon.verify.stages import GOALS, Predicted


def told(found: Sequence[Predicted]) -> Told:
    """One row per stage; medians over all are judged."""
    rows = [_row(one) for one in found]
    medians = {metric: statistics.median(abs(one.errors[metric]) for one in found) for metric in GOALS}
    shown = [{key: f"{v:+.1%}" if "error" in key else f"{1e3 * v:.1f} ms" if key.endswith("_s") else v
              for key, v in row.items()} for row in rows]  # fmt: skip
    words = ", ".join(f"{metric.upper()} {value:.1%} (goal {GOALS[metric]:.0%})" for metric, value in medians.items())
    failures = [f"{metric} {value:.1%}" for metric, value in medians.items() if value > GOALS[metric]]
    return Told(rows, {"medians": medians, "stages": rows}, [Table(shown), Line(f"Medians: {words}.")], failures)


def _row(one: Predicted) -> dict[str, Any]:
    s = one.stage
    return {
        "stage": f"{s.run} {s.number}", "rate": s.rate, "ttft_s": s.ttft_s, "simulated_ttft_s": one.ttft_s,
        "ttft_error": one.errors["ttft"], "tpot_s": s.tpot_s, "simulated_tpot_s": one.tpot_s,
        "tpot_error": one.errors["tpot"],
    }  # fmt: skip
