"""A comparison of routers as rows of text."""

from __future__ import annotations

from typing import Any

from gnomon.core import units
from gnomon.report.blocks import Block, Table
from gnomon.routing.compare import LEAST_OUTSTANDING, Paired, RouteComparison, Verdict

COLUMNS = {
    "E2E mean": "e2e_mean_s",
    "E2E P50": "e2e_p50_s",
    "E2E P99": "e2e_p99_s",
    "TTFT mean": "ttft_mean_s",
    "TTFT P50": "ttft_p50_s",
    "TTFT P99": "ttft_p99_s",
}


GOAL_NOTE = (
    "yes or NO: with the whole interval. open: the goal lies inside the interval; more seeds (--num-seeds) tell."
)


def ranked(comparison: RouteComparison, scenario: str) -> list[str]:
    """Names of the contenders, the fastest first."""
    names = [one.name for one in comparison.contenders]
    return sorted(names, key=lambda name: comparison.mean(scenario, name, "e2e_mean_s"))


def comparison_blocks(comparison: RouteComparison, verdicts: list[Verdict]) -> list[Block]:
    """A table per scenario, then the goals."""
    blocks: list[Block] = [
        Table(
            scenario_rows(comparison, scenario),
            f"{scenario}: {about(comparison, scenario)}",
            notes(comparison, scenario),
        )
        for scenario in comparison.scenarios
    ]
    return [*blocks, *([Table(goal_rows(verdicts), "Goals", GOAL_NOTE)] if verdicts else [])]


def scenario_rows(comparison: RouteComparison, scenario: str) -> list[dict[str, Any]]:
    """One row per contender: figures as means over the seeds, differences paired by seed."""
    roles = {one.name: one.role for one in comparison.contenders}
    best = comparison.best_heuristic(scenario)
    rows = []
    for name in ranked(comparison, scenario):
        mark = {"policy": " *", "teacher": " (teacher)", "bound": " (knows lengths)", "heuristic": ""}[roles[name]]
        row: dict[str, Any] = {"router": name + mark}
        row |= {title: units.seconds(comparison.mean(scenario, name, figure)) for title, figure in COLUMNS.items()}
        row["requests/s"] = f"{comparison.mean(scenario, name, 'requests_per_s'):.4g}"
        row["imbalance"] = f"{comparison.mean(scenario, name, 'imbalance'):.2f}"
        if roles.get(LEAST_OUTSTANDING) == "heuristic":
            row["vs least_outstanding"] = interval(comparison.against(scenario, name, LEAST_OUTSTANDING))
            row["P99 TTFT vs least_outstanding"] = interval(
                comparison.against(scenario, name, LEAST_OUTSTANDING, "ttft_p99_s")
            )
        row[f"vs {best}"] = interval(comparison.against(scenario, name, best))
        rows.append(row)
    return rows


MARKS = {
    "policy": "* a learned policy.",
    "teacher": "(teacher): the rule that policies learn from.",
    "bound": "(knows lengths): knows every output length, which no real router does; not the best possible.",
}


def notes(comparison: RouteComparison, scenario: str) -> str:
    """What the marks mean, and which routers gave the same digits."""
    roles = {one.role for one in comparison.contenders}
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in ranked(comparison, scenario):
        groups.setdefault(tuple(comparison.values(scenario, name, "e2e_mean_s")), []).append(name)
    alike = [" and ".join(names) for names in groups.values() if len(names) > 1]
    same = [f"{names} sent every request to the same replica here." for names in alike]
    return " ".join([*(words for role, words in MARKS.items() if role in roles), *same])


def about(comparison: RouteComparison, scenario: str) -> str:
    """The scenario in a line."""
    given = comparison.scenarios[scenario]
    replicas = sum(pool.num_replicas for pool in given.all_pools())
    seeds = len({row.seed for row in comparison.rows if row.scenario == scenario})
    finished = [row.finished for row in comparison.rows if row.scenario == scenario]
    return f"{given.model} on {replicas} replicas, {max(finished):,} requests x {seeds} seeds"


def interval(difference: Paired) -> str:
    """A relative difference, with half its 95 % interval."""
    return f"{difference.mean:+z.1%} ± {difference.high - difference.mean:.1%}"


def goal_rows(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """One row per goal."""
    return [
        {
            "policy": one.policy,
            "scenario": one.goal.scenario,
            "goal": one.goal.words,
            "against": one.baseline,
            "measured": f"{one.measured.mean:+z.1%}",
            "95 % interval": f"{one.measured.low:+z.1%} to {one.measured.high:+z.1%}",
            "met": one.word,
        }
        for one in verdicts
    ]
