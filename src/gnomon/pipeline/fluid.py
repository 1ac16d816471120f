"""The fluid engine: a graph of tasks on compute channels and shared links, run to its end.

A task is work on one rank's compute channel (exclusive, not pre-empted), on its egress link (shared with the other
ready transfers of that rank, limited again by the receiver's ingress), or on nothing at all (a latency). Everything
else is data: a schedule's order is edges of the graph, a straggler is more work, a slow link is more work.
The rules of sharing are those of the communication-priority study; see `docs/pipeline.md`.
"""

from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import borrow, inlined, jit
from gnomon.timing.fair_share import NUM_TYPES, share_links

Records = Any  # A `np.recarray`: `tasks[k].share` reads the same compiled and in plain Python.

COMPUTE, LINK, FREE = 0, 1, 2
FWD_PROP, GRAD_PROP, GRAD_SYNC = 0, 1, 2
EPSILON = 1e-9  # The shortest step, and the work at which a task counts as done.

TASK = np.dtype(
    [
        # What is to be done.
        ("work", np.float64),  # Seconds at rate 1.
        ("channel", np.int64),  # COMPUTE, LINK or FREE.
        ("rank", np.int64),  # Whose compute channel or egress link.
        ("order", np.int64),  # Among ready tasks of one rank (of one tier) the smallest goes first.
        ("type", np.int64),  # Of a transfer: FWD_PROP, GRAD_PROP or GRAD_SYNC.
        ("receiver", np.int64),  # Of a transfer: whose ingress it enters, or -1.
        ("impact", np.float64),  # Of compute: the rate it loses while the rank's GRAD_SYNC has the whole link.
        ("first_successor", np.int64),  # Its row in `TaskGraph.successors`: from here
        ("end_successor", np.int64),  # to before here.
        ("missing", np.int64),  # Predecessors that are not done.
        # What happens.
        ("remaining", np.float64),
        ("share", np.float64),  # Of the link, now.
        ("fixed", np.bool_),  # Its share was set by the receiver.
        ("throttled", np.bool_),  # A positive share was ever cut by back-pressure.
        ("ready", np.float64),  # When the last predecessor was done.
        ("start", np.float64),  # When it first ran at a positive rate.
        ("end", np.float64),
    ],
    align=True,
)

RANK = np.dtype(
    [
        ("running", np.int64),  # The task on the compute channel, or -1.
        ("first", np.int64),  # The best candidate found so far, for the compute channel or the link.
        ("capacity", np.float64),  # Of its link: 1.
        ("left", np.float64),  # Of its egress link.
        ("ingress", np.float64),  # Sum of the shares that come in.
        ("sync_share", np.float64),  # Share of its own GRAD_SYNC.
    ]
)


class TaskGraph(NamedTuple):
    """Tasks (a record array of `TASK`) and who waits for whom."""

    tasks: Records
    successors: Ints


class Trace(NamedTuple):
    """What happened."""

    total_time: float
    tasks: Records  # The tasks with `ready`, `start`, `end` and `throttled` filled in; NaN where a task never ran.
    segments: Floats  # Rows (task, from, to, share): every stretch of a transfer at one share; empty unless asked for.
    num_events: int = 0  # Steps the engine took: about one per task.


class Queues(NamedTuple):
    """Ready tasks per channel: waiting for compute, on a link, counting down. `length` says how many of each."""

    tasks: Ints
    length: Ints


class Scene(NamedTuple):
    """The arrays of a run, which are lent to compiled code."""

    template: Records  # The tasks as they are before.
    successors: Ints
    tasks: Records
    ranks: Records
    queues: Queues
    present: Ints  # Scratch: ready transfers by rank and type.
    done: Ints  # Scratch: the tasks that a step has ended.


@inlined
def _enqueue(tasks: Records, queues: Queues, index: int, now: float) -> None:
    task = tasks[index]
    task.ready = now
    queues.tasks[task.channel, queues.length[task.channel]] = index
    queues.length[task.channel] += 1


@inlined
def _dispatch(tasks: Records, ranks: Records, queues: Queues, now: float) -> None:
    """Every free compute channel takes the first of its ready tasks."""
    for r in range(ranks.size):
        ranks[r].first = -1
    for k in range(queues.length[COMPUTE]):
        index = queues.tasks[COMPUTE, k]
        rank = ranks[tasks[index].rank]
        if rank.running < 0 and (rank.first < 0 or tasks[index].order < tasks[rank.first].order):
            rank.first = index
    kept = 0
    for k in range(queues.length[COMPUTE]):
        index = queues.tasks[COMPUTE, k]
        rank = ranks[tasks[index].rank]
        if rank.first == index:
            rank.running = index
            tasks[index].start = now
        else:
            queues.tasks[COMPUTE, kept] = index
            kept += 1
    queues.length[COMPUTE] = kept


@inlined
def _share_links(tasks: Records, ranks: Records, queues: Queues, present: Ints, weights: Floats, tiers: Ints) -> None:
    """Set the share of every ready transfer."""
    for r in range(ranks.size):
        ranks[r].sync_share = 0.0
    count = queues.length[LINK]
    share_links(tasks, ranks, queues.tasks[LINK], count, present, weights, tiers)
    for k in range(count):
        task = tasks[queues.tasks[LINK, k]]
        if task.type == GRAD_SYNC:
            ranks[task.rank].sync_share += task.share


@inlined
def _set_compute_rates(tasks: Records, ranks: Records) -> None:
    for r in range(ranks.size):
        if ranks[r].running >= 0:
            task = tasks[ranks[r].running]
            task.share = 1.0 - ranks[r].sync_share * task.impact


@inlined
def _time_to_next_completion(tasks: Records, ranks: Records, queues: Queues) -> float:
    step = np.inf
    for r in range(ranks.size):
        if ranks[r].running >= 0:
            task = tasks[ranks[r].running]
            if task.share > 0.0:
                step = min(step, task.remaining / task.share)
    for channel in range(LINK, FREE + 1):
        for k in range(queues.length[channel]):
            task = tasks[queues.tasks[channel, k]]
            if task.share > 0.0:
                step = min(step, task.remaining / task.share)
    return max(step, EPSILON)


@inlined
def _advance(tasks: Records, ranks: Records, queues: Queues, began: float, step: float, done: Ints) -> int:
    """Work for one `step`; write the tasks that are then done into `done` and return how many."""
    now = began + step
    num_done = 0
    for r in range(ranks.size):
        if ranks[r].running < 0:
            continue
        task = tasks[ranks[r].running]
        task.remaining -= step * task.share
        if task.remaining <= EPSILON:
            task.end = now
            done[num_done] = ranks[r].running
            num_done += 1
            ranks[r].running = -1
    for channel in range(LINK, FREE + 1):
        kept = 0
        for k in range(queues.length[channel]):
            index = queues.tasks[channel, k]
            task = tasks[index]
            if task.share > 0.0:
                if np.isnan(task.start):
                    task.start = began
                task.remaining -= step * task.share
                if task.remaining <= EPSILON:
                    task.end = now
                    done[num_done] = index
                    num_done += 1
                    continue
            queues.tasks[channel, kept] = index
            kept += 1
        queues.length[channel] = kept
    return num_done


@inlined
def _release(tasks: Records, queues: Queues, successors: Ints, done: Ints, num_done: int, now: float) -> bool:
    """Queue the tasks that waited for nothing else; True when the set of ready transfers has changed."""
    links_changed = False
    for k in range(num_done):
        task = tasks[done[k]]
        links_changed = links_changed or task.channel == LINK
        for at in range(task.first_successor, task.end_successor):
            successor = tasks[successors[at]]
            successor.missing -= 1
            if successor.missing == 0:
                _enqueue(tasks, queues, successors[at], now)
                links_changed = links_changed or successor.channel == LINK
    return links_changed


@inlined
def _record(
    tasks: Records, queues: Queues, segments: Floats, num_segments: int, last: Ints, now: float, step: float
) -> int:
    """Append the shares of this step, or stretch a transfer's last segment while its share stays the same."""
    for k in range(queues.length[LINK]):
        index = queues.tasks[LINK, k]
        before = last[index]
        if before >= 0 and segments[before, 3] == tasks[index].share and segments[before, 2] == now:
            segments[before, 2] = now + step
            continue
        last[index] = num_segments
        segments[num_segments, 0] = index
        segments[num_segments, 1] = now
        segments[num_segments, 2] = now + step
        segments[num_segments, 3] = tasks[index].share
        num_segments += 1
    return num_segments


@inlined
def _play(
    scene: Scene, weights: Floats, tiers: Ints, record: bool, segments: Floats, last: Ints
) -> tuple[float, Floats, int, int]:
    tasks, ranks, queues = scene.tasks, scene.ranks, scene.queues
    for channel in range(FREE + 1):
        queues.length[channel] = 0
    for r in range(ranks.size):
        ranks[r].running = -1
        ranks[r].capacity = 1.0
        ranks[r].sync_share = 0.0
    for index in range(tasks.size):
        tasks[index] = scene.template[index]
        tasks[index].share = 1.0
        if tasks[index].missing == 0:
            _enqueue(tasks, queues, index, 0.0)
    now, links_changed, num_events, num_segments = 0.0, True, 0, 0
    while True:
        _dispatch(tasks, ranks, queues, now)
        if links_changed:
            _share_links(tasks, ranks, queues, scene.present, weights, tiers)
        _set_compute_rates(tasks, ranks)
        step = _time_to_next_completion(tasks, ranks, queues)
        if np.isinf(step):
            return now, segments, num_segments, num_events
        if record:
            while num_segments + queues.length[LINK] > segments.shape[0]:
                segments = np.concatenate((segments, np.empty_like(segments)))
            num_segments = _record(tasks, queues, segments, num_segments, last, now, step)
        num_done = _advance(tasks, ranks, queues, now, step, scene.done)
        now += step
        num_events += 1
        links_changed = _release(tasks, queues, scene.successors, scene.done, num_done, now)


@jit
def _run(scene: Scene, weights: Floats, tiers: Ints, record: bool) -> tuple[float, Floats, int]:
    segments, last = np.empty((64 if record else 0, 4)), np.full(scene.tasks.size if record else 0, -1, np.int64)
    now, segments, num_segments, num_events = _play(
        borrow(scene), borrow(weights), borrow(tiers), record, segments, last
    )
    return now, segments[:num_segments], num_events


@jit
def _run_many(scene: Scene, weights: Floats, tiers: Ints) -> Floats:
    totals = np.empty(weights.shape[0])
    lent, lent_weights, lent_tiers = borrow(scene), borrow(weights), borrow(tiers)
    segments, last = np.empty((0, 4)), np.empty(0, np.int64)
    for row in range(totals.size):
        totals[row] = _play(lent, lent_weights[row], lent_tiers[row], False, segments, last)[0]
    return totals


def run(graph: TaskGraph, num_ranks: int, weights: Floats, tiers: Ints, *, record: bool = False) -> Trace:
    """Run the graph until no task can go on.

    `weights` and `tiers` are per transfer type; a tier of NO_TIER shares by weight. The graph must not have a cycle
    (`gnomon.pipeline.validation` names it): the tasks in one, and those after it, end at NaN.
    """
    scene = _scene(graph, num_ranks)
    total, segments, num_events = _run(scene, weights, tiers, record)
    return Trace(float(total), scene.tasks, segments, int(num_events))


def run_many(graph: TaskGraph, num_ranks: int, weights: Floats, tiers: Ints) -> Floats:
    """The total time for each row of `weights` and `tiers`."""
    return _run_many(_scene(graph, num_ranks), weights, tiers)


def _scene(graph: TaskGraph, num_ranks: int) -> Scene:
    num_tasks = graph.tasks.size
    return Scene(
        graph.tasks, graph.successors, np.empty(num_tasks, TASK).view(np.recarray),
        np.zeros(num_ranks, RANK).view(np.recarray),
        Queues(np.empty((FREE + 1, num_tasks), np.int64), np.empty(FREE + 1, np.int64)),
        np.empty((num_ranks, NUM_TYPES), np.int64), np.empty(num_tasks, np.int64),
    )  # fmt: skip
