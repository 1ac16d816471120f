"""ZB-V: a V of two chunks per rank with the memory of 1F1B and almost no bubble (arXiv 2401.10241, section 6).

A micro-batch goes down the ranks and up again, forward and then backward: four legs. Rounds put one input gradient and
one forward on every rank, and weight gradients where a rank would wait. A packing is tried again with the bubbles it
led to as allowance, and the variant with the smallest longest bubble is kept.

The heuristic is the one of the authors' own implementation (sail-sg/zero-bubble-pipeline-parallelism).
"""

from itertools import product

from gnomon.core.errors import ConfigError
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.zoo.packing import Leg, Timeline
from gnomon.pipeline.zoo.plan import Plan, built_in

F_DOWN, F_UP, B_DOWN, B_UP = 0, 1, 2, 3


@built_in("zb-v")
def zb_v(plan: Plan) -> Schedule:
    """The best variant within the memory of 1F1B (or `plan.memory_limit`, if that is more)."""
    if plan.microbatches < 2 * plan.ranks:
        raise ConfigError(
            f"zb-v needs at least {2 * plan.ranks} micro-batches for {plan.ranks} ranks (given: {plan.microbatches}).",
            where="microbatches",
        )
    limit = 2.0 * (plan.memory_limit if plan.memory_limit is not None else plan.ranks)
    if limit < 2.0 * plan.ranks:
        what = f"zb-v needs {plan.ranks} activations per rank (limit: {plan.memory_limit:g})."
        raise ConfigError(what, where="memory_limit", fix="Use v-half or v-min.")
    best: Timeline | None = None
    for overrun_backward, overrun_forward in product((True, False), repeat=2):
        packed = _repack(plan, limit, overrun_backward, overrun_forward)
        if best is None or max(packed.bubble) < max(best.bubble):
            best = packed
    assert best is not None
    return Schedule("zb-v", tuple(tuple(order) for order in best.order))


def _repack(plan: Plan, limit: float, overrun_backward: bool, overrun_forward: bool) -> Timeline:
    """Pack, then again with what each rank's bubble may grow to, as long as that helps."""
    best = _pack(plan, limit, overrun_backward, overrun_forward, [0.0] * plan.ranks)
    while True:
        longest = max(best.bubble)
        again = _pack(plan, limit, overrun_backward, overrun_forward, [longest - bubble for bubble in best.bubble])
        if max(again.bubble) >= longest:
            return best
        best = again


def _pack(plan: Plan, limit: float, overrun_backward: bool, overrun_forward: bool, allowance: list[float]) -> Timeline:
    last = 2 * plan.ranks - 1
    legs = (
        Leg("F", 1, lambda rank: rank),
        Leg("F", -1, lambda rank: last - rank),
        Leg("I", 1, lambda rank: last - rank),
        Leg("I", -1, lambda rank: rank),
    )
    timeline = Timeline(plan, legs, pieces=2, memory_limit=limit)
    _warm_up(timeline)
    for _ in range(2 * plan.microbatches):
        for rank in range(plan.ranks):
            timeline.make_room(rank, "I")
        # One input gradient per rank: the up legs first, from the last rank, then the down legs from the first.
        ranks, m = timeline.plan.ranks, timeline.plan.microbatches
        up = [
            rank
            for rank in range(ranks)
            if timeline.count[rank][B_UP] < timeline.count[rank][B_DOWN]
            and (timeline.arrival(B_UP, rank) is not None or timeline.count[rank][B_DOWN] >= m)
        ]
        down = [rank for rank in range(ranks) if rank not in up]
        for leg, rank in [(B_UP, rank) for rank in reversed(up)] + [(B_DOWN, rank) for rank in down]:
            overrun = leg == B_UP or overrun_backward
            timeline.fill_gap(leg, rank, overrun_long=overrun, overrun_short=False, allowance=allowance[rank])
            timeline.put(leg, rank)
        for rank in range(plan.ranks):
            if (forward := _next_forward(timeline, rank)) is not None:
                timeline.make_room(rank, "F")
                timeline.fill_gap(
                    forward, rank, overrun_long=overrun_forward, overrun_short=False, allowance=allowance[rank]
                )
                timeline.put(forward, rank)
    for rank in range(plan.ranks):
        timeline.put_all_weights(rank)
    return timeline


def _warm_up(timeline: Timeline) -> None:
    """Forwards until the first micro-batch is back at rank 0, then until every rank has caught up."""
    ranks, m = timeline.plan.ranks, timeline.plan.microbatches
    for rank in range(ranks):
        timeline.put(F_DOWN, rank)
    for rank in reversed(range(ranks)):
        if rank < ranks - 1:
            arrival = timeline.arrival(F_UP, rank)
            assert arrival is not None
            while (
                timeline.fits(rank, "F", 2 + 2 * rank)
                and timeline.clock[rank] + timeline.time["F"] <= arrival
                and timeline.count[rank][F_DOWN] < m - rank
            ):
                for upper in range(rank + 1):
                    timeline.put(F_DOWN, upper)
        timeline.put(F_UP, rank)
    leg = F_DOWN
    for rank in range(1, ranks):
        count, above = timeline.count[rank], timeline.count[rank - 1]
        while sum(count[:2]) < sum(above[:2]) or count[F_UP] <= above[F_UP] < m:
            for lower in reversed(range(rank, ranks)):
                if timeline.count[lower][leg] < m:
                    timeline.put(leg, lower)
            leg = F_UP - leg


def _next_forward(timeline: Timeline, rank: int) -> int | None:
    """The forward this rank can take: up if one has come back, else down."""
    count, m = timeline.count[rank], timeline.plan.microbatches
    if count[F_UP] >= m:
        return None
    if count[F_UP] < count[F_DOWN] and timeline.arrival(F_UP, rank) is not None:
        return F_UP
    if count[F_DOWN] < m and timeline.arrival(F_DOWN, rank) is not None:
        return F_DOWN
    return None
