"""What a policy must reach on the built-in scenarios, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.routing.compare import TEACHER, Paired, RouteComparison, built_in_scenarios

BEST = "the best heuristic"
LEAST_OUTSTANDING = "least_outstanding"
CLONE = "clone"
"""A policy of this name is held against its teacher, not against the heuristics."""


@dataclass(frozen=True)
class Goal:
    """At most `limit` more of a figure than a baseline has, as a share; below 0 it must have less."""

    scenario: str
    figure: str
    baseline: str
    limit: float

    @property
    def words(self) -> str:
        """The goal as a sentence."""
        names = {"e2e_mean_s": "mean E2E", "ttft_p99_s": "P99 TTFT"}
        size = f"at least {-self.limit:.0%} below" if self.limit < 0 else f"at most {self.limit:.0%} above"
        return f"{names[self.figure]} {size} {self.baseline}"


_OWN = (
    Goal("uniform", "e2e_mean_s", BEST, 0.02), Goal("chat", "e2e_mean_s", BEST, 0.02),
    Goal("mixed_bursty", "e2e_mean_s", LEAST_OUTSTANDING, -0.10), Goal("mixed_bursty", "e2e_mean_s", BEST, -0.05),
    Goal("mixed_bursty", "ttft_p99_s", LEAST_OUTSTANDING, 0.0), Goal("unequal", "e2e_mean_s", LEAST_OUTSTANDING, -0.15),
    Goal("sixteen", "e2e_mean_s", BEST, 0.03),
)  # fmt: skip
_HAVE_P99 = [goal.scenario for goal in _OWN if goal.figure == "ttft_p99_s"]
GOALS = (
    *_OWN,
    *(Goal(name, "ttft_p99_s", LEAST_OUTSTANDING, 0.05) for name in built_in_scenarios() if name not in _HAVE_P99),
)
"""P99 TTFT at most 5 % above least_outstanding on every scenario that has no limit of its own."""


@dataclass(frozen=True)
class Verdict:
    """A goal, what was measured, and against whom."""

    goal: Goal
    policy: str
    baseline: str
    measured: Paired

    @property
    def is_met(self) -> bool:
        """Whether the whole 95 % interval over the seeds reaches the goal."""
        return self.measured.high <= self.goal.limit

    @property
    def word(self) -> str:
        """`yes`; `NO` where the whole interval misses the goal; `open` where the limit lies inside it."""
        return "yes" if self.is_met else "NO" if self.measured.low > self.goal.limit else "open"


def judge(comparison: RouteComparison, policy: str) -> list[Verdict]:
    """The verdict on every goal whose scenario and baseline were compared."""
    known = {one.name for one in comparison.contenders if one.role in ("heuristic", "teacher")}
    if not known - {TEACHER}:
        return []
    goals = [Goal(name, "e2e_mean_s", TEACHER, 0.02) for name in comparison.scenarios] if policy == CLONE else GOALS
    found = []
    for goal in goals:
        if goal.scenario not in comparison.scenarios:
            continue
        baseline = comparison.best_heuristic(goal.scenario) if goal.baseline == BEST else goal.baseline
        if baseline in known:
            measured = comparison.against(goal.scenario, policy, baseline, goal.figure)
            found.append(Verdict(goal, policy, baseline, measured))
    return found
