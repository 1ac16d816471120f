"""DualPipe and DualPipeV: forward and backward of two streams of micro-batches overlap (DeepSeek-V3).

Both follow the same eight steps on each rank, counted from the end of the pipe where a stream starts. DualPipe feeds
both ends of the pipe and holds two copies of the weights; DualPipeV folds the pipe into a V instead.
"""

from collections.abc import Callable
from dataclasses import replace

from gnomon.core.errors import ConfigError
from gnomon.pipeline.schedule import Action, Schedule, overlapped
from gnomon.pipeline.zoo.plan import Plan, built_in

MakeAction = Callable[[str, int, int], Action]  # (kind, stream, number within the stream) -> action.


class _Steps:
    """Writes one rank's list; each stream counts its own forwards and backwards."""

    def __init__(self, make: MakeAction) -> None:
        self.order: list[Action] = []
        self._make = make
        self._next: dict[tuple[str, int], int] = {}
        self._put_off: list[Action] = []

    def forward(self, stream: int) -> None:
        self.order.append(self._take("F", stream))

    def backward(self, stream: int, *, put_off_weights: bool = False) -> None:
        action = self._take("B", stream)
        if put_off_weights:
            self._put_off.append(replace(action, kind="W"))
            action = replace(action, kind="I")
        self.order.append(action)

    def weights(self) -> None:
        self.order.append(self._put_off.pop(0))

    def both(self, forward: int, backward: int) -> None:
        self.order.append(overlapped(self._take("F", forward), self._take("B", backward)))

    def _take(self, kind: str, stream: int) -> Action:
        number = self._next.get((kind, stream), 0)
        self._next[kind, stream] = number + 1
        return self._make(kind, stream, number)


def _eight_steps(distance: int, length: int, microbatches: int, make: MakeAction) -> tuple[Action, ...]:
    """One rank at `distance` from where stream 0 enters, of `length` ranks, with `microbatches` per stream."""
    steps = _Steps(make)
    to_the_turn = length - distance - 1
    for _ in range(2 * to_the_turn):
        steps.forward(0)
    for _ in range(distance + 1):
        steps.forward(0)
        steps.forward(1)
    for _ in range(to_the_turn):
        steps.backward(1, put_off_weights=True)
        steps.weights()
        steps.forward(1)
    for i in range(microbatches - 2 * length + distance + 1):
        if i == 0 and to_the_turn == 0:  # At the turn the two would wait for each other.
            steps.forward(0)
            steps.backward(1)
        else:
            steps.both(0, 1)
        steps.both(1, 0)
    for _ in range(to_the_turn):
        steps.backward(1)
        steps.both(1, 0)
    half = (distance + 1) // 2
    for i in range(distance + 1):
        steps.backward(1, put_off_weights=i > half or (i == half and distance % 2 == 1))
        steps.backward(0, put_off_weights=i >= half)
    for _ in range(to_the_turn):
        steps.weights()
        steps.backward(0, put_off_weights=True)
    for _ in range(distance + 1):
        steps.weights()
    return tuple(steps.order)


@built_in("dualpipe-v")
def dualpipe_v(plan: Plan) -> Schedule:
    """A V of 2p stages: rank r holds stage r and stage 2p-1-r."""
    p, m = plan.ranks, plan.microbatches
    _check_enough("dualpipe-v", m, 2 * p)

    def of_rank(rank: int) -> tuple[Action, ...]:
        stages = (rank, 2 * p - 1 - rank)
        return _eight_steps(rank, p, m, lambda kind, stream, number: Action(kind, stages[stream], number))

    return Schedule("dualpipe-v", tuple(of_rank(rank) for rank in range(p)))


@built_in("dualpipe")
def dualpipe(plan: Plan) -> Schedule:
    """Half of the micro-batches enter at each end; rank r holds stage r and stage p-1-r."""
    p, m = plan.ranks, plan.microbatches
    if p % 2 or m % 2:
        what = f"dualpipe needs even numbers of ranks and micro-batches (given: {p} and {m})."
        raise ConfigError(what, where="microbatches")
    _check_enough("dualpipe", m, 2 * p)

    def of_rank(rank: int) -> tuple[Action, ...]:
        near = 0 if rank < p // 2 else 1  # The end this rank is nearer to.

        def make(kind: str, stream: int, number: int) -> Action:
            end = near ^ stream
            return Action(kind, rank if end == 0 else p - 1 - rank, number + end * (m // 2))

        return _eight_steps(min(rank, p - 1 - rank), p // 2, m // 2, make)

    return Schedule("dualpipe", tuple(of_rank(rank) for rank in range(p)))


def _check_enough(name: str, microbatches: int, needed: int) -> None:
    if microbatches < needed:
        what = f"{name} needs at least {needed} micro-batches (given: {microbatches})."
        raise ConfigError(what, where="microbatches")
