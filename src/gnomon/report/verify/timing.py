"""Held-out errors of timing estimators, and the roofline's, as rows and text."""

from __future__ import annotations

from typing import Any

from gnomon.report.blocks import Block, Table
from gnomon.report.verify.told import Told
from gnomon.verify.timing import FORESTS, Score, Summary, summaries

_CAPTION = (
    "Published forests (mean, shuffled): MLP 1.4-3.4, prefill 2.2, decode 1.1, all-reduce 2.7-4.3; unshuffled 9-24."
)


def told(scores: list[Score], *, each_table: bool) -> Told:
    """One row per operator and estimator, or per measured table."""
    found = summaries(scores)
    operators, tables = [_row(one) for one in found], [_table_row(one) for one in scores]
    blocks: list[Block] = [Table(tables if each_table else operators, "Held-out error, %", _CAPTION)]
    return Told(
        operators, {"operators": operators, "tables": tables}, blocks, [one.operator for one in found if not one.passes]
    )


def told_of_roofline(rows: list[dict[str, Any]]) -> Told:
    """One row per device and kind of operator."""
    title = "The roofline alone against measured kernels, error in %"
    caption = "Points of every table count alike within a device and operator."
    return Told(rows, {"operators": rows}, [Table(rows, title, caption)], [])


def _row(summary: Summary) -> dict[str, Any]:
    return {
        "operator": summary.operator,
        "estimator": summary.estimator,
        "tables": summary.num_tables,
        "points": summary.num_points,
        **_errors(summary),
        "forest": FORESTS[summary.group],
        "passes": summary.passes,
    }


def _table_row(score: Score) -> dict[str, Any]:
    return {
        "operator": score.table.operator.name,
        "table": score.table.where,
        "estimator": score.estimator,
        "points": len(score.table.samples.seconds),
        **_errors(score),
    }


def _errors(one: Summary | Score) -> dict[str, float]:
    return {
        "shuffled mean": round(100 * one.shuffled.mean, 2),
        "median": round(100 * one.shuffled.median, 2),
        "unshuffled mean": round(100 * one.unshuffled.mean, 2),
        "unsh. median": round(100 * one.unshuffled.median, 2),
    }
