"""What a search is told: the model, the workload, the SLO, the space of configurations and what counts as best."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import CountOrNone, Requests, Seed
from gnomon.serving.scenario.engine_presets import engine
from gnomon.workload import WorkloadConfig

_STATISTIC = re.compile(r"mean|max|p(\d{1,2}(\.\d+)?)")


def _listed(value: Any) -> Any:
    """One value stands for a list of one."""
    return value if isinstance(value, list | tuple) else (value,)


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Counts = Annotated[tuple[PositiveInt, ...], BeforeValidator(_listed)]
Flags = Annotated[tuple[bool, ...], BeforeValidator(_listed)]
Limits = dict[str, PositiveFloat]


class GoodputConfig(Config):
    """Requests that meet every one of these count as good."""

    ttft_s: PositiveFloat | None = None
    """Seconds to the first token."""
    tpot_s: PositiveFloat | None = None
    """Mean seconds per output token after the first."""
    e2e_s: PositiveFloat | None = None
    """Seconds from arrival to the last token."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the requests that must be good."""

    @model_validator(mode="after")
    def _something(self) -> GoodputConfig:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ConfigError("goodput needs a limit: ttft_s, tpot_s or e2e_s.", where="slo.goodput")
        return self


LATENCIES = ("ttft_s", "tbt_s", "tpot_s", "e2e_s", "scheduling_delay_s")


class SloTargets(Config):
    """Limits in seconds, each at a statistic: `ttft_s: {p90: 2}`. Statistics: mean, max, p50, p99, p99.9, ..."""

    ttft_s: Limits = Field(default_factory=dict)
    """Time to the first token, such as {p99: 0.5}."""
    tbt_s: Limits = Field(default_factory=dict)
    """Gaps between tokens, over all tokens."""
    tpot_s: Limits = Field(default_factory=dict)
    """Mean time per output token of a request, after the first."""
    e2e_s: Limits = Field(default_factory=dict)
    """Arrival to last token."""
    scheduling_delay_s: Limits = Field(default_factory=dict)
    """Arrival to first batch."""
    goodput: GoodputConfig | None = None
    """A share of the requests that must each meet limits."""

    @field_validator(*LATENCIES, mode="before")
    @classmethod
    def _at_a_statistic(cls, limit: Any) -> Any:
        if isinstance(limit, int | float):
            raise ValueError(
                f"a limit needs the statistic that must meet it: {{p99: {limit:g}}}, {{mean: {limit:g}}}; "
                "a limit that each request must meet is one of `slo.goodput`"
            )
        return limit

    @model_validator(mode="after")
    def _known_statistics(self) -> SloTargets:
        for metric in LATENCIES:
            for statistic in getattr(self, metric):
                if not _STATISTIC.fullmatch(statistic) or statistic in ("p0", "p00"):
                    fix = "Use mean, max or p90, p99.9."
                    raise ConfigError(f"unknown statistic {statistic!r}.", where=f"slo.{metric}", fix=fix)
        return self


class BatchingSpace(Config):
    """A batching policy and the values of its parameters to try; empty: the policy's own custom."""

    shorthand: ClassVar[str] = "policy"

    policy: str = "vllm_v1"
    """Name of the policy; that of the engine where one is given."""
    engine: str | None = None
    """Engine whose preset (scheduler, kernels, host time, memory plan) is tried:
    {gnomon.serving.scenario.engine_presets.engine_names}. Of several engines each gets a winner of its own."""
    max_sequences: Counts = ()
    """Batch caps."""
    max_batch_tokens: Counts = ()
    """Token budgets (the chunk of sarathi)."""
    max_chunk_tokens: Counts = ()
    """Most tokens of one prompt in one iteration."""

    @model_validator(mode="before")
    @classmethod
    def _scheduler_of_the_engine(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("engine"), str):
            return given
        own = engine(given["engine"]).settings["batching.policy"].value
        if given.get("policy", own) != own:
            what = f"{given['engine']} schedules by {own}, not by {given['policy']}."
            raise ConfigError(what, where="space.batching", fix="Leave the policy or the engine out.")
        return {**given, "policy": own}


class DisaggregatedSpace(Config):
    """Layouts with prefill and decode apart, each value with each; they join the aggregated ones."""

    prefill_replicas: Counts = (1,)
    prefill_tensor_parallel: Counts = (1,)
    decode_replicas: Counts = (1,)
    decode_tensor_parallel: Counts = (1,)
    num_gpus: Counts = ()
    """Only layouts with so many GPUs in all."""
    decider: Names = ("always",)
    """Who decides whether a request is prefilled elsewhere (`disaggregation.decider`); for `layouts` with both kinds of
    pools, too."""


class SpaceConfig(Config):
    """Values to combine, each with each; a single value needs no list."""

    device: Names = ("h100",)
    """GPUs."""
    node: Annotated[tuple[str | None, ...], BeforeValidator(_listed)] = (None,)
    """How they are linked; the usual one for the device if not given."""
    tensor_parallel: Counts = (1,)
    """GPUs that share every layer."""
    pipeline_parallel: Counts = (1,)
    """Stages into which the layers are cut."""
    data_parallel: Counts = (1,)
    """Attention groups of a mixture-of-experts model."""
    expert_parallel: Flags = (False,)
    """Whole experts on each rank."""
    num_replicas: Counts = ()
    """Copies of the model. [1; with the objective cost, as many as the load needs]"""
    dtype: Names = ("auto",)
    """Number formats of weights and multiplications."""
    router: Names = ("round_robin",)
    """Routers; they matter from two replicas on."""
    batching: Annotated[tuple[BatchingSpace, ...], BeforeValidator(_listed)] = (BatchingSpace(),)
    """Batching policies with their parameters."""
    disaggregated: DisaggregatedSpace | None = None
    """Layouts with prefill and decode apart, beside the others."""
    layouts: Names = ()
    """Fleets written out, beside the others: replicas, role (P prefill, D decode, B both), GPUs of each, and the GPU
    where it is not `device`, e.g. `4B-TP1@h100 2B-TP1@l40s` or `2P-TP4@h100 1D-TP8@h200 1B-TP8@h200`."""

    @model_validator(mode="after")
    def _not_empty(self) -> SpaceConfig:
        for name in type(self).model_fields:
            if name not in ("num_replicas", "disaggregated", "layouts") and not getattr(self, name):
                raise ConfigError(f"the space is empty: {name} has no value.", where="space", fix="Give at least one.")
        return self


class EffortConfig(Config):
    """How long and how exactly to look."""

    precision: Annotated[float, Field(gt=0, le=0.2)] = 0.01
    """Relative width to which a capacity is bracketed."""
    convergence: Annotated[float, Field(gt=0, le=0.5)] = 0.02
    """Runs are long enough when twice the requests change the capacity by less."""
    min_requests: Requests = 1000
    """Requests per replica of the shortest runs."""
    max_requests: Requests = 16_000
    """Requests per replica of the longest runs."""
    num_intervals: CountOrNone = 3
    """How many of the best get a confidence interval."""
    num_sequences: Annotated[int, Field(ge=2, le=31)] = 5
    """Request sequences (seeds) from which it is made."""


Objective = Literal["qps_per_dollar", "cost", "goodput_per_gpu"]
UNITS: dict[Objective, str] = {
    "qps_per_dollar": "requests/s per $/h",
    "cost": "$/h",
    "goodput_per_gpu": "good requests/s per GPU",
}


class SearchConfig(Config):
    """A question: which deployment is best?"""

    model: str = "llama-3-8b"
    """Built-in model (`gnomon catalog models`), or the path of a Hugging Face config.json."""
    workload: WorkloadConfig = WorkloadConfig()
    slo: SloTargets = SloTargets()
    objective: Objective = "qps_per_dollar"
    """qps_per_dollar (requests/s per dollar/h), cost (dollars/h for `load`), or goodput_per_gpu."""
    load: PositiveFloat | None = None
    """Requests per second to be served, for the objective cost."""
    space: SpaceConfig = SpaceConfig()
    calibration: str | None = None
    """File of `gnomon calibrate`: constants of a real server for every scenario."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every scenario, dotted: {replica.memory_utilization: 0.95, timing.source: silicon}."""
    strategy: Literal["smart", "exhaustive"] = "smart"
    """smart passes over configurations that cannot win; exhaustive measures all."""
    effort: EffortConfig = EffortConfig()
    seed: Seed = 0
    """Every random draw follows from it."""
    models: Names = ()
    """Several models: the search is done for each."""
    workloads: dict[str, WorkloadConfig] = Field(default_factory=dict)
    """Several workloads by name: the search is done for each, and the choices are compared."""

    @model_validator(mode="after")
    def _consistent(self) -> SearchConfig:
        if (self.objective == "cost") != (self.load is not None):
            what = "needs" if self.load is None else "has no"
            fix = "Set load to the requests per second to be served." if self.load is None else "Leave load out."
            raise ConfigError(f"the objective {self.objective} {what} load.", where="load", fix=fix)
        if self.objective == "goodput_per_gpu" and self.slo.goodput is None:
            raise ConfigError("the objective goodput_per_gpu needs slo.goodput.", where="slo.goodput")
        return self


class BenchConfig(Config):
    """Models x workloads x schedulers."""

    models: Names = ("llama-3-8b", "llama-2-70b")
    """Each on the fewest GPUs of one server on which it fits."""
    workloads: Names = ("chat-1m", "arxiv-4k", "bwb-4k", "azure-code")
    """Presets: chat, summarising papers, books (long answers), code."""
    policies: Names = ("vllm_v1", "sglang", "vllm", "sarathi", "orca")
    """Schedulers, each with its own defaults."""
    device: str = "h100"
    """GPU."""
    slo: SloTargets = SloTargets(ttft_s={"p90": 2.0}, tbt_s={"p99": 0.2})
    effort: EffortConfig = EffortConfig(num_intervals=0)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every scenario, dotted."""
    seed: int = 0
    """Every random draw follows from it."""
