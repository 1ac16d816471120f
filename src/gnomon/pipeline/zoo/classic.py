"""GPipe, 1F1B, interleaved 1F1B, that with forwards beside backwards, and ZB-H1 and ZB-H2: written by rule."""

from gnomon.core.errors import ConfigError
from gnomon.pipeline.schedule import Action, Schedule, overlapped
from gnomon.pipeline.zoo.plan import Plan, built_in


@built_in("gpipe")
def gpipe(plan: Plan) -> Schedule:
    count = range(plan.microbatches)
    return Schedule(
        "gpipe",
        tuple(
            (*(Action("F", rank, i) for i in count), *(Action("B", rank, i) for i in count))
            for rank in range(plan.ranks)
        ),
    )


@built_in("1f1b")
def one_f_one_b(plan: Plan) -> Schedule:
    """As many forwards as there are stages below, then one forward and one backward in turn."""
    count = range(plan.microbatches)
    ranks = (
        alternate([Action("F", rank, i) for i in count], [Action("B", rank, i) for i in count], plan.ranks - rank - 1)
        for rank in range(plan.ranks)
    )
    return Schedule("1f1b", tuple(ranks))


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> tuple[Action, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    order = forwards[:warm_up]
    for i, backward in enumerate(backwards):
        order += forwards[warm_up + i : warm_up + i + 1]
        order.append(backward)
    return tuple(order)


@built_in("interleaved")
def interleaved(plan: Plan) -> Schedule:
    """1F1B over `chunks` stages per rank: groups of `ranks` micro-batches pass through one chunk after the other."""
    _check_groups(plan, "interleaved 1F1B")
    return Schedule("interleaved", tuple(alternate(*_chunk_order(plan, rank)) for rank in range(plan.ranks)))


def _chunk_order(plan: Plan, rank: int) -> tuple[list[Action], list[Action], int]:
    """Forwards and backwards of a rank in groups of as many micro-batches as there are ranks, and its warm-up."""
    p, chunks = plan.ranks, plan.chunks
    order = [
        (chunk, i)
        for group in range(0, plan.microbatches, p)
        for chunk in range(chunks)
        for i in range(group, group + p)
    ]
    forwards = [Action("F", chunk * p + rank, i) for chunk, i in order]
    backwards = [Action("B", (chunks - 1 - chunk) * p + rank, i) for chunk, i in order]
    return forwards, backwards, 2 * (p - rank - 1) + (chunks - 1) * p


@built_in("1f1b-a2a")
def overlapped_exchange(plan: Plan) -> Schedule:
    """One forward more in the warm-up, then every forward together with the backward of an earlier micro-batch: while
    one of them exchanges tokens, the other computes."""
    _check_groups(plan, "1f1b-a2a")
    ranks = []
    for rank in range(plan.ranks):
        forwards, backwards, warm_up = _chunk_order(plan, rank)
        ahead = min(warm_up + 1, len(forwards))
        together = len(forwards) - ahead
        pairs = [overlapped(f, b) for f, b in zip(forwards[ahead:], backwards[:together], strict=True)]
        ranks.append((*forwards[:ahead], *pairs, *backwards[together:]))
    return Schedule("1f1b-a2a", tuple(ranks))


def _check_groups(plan: Plan, name: str) -> None:
    p, m = plan.ranks, plan.microbatches
    if m % p:
        what = f"{name} needs micro-batches in multiples of the {p} ranks (given: {m})."
        fix = f"Choose {f'{m - m % p} or ' if m > p else ''}{m - m % p + p} micro-batches."
        raise ConfigError(what, where="microbatches", fix=fix)


@built_in("zb-h1")
def zb_h1(plan: Plan) -> Schedule:
    """The warm-up of 1F1B; rank r puts off r weight gradients."""
    return Schedule("zb-h1", tuple(_handcrafted(plan, rank, 1) for rank in range(plan.ranks)))


@built_in("zb-h2")
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
