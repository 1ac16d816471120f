"""What prompts have in common, by their tokens, as the engine's prefix caches look for it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def block_hashes(tokens: Sequence[int], block_tokens: int, start: int, limit: int) -> list[int]:
    """A number for every full block: equal where all tokens up to its end, and `start`, are."""
    hashes, so_far = [], start
    for first in range(0, len(tokens) - block_tokens + 1, block_tokens):
        so_far = hash((so_far, *tokens[first : first + block_tokens]))  # Of whole numbers: the same in every process.
        hashes.append(so_far % limit)
    return hashes


class Room:
    """Places in one array that are lent out as ranges, those that were not used for longest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._next = 0

    def take(self, count: int) -> int | None:
        """The start of `count` free places in a row, or None."""
        if count == 0:
            return 0
        for first, last in ((self._next, self.size), (0, self.size)):
            start = first
            for taken in self._starts[bisect_left(self._starts, first) :]:
                if taken - start >= count:
                    break
                start = max(start, self._ends[taken])
            if start + count <= last:
                insort(self._starts, start)
                self._ends[start] = self._next = start + count
                return start
        return None

    def give_back(self, start: int, count: int) -> None:
        """These places are free again."""
        if count:
            del self._ends[start]
            del self._starts[bisect_left(self._starts, start)]
