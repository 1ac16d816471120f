"""Which tokens the next iteration runs: running requests first, then waiting ones, under a token budget.

The rules are those of the simulator's policy `vllm_v1`: every running request, in order of admission, takes what it
has left up to the budget; blocks are taken as they are needed; when none is free the request admitted last is
pre-empted and recomputes later; waiting requests follow first come, first served, unless something was pre-empted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from gnomon.engine.shape import EngineConfig


@dataclass(eq=False)
class Request:
    """One request and how far it has come."""

    index: int
    arrived_s: float
    prompt: list[int]
    output_tokens: int
    output: list[int] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)
    """When each output token was there, in seconds since the start."""
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: int = 0
    slot: int = -1
    """Row of the page tables while it runs."""
    preemptions: int = 0
    admitted_s: float = -1.0

    @property
    def num_tokens(self) -> int:
        """Prompt and everything produced."""
        return len(self.prompt) + len(self.output)

    @property
    def is_done(self) -> bool:
        """Whether all its tokens have been produced."""
        return len(self.output) >= self.output_tokens


@dataclass(frozen=True)
class Batch:
    """One iteration: requests in order, and how many tokens each runs."""

    requests: list[Request]
    num_tokens: list[int]


class Scheduler:
    """Queues, block tables and the decision what to run next."""

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self.config = config
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.tables = np.zeros((config.max_num_seqs, config.blocks_per_sequence), np.int32)
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free_blocks)

    def add(self, request: Request) -> None:
        """Queue an arrival."""
        self.waiting.append(request)

    def next_batch(self, now_s: float) -> Batch:
        """Decide the next iteration and take the blocks it needs."""
        batch = Batch([], [])
        budget, preempted = self._take_running(batch)
        if not preempted:
            self._take_waiting(batch, budget, now_s)
        return batch

    def finish(self, batch: Batch, sampled: list[int], now_s: float) -> None:
        """Book the results of an iteration: computed tokens, sampled tokens, completed requests."""
        done = False
        for request, count, token in zip(batch.requests, batch.num_tokens, sampled, strict=True):
            request.computed += count
            if request.computed < request.num_tokens:
                continue  # A chunk in the middle of a prompt: its sample means nothing.
            request.output.append(token)
            request.stamps.append(now_s)
            if request.is_done:
                self._release(request)
                done = True
        if done:
            self.running = [request for request in self.running if not request.is_done]

    def _take_running(self, batch: Batch) -> tuple[int, bool]:
        budget, preempted, at = self.config.max_num_batched_tokens, False, 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            count = min(request.num_tokens - request.computed, budget)
            while not self._grow(request, count):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    return budget, preempted
            batch.requests.append(request)
            batch.num_tokens.append(count)
            budget -= count
            at += 1
        return budget, preempted

    def _take_waiting(self, batch: Batch, budget: int, now_s: float) -> None:
        while self.waiting and budget > 0 and self._free_slots:
            request = self.waiting[0]
            count = min(request.num_tokens - request.computed, budget)
            request.slot = self._free_slots[-1]
            if not self._grow(request, count):
                return
            self._free_slots.pop()
            self.waiting.popleft()
            self.running.append(request)
            if request.admitted_s < 0:
                request.admitted_s = now_s
            batch.requests.append(request)
            batch.num_tokens.append(count)
            budget -= count

    def _grow(self, request: Request, count: int) -> bool:
        """Give `request` the blocks for `count` more tokens, all or none."""
        needed = -(-(request.computed + count) // self.config.block_size) - request.blocks
        if needed <= 0:
            return True
        if needed > len(self._free_blocks):
            return False
        taken = self._free_blocks[-needed:]
        del self._free_blocks[-needed:]
        self.tables[request.slot, request.blocks : request.blocks + needed] = taken[::-1]
        request.blocks += needed
        return True

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.computed = 0
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self._free_blocks.extend(self.tables[request.slot, : request.blocks].tolist())
        self._free_slots.append(request.slot)
        request.blocks, request.slot = 0, -1
