"""Executing a schedule: its lists become a task graph, and the fluid engine runs it."""

from itertools import pairwise

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.pipeline.costs import StepCosts, priorities
from gnomon.pipeline.fluid import COMPUTE, FREE, FWD_PROP, GRAD_PROP, GRAD_SYNC, LINK, TaskGraph
from gnomon.pipeline.graph import GraphBuilder, Label
from gnomon.pipeline.run import Run, run_graph
from gnomon.pipeline.schedule import Action, Schedule, provides, upstream
from gnomon.timing.fair_share import NUM_TYPES

KIND = {"F": "forward", "I": "input_grad", "W": "weight_grad", "B": "backward"}

MAX_DRAWS = 10_000


def execute(schedule: Schedule, costs: StepCosts, *, record: bool = True, seed: int = 0) -> Run:
    """Run one training step of a valid schedule; `record` keeps the shares of links over time."""
    graph, labels = step_graph(schedule, costs)
    if costs.jitter > 0.0:
        graph = jittered(graph, costs.jitter, seed, 0)
    return run_graph(schedule.name, schedule.num_ranks, graph, labels, _priorities(costs), record=record)


def monte_carlo(schedule: Schedule, costs: StepCosts, *, draws: int, seed: int) -> Floats:
    """The total times of `draws` steps that differ in their jitter."""
    if not 1 <= draws <= MAX_DRAWS:
        raise ConfigError(f"draws must be from 1 to {MAX_DRAWS:,} (given: {draws}): percentiles settle before that.")
    graph, labels = step_graph(schedule, costs)
    first = run_graph(schedule.name, schedule.num_ranks, graph, labels, _priorities(costs), record=False)
    graphs = (jittered(graph, costs.jitter, seed, draw) for draw in range(draws))
    return np.array([first.again(one).total_time for one in graphs])


def _priorities(costs: StepCosts) -> tuple[Floats, Ints]:
    return priorities(costs.fwd_prop, costs.grad_prop, costs.grad_sync)


def jittered(graph: TaskGraph, spread: float, seed: int, draw: int) -> TaskGraph:
    """The graph with every pass's work multiplied by a log-normal factor of mean 1."""
    tasks = graph.tasks.copy()
    normal = stream(seed, "pipeline-jitter", draw).standard_normal(tasks.size)
    factor = np.where(tasks.channel == COMPUTE, np.exp(spread * normal - spread**2 / 2), 1.0)
    tasks.work = tasks.remaining = tasks.work * factor
    return graph._replace(tasks=tasks)


def step_graph(schedule: Schedule, costs: StepCosts, *, wrap_for: int | None = None) -> tuple[TaskGraph, list[Label]]:
    """The tasks and dependencies of one training step.

    With `wrap_for` = p, a result that goes from the last rank back to the first one is waited for only by
    micro-batches that are multiples of p: the convention of the published interleaved figures, not a real schedule.
    """
    return StepGraph(schedule, costs, wrap_for).build()


class StepGraph:
    """Turns one schedule into a graph: passes in their order, transfers between ranks, gradient synchronisation."""

    def __init__(self, schedule: Schedule, costs: StepCosts, wrap_for: int | None = None) -> None:
        self.schedule, self.costs, self.wrap_for = schedule, costs, wrap_for
        self.num_stages = schedule.num_stages
        names = ("forward", "input_grad", "weight_grad", "send", "sync", "gather")
        self.times = {name: costs.per_stage(name, self.num_stages) for name in names}
        back = "send" if costs.send_grad is None else "send_grad"
        self.times["send_grad"] = costs.per_stage(back, self.num_stages)
        unknown = [rank for rank in costs.stragglers if not 0 <= rank < schedule.num_ranks]
        if unknown:
            fix = f"Ranks: 0 to {schedule.num_ranks - 1}."
            raise ConfigError(f"there is no rank {unknown[0]} to straggle.", fix=fix)
        if costs.link_speed:
            places: dict[int, list[int]] = {}
            for rank in range(schedule.num_ranks):
                for stage in schedule.stages_of(rank):
                    places.setdefault(stage, []).append(rank)
            pairs = {(a, b) for stage in places for a in places[stage] for b in places.get(stage + 1, ()) if a != b}
            links = [f"{a}-{b}" for a, b in sorted(pairs | {(b, a) for a, b in pairs})]
            for name in costs.link_speed:
                if name not in links:
                    fix = f"Links: {', '.join(links[:12])}{', ...' if len(links) > 12 else ''}."
                    raise ConfigError(f"nothing is sent over a link {name!r}.", fix=fix)
        self.builder = GraphBuilder()
        self.passes: list[dict[int, list[Action]]] = [{} for _ in schedule.ranks]
        """Of every rank, by stage, in their order."""
        for rank, part in schedule.passes():
            self.passes[rank].setdefault(part.stage, []).append(part)
        ranks = enumerate(schedule.ranks)
        self.reducing = {rank for rank, actions in ranks if any(one.kind == "REDUCE_GRAD" for one in actions)}
        """Ranks that say themselves when gradients are added up."""
        self.home: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(rank, task) of every result."""
        self.pieces: dict[tuple[int, int, int], list[int]] = {}
        """Tasks of the pass that makes a weight gradient, by rank, stage and micro-batch."""
        self.last_of: dict[int, int] = {}
        """The last gathering or synchronisation of a rank that has links of their own."""

    def build(self) -> tuple[TaskGraph, list[Label]]:
        tasks: list[tuple[Action, int]] = []
        for rank, actions in enumerate(self.schedule.ranks):
            ends = self._ends(rank)
            mine = [
                (action, self._pass(rank, at, action, ends)) for at, action in enumerate(actions) if action.computes
            ]
            self.keep_order([pieces for _, pieces in mine])
            self._gather(rank, mine)
            tasks += [(action, pieces[0]) for action, pieces in mine]
        for action, task in tasks:
            for part in action.computes:
                for need in upstream(part, self.num_stages):
                    self._wait(task, part, need)
        for rank in range(self.schedule.num_ranks):
            self.last_of.pop(rank, None)
            stages = sorted(self.passes[rank])
            for stage in stages[::-1] if self.costs.own_links else stages:  # By when their gradients are ready.
                if self.times["sync"][stage] > 0.0:
                    self._synchronise(rank, stage)
        return self.builder.build(), self.builder.labels

    def keep_order(self, passes: list[list[int]]) -> None:
        """Let a rank's passes (tasks of their pieces) follow one another."""
        for before, after in pairwise(passes):
            self.builder.after(after[0], before[-1])

    def _ends(self, rank: int) -> set[tuple[str, int, int]]:
        """Passes of a rank that are cut into pieces: those that wait for weights or whose gradients are sent."""
        if self.costs.buckets == 1:
            return set()
        found: set[tuple[str, int, int]] = set()
        for stage, passes in self.passes[rank].items():
            if self.times["gather"][stage] > 0.0:
                gathers = passes if self.costs.fully_sharded else [next(part for part in passes if part.kind == "F")]
                found |= {(one.kind, stage, one.microbatch) for one in gathers if one.kind != "W"}
            if self.times["sync"][stage] > 0.0:
                done, groups = self._gradient_groups(rank, stage)
                found |= {(kind, stage, done[group[-1]]) for group in groups for kind in "WB"}
        return found

    def _gather(self, rank: int, mine: list[tuple[Action, list[int]]]) -> None:
        """Weights of a stage, piece by piece, each before the piece of the pass that computes with it."""
        seen: set[int] = set()
        before: list[int] = []
        previous = None
        for action, pieces in mine:
            wants = action.kind != "W" and self.times["gather"][action.stage] > 0.0 and not action.parts
            if wants and (self.costs.fully_sharded or action.stage not in seen):
                seen.add(action.stage)
                for at, piece in enumerate(pieces):
                    label = Label("gather", action.microbatch, action.stage, share=1 / len(pieces))
                    work = self.times["gather"][action.stage] / len(pieces)
                    task = self._transfer(label, rank, -1, GRAD_SYNC, work, action.microbatch, self.costs.own_links)
                    if previous is not None:
                        self.builder.after(task, previous)
                    ahead = 1 if at == 0 and action.kind == "F" else 2  # A forward's first piece is not fetched ahead.
                    if self.costs.fully_sharded and len(before) >= ahead:
                        self.builder.after(task, before[-ahead])
                    self.builder.after(piece, task)
                    previous = task
                    before.append(piece)
            else:
                before += pieces

    def _pass(self, rank: int, at: int, action: Action, ends: set[tuple[str, int, int]]) -> list[int]:
        """The task of a pass, or the tasks of its pieces."""
        parts = [Label(KIND[part.kind], part.microbatch, part.stage) for part in action.computes]
        label = parts[0] if len(parts) == 1 else Label("overlap", *parts[0][1:3], other=parts[1])
        work = sum(self._seconds(part) for part in action.computes)
        if action.parts and self.costs.overlapped is not None:
            work = self.costs.per_stage("overlapped", self.num_stages)[action.stage]
        forward = all(part.kind == "F" for part in action.computes)
        impact = self.costs.fwd_impact if forward else self.costs.bwd_impact
        work *= self.costs.stragglers.get(rank, 1.0)
        count = self.costs.buckets if (action.kind, action.stage, action.microbatch) in ends else 1
        label, work = label._replace(share=1 / count), work / count
        tasks = [self.builder.add(label, work, COMPUTE, rank, order=at, impact=impact) for _ in range(count)]
        for before, after in pairwise(tasks):
            self.builder.after(after, before)
        for part in action.computes:
            self.home[provides(part)] = (rank, tasks[-1])
            if part.kind in "WB":
                self.pieces[rank, part.stage, part.microbatch] = tasks
        return tasks

    def _seconds(self, part: Action) -> float:
        if part.kind == "B":
            return float(self.times["input_grad"][part.stage] + self.times["weight_grad"][part.stage])
        return float(self.times[KIND[part.kind]][part.stage])

    def _wait(self, task: int, part: Action, need: tuple[str, int, int]) -> None:
        """Let `task` wait for a result: at once on its own rank, else after the transfer."""
        sender, source = self.home[need]
        receiver = self.home[provides(part)][0]
        _, from_stage, microbatch = need
        if sender == receiver:
            if source != task:
                self.builder.after(task, source)
            return
        wraps = abs(sender - receiver) == self.schedule.num_ranks - 1 > 1
        if self.wrap_for and wraps and microbatch % self.wrap_for:
            return
        kind = FWD_PROP if part.kind == "F" else GRAD_PROP
        label = Label(("fwd_prop", "grad_prop")[kind], microbatch, from_stage)
        seconds = self.times["send" if part.kind == "F" else "send_grad"][from_stage]
        seconds /= self.costs.link_speed.get(f"{sender}-{receiver}", 1.0)
        last = source
        if seconds > 0.0:
            last = self._transfer(label, sender, receiver, kind, seconds, microbatch)
            self.builder.after(last, source)
        if self.costs.latency > 0.0:
            label = Label("latency", microbatch, from_stage)
            latency = self.builder.add(label, self.costs.latency, FREE, sender, kind=kind, receiver=receiver)
            self.builder.after(latency, last)
            last = latency
        self.builder.after(task, last)

    def _transfer(
        self, label: Label, sender: int, receiver: int, kind: int, seconds: float, number: int, alone: bool = False
    ) -> int:
        channel, order = (FREE, 0) if alone or not self.costs.contention else (LINK, number * NUM_TYPES + kind)
        return self.builder.add(label, seconds, channel, sender, order=order, kind=kind, receiver=receiver)

    def _synchronise(self, rank: int, stage: int) -> None:
        """Gradient synchronisation of one stage: every `sync_freq` micro-batches, each after the one before.

        What is left at the end (fewer than `sync_freq`) waits for its gradients only. A schedule with REDUCE_GRAD
        actions says itself when: there, and nowhere else.
        """
        done, groups = self._gradient_groups(rank, stage)
        previous = None
        for group in groups:
            pieces = self.pieces[rank, stage, done[group[-1]]]
            leftover = self.costs.sync_freq is not None and len(group) < self.costs.sync_freq
            for piece in pieces:
                label = Label("grad_sync", done[group[-1]], stage, share=1 / len(pieces))
                work = self.times["sync"][stage] * len(group) / len(pieces)
                sync = self._transfer(label, rank, -1, GRAD_SYNC, work, done[group[-1]], self.costs.own_links)
                self.builder.after(sync, piece)
                if previous is not None and not leftover:
                    self.builder.after(sync, previous)
                if self.costs.own_links:
                    if rank in self.last_of:
                        self.builder.after(sync, self.last_of[rank])
                    self.last_of[rank] = sync
                previous = sync

    def _gradient_groups(self, rank: int, stage: int) -> tuple[list[int], list[range]]:
        """Micro-batches in the order their weight gradients are ready, and which of them sync together."""
        done = [part.microbatch for part in self.passes[rank][stage] if part.kind in "WB"]
        cuts: list[int] = []
        ready = 0
        for action in self.schedule.ranks[rank] if rank in self.reducing else ():
            ready += sum(part.stage == stage and part.kind in "WB" for part in action.computes)
            if action.kind == "REDUCE_GRAD" and action.stage == stage and ready:
                cuts.append(ready)
        if not cuts:
            every = self.costs.sync_freq or len(done)
            cuts = list(range(every, len(done) + 1, every))
            if len(done) % every:
                cuts.append(len(done))
        return done, [range(start, end) for start, end in pairwise([0, *cuts])]
