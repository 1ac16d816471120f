"""One training step: passes of every stage, their schedule, communication and the optimizer, part by part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.units import GB
from gnomon.pipeline.run import Run
from gnomon.training.compute import Compute, Pass, Seconds
from gnomon.training.config import SHARDED, TrainConfig
from gnomon.training.exchange import Exchange
from gnomon.training.layers import SCHEMES, LayerKind, Stage, stages_of
from gnomon.training.memory import Memory, memory_of
from gnomon.training.pipelines import span
from gnomon.training.state import expert_ranks, recipe_of, stage_parameters

PARTS = ("products", "attention", "recurrence", "elementwise", "casts", "accumulation", "experts",
         "permutation", "adapters", "loss", "recomputation", "tensor",
         "context", "expert_exchange", "host", "bubble", "data", "optimizer")  # fmt: skip
"""Where a step's time goes, in the order in which tables show it."""


@dataclass(frozen=True)
class TrainStep:
    """What a step comes to."""

    config: TrainConfig
    step_s: float
    parts: Seconds
    """Seconds of the slowest rank by part; they add up to the step."""
    flops: float
    """Model FLOPs of the step over all GPUs, without recomputation."""
    peak_flops: float
    """Of one GPU in the number format of the products."""
    memory: Memory
    phases: Seconds
    """Forward, backward (and recomputation) of one micro-batch on the slowest rank, and the optimizer."""
    notes: list[str] = field(default_factory=list)
    run: Run | None = field(default=None, repr=False)
    """The schedule as it ran, for pictures; with fewer micro-batches where its middle repeats."""

    @property
    def tokens_per_s(self) -> float:
        """Over all GPUs."""
        return self.config.tokens_per_step / self.step_s

    @property
    def tokens_per_gpu_s(self) -> float:
        """Per GPU."""
        return self.tokens_per_s / self.config.gpus

    @property
    def flops_per_gpu_s(self) -> float:
        """Model FLOP/s of each GPU."""
        return self.flops / self.step_s / self.config.gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs over what all GPUs' peak would do in the number format of the products."""
        return self.flops_per_gpu_s / self.peak_flops

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU holds its share."""
        return self.memory.fits

    def check(self) -> TrainStep:
        """Raise unless it fits, with what is missing and what would fit."""
        if self.fits:
            return self
        fix = what_would_fit(self.config)
        short = (self.memory.peak_bytes - self.memory.device_bytes) / GB
        raise DoesNotFitError(
            f"a GPU of pipeline rank {self.memory.fullest} needs {self.memory.peak_bytes / GB:.1f} GB"
            f" ({self.memory.words}), {short:.1f} GB more than the {self.memory.device_bytes / GB:.1f} GB of a"
            f" {self.config.device}.",
            fix=fix,
        )


def what_would_fit(config: TrainConfig) -> str:
    """The smallest changes that make a step fit, tried one by one."""
    full: dict[str, Any] = {"recompute": "full"}
    tries: list[dict[str, Any]] = [{"recompute": "selective"}, full, {"sharding": "parameters"}]
    tries += [full | {"sharding": "parameters"}]
    tries += [{"tensor_parallel": t} | more for t in (2, 4, 8) for more in ({}, full)]
    tries += [{"pipeline_parallel": p} | full for p in (2, 4, 8, 16)]
    found = []
    for change in tries:
        changed = config.model_copy(update=change)
        try:
            is_better = changed != config and memory_of(changed.check()).fits
        except ConfigError:
            continue
        if is_better:
            found.append(" and ".join(f"{name} {value}" for name, value in change.items()))
    if found:
        return f"It would fit with {', or with '.join(found[:3])}."
    return "Use more GPUs, a smaller micro_batch or shorter sequences, with recompute full and sharding parameters."


def train_step(config: TrainConfig, *, check: bool = True) -> TrainStep:
    """The step of a configuration; refused if it does not fit, unless `check` is false."""
    step = _Step(config.check()).run()
    return step.check() if check else step


def least_s(config: TrainConfig) -> float:
    """No schedule of a checked configuration takes less: its busiest rank without waiting, and the end of the step."""
    return _Step(config).least_s()


class _Step:
    """Puts a step together."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.model = config, config.shape
        self.compute, self.exchange = Compute(config), Exchange(config)
        self.stages = stages_of(self.model, config.num_stages)
        self.layers = {kind: self._layer(kind) for kind in self.model.kinds()}
        self.passes = [self._stage(stage) for stage in self.stages]
        self.parameters = [stage_parameters(config, stage) for stage in self.stages]

    def _layer(self, kind: LayerKind) -> Pass:
        """One layer with its communication and what it computes again."""
        made = self.compute.layer(kind)
        c, m = self.config, self.model
        forward = dict(made.forward)
        self.exchange.add_tensor(made, kind[1] == "dense")
        heads, kv_heads, qk, v = m.heads_of(kind[0]) if kind[0] in ("full", "sliding") else (0, 0, 0, 0)
        if heads:
            self.exchange.add_context(made, kv_heads * (qk + v) / c.tensor_parallel, heads * qk / c.tensor_parallel)
        if kind[1] == "experts":
            both = 2.0 * self.exchange.expert_s() * self._exposed_exchange
            made.add("expert_exchange", both, both)
            if c.framework == "megatron" and not c.expert_capacity:
                least = self.compute.release.expert_layer_least_s
                waits = max(0.0, least - made.forward_s), max(0.0, 2.0 * least - made.backward_s)
                made.add("host", *waits)
        if c.recompute == "full":
            made.add("recomputation", 0.0, sum(made.forward.values()))
        elif c.recompute == "selective":
            made.add("recomputation", 0.0, forward.get("elementwise", 0.0))
        return made

    @property
    def _exposed_exchange(self) -> float:
        """Share of the exchange of tokens that nothing hides."""
        release, c = self.compute.release, self.config
        is_far = self.exchange.experts.on(self.exchange.node).num_nodes > 1
        share = release.exchange_far if is_far else release.exchange
        return share * (release.exchange_interleaved if c.virtual_stages > 1 else 1.0)

    def _stage(self, stage: Stage) -> Pass:
        total = Pass()
        for kind, count in stage.kinds(self.model).items():
            total.plus(self.layers[kind], count)
        if stage.has_embedding:
            total.plus(self.compute.embedding())
        if stage.has_head:
            total.plus(self.compute.head())
        return total

    def least_s(self) -> float:
        """A rank's own work, the way of the first micro-batch to it and of the last gradients from it (as in 1F1B and
        interleaved 1F1B), and the end of the step."""
        c, p = self.config, self.config.pipeline_parallel
        forward, backward = [one.forward_s for one in self.passes], [one.backward_s for one in self.passes]
        each = [f + b for f, b in zip(forward, backward, strict=True)]
        way = 0.0 if c.schedule else 1.0
        span = max(c.num_microbatches * sum(each[rank::p]) + way * sum(each[:rank]) for rank in range(p))
        return span + self._data_s(forward, backward) + self._optimizer_s()

    def run(self) -> TrainStep:
        """Everything."""
        c = self.config
        forward = [one.forward_s for one in self.passes]
        backward = [one.backward_s for one in self.passes]
        busy, span, run = self._pipeline(forward, backward)
        data = self._data_s(forward, backward)
        optimizer = self._optimizer_s()
        slowest = int(np.argmax(busy))
        parts: Seconds = {}
        for at in range(slowest, c.num_stages, c.pipeline_parallel):
            one = self.passes[at]
            for where in (one.forward, one.input_grad, one.weight_grad):
                for part, seconds in where.items():
                    parts[part] = parts.get(part, 0.0) + c.num_microbatches * seconds
        parts["bubble"] = span - sum(parts.values())
        start = self.compute.constants.start_s[c.framework]
        parts["host"] = parts.get("host", 0.0) + start
        parts["data"], parts["optimizer"] = data, optimizer
        mine = range(slowest, c.num_stages, c.pipeline_parallel)
        phases = {
            "forward": sum(forward[at] for at in mine) + start,
            "backward": sum(backward[at] for at in mine),
            "optimizer": optimizer,
        }
        flops = sum(one.flops for one in self.passes) * 3.0 * c.num_microbatches * (c.gpus // c.pipeline_parallel)
        return TrainStep(
            c,
            start + span + data + optimizer,
            {part: parts[part] for part in PARTS if abs(parts.get(part, 0.0)) > 1e-9},
            flops,
            self.compute.device.flops(SCHEMES[c.precision]),
            memory_of(c),
            phases,
            self.compute.timer.notes() if c.timing.source not in ("auto", "roofline") else [],
            run,
        )

    def _pipeline(self, forward: list[float], backward: list[float]) -> tuple[list[float], float, Run | None]:
        """Busy seconds of every rank, the make-span, and the run of a schedule."""
        c, m, p = self.config, self.config.num_microbatches, self.config.pipeline_parallel
        busy = [m * sum(forward[at] + backward[at] for at in range(r, c.num_stages, p)) for r in range(p)]
        if p == 1:
            return busy, busy[0], None
        name = c.schedule or ("interleaved" if c.virtual_stages > 1 else "1f1b")
        latency, send = self.exchange.handover_s()
        half = 0.5 * np.array(backward)
        seconds = np.vstack([np.array(forward), half, half])
        total, run = span(name, p, c.virtual_stages, m, seconds, send, latency)
        return busy, total, run

    def _data_s(self, forward: list[float], backward: list[float]) -> float:
        """What of gradients' reduction and weights' gathering nothing hides, on the slowest rank."""
        c = self.config
        return max(self._rank_data_s(rank, forward, backward) for rank in range(c.pipeline_parallel))

    def _rank_data_s(self, rank: int, forward: list[float], backward: list[float]) -> float:
        c, recipe = self.config, recipe_of(self.config)
        mine = range(rank, c.num_stages, c.pipeline_parallel)
        p = [self.parameters[at] for at in mine]
        layers = max(1, sum(len(self.stages[at].layers) for at in mine))
        f, b, m = sum(forward[at] for at in mine), sum(backward[at] for at in mine), c.num_microbatches
        ranks, experts = c.data_parallel * c.context_parallel, expert_ranks(c) if self.model.is_moe else 1
        dense = sum(one.adapters if c.lora_rank else one.dense for one in p)
        routed = 0.0 if c.lora_rank else sum(one.experts for one in p)
        near, far = c.tensor_parallel, c.expert_parallel * c.expert_tensor_parallel
        x = self.exchange
        reduce = x.gradient_s(dense, recipe.gradient, ranks, near) + x.gradient_s(routed, recipe.gradient, experts, far)
        each = recipe.computed or min(2.0, recipe.weight)
        gather = x.gather_s(dense, each, ranks, near) + x.gather_s(routed, each, experts, far)
        if c.sharding == "parameters" and ranks > 1:  # Every micro-batch gathers layers twice.
            gather = x.gather_s(sum(one.dense for one in p), each, ranks, near)
            gather += x.gather_s(sum(one.experts for one in p), each, experts, far)
            first = gather / layers
            return m * (first + max(0.0, gather - first - f) + max(0.0, gather + reduce - b)) + reduce / layers
        bucket = max(1.0, layers / 2)
        return max(reduce / bucket, reduce - b) + max(gather / bucket, gather - f)

    def _optimizer_s(self) -> float:
        """Reading and writing the state of all trained parameters on the fullest rank, and the norm of gradients."""
        c, recipe = self.config, recipe_of(self.config)
        shards = c.num_sharding if SHARDED[c.sharding] else 1
        most = 0.0
        for rank in range(c.pipeline_parallel):
            p = [self.parameters[at] for at in range(rank, c.num_stages, c.pipeline_parallel)]
            own = sum(one.adapters if c.lora_rank else one.dense for one in p) / shards
            if self.model.is_moe and not c.lora_rank:
                own += sum(one.experts for one in p) / (min(shards, expert_ranks(c)) if shards > 1 else 1)
            most = max(most, own)
        moved = (
            2.0 * recipe.optimizer + recipe.gradient + (2.0 * recipe.weight if recipe.optimizer < 12 else recipe.weight)
        )
        clip = recipe.gradient if c.framework != "transformers" else 0.0
        device = self.compute.device
        return most * (moved + clip) / (self.compute.constants.optimizer_bandwidth * device.bandwidth_bytes_s)
