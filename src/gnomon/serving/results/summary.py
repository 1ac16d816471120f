"""The figures of a run as plain data, and what holds for them in every run. `docs/metrics.md` defines each figure."""

from dataclasses import asdict, dataclass, field
from typing import Any

from gnomon.serving.features.adapters import AdapterFigures
from gnomon.serving.results.class_metrics import ClassSummary, Fairness
from gnomon.serving.results.energy import Energy
from gnomon.serving.results.fleet import FleetSummary
from gnomon.serving.results.kv_transfers import Moves, TierHits
from gnomon.serving.results.latency import Slo
from gnomon.serving.results.percentiles import Percentiles
from gnomon.serving.results.saturation import Saturation
from gnomon.serving.results.usage import ReplicaUse, Utilization


@dataclass(frozen=True)
class Counts:
    """What became of the requests."""

    offered: int
    """Requests of the workload, those too long included."""
    finished: int
    rejected: int
    """Refused by a replica: they can never be admitted."""
    shed: int
    """Turned away by admission control."""
    abandoned: int
    """Given up by their clients."""
    too_long: int
    """Refused on arrival: longer than the model or the scenario allows."""
    unfinished: int
    """Arrived but not done at the time limit."""
    not_arrived: int
    """Not yet arrived at the time limit."""
    preempted: int
    """Requests that were pre-empted at least once."""
    preemptions: int
    """Pre-emptions, each a restart."""


@dataclass(frozen=True)
class Latency:
    """Seconds, over finished requests; `tbt_s` over all gaps between tokens."""

    ttft_s: Percentiles
    tbt_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    scheduling_delay_s: Percentiles
    normalized_s: Percentiles
    """E2E per output token."""
    preempted_s: Percentiles
    """Time between pre-emption and being scheduled again, over the pre-empted requests."""


@dataclass(frozen=True)
class Throughput:
    """Per second of the run, from the first arrival to the last end."""

    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    offered_requests_per_s: float | None
    """Arrivals per second while they lasted; None where all came at once."""


@dataclass(frozen=True)
class Cost:
    """What the GPUs cost, in US dollars."""

    num_gpus: int
    per_hour: float
    """In a fleet that changes, in the mean."""
    per_million_output_tokens: float | None
    per_million_tokens: float | None
    """Prompt and output tokens of finished requests."""
    per_thousand_requests: float | None


@dataclass(frozen=True)
class Iterations:
    """What the batches were like."""

    count: int
    mean_size: float
    """Requests per iteration."""
    mean_tokens: float
    mean_duration_s: float
    """Seconds of the first pipeline stage."""
    beyond_measured: int
    """Iterations outside the range that the timing source has measured."""
    kept_one_in: int
    """The table of iterations holds one in this many."""
    gaps_merged: int
    """How often neighbouring gaps between tokens were merged to save memory; 0: TBT percentiles are exact."""


@dataclass(frozen=True)
class Summary:
    """All figures of a run."""

    duration_s: float
    """From the first arrival to the last end."""
    requests: Counts
    latency: Latency
    throughput: Throughput
    slo: Slo | None
    utilization: Utilization
    cost: Cost
    energy: Energy | None
    """None where the watts of a GPU are not known."""
    fleet: FleetSummary | None
    """What became of the replicas, where they changed."""
    iterations: Iterations
    prompt_tokens: Percentiles
    output_tokens: Percentiles
    prompt_to_output: float
    """Prompt tokens over output tokens of the whole workload (P:D)."""
    prompt_to_output_per_request: Percentiles
    prefix_hit_rate: float | None
    """Share of the looked-up prompt tokens that a prefix cache held."""
    saturation: Saturation | None
    moves: Moves | None
    """KV that moved between pools; None where no pool has a role."""
    tiers: TierHits | None
    """Where prompt tokens were found; None where no tier is given."""
    adapters: AdapterFigures | None
    """What became of LoRA adapters; None where no request asks for one."""
    timing_error: float
    """How far a server's iterations are from these in nine of ten cases, relative; 0 where it was not asked."""
    has_host_time: bool
    """Whether the time of the engine's own code between kernels is part of the iterations."""
    timing_sources: dict[str, float] = field(default_factory=dict)
    """How many times as long the iterations would take by every other timing source that is at hand."""
    classes: list[ClassSummary] = field(default_factory=list)
    """Every class of users; empty where all are alike."""
    fairness: Fairness | None = None
    replicas: list[ReplicaUse] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_ENDS = ("finished", "rejected", "shed", "abandoned", "too_long", "unfinished", "not_arrived")
_SHARES = ("busy", "bubble", "idle", "kv_mean", "kv_peak")
_ATTAINMENTS = ("attainment", "ttft_attainment", "tpot_attainment", "e2e_attainment")


def check_summary(summary: Summary) -> None:
    """What holds for every run: requests add up, times are not negative, shares lie between 0 and 1.

    MFU and memory bandwidth are left out, because given times (source table) may be shorter than any GPU's; they are
    warned of instead.
    """
    counts, use, slo = summary.requests, summary.utilization, summary.slo
    ended = sum(getattr(counts, name) for name in _ENDS)
    assert ended == counts.offered, f"{ended} requests of {counts.offered}"
    uses = (use, *(r.utilization for r in summary.replicas))
    shares = [(name, getattr(one, name)) for one in uses for name in _SHARES]
    shares += [("prefix_hit_rate", summary.prefix_hit_rate)]
    shares += [(name, getattr(slo, name)) for name in _ATTAINMENTS] if slo else []
    for name, share in shares:
        assert share is None or -1e-9 <= share <= 1 + 1e-9, f"{name} is {share}"
    times = [("duration_s", summary.duration_s), ("mean_duration_s", summary.iterations.mean_duration_s)]
    times += [(name, value) for name, spread in vars(summary.latency).items() for value in (spread.mean, spread.p50)]
    times += [("mfu", use.mfu), ("hbm", use.hbm)]
    for name, value in times:
        assert value is None or value >= 0, f"{name} is {value}"
