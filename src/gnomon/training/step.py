"""One training step: passes of every stage, their schedule, communication and the optimizer, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.units import GB
from gnomon.pipeline.run import Run
from gnomon.pipeline.zoo import SCHEDULES
from gnomon.training import stages
from gnomon.training.compute import Compute, Pass, Seconds
from gnomon.training.config import SHARDED, TrainConfig
from gnomon.training.exchange import Exchange
from gnomon.training.memory import Memory, memory_of, offloaded_bytes
from gnomon.training.pipelines import StageSeconds, span, stages_of_rank

PARTS = ("products", "attention", "recurrence", "elementwise", "casts", "accumulation", "experts",
         "permutation", "adapters", "loss", "recomputation", "offload", "tensor",
         "context", "expert_exchange", "host", "bubble", "data", "optimizer", "loading")  # fmt: skip
"""Where a step's time goes, in the order in which tables show it."""
EXCHANGE = "expert_exchange"
LEAST_BUCKET, BUCKET_PER_RANK = 40e6, 1e6
"""Parameters whose gradients Megatron-LM sends at once: so many, or so many per data-parallel rank."""


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
        return self.config.tokens_per_step / self.step_s

    @property
    def tokens_per_gpu_s(self) -> float:
        return self.tokens_per_s / self.config.gpus

    @property
    def flops_per_gpu_s(self) -> float:
        return self.flops / self.step_s / self.config.gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs over what all GPUs' peak would do in the number format of the products."""
        return self.flops_per_gpu_s / self.peak_flops

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def check(self) -> TrainStep:
        """Raise unless it fits, with what is missing and what would fit."""
        if self.fits:
            return self
        fix = what_would_fit(self.config)
        spare = (self.memory.reserved_bytes - self.memory.peak_bytes) / GB
        short = (self.memory.reserved_bytes - self.memory.device_bytes) / GB
        raise DoesNotFitError(
            f"a GPU of pipeline rank {self.memory.fullest} needs {self.memory.reserved_bytes / GB:.1f} GB"
            f" ({self.memory.words}, between blocks and context {spare:.1f}), {short:.1f} GB more than the"
            f" {self.memory.device_bytes / GB:.1f} GB of one {self.config.device}.",
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


def train_step(config: TrainConfig, *, check: bool = True, in_detail: bool = True) -> TrainStep:
    """The step of a configuration; refused if it does not fit, unless `check` is false. Without detail what copies
    exchange counts as bubble."""
    step = _Step(config.check()).run(in_detail=in_detail)
    return step.check() if check else step


def least_s(config: TrainConfig) -> float:
    """No schedule of a checked configuration takes less: its busiest rank without waiting, and the end of the step."""
    return _Step(config).least_s()


class _Step:
    """Puts a step together."""

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.model = config, config.shape
        self.compute, self.exchange = Compute(config), Exchange(config)
        self.stages = stages.stages_of(self.model, config.num_stages)
        self.again: dict[stages.LayerKind, float] = {}
        """A layer's recomputation, by kind."""
        self.layers = {kind: self._layer(kind) for kind in self.model.kinds()}
        alike = {stage: self._stage(stage) for stage in set(self.stages)}
        self.passes = [alike[stage] for stage in self.stages]
        self.parameters = stages.parameters_of(config, self.stages)

    def _layer(self, kind: stages.LayerKind) -> Pass:
        """One layer with its communication and what it computes again."""
        made = self.compute.layer(kind)
        c, m, constants = self.config, self.model, self.compute.constants
        forward = dict(made.forward)
        self.exchange.add_tensor(made, kind[1] == "dense")
        heads, kv_heads, qk, v = m.heads_of(kind[0]) if kind[0] in ("full", "sliding") else (0, 0, 0, 0)
        if heads:
            self.exchange.add_context(made, kv_heads * (qk + v) / c.tensor_parallel, heads * qk / c.tensor_parallel)
        if kind[1] == "experts":
            release = self.compute.release
            is_far = self.exchange.experts.on(self.exchange.node).num_nodes > 1
            share = release.exchange_far if is_far else release.exchange  # That nothing hides.
            if c.virtual_stages > 1 and not SCHEDULES[c.schedule_name].overlaps_exchange:
                share *= release.exchange_interleaved
            both = 2.0 * self.exchange.expert_s() * share
            made.add("expert_exchange", both, both)
            if c.framework == "megatron" and not c.expert_capacity:
                least = c.launching * release.expert_layer_least_s
                if not c.cuda_graphs:
                    least *= constants.of("launch_factor", c.device)
                waits = max(0.0, least - made.forward_s), max(0.0, 2.0 * least - made.backward_s)
                made.add("host", *waits)
        if c.offload:  # Out beside the forward, back beside the backward.
            copied = offloaded_bytes(c, m, kind) / constants.of("host_bandwidth", c.device)
            made.add("offload", max(0.0, copied - made.forward_s), max(0.0, copied - made.backward_s))
        if c.recompute == "full":
            self.again[kind] = sum(v for part, v in made.forward.items() if part != "offload")
        elif c.recompute == "selective":
            again = forward.get("elementwise", 0.0)
            if c.framework != "megatron" and kind[1] == "dense":  # Keys, attention's output, one of the MLP's inputs.
                keys = m.num_kv_heads * m.qk_head_dim
                whole = 2 * m.q_size + 2 * keys + m.num_projections * m.ffn_size
                again += forward.get("products", 0.0) * (keys + m.q_size + m.ffn_size) / whole
            self.again[kind] = again
        return made

    def _stage(self, stage: stages.Stage) -> Pass:
        total = Pass()
        for kind, count, again in stages.recomputed(self.config, stage):
            total.plus(self.layers[kind], count)
            total.add("recomputation", 0.0, again * self.again[kind] if again else 0.0)
        if stage.has_embedding:
            total.plus(self.compute.embedding())
        if stage.has_head:
            total.plus(self.compute.head())
        return total

    def least_s(self) -> float:
        """A rank's own work, the way of the first micro-batch to it and of the last gradients from it (as in 1F1B and
        interleaved 1F1B), and the end of the step."""
        c, p = self.config, self.config.pipeline_parallel
        each = np.array([one.forward_s + one.backward_s for one in self.passes])
        optimizer = self._optimizer_s()
        if SCHEDULES[c.schedule_name].overlaps_exchange:
            hidden = [one.forward.get(EXCHANGE, 0.0) + one.input_grad.get(EXCHANGE, 0.0) for one in self.passes]
            return float(max(self._busy(each - np.array(hidden)))) + optimizer
        way = 0.0 if c.schedule else 1.0
        busy = self._busy(each)
        span = max(float(busy[rank]) + way * float(each[:rank].sum()) for rank in range(p))
        sync, gather = (float(one.sum()) for one in self._data_s())
        if self._is_gathered_anew:
            return max(span, c.num_microbatches * (sync + 2.0 * gather) / p) + optimizer
        return span + (sync + gather) / (self._buckets * c.num_stages) + optimizer

    def run(self, *, in_detail: bool = True) -> TrainStep:
        """Everything; what copies exchange is told from the bubble only `in_detail`."""
        c = self.config
        seconds = self._seconds()
        each = seconds.forward + seconds.input_grad + seconds.weight_grad
        busy = self._busy(each)
        slowest = int(np.argmax(busy))
        mine = stages_of_rank(c, slowest)
        times = c.num_microbatches / self._copies
        parts: Seconds = {}
        for at in mine:
            one = self.passes[at]
            for where in (one.forward, one.input_grad, one.weight_grad):
                for part, value in where.items():
                    parts[part] = parts.get(part, 0.0) + times * value
        total, run = span(c, seconds)
        bare = total
        if seconds.has_data and in_detail:
            bare = float(busy[0]) if c.pipeline_parallel == 1 else span(c, seconds, with_data=False)[0]
        if SCHEDULES[c.schedule_name].overlaps_exchange and EXCHANGE in parts:
            parts[EXCHANGE] -= self._hidden_s(run, seconds, slowest)
        parts["bubble"] = bare - sum(parts.values())
        start = self.compute.constants.start_s[c.family]
        optimizer = self._optimizer_s()
        parts["host"] = parts.get("host", 0.0) + start
        parts["data"], parts["optimizer"] = total - bare, optimizer
        step_s = start + total + optimizer
        if c.loading_tokens_s:
            parts["loading"] = max(0.0, c.tokens_per_step / c.loading_tokens_s - step_s)
            step_s += parts["loading"]
        phases = {
            "forward": float(seconds.forward[mine].sum()) + start,
            "backward": float((seconds.input_grad + seconds.weight_grad)[mine].sum()),
            "optimizer": optimizer,
        }
        flops = sum(one.flops for one in self.passes) * 3.0 * c.num_microbatches * (c.gpus // c.pipeline_parallel)
        return TrainStep(
            c, step_s, {part: parts[part] for part in PARTS if abs(parts.get(part, 0.0)) > 1e-9}, flops,
            self.compute.device.flops(stages.SCHEMES[c.precision]), memory_of(c), phases,
            self.compute.timer.notes() if c.timing.source not in ("auto", "roofline") else [], run,
        )  # fmt: skip

    @property
    def _copies(self) -> float:
        """Ranks that hold each stage of one pipeline."""
        return self.config.pipeline_parallel * len(stages_of_rank(self.config, 0)) / self.config.num_stages

    @property
    def _is_gathered_anew(self) -> bool:
        """Whether every pass gathers its weights; with pipeline stages they stay from the first forward on."""
        return self.config.sharding == "parameters" and self.config.pipeline_parallel == 1

    def _busy(self, each: Floats) -> Floats:
        """Seconds of every rank's passes."""
        c = self.config
        ranks = range(c.pipeline_parallel)
        return c.num_microbatches / self._copies * np.array([each[stages_of_rank(c, rank)].sum() for rank in ranks])

    def _seconds(self) -> StageSeconds:
        c = self.config
        sync, gather = self._data_s()
        latency, send = self.exchange.handover_s() if c.pipeline_parallel > 1 else (0.0, 0.0)

        def per_stage(part: Callable[[Pass], float]) -> Floats:
            return np.array([part(one) for one in self.passes])

        return StageSeconds(
            per_stage(lambda one: one.forward_s), per_stage(lambda one: sum(one.input_grad.values())),
            per_stage(lambda one: sum(one.weight_grad.values())), send, latency, sync, gather,
            per_stage(lambda one: one.forward.get(EXCHANGE, 0.0)),
            per_stage(lambda one: one.input_grad.get(EXCHANGE, 0.0)), self._buckets, self._is_gathered_anew,
            c.pipeline_parallel > 1 and self.exchange.has_own_links, self.compute.constants.beside_impact,
        )  # fmt: skip

    def _hidden_s(self, run: Run, s: StageSeconds, rank: int) -> float:
        """What a rank saves where passes run together, from those that ran to all of the step."""
        c, back = self.config, s.input_grad + s.weight_grad
        labels = [run.labels[task] for task in run.computes[rank]]
        pairs = [label for label in labels if label.other]
        if not pairs:
            return 0.0
        saved = sum(float(s.forward[one.stage] + back[one.other.stage]) for one in pairs if one.other)
        tasks = run.trace.tasks
        saved -= sum(float(tasks.work[task]) for task in run.computes[rank] if run.labels[task].other)
        ran = 1 + max(label.microbatch for label in labels)
        return saved * (1.0 + (c.num_microbatches - ran) * c.virtual_stages / len(pairs))

    @property
    def _buckets(self) -> int:
        """Pieces in which a stage's weights and gradients are exchanged: layers of FSDP, buckets of Megatron-LM."""
        c = self.config
        layers = max(1, -(-self.model.num_layers // c.num_stages))
        if c.sharding == "parameters" or c.framework != "megatron":
            return layers
        largest = max(one.total for one in self.parameters)
        bucket = max(LEAST_BUCKET, BUCKET_PER_RANK * c.data_parallel * c.context_parallel)
        return max(1, min(layers, round(largest / bucket)))

    def _data_s(self) -> tuple[Floats, Floats]:
        """Reduction of gradients and gathering of weights, by stage."""
        c, recipe, x = self.config, stages.recipe_of(self.config), self.exchange
        ranks, experts = c.data_parallel * c.context_parallel, stages.expert_ranks(c) if self.model.is_moe else 1
        near, far = c.tensor_parallel, c.expert_parallel * c.expert_tensor_parallel
        each = recipe.computed or min(2.0, recipe.weight)
        buckets = self._buckets
        known: dict[stages.Parameters, tuple[float, float]] = {}
        for one in self.parameters:
            if one in known:
                continue
            dense, routed = (one.adapters, 0.0) if c.lora_rank else (one.dense, one.experts)
            sync = x.gradient_s(dense / buckets, recipe.gradient, ranks, near)
            sync += x.gradient_s(routed / buckets, recipe.gradient, experts, far)
            if c.sharding == "parameters":
                dense, routed = one.dense, one.experts
            gather = x.gather_s(dense / buckets, each, ranks, near)
            known[one] = sync, gather + x.gather_s(routed / buckets, each, experts, far)
        beside = buckets / self.compute.constants.beside_rate
        both = beside * np.array([known[one] for one in self.parameters])
        return both[:, 0], both[:, 1]

    def _optimizer_s(self) -> float:
        """Reading and writing the state of all trained parameters on the fullest rank, and the norm of gradients."""
        c, recipe = self.config, stages.recipe_of(self.config)
        shards = c.num_sharding if SHARDED[c.sharding] else 1
        most = 0.0
        for rank in range(c.pipeline_parallel):
            p = [self.parameters[at] for at in range(rank, c.num_stages, c.pipeline_parallel)]
            own = sum(one.adapters if c.lora_rank else one.dense for one in p) / shards
            if self.model.is_moe and not c.lora_rank:
                own += sum(one.experts for one in p) / (min(shards, stages.expert_ranks(c)) if shards > 1 else 1)
            most = max(most, own)
        moved = (
            2.0 * recipe.optimizer + recipe.gradient + (2.0 * recipe.weight if recipe.optimizer < 12 else recipe.weight)
        )
        clip = recipe.gradient if c.framework != "transformers" else 0.0
        device = self.compute.device
        return most * (moved + clip) / (self.compute.constants.optimizer_bandwidth * device.bandwidth_bytes_s)
