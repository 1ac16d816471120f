"""Log-probabilities: finished groups queue for the copies of the inference component."""

import heapq
import math

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.posttrain.costs.training import Costs
from gnomon.posttrain.simulator.record import Work


class InferenceQueue:
    """Groups in order of completion; while it has GPUs, each sequence goes to the copy that is free first.

    What has gathered before it gets GPUs (components that take turns) is split evenly over the copies in the order of
    the prompts, as one batch would be.
    """

    def __init__(self, costs: Costs, work: list[Work]) -> None:
        self._costs, self._work = costs, work
        self._copies: list[tuple[float, int]] = []
        self._gpus: list[tuple[int, ...]] = []
        self._backlog: list[tuple[float, int, Ints]] = []
        self._ready: list[tuple[float, int]] = []
        self._num_done = 0
        self.last_end_s = 0.0
        self._busy_s = 0.0

    def start(self, copies: list[tuple[int, ...]], now: float) -> None:
        """It has these GPUs from `now` on."""
        self._gpus = copies
        self._copies = [(now, number) for number in range(len(copies))]
        heapq.heapify(self._copies)
        if len(self._backlog) > 1:  # All at once, in equal numbers of sequences, in the order of the prompts.
            self._backlog.sort(key=lambda entry: entry[1])
            tokens = np.concatenate([entry[2] for entry in self._backlog])
            seconds = [self._costs.logprob_s(part) for part in np.array_split(tokens, len(copies))]
            for number, spent in enumerate(seconds):
                self._note(number, now, now + spent)
            end = now + max(seconds)
            self._copies = [(end, number) for number in range(len(copies))]
            self._ready += [(end, entry[1]) for entry in self._backlog]
            self._num_done += len(self._backlog)
            self._backlog = []
        waiting, self._backlog = self._backlog, []
        for done_s, group, tokens in waiting:
            self.add(group, tokens, done_s)

    def stop(self) -> None:
        """It gives its GPUs back."""
        self._copies, self._gpus = [], []

    def add(self, group: int, tokens: Ints, done_s: float) -> None:
        """A group was generated at `done_s`."""
        if not self._copies:
            self._backlog.append((done_s, group, tokens))
            return
        ready_s = -math.inf
        for seconds in self._costs.logprob_each_s(tokens):
            free_s, number = heapq.heappop(self._copies)
            start = max(free_s, done_s)
            end = start + seconds
            self._note(number, start, end)
            heapq.heappush(self._copies, (end, number))
            ready_s = max(ready_s, end)
        self._ready.append((ready_s, group))
        self._num_done += 1

    def _note(self, number: int, start: float, end: float) -> None:
        self._busy_s += (end - start) / len(self._gpus)
        self.last_end_s = max(self.last_end_s, end)
        self._work.append(Work("inference", number, self._gpus[number], start, end, end - start))

    def take_ready(self) -> list[tuple[float, int]]:
        """Groups that are through since the last call, with the time at which each is."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def groups_s(self) -> float:
        """Groups per second while busy, so far."""
        return self._num_done / self._busy_s if self._busy_s > 0.0 else 0.0
