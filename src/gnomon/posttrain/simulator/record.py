"""What a simulated step leaves behind: who owned which GPU when, what was decided, and where the time went."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.posttrain.policies.snapshot import Actions, Snapshot

OWNERS = ("actor", "rollout", "inference", "transition", "free")
CAUSES = ("busy", "tail", "waiting", "transition", "unusable")


@dataclass(frozen=True)
class Span:
    """One GPU in one hand."""

    gpu: int
    owner: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Work:
    """One thing done: a mini-batch of the actor, or a stretch of log-probabilities on one copy."""

    component: str
    number: int
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    busy_s: float
    """Seconds in which a GPU computed, on average: a mini-batch waits for groups and for its slowest rank."""

    def until(self, end_s: float) -> Work:
        """What of it is done by then."""
        over_s = max(0.0, self.end_s - end_s)
        return replace(self, end_s=self.end_s - over_s, busy_s=max(0.0, self.busy_s - over_s)) if over_s else self


@dataclass(frozen=True)
class Decision:
    """What a policy saw and what it answered."""

    snapshot: Snapshot
    actions: Actions


@dataclass(eq=False)
class StepRecord:
    """One step; times are seconds since its start."""

    number: int
    duration_s: float = 0.0
    rollout_end_s: float = 0.0
    """When the last sequence of the step was generated (or left over)."""
    spans: list[Span] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    instance_busy_s: dict[int, float] = field(default_factory=dict)
    """GPU seconds of generation by instance."""
    instance_end_s: dict[int, float] = field(default_factory=dict)
    """When each GPU of rollout had generated all that it was given."""
    actor_waited_s: tuple[float, ...] = ()
    """Seconds for which the actor had GPUs and no groups, of this step and those before."""
    valid_actor_sizes: tuple[int, ...] = ()
    finished_s: Floats = field(default_factory=lambda: np.empty(0))
    """When each sequence was generated; inf where it was left over."""
    tokens_trained: int = 0
    """Prompt and response tokens of the groups that the actor trained on."""
    tokens_generated: int = 0
    """Response tokens produced in this step, whatever became of them."""
    tokens_discarded: int = 0
    """Response tokens produced so far for groups that start again from their prompts."""
    tokens_carried: int = 0
    """Response tokens of groups that go on in the next step, from this step and before."""
    tokens_brought: int = 0
    """Response tokens of groups that go on from the step before, at the start of this one."""
    response_tokens_trained: int = 0
    tokens_prefilled_again: int = 0
    num_moved: int = 0
    """Sequences that changed their instance."""
    num_preemptions: int = 0
    num_dropped: int = 0
    """Groups that became too old."""
    groups_s: float = 0.0
    """Groups generated per second."""
    flops: float = 0.0
    """Model FLOPs of training."""
    ages: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Of the trained groups: weight updates between their first token and their training."""

    @property
    def tokens_s(self) -> float:
        return self.tokens_trained / self.duration_s if self.duration_s > 0 else 0.0

    def seconds_of(self, component: str) -> float:
        """From the first to the last moment at which the actor trained, or inference computed."""
        work = [one for one in self.work if one.component == component]
        return max(one.end_s for one in work) - min(one.start_s for one in work) if work else 0.0

    def idle(self) -> dict[str, float]:
        """GPU seconds by cause; they add up to GPUs x duration.

        tail: owned by rollout, which has nothing left to run there. waiting: owned by the actor or by inference, which
        wait for data or for the slowest rank, or by nobody although a larger actor would be valid. transition: weights,
        work or memory are moved. unusable: nobody's, since no valid size fits.
        """
        owned, working = self.owned(), self.working()
        generating = working.pop("rollout")
        indivisible = self._indivisible_gpu_s()
        return {
            "busy": generating + sum(working.values()), "tail": max(0.0, owned["rollout"] - generating),
            "waiting": sum(owned[name] - working[name] for name in working) + owned["free"] - indivisible,
            "transition": owned["transition"], "unusable": indivisible,
        }  # fmt: skip

    def owned(self) -> dict[str, float]:
        """GPU seconds in each hand."""
        owned = dict.fromkeys(OWNERS, 0.0)
        for span in self.spans:
            owned[span.owner] += span.end_s - span.start_s
        return owned

    def working(self) -> dict[str, float]:
        """GPU seconds in which each component computed."""
        working = {"rollout": sum(self.instance_busy_s.values()), "actor": 0.0, "inference": 0.0}
        for one in self.work:
            working[one.component] += one.busy_s * len(one.gpus)
        return working

    def waited_for(self) -> dict[str, float]:
        """The step's seconds by what it waited for; they add up to its duration.

        At each moment that is the last in line that works: training, else log-probabilities, else generation while
        sequences are being generated (its tail from when nine in ten are there), else a transition.
        """
        ends = np.sort(self.finished_s[np.isfinite(self.finished_s)])
        tail_s = float(ends[int(0.9 * ends.size)]) if ends.size else self.rollout_end_s
        stretches = {
            name: [(one.start_s, one.end_s) for one in self.work if one.component == component]
            for name, component in (("training", "actor"), ("log-probabilities", "inference"))
        }
        stretches |= {"generation": [(0.0, min(tail_s, self.rollout_end_s))]}
        stretches |= {"generation's tail": [(0.0, self.rollout_end_s)], "transitions": [(0.0, self.duration_s)]}
        edges = {0.0, self.duration_s, *(at for some in stretches.values() for pair in some for at in pair)}
        cuts = [at for at in sorted(edges) if 0.0 <= at <= self.duration_s]
        found = dict.fromkeys(stretches, 0.0)
        for start, end in pairwise(cuts):
            middle = 0.5 * (start + end)
            busy = (name for name, some in stretches.items() if any(a <= middle < b for a, b in some))
            found[next(busy, "transitions")] += end - start
        return found

    def _indivisible_gpu_s(self) -> float:
        """GPU seconds of free GPUs while no larger actor would fit on them."""
        changes: dict[float, list[int]] = {}
        for span in self.spans:
            column = {"free": 0, "actor": 1}.get(span.owner)
            if column is not None:
                changes.setdefault(span.start_s, [0, 0])[column] += 1
                changes.setdefault(span.end_s, [0, 0])[column] -= 1
        total, free, actor, before = 0.0, 0, 0, 0.0
        for at in sorted(changes):
            if not any(actor < size <= actor + free for size in self.valid_actor_sizes):
                total += free * (at - before)
            free, actor, before = free + changes[at][0], actor + changes[at][1], at
        return total


@dataclass(eq=False)
class RunRecord:
    """All steps of one policy."""

    policy: str
    num_gpus: int
    steps: list[StepRecord]
    follows: str = ""
    """Of an oracle: the policy that it chose."""
    peak_flops: float = math.inf
    """Of one GPU in the number format of training."""
    price_per_hour: float = 0.0
    """Of one GPU, US dollars."""
    num_judges: int = 0
    """GPUs of a reward model, beside those of the cluster."""

    @property
    def notes(self) -> list[str]:
        return [f"The {self.policy} follows {self.follows}."] if self.follows else []

    @property
    def duration_s(self) -> float:
        return sum(step.duration_s for step in self.steps)

    @property
    def step_s(self) -> float:
        return self.duration_s / len(self.steps)

    @property
    def tokens_s(self) -> float:
        return sum(step.tokens_trained for step in self.steps) / self.duration_s

    def shares(self) -> dict[str, float]:
        """Share of all GPU time by cause."""
        whole = self.num_gpus * self.duration_s
        parts = [step.idle() for step in self.steps]
        return {cause: sum(part[cause] for part in parts) / whole for cause in CAUSES}

    def bubbles(self) -> dict[str, float]:
        """Share of the GPU time that each component owns in which it does not compute."""
        owned, working = [step.owned() for step in self.steps], [step.working() for step in self.steps]
        totals = {name: sum(one[name] for one in owned) for name in working[0]}
        return {name: 1.0 - sum(one[name] for one in working) / total for name, total in totals.items() if total > 0}

    def lags(self) -> dict[int, float]:
        """Share of the trained groups by the weight updates between their first token and their training."""
        ages, counts = np.unique(np.concatenate([step.ages for step in self.steps]), return_counts=True)
        return dict(zip(ages.tolist(), (counts / counts.sum()).tolist(), strict=True))

    @property
    def mfu(self) -> float:
        """Model FLOPs of training over what the actor's GPUs could do at their peak while they are its own."""
        owned = sum(step.owned()["actor"] for step in self.steps)
        return sum(step.flops for step in self.steps) / (owned * self.peak_flops) if owned else 0.0

    @property
    def dollars_per_step(self) -> float:
        """At the price of all GPUs."""
        return (self.num_gpus + self.num_judges) * self.price_per_hour * self.step_s / 3600.0

    @property
    def num_dropped(self) -> int:
        return sum(step.num_dropped for step in self.steps)

    def allocation(self) -> tuple[tuple[frozenset[Span], int], ...]:
        """Who has which GPU when, and the tokens trained, step by step: equal where policies decided alike."""
        return tuple((frozenset(step.spans), step.tokens_trained) for step in self.steps)

    @property
    def staleness(self) -> int:
        """Most weight updates between a group's first token and its training."""
        return max((int(step.ages.max()) for step in self.steps if step.ages.size), default=0)
