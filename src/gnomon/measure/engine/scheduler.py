"""Which tokens the next iteration runs: running requests first, then waiting ones, under a token budget.

What a request will produce is known from its length alone, so the running part of the next batch can be planned while
the GPU still computes this one (`advance`, `plan`); only admissions wait for its end (`admit`).

The rules are those of the simulator's policy `vllm_v1`: every running request, in order of admission, takes what it
has left up to the budget; blocks are taken as they are needed; when none is free the request admitted last is
pre-empted and recomputes later; waiting requests follow first come, first served, unless something was pre-empted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnomon.measure.engine.shape import EngineConfig

Ints = NDArray[np.int32]


@dataclass(eq=False, slots=True)
class Request:
    index: int
    arrived_s: float
    prompt: Ints
    output_tokens: int
    output: list[int] = field(default_factory=list)
    stamps: list[float] = field(default_factory=list)
    """When each output token was there, in seconds since the start."""
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    num_tokens: int = 0
    """Prompt and everything produced, including a token that the GPU is still computing."""
    produced_in: int = -1
    """Number of the batch that produced its newest token, and the row of that batch in which it did."""
    produced_row: int = -1
    blocks: int = 0
    slot: int = -1
    """Row of the page tables while it runs."""
    preemptions: int = 0
    admitted_s: float = -1.0

    def __post_init__(self) -> None:
        self.num_tokens = len(self.prompt) + len(self.output)

    def token_ids(self, count: int) -> Ints:
        start = self.computed
        if start + count <= len(self.prompt):
            return self.prompt[start : start + count]
        everything = np.concatenate([self.prompt, np.array(self.output, np.int32)])
        return everything[start : start + count]

    @property
    def is_done(self) -> bool:
        return self.num_tokens - len(self.prompt) >= self.output_tokens


@dataclass(slots=True)
class Batch:
    """One iteration: requests in order, and how many tokens each runs."""

    number: int
    budget: int
    """Tokens that may still be added."""
    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    preempted: bool = False
    """Somebody was pre-empted for it: nobody is admitted."""

    def add(self, request: Request, count: int) -> None:
        self.requests.append(request)
        self.num_tokens.append(count)
        self.budget -= count


class Scheduler:
    """Queues, block tables and the decision what to run next.

    `tables` is [max_num_seqs, blocks of a sequence]; the scheduler writes the blocks of a running request into the row
    of its slot. It may be pinned memory that the runner uploads.
    """

    def __init__(self, config: EngineConfig, num_blocks: int, tables: Ints) -> None:
        self.config, self.tables = config, tables
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._planned = 1  # Requests that have produced nothing say -1.

    @property
    def num_free_blocks(self) -> int:
        return len(self._free_blocks)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def plan(self) -> Batch:
        """The running part of the next batch, with the blocks it needs."""
        batch = Batch(self._planned, self.config.max_num_batched_tokens)
        self._planned += 1
        block_size, at = self.config.block_size, 0
        while at < len(self.running) and batch.budget > 0:
            request = self.running[at]
            count = min(request.num_tokens - request.computed, batch.budget)
            while request.computed + count > request.blocks * block_size and not self._grow(request, count):
                batch.preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is request:
                    return batch
            batch.add(request, count)
            at += 1
        return batch

    def admit(self, batch: Batch, now_s: float) -> bool:
        """Add waiting requests to a planned batch, first come, first served; says whether there were any."""
        before = len(batch.requests)
        while self.waiting and batch.budget > 0 and self._free_slots and not batch.preempted:
            request = self.waiting[0]
            count = min(request.num_tokens - request.computed, batch.budget)
            request.slot = self._free_slots[-1]
            if not self._grow(request, count):
                break
            self._free_slots.pop()
            self.waiting.popleft()
            self.running.append(request)
            if request.admitted_s < 0:
                request.admitted_s = now_s
            batch.add(request, count)
        return len(batch.requests) > before

    def advance(self, batch: Batch) -> None:
        """Book what a batch computes; requests that end with it give their blocks back."""
        done = False
        for row, (request, count) in enumerate(zip(batch.requests, batch.num_tokens, strict=True)):
            request.computed += count
            if request.computed < request.num_tokens:
                continue  # A chunk in the middle of a prompt: its sample means nothing.
            request.num_tokens += 1
            request.produced_in, request.produced_row = batch.number, row
            if request.is_done:
                self._release(request)
                done = True
        if done:
            self.running = [request for request in self.running if not request.is_done]

    def stamp(self, batch: Batch, sampled: list[int], now_s: float) -> None:
        """Hand out the tokens that a batch produced."""
        number = batch.number
        for request, token in zip(batch.requests, sampled, strict=True):
            if request.produced_in == number:
                request.output.append(token)
                request.stamps.append(now_s)

    def _grow(self, request: Request, count: int) -> bool:
        """Give `request` the blocks for `count` more tokens, all or none."""
        needed = -(-(request.computed + count) // self.config.block_size) - request.blocks
        if needed > len(self._free_blocks):
            return False
        if needed > 0:
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
