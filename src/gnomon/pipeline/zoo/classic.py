"""GPipe, 1F1B and interleaved 1F1B: backward passes in one piece."""

from __future__ import annotations

from dataclasses import replace

from gnomon.core.errors import ConfigError
from gnomon.pipeline.schedule import Action, Schedule
from gnomon.pipeline.zoo.plan import Plan, pipeline_schedule


@pipeline_schedule(
    "gpipe", summary="All forwards, then all backwards.", source="arXiv 1811.06965", bubble="(p-1)(F+B)", memory="m"
)
def gpipe(plan: Plan) -> Schedule:
    """All forwards, then all backwards."""
    count = range(plan.microbatches)
    return Schedule(
        "gpipe",
        tuple(
            (*(Action("F", rank, i) for i in count), *(Action("B", rank, i) for i in count))
            for rank in range(plan.ranks)
        ),
    )


@pipeline_schedule(
    "1f1b", summary="One forward, one backward.", source="arXiv 2006.09503", bubble="(p-1)(F+B)",
    memory="p-j at stage j",
)  # fmt: skip
def one_f_one_b(plan: Plan) -> Schedule:
    """As many forwards as there are stages below, then one forward and one backward in turn."""
    return Schedule("1f1b", tuple(_one_f_one_b(plan, rank) for rank in range(plan.ranks)))


def _one_f_one_b(plan: Plan, rank: int) -> tuple[Action, ...]:
    forwards = [Action("F", rank, i) for i in range(plan.microbatches)]
    backwards = [Action("B", rank, i) for i in range(plan.microbatches)]
    return alternate(forwards, backwards, plan.ranks - rank - 1)


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> tuple[Action, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    order = forwards[:warm_up]
    for i, backward in enumerate(backwards):
        order += forwards[warm_up + i : warm_up + i + 1]
        order.append(backward)
    return tuple(order)


def _two_to_four_chunks(name: str, plan: Plan) -> dict[str, Plan]:
    return {f"{name} v={chunks}": replace(plan, chunks=chunks) for chunks in (2, 3, 4)}


@pipeline_schedule(
    "interleaved", summary="1F1B over v chunks per rank.", source="arXiv 2104.04473", bubble="(p-1)(F+B)/v",
    memory="more than 1F1B", takes_chunks=True, variants=_two_to_four_chunks,
)  # fmt: skip
def interleaved(plan: Plan) -> Schedule:
    """1F1B over `chunks` stages per rank: groups of `ranks` micro-batches pass through one chunk after the other."""
    p, m, chunks = plan.ranks, plan.microbatches, plan.chunks
    if m % p:
        raise ConfigError(
            f"interleaved 1F1B needs micro-batches in multiples of the {p} ranks (given: {m}).",
            where="microbatches",
            fix=f"Choose {f'{m - m % p} or ' if m > p else ''}{m - m % p + p} micro-batches.",
        )
    lists = []
    for rank in range(p):
        order = [(chunk, group + i) for group in range(0, m, p) for chunk in range(chunks) for i in range(p)]
        forwards = [Action("F", chunk * p + rank, i) for chunk, i in order]
        backwards = [Action("B", (chunks - 1 - chunk) * p + rank, i) for chunk, i in order]
        lists.append(alternate(forwards, backwards, 2 * (p - rank - 1) + (chunks - 1) * p))
    return Schedule("interleaved", tuple(lists))
