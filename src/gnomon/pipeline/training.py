"""Costs of a real model on a real GPU: the passes of `gnomon.timing.passes`, transfers and gradient synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnomon import catalog
from gnomon.catalog import Group
from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import Degree, Sequences, Tokens
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import links_of
from gnomon.pipeline.schedule import Schedule
from gnomon.timing import TimingConfig
from gnomon.timing.communication import collective_s
from gnomon.timing.operators import ACTIVATION_BYTES
from gnomon.timing.passes import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES, stage_passes, training_timer

WEIGHT_GRAD_MEMORY = 32 / 34
"""Share of a layer's activations that its weight gradients need (arXiv 2401.10241: M_W = 32h of M_B = 34h)."""


class Training(Config):
    """A model in training."""

    model: str = "llama-3-8b"
    """Name in the catalog."""
    device: str = "h100"
    """GPU, by its name in the catalog."""
    node: str | None = None
    """Links between GPUs; the device's usual node unless given."""
    tensor_parallel: Degree = 1
    """GPUs that share every layer: one rank of the pipeline."""
    data_parallel: Degree = 1
    """Copies of the whole pipeline, which synchronise their gradients."""
    micro_batch: Sequences = 1
    """Sequences per micro-batch."""
    sequence: Tokens = 4096
    """Tokens per sequence."""
    recompute: bool = False
    """Keep only the input of each layer and run its forward again before the backward."""
    shard_optimizer: bool = False
    """Spread the optimizer's state over the data-parallel copies (ZeRO-1)."""
    timing: TimingConfig = TimingConfig()


@dataclass(frozen=True)
class StageCost:
    """One stage of one micro-batch, on one GPU."""

    forward: float
    input_grad: float
    weight_grad: float
    flops: float
    """Of the forward pass."""
    activation_bytes: float
    parameters: float


class TrainingCosts:
    """The costs of `training` cut into stages."""

    def __init__(self, training: Training, num_stages: int) -> None:
        self.training = training
        self.model, self.device = catalog.model(training.model), catalog.device(training.device)
        self.node = catalog.node(training.node) if training.node else catalog.default_node(self.device)
        self.parallelism = catalog.Parallelism(tensor_parallel=training.tensor_parallel, pipeline_parallel=num_stages)
        self.timer = training_timer(self.model, self.device, self.node, self.parallelism, training.timing)
        self.tokens = training.micro_batch * training.sequence

    @cached_property
    def stages(self) -> list[StageCost]:
        """Every stage."""
        return [self._stage(stage) for stage in range(self.parallelism.pipeline_parallel)]

    def step_costs(self, schedule: Schedule, sync_freq: int | None = None) -> StepCosts:
        """The costs of a training step in seconds: passes, transfers, and gradient synchronisation.

        Gradients are synchronised once per step, or after every `sync_freq` micro-batches.
        """
        hops = {pair: self._send_s(*pair) for pair in links_of(schedule)}
        latency, send = max(hops.values(), key=sum, default=(0.0, 0.0))
        speeds = {f"{a}-{b}": send / busy for (a, b), (_, busy) in hops.items() if busy != send}
        every = schedule.num_microbatches if sync_freq is None else sync_freq
        if every < 1 or schedule.num_microbatches % every:
            raise ConfigError(
                f"sync_freq {every} does not divide the {schedule.num_microbatches} micro-batches.",
                fix="Every synchronisation moves all gradients: choose a divisor.",
            )
        return StepCosts(
            forward=tuple(s.forward for s in self.stages),
            input_grad=tuple(s.input_grad for s in self.stages),
            weight_grad=tuple(s.weight_grad for s in self.stages),
            send=send,
            latency=latency,
            link_speed=speeds,
            sync=tuple(self._sync_s(s, schedule.num_ranks) / every for s in self.stages),
            sync_freq=every,
        )

    def activation_bytes(self) -> Floats:
        """Of one micro-batch on each stage."""
        return np.array([stage.activation_bytes for stage in self.stages])

    def static_bytes(self, schedule: Schedule) -> Floats:
        """Weights, gradients and optimizer state on each rank."""
        shards = self.training.data_parallel if self.training.shard_optimizer else 1
        each = WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES / shards
        ranks = range(schedule.num_ranks)
        return np.array([each * sum(self.stages[s].parameters for s in schedule.stages_of(rank)) for rank in ranks])

    def step_flops(self, num_microbatches: int) -> float:
        """Of one pipeline's step, over all GPUs: forward and twice that for backward; recomputation is not counted."""
        forward = sum(stage.flops for stage in self.stages)
        return 3.0 * forward * num_microbatches * self.training.tensor_parallel

    def _stage(self, stage: int) -> StageCost:
        t = self.training
        passes = stage_passes(self.timer, stage, np.array([float(t.sequence)]), t.micro_batch)
        forward, input_grad, weight_grad = (
            float(seconds[0]) for seconds in (passes.forward, passes.input_grad, passes.weight_grad)
        )
        if t.recompute:
            input_grad += forward
        layers = self.parallelism.layers_of_stage(self.model, stage)
        parameters = self.model.weight_bytes_of_stage(self.parallelism, stage, "bf16") / 2.0
        kept = sum(map(self._layer_bytes, layers))
        return StageCost(forward, input_grad, weight_grad, float(passes.flops[0]), kept, parameters)

    def _layer_bytes(self, layer: int) -> float:
        """What one layer keeps of one micro-batch on one GPU: the inputs of its norms and multiplications.

        With a GELU MLP of 4h this is sbh(8 + 24/t), i.e. arXiv 2205.05198 without dropout, under an attention kernel
        that keeps no scores.
        """
        m, t = self.model, self.training.tensor_parallel
        if self.training.recompute:
            return m.hidden_size * ACTIVATION_BYTES * self.tokens
        norms = 2 if m.parallel_attention else 4  # Each norm keeps its input, and its output is the next's input.
        attention = m.q_size + m.num_kv_heads * (m.qk_head_dim + m.v_head_dim) + m.num_heads * m.v_head_dim
        width = m.ffn_size
        if m.has_experts(layer):
            width = m.expert_ffn_size * m.experts_per_token + m.shared_ffn_size
        elements = norms * m.hidden_size + (attention + m.num_projections * width) / t
        return elements * ACTIVATION_BYTES * self.tokens

    def _send_s(self, sender: int, receiver: int) -> tuple[float, float]:
        """Latency of a micro-batch's activations between two ranks, and seconds that they keep a link busy."""
        width = self.training.tensor_parallel
        low, high = sorted((sender * width, receiver * width))
        message = self.model.hidden_size * ACTIVATION_BYTES * self.tokens
        group = Group(range(low, high + 1, high - low), copies=width)
        none, whole = collective_s("send_recv", np.array([0.0, message]), group, self.node)
        return float(none), float(whole - none)

    def _sync_s(self, stage: StageCost, num_ranks: int) -> float:
        gradients = np.array([stage.parameters * GRADIENT_BYTES])
        group = catalog.replicas(self.training.data_parallel, self.training.tensor_parallel * num_ranks)
        return float(collective_s("all_reduce", gradients, group, self.node)[0])
