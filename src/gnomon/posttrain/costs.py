"""Seconds of everything but generation: log-probabilities, training, weight sync, resharding.

A sequence passes a copy of the model as one prompt pass without a KV cache, with the head over every token, timed by
the operators of `gnomon.timing`. Log-probabilities are one such forward pass; training is three (forward, gradients of
inputs and of weights) plus what is recomputed. `efficiency` of the component divides both.
"""

from __future__ import annotations

import heapq
from functools import cached_property, lru_cache

import numpy as np

from gnomon import catalog
from gnomon.catalog import Parallelism, replicas
from gnomon.core.arrays import Floats, Ints
from gnomon.posttrain.config import ComponentConfig, Posttrain
from gnomon.timing import Context, Timer, TimingConfig
from gnomon.timing.communication import collective_s
from gnomon.timing.operators import Communication, Prefill

SERVING_ONLY = ("kv_write", "attention_decode", "sampler", "logits_all_gather")
"""Operators that a pass over finished sequences does not have."""
RESHARD_PARAMETERS = (1.54e9, 7.6e9, 32.8e9)
RESHARD_S = (0.5, 1.3, 2.8)
"""Published resharding times of the actor by model size (Qwen2.5 1.5B, 7B, 32B)."""
WEIGHT_BYTES = 2.0
GRADIENT_BYTES = 4.0


class Costs:
    """The seconds of one configuration."""

    def __init__(self, config: Posttrain) -> None:
        self.config = config
        self.model = catalog.model(config.model)
        device = catalog.device(config.device)
        self.node = catalog.node(config.node) if config.node else catalog.default_node(device)
        self._forward = {
            name: _forward_grid(config.model, config.device, config.node, part.tensor_parallel, part.pipeline_parallel)
            for name, part in (("inference", config.inference), ("actor", config.actor))
        }

    def forward_s(self, component: str, tokens: Ints) -> Floats:
        """Seconds of a forward pass of each sequence on one copy of the component, all stages in turn."""
        lengths, seconds = self._forward[component]
        return np.interp(tokens, lengths, seconds)

    def logprob_s(self, tokens: Ints) -> float:
        """Log-probabilities of these sequences on one copy, as one batch."""
        return self._rank_s(self.config.inference, self.forward_s("inference", tokens), 1.0)

    def logprob_each_s(self, tokens: Ints) -> list[float]:
        """Log-probabilities of each of these sequences alone on one copy."""
        each: list[float] = (self.forward_s("inference", tokens) / self.config.inference.efficiency).tolist()
        return each

    def train_at_once(self, tokens: Ints, num_gpus: int) -> tuple[float, float]:
        """One mini-batch ([group, sample] tokens) that is there as a whole, dealt to the ranks beforehand.

        Seconds of the slowest rank and of the gradients' all-reduce; seconds in which a GPU computes, on average.
        """
        actor = self.config.actor
        copies = num_gpus // actor.num_gpus
        ranks = self._deal(self.forward_s("actor", tokens), copies)
        busy = [self._rank_s(actor, rank, self._passes) for rank in ranks]
        gradients = self._gradient_s(copies)
        return max(busy) + gradients, sum(busy) / copies + gradients

    def train_stream(self, tokens: Ints, ready_s: Floats, start_s: float, num_gpus: int) -> tuple[float, float]:
        """One mini-batch whose groups come one after another: a rank that is free takes the next one.

        Every rank takes equally many. Returns the end, and the seconds in which a GPU computes, on average.
        """
        actor = self.config.actor
        copies = num_gpus // actor.num_gpus
        share = -(-len(tokens) // copies)
        ranks = [(start_s, rank, share) for rank in range(copies)]
        end_s = busy_s = 0.0
        for group in np.argsort(ready_s, kind="stable"):
            free_s, rank, room = heapq.heappop(ranks)
            seconds = self._rank_s(actor, self.forward_s("actor", tokens[group]), self._passes)
            done_s = max(free_s, float(ready_s[group])) + seconds
            busy_s += seconds
            end_s = max(end_s, done_s)
            if room > 1:
                heapq.heappush(ranks, (done_s, rank, room - 1))
        gradients = self._gradient_s(copies)
        return end_s + gradients, busy_s / copies + gradients

    @property
    def _passes(self) -> float:
        """Forward passes that a training pass is worth."""
        return 3.0 + self.config.actor.recompute

    def _deal(self, forward_s: Floats, copies: int) -> list[Floats]:
        """Whole groups to data-parallel ranks: in order, or the longest to the least loaded rank with room."""
        if not self.config.actor.balance:
            return [part.ravel() for part in np.array_split(forward_s, copies)]
        room = -(-len(forward_s) // copies)
        ranks: list[list[int]] = [[] for _ in range(copies)]
        load = np.zeros(copies)
        weight = forward_s.sum(axis=1)
        for group in np.argsort(-weight, kind="stable"):
            open_ranks = [r for r in range(copies) if len(ranks[r]) < room]
            rank = min(open_ranks, key=lambda r: (load[r], r))
            ranks[rank].append(int(group))
            load[rank] += weight[group]
        return [forward_s[rank].ravel() for rank in ranks]

    def _rank_s(self, part: ComponentConfig, forward_s: Floats, passes: float) -> float:
        """Sequences one after another through the stages of one copy, with the pipeline's fill and drain."""
        if not forward_s.size:
            return 0.0
        stages = part.pipeline_parallel
        bubble = 1.0 + (stages - 1) / forward_s.size
        return passes * float(forward_s.sum()) / stages * bubble / part.efficiency

    def _gradient_s(self, copies: int) -> float:
        actor = self.config.actor
        per_rank = np.array([self.model.num_parameters * GRADIENT_BYTES / actor.num_gpus])
        return float(collective_s("all_reduce", per_rank, replicas(copies, actor.num_gpus), self.node)[0])

    def sync_s(self, has_inference: bool) -> float:
        """The blocking weight syncs actor -> inference and actor -> rollout."""
        t = self.config.transitions
        count = 2 if has_inference else 1
        return count * (t.sync_fixed_s + self.model.num_parameters * WEIGHT_BYTES / t.sync_bandwidth_bytes_s)

    @cached_property
    def reshard_s(self) -> float:
        """Seconds of a change of the actor's size."""
        given = self.config.transitions.reshard_s
        if given is not None:
            return given
        return float(np.interp(self.model.num_parameters, RESHARD_PARAMETERS, RESHARD_S))

    def migration_s(self, kv_tokens: int) -> float:
        """From the stop of instances to their sequences' going on elsewhere."""
        t = self.config.transitions
        if self.config.rollout.migration == "reprefill":
            return t.migration_s
        return t.migration_s + kv_tokens * self.model.kv_bytes_per_token("bf16", 1) / t.kv_bandwidth_bytes_s


@lru_cache(maxsize=64)
def _forward_grid(model: str, device: str, node: str | None, tensor: int, pipeline: int) -> tuple[Floats, Floats]:
    """Lengths and the seconds of a pass of one sequence of that length."""
    shape, silicon = catalog.model(model), catalog.device(device)
    parallelism = Parallelism(tensor_parallel=tensor, pipeline_parallel=pipeline)
    parallelism.check(shape)
    place = catalog.node(node) if node else catalog.default_node(silicon)
    timer = Timer(Context(shape, silicon, place, parallelism, TimingConfig()))
    lengths = np.unique(np.rint(np.concatenate([[1.0], np.geomspace(16, 262_144, 240)])))
    seconds = np.zeros(lengths.size)
    for stage in range(pipeline):
        for operator in timer.operators(stage):
            if operator.name in SERVING_ONLY:
                continue
            work = operator.work
            sizes: tuple[Floats, ...] = (lengths,)
            if isinstance(work, Prefill):
                sizes = (lengths, np.zeros_like(lengths))
            elif isinstance(work, Communication):
                sizes = (work.bytes_each * lengths,)
            seconds += operator.count * timer.seconds(operator, *sizes)
    return lengths, seconds
