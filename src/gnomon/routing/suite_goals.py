"""What a router must reach on the suite's fleets, and where it does not."""

from dataclasses import dataclass

from gnomon.routing.compare import BEST, LEAST_OUTSTANDING, TEACHER, Paired, RouteComparison, interval
from gnomon.routing.suite import cells


@dataclass(frozen=True)
class SuiteGoal:
    """At most `usual` worse than a baseline in 95 % of the cells, and nowhere more than `most`."""

    figure: str
    words: str
    baseline: str
    usual: float
    most: float
    more_is_better: bool = False


SHARE = 0.95
GOALS = (
    SuiteGoal("e2e_mean_s", "mean E2E", BEST, 0.02, 0.05),
    SuiteGoal("goodput_per_s", "SLO goodput", BEST, 0.02, 0.05, more_is_better=True),
    SuiteGoal("ttft_p99_s", "P99 TTFT", LEAST_OUTSTANDING, 0.05, 0.15),
    SuiteGoal("e2e_mean_s", "mean E2E", TEACHER, 0.01, 0.02),
)


@dataclass(frozen=True)
class Cell:
    """One router on one fleet at one load against the baseline of a goal there."""

    scenario: str
    baseline: str
    worse: Paired
    """By how much, as a share: above 0 is a loss."""


@dataclass(frozen=True)
class SuiteVerdict:
    """A goal over all cells."""

    goal: SuiteGoal
    router: str
    cells: tuple[Cell, ...]

    @property
    def losses(self) -> list[Cell]:
        """Where it is further behind than is usual, the worst first."""
        return sorted((one for one in self.cells if one.worse.mean > self.goal.usual), key=lambda one: -one.worse.mean)

    @property
    def is_met(self) -> bool:
        """Whether it holds in enough cells, and no mean is further off than allowed."""
        worst = max(one.worse.mean for one in self.cells)
        return len(self.losses) <= (1.0 - SHARE) * len(self.cells) and worst <= self.goal.most

    @property
    def sentence(self) -> str:
        goal, number = self.goal, len(self.cells)
        worst = max(self.cells, key=lambda one: one.worse.mean)
        side = "below" if goal.more_is_better else "above"
        return (
            f"{self.router}: {goal.words} at most {goal.usual:.0%} {side} {goal.baseline} of each cell in"
            f" {number - len(self.losses)} of {number} cells ({SHARE:.0%} wanted), nowhere more than {goal.most:.0%}:"
            f" worst {interval(worst.worse)} ({worst.scenario}, {worst.baseline})."
            f" {'Met' if self.is_met else 'NOT met'}."
        )


def judge(comparison: RouteComparison) -> list[SuiteVerdict]:
    """Every goal for the policies and for their teacher, on the cells that were compared; none without baselines. What
    was learned is held against the teacher, too."""
    subjects = [one.name for one in comparison.contenders if one.role in ("policy", "teacher")]
    scenarios = [name for name in comparison.scenarios if name in cells()]
    rivals = {one.name for one in comparison.contenders if one.role == "heuristic"}
    if not scenarios or LEAST_OUTSTANDING not in rivals:
        return []
    return [
        SuiteVerdict(goal, router, tuple(_cell(comparison, goal, router, one) for one in scenarios))
        for router in subjects
        for goal in GOALS
        if goal.baseline != TEACHER or (router in comparison.policies and TEACHER in subjects)
    ]


def _cell(comparison: RouteComparison, goal: SuiteGoal, router: str, scenario: str) -> Cell:
    best = comparison.best_heuristic(scenario, goal.figure, goal.more_is_better)
    baseline = best if goal.baseline == BEST else goal.baseline
    found = comparison.against(scenario, router, baseline, goal.figure)
    return Cell(scenario, baseline, Paired(-found.mean, -found.high, -found.low) if goal.more_is_better else found)
