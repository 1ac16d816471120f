"""Seconds of everything but generation: log-probabilities, training, weight sync, resharding.

Sequences pass a copy of the model one after another (`gnomon.timing.passes`): log-probabilities are a forward pass,
training is a forward and a backward pass and what is recomputed. `efficiency` of the component divides both.
"""

from __future__ import annotations

import heapq
import math
from functools import cached_property, lru_cache

import numpy as np

from gnomon import catalog
from gnomon.catalog import Node, Parallelism, replicas
from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import DoesNotFitError
from gnomon.core.units import GB
from gnomon.posttrain.config import ComponentConfig, Posttrain
from gnomon.timing.communication import collective_s
from gnomon.timing.passes import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES, stage_passes, training_timer

LENGTHS = np.unique(np.rint(np.concatenate([[1.0], np.geomspace(16, 262_144, 240)])))
"""Tokens of the sequences for which passes are timed; those between lie on a straight line."""
RESHARD_PARAMETERS = (1.54e9, 7.6e9, 32.8e9)
RESHARD_S = (0.5, 1.3, 2.8)
"""Published resharding times of the actor by model size (Qwen2.5 1.5B, 7B, 32B)."""


class Costs:
    """The seconds of one configuration."""

    def __init__(self, config: Posttrain) -> None:
        self.config = config
        self.model = catalog.model(config.model)
        self.node = _node(config.device, config.node, config.cluster.gpus_per_node)
        self._logprob, _ = self._passes(config.inference)
        forward, backward = self._passes(config.actor)
        self._train = (1.0 + config.actor.recompute) * forward + backward

    def _passes(self, part: ComponentConfig) -> tuple[Floats, Floats]:
        c = self.config
        return _pass_grid(
            c.model, c.device, c.node, c.cluster.gpus_per_node, part.tensor_parallel, part.pipeline_parallel
        )

    def forward_s(self, tokens: Ints) -> Floats:
        """Seconds of a forward pass of each sequence on one copy for inference, all stages in turn."""
        return np.interp(tokens, LENGTHS, self._logprob)

    def train_s(self, tokens: Ints) -> Floats:
        """Seconds of forward, recomputation and backward of each sequence on one copy of the actor."""
        return np.interp(tokens, LENGTHS, self._train)

    def logprob_s(self, tokens: Ints) -> float:
        """Log-probabilities of these sequences on one copy, as one batch."""
        return self._rank_s(self.config.inference, self.forward_s(tokens))

    def logprob_each_s(self, tokens: Ints) -> list[float]:
        """Log-probabilities of each of these sequences alone on one copy."""
        each: list[float] = (self.forward_s(tokens) / self.config.inference.efficiency).tolist()
        return each

    def train_at_once(self, tokens: Ints, num_gpus: int) -> tuple[float, float]:
        """One mini-batch ([group, sample] tokens) that is there as a whole, dealt to the ranks beforehand.

        Seconds of the slowest rank and of the gradients' all-reduce; seconds in which a GPU computes, on average.
        """
        actor = self.config.actor
        copies = num_gpus // actor.num_gpus
        busy = [self._rank_s(actor, rank) for rank in self._deal(self.train_s(tokens), copies)]
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
            seconds = self._rank_s(actor, self.train_s(tokens[group]))
            done_s = max(free_s, float(ready_s[group])) + seconds
            busy_s += seconds
            end_s = max(end_s, done_s)
            if room > 1:
                heapq.heappush(ranks, (done_s, rank, room - 1))
        gradients = self._gradient_s(copies)
        return end_s + gradients, busy_s / copies + gradients

    def _deal(self, each_s: Floats, copies: int) -> list[Floats]:
        """Whole groups to data-parallel ranks: in order, or the longest to the least loaded rank with room."""
        if not self.config.actor.balance:
            return [part.ravel() for part in np.array_split(each_s, copies)]
        room = -(-len(each_s) // copies)
        ranks: list[list[int]] = [[] for _ in range(copies)]
        load = np.zeros(copies)
        weight = each_s.sum(axis=1)
        for group in np.argsort(-weight, kind="stable"):
            open_ranks = [r for r in range(copies) if len(ranks[r]) < room]
            rank = min(open_ranks, key=lambda r: (load[r], r))
            ranks[rank].append(int(group))
            load[rank] += weight[group]
        return [each_s[rank].ravel() for rank in ranks]

    def _rank_s(self, part: ComponentConfig, each_s: Floats) -> float:
        """Sequences one after another through the stages of one copy, with the pipeline's fill and drain."""
        if not each_s.size:
            return 0.0
        stages = part.pipeline_parallel
        bubble = 1.0 + (stages - 1) / each_s.size
        return float(each_s.sum()) / stages * bubble / part.efficiency

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


def check_actor_memory(config: Posttrain, num_gpus: int) -> None:
    """Refuse an actor whose weights, gradients and optimizer (spread over its copies) no GPU holds."""
    model, device, actor = catalog.model(config.model), catalog.device(config.device), config.actor
    copies = num_gpus // actor.num_gpus
    each = model.num_parameters * (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES / copies)
    held, room = each / actor.num_gpus, float(device.memory_bytes)
    if held > room:
        least = 2 ** math.ceil(math.log2(each / room))
        raise DoesNotFitError(
            f"the actor's weights, gradients and optimizer take {held / GB:.1f} GB on each GPU,"
            f" {(held - room) / GB:.1f} GB more than a {device.name} has.",
            where="actor.tensor_parallel",
            fix=f"Cut a copy over {least} GPUs (tensor_parallel x pipeline_parallel), or give the actor more GPUs.",
        )


def _node(device: str, node: str | None, gpus_per_node: int) -> Node:
    """A node of the cluster: the named (or the device's usual) one with as many GPUs as the cluster has in each."""
    found = catalog.node(node) if node else catalog.default_node(catalog.device(device))
    return found.model_copy(update={"num_gpus": gpus_per_node})


@lru_cache(maxsize=64)
def _pass_grid(
    model: str, device: str, node: str | None, gpus_per_node: int, tensor: int, pipeline: int
) -> tuple[Floats, Floats]:
    """Seconds of a forward and of a backward pass of one sequence of each of `LENGTHS`."""
    cut = Parallelism(tensor_parallel=tensor, pipeline_parallel=pipeline)
    timer = training_timer(catalog.model(model), catalog.device(device), _node(device, node, gpus_per_node), cut)
    stages = [stage_passes(timer, stage, LENGTHS) for stage in range(pipeline)]
    forward = np.sum([one.forward + one.handover for one in stages], axis=0)
    backward = np.sum([one.input_grad + one.weight_grad + one.handover for one in stages], axis=0)
    return forward, backward
