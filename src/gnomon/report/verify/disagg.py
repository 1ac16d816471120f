"""Measured and simulated layouts, prefill and decode together or apart, in a table."""

from __future__ import annotations

from typing import Any

from gnomon.report.blocks import Table, lines
from gnomon.report.verify.told import Told
from gnomon.verify.disagg import GOALS, ORDERED_AT, Predicted, medians, order


def told(found: list[Predicted], added_s: dict[int, float]) -> Told:
    """A row for every layout, medians of both kinds, and the order of the 16-GPU layouts."""
    apart = [one for one in found if one.measured.prefill]
    together = [one for one in found if not one.measured.prefill]
    scores = {"aggregated": medians(together), "disaggregated": medians(apart)}
    orders = {at: order(found, at) for at in ORDERED_AT}
    failures = [
        f"{name} of the disaggregated layouts: median error {error:.1%}, goal {GOALS[name]:.0%}"
        for name, error in scores["disaggregated"].items()
        if error > GOALS[name]
    ]
    failures += [
        f"order at {at} requests: measured {', '.join(measured)}; simulated {', '.join(simulated)}"
        for at, (measured, simulated) in orders.items()
        if measured != simulated
    ]
    fitted = ", ".join(f"TP {degree} {added * 1e3:.1f} ms" for degree, added in sorted(added_s.items()))
    rows = [_row(one) for one in found]
    summary = [
        {"layouts": name, "runs": len(some)} | {k: f"{v:.1%}" for k, v in scores[name].items()}
        for name, some in (("aggregated", together), ("disaggregated", apart))
        if some
    ]
    return Told(
        rows=rows,
        data={"rows": rows, "medians": scores, "added_s": added_s, "orders": {str(k): v for k, v in orders.items()}},
        blocks=[
            Table(_shown(found), "Errors of the simulation in %", "By requests at a time."),
            Table(summary, "Median error, without sign"),
            *lines([f"Fitted on aggregated pods, one request at a time: an iteration takes longer by {fitted}."]),
            *lines(failures, "warning"),
        ],
        failures=failures,
    )


def _row(one: Predicted) -> dict[str, Any]:
    m = one.measured
    return {
        "layout": m.layout, "concurrency": m.concurrency, "gpus": m.num_gpus,
        "measured_tpot_s": m.tpot_s, "tpot_s": one.tpot_s, "measured_ttft_s": m.ttft_s, "ttft_s": one.ttft_s,
        "measured_output_tokens_s": m.output_tokens_s, "output_tokens_s": one.output_tokens_s,
    } | {f"{name}_error": error for name, error in one.errors.items()}  # fmt: skip


def _shown(found: list[Predicted]) -> list[dict[str, Any]]:
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for one in found:
        for name, error in one.errors.items():
            row = table.setdefault((one.measured.layout, name), {"layout": one.measured.layout, "figure": name})
            row[str(one.measured.concurrency)] = f"{100 * error:+z.0f}"
    return list(table.values())
