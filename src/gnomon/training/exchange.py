"""Communication of one training step: which GPUs exchange what over which links, and what of it nothing hides.

GPUs are numbered as Megatron-LM does: tensor-parallel ones side by side, then context, data, and pipeline stages last.
"""

import numpy as np

from gnomon.catalog import Group
from gnomon.timing.communication import collective_s
from gnomon.timing.operators import ACTIVATION_BYTES, Collective
from gnomon.training.compute import Pass
from gnomon.training.config import TrainConfig
from gnomon.training.constants import constants

LOW = {"bf16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "nvfp4": 1.0}
"""Bytes of a gathered activation: it is quantised before it is sent."""


class Exchange:
    """The links of one configuration."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.model, self.node = config, config.shape, config.where
        self.hidden = self.model.hidden_size * ACTIVATION_BYTES

    @property
    def tensor(self) -> Group:
        return Group(range(self.config.tensor_parallel))

    @property
    def context(self) -> Group:
        c = self.config
        return Group(range(0, c.context_parallel * c.tensor_parallel, c.tensor_parallel), copies=c.tensor_parallel)

    @property
    def experts(self) -> Group:
        """GPUs over which experts are spread: neighbours of one stage."""
        step = self.config.expert_tensor_parallel
        return Group(range(0, self.config.expert_parallel * step, step), copies=step)

    def replicas(self, ranks: int, apart: int) -> Group:
        return Group(range(0, ranks * apart, apart), copies=apart)

    def seconds(self, collective: Collective, num_bytes: float, group: Group) -> float:
        return float(collective_s(collective, np.array([num_bytes]), group, self.node)[0])

    def add_tensor(self, made: Pass, has_mlp: bool) -> None:
        """All-gathers before and reduce-scatters after both halves of a layer.

        Beside the product that needs it, a collective in as many pieces as there are GPUs leaves its first piece open,
        and what is longer than the product; gathering inputs again for the weights' gradients hides behind products.
        """
        c = self.config
        if c.tensor_parallel == 1:
            return
        halves, tokens = 2 if has_mlp else 1, c.tokens
        if not c.sequence_parallel:
            whole = halves * self.seconds("all_reduce", tokens * self.hidden, self.tensor)
            made.add("tensor", whole, whole)
            return
        gather = self.seconds(
            "all_gather", tokens / c.tensor_parallel * self.model.hidden_size * LOW[c.precision], self.tensor
        )
        scatter = self.seconds("reduce_scatter", tokens * self.hidden, self.tensor)
        products = made.forward.get("products", 0.0) / (2 * halves)
        both = self._beside(gather, products) + self._beside(scatter, products)
        again = max(0.0, gather - products) if c.tensor_overlap and not c.lora_rank else 0.0 if c.lora_rank else gather
        made.add("tensor", halves * both, halves * (both + again))

    def _beside(self, seconds: float, products: float) -> float:
        if not self.config.tensor_overlap:
            return seconds
        first = seconds / self.config.tensor_parallel
        hidden = min(seconds - first, products)
        return first + (seconds - first - hidden) + constants().tensor_impact * hidden

    def add_context(self, made: Pass, kv_elements: float, q_elements: float) -> None:
        """Keys and values of the other GPUs: of `kv_elements` per token on one GPU (and `q_elements` of queries)."""
        c = self.config
        ranks = c.context_parallel
        if ranks == 1:
            return
        kv = c.tokens * kv_elements * ACTIVATION_BYTES
        forward, backward = made.forward.get("attention", 0.0), made.input_grad.get("attention", 0.0)
        if c.context_exchange == "ring":  # One neighbour's at a time, beside the attention over those before.
            hop = self.seconds("send_recv", kv, Group(self.context.ranks[:2], self.context.copies))
            if self.context.on(self.node).num_nodes > 1:
                hop = self.seconds("send_recv", kv, Group(self.context.ranks[:: ranks - 1], self.context.copies))
            steps = ranks - 1
            made.add("context", steps * max(0.0, hop - forward / ranks), steps * max(0.0, 2 * hop - backward / ranks))
        elif c.context_exchange == "all_gather":
            gather = self.seconds("all_gather", kv, self.context)
            scatter = self.seconds("reduce_scatter", ranks * kv, self.context)
            made.add("context", gather, gather + scatter)
        else:  # Heads for tokens before attention, tokens for heads after it.
            moved = c.tokens * (kv_elements + 2 * q_elements) * ACTIVATION_BYTES
            both = self.seconds("all_to_all", moved, self.context)
            made.add("context", both, both)

    def expert_s(self) -> float:
        """One dispatch (or combine): every token once to each GPU that has one of its experts, over the network once
        to each node."""
        c, m, group = self.config, self.model, self.experts
        if group.size == 1:
            return 0.0
        at = group.on(self.node)
        tokens = c.tokens / (c.tensor_parallel if c.sequence_parallel else 1)
        each = (m.expert_hidden_size or m.hidden_size) * ACTIVATION_BYTES * tokens
        inside = at.inside
        near = each * _distinct(at.per_node * at.num_nodes, m.experts_per_token) * (1 - 1 / group.size)
        seconds = inside.latency_s + inside.step_s * (group.size - 2) + near / inside.bandwidth_bytes_s
        if at.num_nodes > 1:
            far = each * _distinct(at.num_nodes, m.experts_per_token) * (1 - 1 / at.num_nodes)
            seconds = max(seconds, at.between.latency_s + far / at.between.bandwidth_bytes_s)
        return seconds

    def handover_s(self) -> tuple[float, float]:
        """Latency of a micro-batch's activations to the next stage, and seconds that they keep a link busy."""
        c = self.config
        apart = c.gpus // c.pipeline_parallel
        group = Group(range(0, 2 * apart, apart), copies=apart)
        message = c.tokens / (c.tensor_parallel if c.sequence_parallel else 1) * self.hidden
        latency = self.seconds("send_recv", 0.0, group)
        return latency, self.seconds("send_recv", message, group) - latency

    @property
    def has_own_links(self) -> bool:
        """Whether copies exchange gradients over other links than stages exchange activations: one of them inside a
        node, the other between nodes."""
        c = self.config
        apart = c.gpus // c.pipeline_parallel
        stages = Group(range(0, 2 * apart, apart), copies=apart).on(self.node).num_nodes
        copies = self.replicas(c.data_parallel * c.context_parallel, c.tensor_parallel).on(self.node).num_nodes
        return (stages > 1) != (copies > 1)

    def gradient_s(self, parameters: float, grad_bytes: float, ranks: int, apart: int) -> float:
        """Adding up gradients over the GPUs that hold the same weights, `apart` from each other; each keeps its part
        where state is divided."""
        c = self.config
        if ranks == 1 or not parameters:
            return 0.0
        shards = min(c.num_sharding, ranks) if c.sharding != "none" else 1
        if shards == 1:
            return self.seconds("all_reduce", parameters * grad_bytes, self.replicas(ranks, apart))
        inside = self.seconds("reduce_scatter", parameters * grad_bytes, self.replicas(shards, apart))
        copies = ranks // shards
        if copies == 1:
            return inside
        between = self.replicas(copies, shards * apart)
        return inside + self.seconds("all_reduce", parameters * grad_bytes / shards, between)

    def gather_s(self, parameters: float, weight_bytes: float, ranks: int, apart: int) -> float:
        """Gathering weights from the GPUs over which they (or their optimizer) are divided."""
        shards = min(self.config.num_sharding, ranks) if self.config.sharding != "none" else 1
        if shards == 1 or not parameters:
            return 0.0
        return self.seconds("all_gather", parameters * weight_bytes / shards, self.replicas(shards, apart))


def _distinct(places: int, choices: int) -> float:
    """How many of `places` equally likely ones `choices` draws meet."""
    return float(places * (1.0 - (1.0 - 1.0 / places) ** choices))
