"""The newest few answers, which several threads look for and add to."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Kept(Generic[V]):
    """Up to `most` answers by their question; what was not asked for longest goes first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._answers: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> V | None:
        """The answer, if it is known."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def found(self, key: str, find: Callable[[], V]) -> V:
        """The answer; `find` finds it where it is not known, while others look for theirs."""
        answer = self.get(key)
        if answer is None:
            answer = find()
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > self.most:
                    self._answers.popitem(last=False)
        return answer
