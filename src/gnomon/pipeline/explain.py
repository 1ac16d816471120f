"""Where the time goes: idle time by cause, the critical path, and what a faster link would bring."""

from collections import defaultdict
from dataclasses import asdict, dataclass

import numpy as np

from gnomon.pipeline.fluid import COMPUTE, FREE
from gnomon.pipeline.graph import Label
from gnomon.pipeline.run import Run


@dataclass
class RankTime:
    """One rank's share of the make-span; the parts add up to it."""

    busy: float = 0.0
    """Computing."""
    warm_up: float = 0.0
    """Before its first pass."""
    dependency: float = 0.0
    """Waiting for another rank to compute."""
    communication: float = 0.0
    """Waiting for a transfer, as long as it would take over an idle link."""
    contention: float = 0.0
    """Waiting for a transfer, the part that sharing the link added."""
    cool_down: float = 0.0
    """After its last pass: other ranks, and gradient synchronisation."""
    slowed: float = 0.0
    """Not a part: how much of `busy` was lost to interference by gradient synchronisation."""

    @property
    def idle(self) -> float:
        return self.warm_up + self.dependency + self.communication + self.contention + self.cool_down


def idle_time(run: Run) -> list[RankTime]:
    """Split every rank's time; the run must have been recorded."""
    tasks, before = run.trace.tasks, predecessors(run)
    shares: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for task, start, end, share in run.trace.segments:
        shares[int(task)].append((start, end, share))

    def divide(time: RankTime, task: int, start: float, end: float) -> None:
        """One gap, by following back the transfers that the pass after it waited for."""
        while end > start:
            source = _latest(run, before[task])
            if source is None or tasks.channel[source] == COMPUTE:
                time.dependency += end - start
                return
            begin = max(start, float(tasks.ready[source]))
            if tasks.channel[source] == FREE:
                time.communication += end - begin
            else:
                moved = sum(max(min(b, end) - max(a, begin), 0.0) * share for a, b, share in shares[source])
                time.communication += moved
                time.contention += end - begin - moved
            task, end = source, begin

    ranks = []
    for numbers in run.computes:
        clock = float(tasks.start[numbers[0]])
        time = RankTime(warm_up=clock, cool_down=float(run.total_time - tasks.end[numbers[-1]]))
        for task in numbers:
            start, end = float(tasks.start[task]), float(tasks.end[task])
            if start > clock:
                divide(time, task, clock, start)
            time.busy += end - start
            time.slowed += end - start - float(tasks.work[task])
            clock = end
        time.slowed = max(time.slowed, 0.0)
        ranks.append(time)
    return ranks


def total(ranks: list[RankTime]) -> RankTime:
    rows = [asdict(rank) for rank in ranks]
    return RankTime(**{name: sum(row[name] for row in rows) for name in rows[0]})


def predecessors(run: Run) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in run.labels]
    for task, (first, end) in enumerate(
        zip(run.graph.tasks.first_successor, run.graph.tasks.end_successor, strict=True)
    ):
        for successor in run.graph.successors[first:end]:
            before[successor].append(task)
    return before


def _latest(run: Run, numbers: list[int]) -> int | None:
    """The task among `numbers` that ended last."""
    return max(numbers, key=lambda task: run.trace.tasks.end[task], default=None)


@dataclass(frozen=True)
class Step:
    """One stretch of the critical path."""

    task: int
    label: Label
    rank: int
    start: float
    end: float


def critical_path(run: Run) -> list[Step]:
    """From the start of the step to its end without a gap: each stretch begins when the one before it ends."""
    tasks, before = run.trace.tasks, predecessors(run)
    previous: dict[int, int] = {}
    for numbers in run.computes:
        previous.update(zip(numbers[1:], numbers, strict=False))
    path: list[Step] = []
    task: int | None = int(np.argmax(tasks.end))
    while task is not None:
        waited_for_rank = tasks.channel[task] == COMPUTE and tasks.start[task] > tasks.ready[task]
        begin = tasks.start[task] if waited_for_rank else tasks.ready[task]
        path.append(Step(task, run.labels[task], int(tasks.rank[task]), float(begin), float(tasks.end[task])))
        task = previous.get(task) if waited_for_rank else _latest(run, before[task])
    return path[::-1]


@dataclass(frozen=True)
class WhatIf:
    """The make-span if one link were faster."""

    sender: int
    receiver: int
    total_time: float
    gain: float
    """Relative to the make-span as it is."""


def faster_links(run: Run, factor: float = 2.0) -> list[WhatIf]:
    """What each link between two ranks would bring if it alone were `factor` times as fast, best first."""
    tasks = run.graph.tasks
    movable = np.array([label.kind in ("fwd_prop", "grad_prop") for label in run.labels])
    rows = []
    for sender, receiver in sorted(
        {(int(s), int(r)) for s, r in zip(tasks.rank[movable], tasks.receiver[movable], strict=True)}
    ):
        changed = tasks.copy()
        on_link = movable & (tasks.rank == sender) & (tasks.receiver == receiver)
        changed.work[on_link] /= factor
        changed.remaining[on_link] /= factor
        after = run.again(run.graph._replace(tasks=changed)).total_time
        rows.append(WhatIf(sender, receiver, after, 1.0 - after / run.total_time))
    return sorted(rows, key=lambda row: row.total_time)
