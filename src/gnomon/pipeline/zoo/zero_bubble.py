"""ZB-H1 and ZB-H2: the weight gradients are put off to fill the bubbles (arXiv 2401.10241)."""

from gnomon.pipeline.schedule import Action, Schedule
from gnomon.pipeline.zoo.plan import Plan, pipeline_schedule


@pipeline_schedule(
    "zb-h1", summary="Weight gradients put off by the rank.", source="arXiv 2401.10241", bubble="(p-1)(F+I-W)",
    memory="p",
)  # fmt: skip
def zb_h1(plan: Plan) -> Schedule:
    """The warm-up of 1F1B; rank r puts off r weight gradients."""
    return Schedule("zb-h1", tuple(_handcrafted(plan, rank, 1) for rank in range(plan.ranks)))


@pipeline_schedule(
    "zb-h2", summary="Twice the warm-up and delay of ZB-H1.", source="arXiv 2401.10241", bubble="(p-1)(F+I-2W)",
    memory="2p-1", counts_spans=True,
)  # fmt: skip
def zb_h2(plan: Plan) -> Schedule:
    """Twice the warm-up, twice the delay: no bubble where the passes are equal, for twice the memory."""
    return Schedule("zb-h2", tuple(_handcrafted(plan, rank, 2) for rank in range(plan.ranks)))


def _handcrafted(plan: Plan, rank: int, factor: int) -> tuple[Action, ...]:
    m = plan.microbatches
    warm_up = min(factor * (plan.ranks - rank - 1), m)
    delay = factor * rank
    order = [Action("F", rank, i) for i in range(warm_up)]
    for i in range(m):
        if warm_up + i < m:
            order.append(Action("F", rank, warm_up + i))
        order.append(Action("I", rank, i))
        if i >= delay:
            order.append(Action("W", rank, i - delay))
    order += [Action("W", rank, i) for i in range(max(m - delay, 0), m)]
    return tuple(order)
