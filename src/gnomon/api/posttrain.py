"""RL post-training: one policy, policies side by side, plans, calibration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnomon.api.result import Progress, Result, TableResult, read
from gnomon.core.config import save
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text
from gnomon.posttrain.policies import COMPARED, POLICIES, make_policy
from gnomon.posttrain.scenario.config import Posttrain

if TYPE_CHECKING:
    from gnomon.posttrain.live.replay import Replayed
    from gnomon.posttrain.simulator.record import RunRecord
    from gnomon.posttrain.studies.compare import Outcome
    from gnomon.posttrain.studies.plan import Planned
    from gnomon.posttrain.studies.stages import Calibrated

__all__ = [
    "COMPARED", "POLICIES", "PolicyComparison", "Posttrain", "PosttrainPlan", "PosttrainRun", "calibrate",
    "check_policies", "compare_policies", "decide", "plan_posttrain", "posttrain",
]  # fmt: skip

PosttrainLike = Posttrain | Mapping[str, Any] | str | Path | None


def _report(on_progress: Progress | None) -> Progress:
    return on_progress or (lambda done, total: None)


def posttrain(
    given: PosttrainLike = None, *, keep_decisions: bool = False, on_progress: Progress | None = None, **overrides: Any
) -> PosttrainRun:
    """Simulate the steps of a YAML file, a mapping, a `Posttrain`, or the defaults, under the configured policy.

    `keep_decisions` records every snapshot that the policy saw, and its answer.
    """
    from gnomon.posttrain.studies.compare import run_chosen

    config = read(Posttrain, given, overrides)
    return PosttrainRun(config, run_chosen(config, keep_decisions=keep_decisions, on_progress=_report(on_progress)))


@dataclass(frozen=True, eq=False)
class PosttrainRun(Result):
    """The steps of one policy, and where the GPU time goes."""

    view = "posttrain.text:run_view"
    config: Posttrain
    record: RunRecord = field(repr=False)

    def explain(self) -> TableResult:
        """What every step waited for: generation, its tail, log-probabilities, training, transitions."""
        from gnomon.report.posttrain.text import explanation

        return TableResult("explanation", self.record, *explanation(self.record))

    def save(self, folder: str | Path) -> Path:
        """Write config.yaml, timeline.html, timeline.perfetto.json, and decisions.jsonl where they were kept."""
        from gnomon.posttrain.live.replay import write_decisions
        from gnomon.report.posttrain.figures import write_trace

        folder = Path(folder)
        save(self.config, folder / "config.yaml")
        self.write_page(folder / "timeline.html")
        write_trace(self.record, folder / "timeline.perfetto.json")
        if any(step.decisions for step in self.record.steps):
            write_decisions(self.record, folder / "decisions.jsonl")
        return folder


def compare_policies(
    given: PosttrainLike = None, *, policies: Sequence[str] | None = None, with_oracle: bool = True,
    on_progress: Progress | None = None, **overrides: Any,
) -> PolicyComparison:  # fmt: skip
    """Policies (all built-in ones unless given) on the same lengths, and what a clairvoyant would have done."""
    from gnomon.posttrain.studies.compare import compare, policies_to_compare

    config = read(Posttrain, given, overrides)
    chosen = policies_to_compare(config, tuple(policies or COMPARED))
    outcomes = compare(config, chosen, with_oracle=with_oracle, on_progress=_report(on_progress))
    return PolicyComparison(config, outcomes, with_oracle)


@dataclass(frozen=True, eq=False)
class PolicyComparison(Result):
    """Policies on the same lengths; the ratio is of tokens/s, over the static placement side by side."""

    view = "posttrain.text:comparison_view"
    config: Posttrain
    outcomes: list[Outcome] = field(repr=False)
    with_oracle: bool = True

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One row per policy."""
        from gnomon.report.posttrain.figures import policy_rows

        return policy_rows(self.outcomes, with_oracle=self.with_oracle)

    def save(self, folder: str | Path) -> Path:
        """Write report.html, policies.json, and every policy's time line into a folder of its own."""
        folder = Path(folder)
        self.write_page(folder / "report.html")
        for one in self.outcomes:
            PosttrainRun(self.config, one.record).save(folder / one.policy)
        return write_text(folder / "policies.json", json.dumps(self.to_dict(), indent=1)).parent


def plan_posttrain(
    given: PosttrainLike = None, *, goal: Literal["samples", "dollars"] = "samples", max_lag: int = 1, top: int = 10,
    on_progress: Progress | None = None, **overrides: Any,
) -> PosttrainPlan:  # fmt: skip
    """Layouts, split, mode and staleness for a GPU budget, the best first by samples/s or by dollars.

    `max_lag` bounds the weight updates between a group's first token and its training.
    """
    from gnomon.posttrain.studies.plan import plan

    for flag, number, least in (("--max-lag", max_lag, 0), ("--top", top, 1)):
        if number < least:
            raise ConfigError(f"must be at least {least}, not {number}.", where=flag)
    config = read(Posttrain, given, overrides)
    found = plan(config, goal=goal, max_lag=max_lag, on_progress=_report(on_progress))
    return PosttrainPlan(found, top)


@dataclass(frozen=True, eq=False)
class PosttrainPlan(Result):
    """Plans for a GPU budget, the best first."""

    view = "posttrain.text:plan_view"
    plans: list[Planned] = field(repr=False)
    top: int = 10

    @cached_property
    def commands(self) -> dict[str, str]:
        """The best plan as options of frameworks."""
        from gnomon.convert.rl_commands import rlinf_yaml, verl_flags

        best = self.plans[0].config
        return {"verl": " ".join(verl_flags(best)), "RLinf": rlinf_yaml(best)}

    def save(self, folder: str | Path) -> Path:
        """Write plans.json, the best as config.yaml, and report.html."""
        save(self.plans[0].config, Path(folder) / "config.yaml")
        write_text(Path(folder) / "plans.json", json.dumps(self.summary, indent=1))
        return self.write_page(Path(folder) / "report.html").parent


def calibrate(
    given: PosttrainLike = None, *, rollout_s: float = 0.0, inference_s: float = 0.0, actor_s: float = 0.0,
    **overrides: Any,
) -> Efficiencies:  # fmt: skip
    """Fit the efficiency of each component to its measured seconds, all taking turns; 0 for what was not measured."""
    from gnomon.posttrain.studies.stages import StageCosts
    from gnomon.posttrain.studies.stages import calibrate as fit
    from gnomon.report.blocks import Table

    measured = StageCosts(actor_s, rollout_s, inference_s)
    found = fit(read(Posttrain, given, overrides), measured)
    rows = []
    for name, efficiency in found.efficiencies.items():
        times = {"measured s": getattr(measured, name) or None, "simulated s": getattr(found.simulated, name)}
        rows.append({"component": name, **times, "efficiency": efficiency})
    return Efficiencies("efficiencies", found, rows, {"components": rows}, [Table(rows, "Efficiencies")])


@dataclass(frozen=True, eq=False)
class Efficiencies(TableResult):
    """Efficiencies, and the configuration that has them."""

    @property
    def config(self) -> Posttrain:
        """The calibrated configuration."""
        found: Calibrated = self.records
        return found.config

    def save(self, folder: str | Path) -> Path:
        """Write the figures as JSON, and the configuration."""
        save(self.config, Path(folder) / "config.yaml")
        return super().save(folder)


def decide(
    lines: Iterable[str], policy: str, options: Mapping[str, Any] | None = None, *, file: str | None = None,
    where: str = "line",
) -> Iterator[Replayed]:  # fmt: skip
    """Feed recorded snapshots (JSON lines) to a policy, without the simulator."""
    from gnomon.core.user_files import load_user_file
    from gnomon.posttrain.live.replay import replay

    if file:
        load_user_file(file)
    return replay(make_policy(policy, dict(options or {})), lines, where=where)


def check_policies(config: Posttrain, policies: Sequence[str]) -> None:
    """Refuse policies or options that are not known."""
    from gnomon.posttrain.studies.compare import policies_to_compare

    policies_to_compare(config, tuple(policies))
