"""ZB-1p and ZB-2p: the memory-limited heuristic of the Zero Bubble paper (arXiv 2401.10241, section 3.1).

The warm-up takes as many forwards as fit before the first backward; afterwards each round puts one forward and one
input gradient on every rank, and weight gradients wherever a rank would wait. Several variants are packed and the one
with the shortest longest span is kept.

The heuristic is the one of the authors' own implementation (sail-sg/zero-bubble-pipeline-parallelism).
"""

from dataclasses import replace
from itertools import product

from gnomon.core.errors import ConfigError
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.zoo.packing import Leg, Timeline
from gnomon.pipeline.zoo.plan import Plan, built_in

FORWARD, BACKWARD = 0, 1
LEGS = (Leg("F", 1, lambda rank: rank), Leg("I", -1, lambda rank: rank))


@built_in("zb-auto")
def zero_bubble(plan: Plan) -> Schedule:
    """The best variant within `plan.memory_limit` activations per rank."""
    limit = plan.memory_limit if plan.memory_limit is not None else 2.0 * plan.ranks
    if limit < plan.ranks:
        what = f"a memory limit of {limit:g} activations is less than one per rank of the pipe ({plan.ranks})."
        raise ConfigError(what, where="memory_limit", fix="Use v-half or v-min, or raise the limit.")
    packed = (_pack(plan, limit, *variant) for variant in product((True, False), repeat=3))
    best = min(packed, key=lambda timeline: timeline.longest_span)
    return Schedule("zb-auto", tuple(tuple(order) for order in best.order))


def _pack(plan: Plan, limit: float, late_backward: bool, backward_first: bool, overrun: bool) -> Timeline:
    """One variant: may the first backward wait, do backwards go first, may weight gradients delay a pass."""
    timeline = Timeline(plan, LEGS, pieces=1, memory_limit=limit)
    _warm_up(timeline, late_backward)
    for _ in range(1, plan.microbatches):
        # The ranks that take a forward in this round: a rank does only if all ranks after it do.
        first = timeline.plan.ranks
        while first > 0 and timeline.count[first - 1][FORWARD] < timeline.plan.microbatches:
            if backward_first and _is_ahead(timeline, first - 1):
                break
            first -= 1
        for rank in range(first, timeline.plan.ranks):
            timeline.make_room(rank, "F")
            if rank > 0:
                timeline.fill_gap(FORWARD, rank, overrun_long=True, overrun_short=overrun)
            timeline.put(FORWARD, rank)
        for rank in reversed(range(plan.ranks)):
            timeline.make_room(rank, "I")
            if rank < plan.ranks - 1:
                timeline.fill_gap(BACKWARD, rank, overrun_long=True, overrun_short=overrun)
            if rank == 0 and timeline.count[0][FORWARD] == plan.microbatches:
                timeline.put_all_weights(0)  # Nobody waits for the first rank's input gradients.
            timeline.put(BACKWARD, rank)
    for rank in range(plan.ranks):
        timeline.put_all_weights(rank)
    return timeline


def _warm_up(timeline: Timeline, late_backward: bool) -> None:
    """The first micro-batch down and up, with as many forwards before its backward as time and memory allow."""
    plan, ranks = timeline.plan, timeline.plan.ranks
    for rank in range(ranks):
        timeline.put(FORWARD, rank)
    extra = [0] * ranks
    backward_end = timeline.clock[-1] + timeline.time["I"]
    for rank in reversed(range(ranks - 1)):
        clock = timeline.clock[rank]
        arrival = backward_end + plan.hop
        while timeline.count[rank][FORWARD] + extra[rank] < plan.microbatches and timeline.fits(
            rank, "F", extra[rank] + 1
        ):
            if clock + timeline.time["F"] > arrival if late_backward else clock >= arrival:
                break
            clock += timeline.time["F"]
            extra[rank] += 1
        backward_end = max(clock, arrival) + timeline.time["I"]
    for rank in range(1, ranks):  # A rank cannot be ahead of the one before it.
        if timeline.count[rank][FORWARD] + extra[rank] < plan.microbatches:
            extra[rank] = min(extra[rank], max(extra[rank - 1] - 1, 0))
        extra[rank] = min(extra[rank], extra[rank - 1])
    for rank in range(ranks):
        for _ in range(extra[rank]):
            timeline.put(FORWARD, rank)
    for rank in reversed(range(ranks)):
        timeline.put(BACKWARD, rank)


def _is_ahead(timeline: Timeline, rank: int) -> bool:
    """Whether the next rank will be busy so long that one more forward now would only delay a backward."""
    if rank + 1 >= timeline.plan.ranks or timeline.count[rank][FORWARD] < timeline.count[rank + 1][FORWARD] + 2:
        return False
    time = timeline.time
    next_backward = timeline.clock[rank + 1] + time["F"] + time["I"] + timeline.plan.hop
    if timeline.clock[rank] >= next_backward:
        return True
    over = timeline.memory[rank] + 1.0 - timeline.limit
    forced = min(-(-over // timeline.plan.weight_grad_memory), len(timeline.put_off[rank])) if over > 0 else 0
    if timeline.clock[rank] + time["F"] + forced * time["W"] <= next_backward:
        return False
    return next_backward - timeline.clock[rank] <= max(timeline.bubble) - timeline.bubble[rank]


@built_in("zb-1p")
def zb_1p(plan: Plan) -> Schedule:
    """The memory of 1F1B."""
    return replace(zero_bubble(replace(plan, memory_limit=float(plan.ranks))), name="zb-1p")


@built_in("zb-2p")
def zb_2p(plan: Plan) -> Schedule:
    """Twice the memory of 1F1B."""
    return replace(zero_bubble(replace(plan, memory_limit=2.0 * plan.ranks)), name="zb-2p")
