"""Routers on the same held-out traces; and the stages that train one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gnomon.api.result import Progress, Result, read
from gnomon.core.config import save
from gnomon.report.blocks import Block, Line
from gnomon.routing import demos, stages
from gnomon.routing import tune as tuning
from gnomon.routing.compare import Contender, RouteComparison, Verdict, compare, contenders, judge
from gnomon.routing.config import CompareConfig, RouteConfig, load_config
from gnomon.routing.stages import Folder, Watcher, clone_teacher, collect_demos, train, use_torch
from gnomon.routing.suite_goals import SuiteVerdict
from gnomon.routing.suite_goals import judge as judge_suite
from gnomon.routing.tune import RULE, TuneConfig, Tuned, as_scenario
from gnomon.serving.scenario.config import RouterConfig

__all__ = [
    "CompareConfig", "Folder", "RouteConfig", "Routers", "TuneConfig", "TunedRouter", "Watcher", "clone_teacher",
    "collect_demos", "dump_state", "load_config", "newest_checkpoint", "route", "train", "train_online", "tune",
]  # fmt: skip


def route(
    given: CompareConfig | Mapping[str, Any] | str | Path | None = None, *,
    policies: Mapping[str, str | Path | None] | Sequence[str | Path] | None = None, lengths: str = "none",
    jobs: int | None = None, ray: str | None = None, on_progress: Progress | None = None, **overrides: Any,
) -> Routers:  # fmt: skip
    """Run routers on the same held-out traces: latencies, throughput, paired differences.

    `policies` are policy files, by name or not; the one that comes with Gnomon unless given. `lengths` is what routers
    know of output lengths: none, noisy or oracle.

    gnomon.route(scenarios=["mixed_bursty"], num_seeds=3).text()
    """
    config = read(CompareConfig, given, overrides)
    if policies is None:
        policies = {"learned": None}
    elif not isinstance(policies, Mapping):
        policies = {Path(path).stem: path for path in policies}
    named = {name: None if path is None else Path(path) for name, path in policies.items()}
    against = contenders(config, named, lengths)  # type: ignore[arg-type]  # Checked by the router's configuration.
    return Routers(compare(config, against, jobs=jobs, ray=ray, on_progress=on_progress))


@dataclass(frozen=True, eq=False)
class Routers(Result):
    """Every router on every scenario and seed."""

    view = "routing.files"
    comparison: RouteComparison = field(repr=False)

    def __repr__(self) -> str:
        return f"Routers({len(self.comparison.contenders)} on {', '.join(self.comparison.scenarios)})"

    @cached_property
    def goals(self) -> list[Verdict]:
        """Which goals each trained policy meets."""
        return [verdict for policy in self.comparison.policies for verdict in judge(self.comparison, policy)]

    @cached_property
    def suite_goals(self) -> list[SuiteVerdict]:
        """Which goals over the suite's fleets each policy and the teacher meet, where those were compared."""
        return judge_suite(self.comparison)

    @property
    def goals_met(self) -> bool:
        """Whether every goal that could be judged is met with its whole interval, and those over the suite."""
        return all(one.is_met for one in self.goals) and all(one.is_met for one in self.suite_goals)

    @cached_property
    def summary(self) -> dict[str, dict[str, float]]:
        """Mean end-to-end seconds of every router, by scenario."""
        names = [one.name for one in self.comparison.contenders]
        return {
            scenario: {name: self.comparison.mean(scenario, name, "e2e_mean_s") for name in names}
            for scenario in self.comparison.scenarios
        }

    def save(self, folder: str | Path) -> Path:
        """Write report.html, and all rows as CSV, Parquet and JSON."""
        from gnomon.report.routing.files import write_comparison

        return write_comparison(self, folder)


@dataclass(frozen=True, eq=False)
class TunedRouter(Routers):
    """The rule `unselfish` with weights fitted to some scenarios, and how it does on traces it was not tuned on."""

    tuned: Tuned = field(repr=False)
    config: TuneConfig = field(repr=False)
    names: tuple[str, ...]
    """The scenarios as they were given."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The weights, what they cost on the traces of the search, and mean E2E seconds by scenario and router."""
        return {"options": self.tuned.options, "cost": self.tuned.cost, "e2e_mean_s": super().summary}

    def to_dict(self) -> dict[str, Any]:
        """The weights, the course of the search, and every row of the comparison."""
        return {"tuned": asdict(self.tuned), **super().to_dict()}

    def text(self) -> list[Block]:
        """The weights, then a table per scenario."""
        weights = ", ".join(f"{name} {value:g}" for name, value in self.tuned.options.items())
        cost = (
            f"Cost on the traces of the search: {self.tuned.cost:.3f}; the rule with its default weights has 1 or more."
        )
        return [Line(f"Weights of {RULE}: {weights}."), Line(cost), *super().text()]

    def save(self, folder: str | Path) -> Path:
        """Write the comparison, and every scenario with the tuned rule as its router."""
        made = super().save(folder)
        for name in self.comparison.scenarios:
            path = next(one for one in self.names if Path(one).stem == name)
            save(as_scenario(path, self.tuned, self.config), made / "tuned" / f"{name}.yaml")
        return made


def tune(
    scenarios: Sequence[str | Path], config: TuneConfig | Mapping[str, Any] | None = None, *, jobs: int | None = None,
    ray: str | None = None, on_progress: Progress | None = None, **overrides: Any,
) -> TunedRouter:  # fmt: skip
    """Fit the weights of the rule `unselfish` to scenarios (built-in names or files), and compare it on other traces.

    gnomon.api.routing.tune(["my_cluster.yaml"], generations=8).save("runs/tuned")
    """
    made, names = read(TuneConfig, config, overrides), [str(one) for one in scenarios]
    found = tuning.tune(made, names, jobs=jobs, ray=ray, on_progress=on_progress)
    against = CompareConfig(scenarios=tuple(names), num_seeds=made.held_out_seeds, source=made.source)
    router = RouterConfig(name=RULE, options=found.options, lengths=made.lengths)
    everyone = [Contender("tuned", router, "policy"), *contenders(against, {}, made.lengths)]
    return TunedRouter(compare(against, everyone, jobs=jobs, ray=ray), found, made, tuple(names))


def dump_state(config: RouteConfig, folder: Folder, path: str | Path) -> None:
    """Write what the demonstrations observed as CSV or Parquet."""
    demos.dump_state(demos.read(folder.demos, config), Path(path))


def train_online(config: RouteConfig, folder: Folder, watch: Watcher | None = None) -> Path:
    """Let a policy learn while one long simulation runs, beside a safe router; writes policy.npz, online.csv and
    report.html with its regret over time. Returns the policy file."""
    from gnomon.report.routing.files import write_online

    policy, blocks = stages.train_online(config, folder, watch or Watcher())
    write_online(blocks, config, folder.root / "report.html")
    return policy


def newest_checkpoint(folder: Folder, warn: Callable[[str], None] = lambda text: None) -> tuple[Path, int] | None:
    """The newest checkpoint of the folder that can be read, and its update."""
    if not folder.checkpoints.is_dir():
        return None
    use_torch()
    from gnomon.routing import checkpoint

    found = checkpoint.load_latest(folder.checkpoints, warn)
    return (found[0], int(found[1]["update"])) if found else None
