"""What would help and what limits a deployment, in words: each change was simulated."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.core import units
from gnomon.report.serving.explain_text import SHORT, Row
from gnomon.serving.results.counterfactual import Outcome
from gnomon.serving.results.latency_breakdown import Metric
from gnomon.serving.results.summary import Summary


def advice_rows(before: Summary, outcomes: Sequence[Outcome], metric: Metric, statistic: str) -> list[Row]:
    """Changes, the one that helps most first, with the gain and the cost; each was simulated."""
    rows = [(_gain(before, one, metric, statistic), one) for one in outcomes]
    shown = []
    for gain, one in sorted(rows, key=lambda pair: -pair[0]):
        row: Row = {"change": one.change.words}
        for name in ("ttft", "tpot", "e2e"):
            row[f"{SHORT[name]} {statistic.upper()}"] = _or_none(one.figure(name, statistic))
        row[f"gain in {SHORT[metric]}"] = f"{gain:+z.1%}"
        if before.slo is not None and one.summary.slo is not None:
            row["SLO met by"] = f"{one.summary.slo.attainment:.1%}"
        more = one.summary.cost.per_hour - before.cost.per_hour
        row["cost per hour"] = f"+${more:,.2f}" if more > 0.005 else (one.change.needs.split(":")[0] or "nothing")
        shown.append(row)
    return shown


def _or_none(value: float | None) -> str | None:
    return None if value is None else units.seconds(value)


def _gain(before: Summary, one: Outcome, metric: Metric, statistic: str) -> float:
    was = getattr(getattr(before.latency, f"{metric}_s"), statistic)
    now = one.figure(metric, statistic)
    return 1.0 - now / was if was and now is not None else 0.0


def advice_sentence(before: Summary, outcomes: Sequence[Outcome], metric: Metric, statistic: str) -> str:
    """The best advice in a sentence."""
    best = max(outcomes, key=lambda one: _gain(before, one, metric, statistic), default=None)
    was = getattr(getattr(before.latency, f"{metric}_s"), statistic)
    gain = _gain(before, best, metric, statistic) if best else 0.0
    if best is None or was is None or gain < 0.01:
        return "None of the changes that were simulated helps by more than 1 %."
    now = best.figure(metric, statistic)
    assert now is not None
    more = best.summary.cost.per_hour - before.cost.per_hour
    cost = f", for ${more:,.2f} more per hour" if more > 0.005 else ""
    name = f"{statistic.upper()} of {SHORT[metric]}"
    falls = f"falls from {units.seconds(was)} to {units.seconds(now)} ({gain:.0%} less)"
    return f"What helps most is {best.change.words}: the {name} {falls}{cost}."


def limit_rows(before: Summary, outcomes: Sequence[Outcome]) -> list[Row]:
    """How much faster things would be if each resource were free, the one that matters most first."""
    rows = []
    for one in sorted(outcomes, key=lambda one: -_gain(before, one, "e2e", "mean")):
        row: Row = {"if free": one.change.words}
        for name in ("ttft", "tpot", "e2e"):
            row[f"mean {SHORT[name]}"] = f"{-_gain(before, one, name, 'mean'):+z.1%}"
        row["E2E P99"] = f"{-_gain(before, one, 'e2e', 'p99'):+z.1%}"
        row["GPUs busy"] = f"{one.summary.utilization.busy:.1%}"
        rows.append(row)
    return rows


def limit_sentence(before: Summary, outcomes: Sequence[Outcome]) -> str:
    """What limits the deployment."""
    best = max(outcomes, key=lambda one: _gain(before, one, "e2e", "mean"), default=None)
    gain = _gain(before, best, "e2e", "mean") if best else 0.0
    if best is None or gain < 0.02:
        return "No single resource limits this deployment: none of them, made free, helps by more than 2 %."
    what = f"What limits this deployment is {best.change.words}"
    return f"{what}: if it cost nothing, the mean E2E would be {gain:.0%} lower."
