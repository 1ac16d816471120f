"""Who owns which GPU: one owner at a time, every change written down."""

from __future__ import annotations

from collections.abc import Iterable

from gnomon.posttrain.record import Span


class Ownership:
    """The present owner of every GPU. Changes of one GPU come in order of time, and may lie in the near future."""

    def __init__(self, num_gpus: int, spans: list[Span]) -> None:
        self._owner = ["transition"] * num_gpus
        self._since = [0.0] * num_gpus
        self._spans = spans
        self.settled_s = 0.0
        """From here on every GPU is with its present owner."""

    def owner(self, gpu: int) -> str:
        """The owner once everything has settled."""
        return self._owner[gpu]

    def of(self, owner: str) -> tuple[int, ...]:
        """The GPUs of one owner."""
        return tuple(gpu for gpu, name in enumerate(self._owner) if name == owner)

    def hand_over(
        self,
        gpus: Iterable[int],
        owner: str,
        when: float,
        *,
        meanwhile: str | None = None,
        at: float | None = None,
    ) -> None:
        """`owner` has the GPUs from `when` on; from `at` until then they are `meanwhile`'s."""
        for gpu in gpus:
            if meanwhile is not None:
                self._change(gpu, meanwhile, self._since[gpu] if at is None else at)
            self._change(gpu, owner, when)
            self.settled_s = max(self.settled_s, when)

    def _change(self, gpu: int, owner: str, when: float) -> None:
        when = max(when, self._since[gpu])
        if when > self._since[gpu]:
            self._spans.append(Span(gpu, self._owner[gpu], self._since[gpu], when))
        self._owner[gpu], self._since[gpu] = owner, when

    def close(self, end_s: float) -> None:
        """The step is over."""
        for gpu in range(len(self._owner)):
            self._change(gpu, "free", end_s)
