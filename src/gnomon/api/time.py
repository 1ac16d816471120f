"""The seconds of one iteration, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PositiveInt, model_validator

from gnomon.api.result import Result, read
from gnomon.api.serving import ScenarioLike, scenario
from gnomon.core.config import Config, build
from gnomon.core.errors import ConfigError
from gnomon.workload.lengths import SamplingConfig

if TYPE_CHECKING:
    from gnomon.catalog import Model, Parallelism
    from gnomon.timing import Batch, OperatorTime, Timer, TimingConfig
    from gnomon.timing.operators import SamplerConfig


__all__ = ["Iteration", "IterationTime", "source_names", "time"]

OF_TIMING = ("path", "estimator", "dtype", "kv_dtype", "engine", "engine_version", "expert_load")
"""Fields that are those of a scenario's `timing`."""


class Iteration(Config):
    """One iteration of one replica: where it runs, and what is in its batch."""

    model: str = "llama-3-8b"
    """Name, or path of a config.json."""
    device: str = "h200"
    """GPU (`gnomon catalog devices`)."""
    node: str | None = None
    """Links between GPUs; the device's usual node if not given."""
    tensor_parallel: PositiveInt = 1
    """GPUs that share every layer."""
    pipeline_parallel: PositiveInt = 1
    """Stages of layers."""
    data_parallel: PositiveInt = 1
    """Attention groups that share experts."""
    expert_parallel: bool = False
    """Whole experts per GPU instead of slices of each."""
    prefill: int = 512
    """Prompt tokens in the iteration; none where only decodes are given."""
    prefill_kv: int = 0
    """KV tokens before the chunk."""
    decode: int = 64
    """Sequences that decode a token each; none where only a prompt is given."""
    kv: int = 1024
    """KV tokens of each decoding sequence."""
    sources: tuple[str, ...] = ("auto",)
    """Timing sources; several stand side by side."""
    path: str | None = None
    """Folder of measurements, for the source profile."""
    estimator: str = "grid"
    """How to read between measured points."""
    dtype: str = "auto"
    """Number format of weights and multiplications; auto: the checkpoint's."""
    kv_dtype: str = "auto"
    """Number format of the KV cache; auto: the checkpoint's, else bf16."""
    engine: str = "vllm"
    """Whose kernels: {gnomon.serving.scenario.engine_presets.engine_names}."""
    engine_version: str = ""
    """Its version; the newest tables if not given."""
    expert_load: str = "power_law_1.01"
    """How tokens spread over experts."""
    sampling: SamplingConfig | None = None
    """What requests ask of the sampler; the likeliest token if not given."""

    @model_validator(mode="before")
    @classmethod
    def _what_is_asked_alone(cls, data: Any) -> Any:
        """Decodes alone mean no prompt, and a prompt alone no decodes."""
        if isinstance(data, dict) and ("prefill" in data) != ("decode" in data):
            return {**data, "decode" if "prefill" in data else "prefill": 0}
        return data


def time(given: Iteration | Mapping[str, Any] | str | Path | None = None, **overrides: Any) -> IterationTime:
    """Time one iteration: a YAML file, a mapping, an `Iteration`, or the default one, with overrides on top.

    gnomon.time(model="llama-3-70b", device="h100", tensor_parallel=8).summary["auto"].seconds
    """
    from gnomon import catalog
    from gnomon.timing import Batch, Context, Timer, TimingConfig

    asked = read(Iteration, given, overrides)
    model, device = catalog.model(asked.model), catalog.device(asked.device)
    degrees = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel")
    parallelism = build(catalog.Parallelism, {name: getattr(asked, name) for name in degrees}, where="parallelism")
    parallelism.check(model)
    node = catalog.node(asked.node) if asked.node else catalog.default_node(device)
    batch = Batch(asked.prefill, asked.prefill_kv, asked.decode, asked.kv)
    timers = []
    for source in dict.fromkeys(asked.sources):
        same = {name: getattr(asked, name) for name in OF_TIMING}
        config = build(TimingConfig, same | {"source": source, "sampler": _sampler(asked)}, where="timing")
        _check_room(model, asked, parallelism, config, batch)
        timers.append(Timer(Context(model, device, node, parallelism, config)))
    return IterationTime(asked, batch, timers)


def _sampler(asked: Iteration) -> SamplerConfig:
    """What the engine runs for what requests ask of the sampler."""
    from gnomon.serving.scenario.engine_presets import engine
    from gnomon.serving.scenario.sampling import GREEDY, era_of, sampler

    era = era_of(engine(asked.engine).sampling, asked.engine_version)
    return sampler([asked.sampling or GREEDY], era, None)


def _check_room(model: Model, asked: Iteration, parallelism: Parallelism, config: TimingConfig, batch: Batch) -> None:
    """Refuse a batch that the model or the memory cannot hold."""
    from gnomon import catalog

    for name, length in (("prefill", batch.prefill + batch.prefill_kv), ("kv", batch.kv if batch.decode else 0)):
        if length > model.max_context_tokens:
            what = f"{length:,} tokens are more than the context of {model.name}, {model.max_context_tokens:,}."
            fix = "Give a smaller number, or a config.json with a longer context."
            raise ConfigError(what, where=f"--{name}", fix=fix)
    types: dict[str, Any] = {"dtype": config.dtype, "kv_dtype": config.kv_dtype}
    device, most = catalog.device(asked.device), batch.tokens
    plan = catalog.plan_memory(model, device, parallelism, max_batched_tokens=most, **types)
    needed = batch.prefill + batch.prefill_kv + batch.decode * batch.kv
    if needed > plan.num_kv_tokens:
        what = f"the batch needs {needed:,} KV tokens, but only {plan.num_kv_tokens:,} fit beside the weights."
        fix = "Give fewer or shorter sequences, or more tensor parallelism."
        raise ConfigError(what, where="--decode x --kv", fix=fix)


@dataclass(frozen=True, eq=False)
class IterationTime(Result):
    """The operators of one iteration, by timing source."""

    view, file = "timing", "time"
    iteration: Iteration
    batch: Batch = field(repr=False)
    timers: list[Timer] = field(repr=False)

    @cached_property
    def operators(self) -> dict[str, list[OperatorTime]]:
        """In the order of execution, by source."""
        from gnomon.timing.breakdown import breakdown

        return {timer.source.name: breakdown(timer, self.batch) for timer in self.timers}

    @cached_property
    def summary(self) -> dict[str, OperatorTime]:
        """The whole iteration, by source."""
        from gnomon.timing.breakdown import total

        return {name: total(rows) for name, rows in self.operators.items()}

    @property
    def notes(self) -> list[str]:
        """What the sources say about themselves."""
        return list(dict.fromkeys(note for timer in self.timers for note in timer.notes()))

    @cached_property
    def expected_error(self) -> dict[str, float]:
        """How far a server's iteration is from it in nine of ten cases, relative, by source."""
        from gnomon.timing.breakdown import server_error

        return {timer.source.name: server_error(timer, self.batch) for timer in self.timers}


def source_names() -> dict[str, str]:
    """Where seconds can come from, with a line about each."""
    from gnomon.timing.source_registry import SOURCES

    return {name: SOURCES[name].about for name in SOURCES}


class StepTimer:
    """Call it with what is in a batch; it answers with the seconds that the batch takes. See `step_timer`."""

    def __init__(self, batch_s: Callable[..., float], tables: Any, shape: Any, stages: int, drafted: int) -> None:
        self._batch_s, self._tables, self._shape, self._stages = batch_s, tables, shape, stages
        self._each = drafted
        self.max_tokens = int(tables.token_s.shape[1]) - 1
        """Tokens that a batch may have."""
        self.max_sequences = int(tables.sequence_s.shape[1]) - 1
        """Sequences that a batch may have."""
        self.max_kv_tokens = int(tables.kv_axis[-1])
        """KV tokens that a sequence may have."""

    def __call__(self, prefills: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = ()) -> float:
        """Seconds of a batch. `prefills`: tokens computed of each prompt, and tokens of it that are there already;
        `decodes`: the length of each sequence that gets a token."""
        count = len(decodes)
        tokens, sequences = self._each * count, self._each * count + len(prefills)
        kv, longest = (sum(decodes), max(decodes)) if count else (0, 0)
        squared, chunks_kv, prompt_kv = 0.0, 0.0, 0.0
        for chunk, before in prefills:
            tokens += chunk
            squared += float(chunk) * chunk
            chunks_kv += float(chunk) * before
            prompt_kv += before
            if chunk < 1 or before < 0 or before + chunk > self.max_kv_tokens:
                what = f"({chunk}, {before}) is no part of a prompt that the timer covers."
                raise ConfigError(what, where="prefills")
        if tokens > self.max_tokens or sequences > self.max_sequences or longest > self.max_kv_tokens:
            raise ConfigError(
                f"{tokens:,} tokens of {sequences:,} sequences, the longest of {longest:,}, are more than the timer "
                f"covers: {self.max_tokens:,}, {self.max_sequences:,}, {self.max_kv_tokens:,}.",
                where="batch",
                fix="Give step_timer larger batching.max_batch_tokens, batching.max_sequences or max_kv_tokens.",
            )
        if not sequences:
            return 0.0
        shape = self._shape(
            tokens, sequences, squared, chunks_kv, count, float(kv), float(longest), self._each * count, prompt_kv
        )
        return self._batch_s(self._tables, self._stages, shape)


def step_timer(given: ScenarioLike = None, *, max_kv_tokens: int | None = None, **overrides: Any) -> StepTimer:
    """The seconds of one batch on one replica of a scenario (its first pool), host time included, with the tables that
    `simulate` uses: to be the clock of another scheduler.

    step = gnomon.step_timer(model="llama-3-8b", device="h100")
    step(prefills=[(512, 0)], decodes=[1024] * 64)
    """
    import numpy as np

    from gnomon.jit import bound
    from gnomon.serving.scenario.pools import bake, resolve
    from gnomon.timing.lookup import Shape, batch_s
    from gnomon.workload import Requests

    chosen = scenario(given, **overrides)
    pool = resolve(chosen)[0]
    longest = max_kv_tokens or pool.max_request_tokens
    one, none = np.ones(pool.max_in_batch, np.int32), np.zeros(pool.max_in_batch)
    offsets = np.zeros(one.size + 1, np.int64)
    every = Requests(none, one * (longest - 1), one, one, one.astype(np.int8), offsets, np.zeros(0, np.int64))
    tables = bake(chosen.model, [pool], every).tables
    shape = Shape(1, 1, 0.0, 0.0, 1, 1.0, 1.0, 1, 0.0)
    stages = pool.replica.pipeline_parallel
    return StepTimer(bound(batch_s, tables, stages, shape), tables, Shape, stages, pool.tokens_per_decode)
