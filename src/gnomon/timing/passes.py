"""Passes over whole sequences, forward and backward: the operators and times of serving, for training.

Sequences pass a stage as one prompt pass over all their tokens, without a KV cache and with the head over every token.
The backward pass follows operator by operator:

- a matrix multiplication becomes two of the same FLOPs: the input gradient with n and k swapped, the weight gradient
  with the tokens as its k;
- attention takes 2.5 times its forward (five multiplications instead of two, arXiv 2307.08691), and so does a
  recurrence; element-wise operators 1.5 times (two tensors in and one out, instead of one and one), collectives again
  what they took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnomon.catalog.devices import Device
from gnomon.catalog.models import Model
from gnomon.catalog.nodes import Node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.timing.config import TimingConfig
from gnomon.timing.operators import Communication, Elementwise, Experts, Gemm, Operator, Prefill, Recurrence
from gnomon.timing.sources import Context
from gnomon.timing.timer import Timer

ATTENTION_BACKWARD = 2.5
ELEMENTWISE_BACKWARD = 1.5
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2.0, 4.0, 12.0
"""Per parameter in mixed-precision Adam as Megatron-LM keeps it (its documentation of the distributed optimizer): bf16
weight; float32 gradient, which is also what data-parallel copies reduce; float32 weight and two moments."""
SERVING_ONLY = ("attention_decode", "decode", "kv_write", "sampler", "logits_all_gather")
"""Kinds and names of the operators that a pass over whole sequences does not run."""

ENGINES_ONLY = (
    "host", "graph_sizes", "graph_attention", "overlap_tokens", "separate_attention", "expert_exchange", "kv_dtype",
)  # fmt: skip
"""Settings of `timing` for which a pass over whole sequences has no use."""


@dataclass(frozen=True)
class StagePasses:
    """One stage on one GPU, for sequences of several lengths: seconds, and FLOPs of the forward."""

    forward: Floats
    input_grad: Floats
    weight_grad: Floats
    handover: Floats
    """Activations to the next stage; not part of `forward`."""
    flops: Floats


def training_timer(
    model: Model, device: Device, node: Node, parallelism: Parallelism, config: TimingConfig | None = None
) -> Timer:
    """Times of a model in training: in bf16 unless another number format is given. Refuses what only engines have."""
    config = config or TimingConfig()
    for name in ENGINES_ONLY:
        if getattr(config, name) != TimingConfig.model_fields[name].default:
            raise ConfigError(
                "a training pass has no serving engine around it.", where=f"timing.{name}", fix="Leave it out."
            )
    if config.dtype == "auto":
        config = config.model_copy(update={"dtype": "bf16"})
    parallelism.check(model)
    return Timer(Context(model, device, node, parallelism, config))


def stage_passes(timer: Timer, stage: int, lengths: Floats, sequences: int = 1) -> StagePasses:
    """The passes of `sequences` sequences of each of `lengths` tokens at once through one stage."""
    zeros = np.zeros_like(lengths)
    forward, input_grad, weight_grad, handover, flops = zeros, zeros, zeros, zeros, zeros
    for operator in timer.operators(stage):
        if operator.name in SERVING_ONLY or operator.kind in SERVING_ONLY:
            continue
        f, i, w = (operator.count * seconds for seconds in _operator_passes(timer, operator, lengths, sequences))
        if operator.name == "send_recv":
            handover = handover + f
            continue
        forward, input_grad, weight_grad = forward + f, input_grad + i, weight_grad + w
        flops = flops + operator.count * _flops(operator, lengths, sequences)
    return StagePasses(forward, input_grad, weight_grad, handover, flops)


def _operator_passes(timer: Timer, operator: Operator, lengths: Floats, sequences: int) -> tuple[Floats, ...]:
    """Seconds of one call: forward, input gradient, weight gradient."""
    work, tokens = operator.work, sequences * lengths
    none = np.zeros_like(lengths)
    match work:
        case Gemm():
            forward = timer.seconds(operator, tokens)
            per_roofline = forward / timer.roofline.seconds(operator, tokens)
            transposed = replace(operator, work=Gemm(work.k, work.n, work.format))
            by_tokens = [replace(operator, work=Gemm(work.n, int(count), work.format)) for count in tokens]
            rows = np.array([float(work.k)])
            weight_s = np.array([timer.roofline.seconds(one, rows)[0] for one in by_tokens])
            return forward, per_roofline * timer.roofline.seconds(transposed, tokens), per_roofline * weight_s
        case Experts():
            forward = timer.seconds(operator, tokens)
            return forward, forward, forward
        case Elementwise():
            forward = timer.seconds(operator, tokens)
            return forward, ELEMENTWISE_BACKWARD * forward, none
        case Prefill():
            forward = sequences * timer.seconds(operator, lengths, none)
            return forward, ATTENTION_BACKWARD * forward, none
        case Recurrence():
            forward = timer.seconds(operator, tokens)
            return forward, ATTENTION_BACKWARD * forward, none
        case Communication():
            forward = timer.seconds(operator, work.bytes_each * tokens)
            return forward, forward, none
    raise AssertionError(f"{operator.name}: a training pass has no {operator.kind}")


def _flops(operator: Operator, lengths: Floats, sequences: int) -> Floats:
    if isinstance(operator.work, Prefill):
        return sequences * operator.flops(lengths, np.zeros_like(lengths))
    return operator.flops(sequences * lengths)
