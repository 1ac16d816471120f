"""Published effects of fleets beside their simulation: what is published, the setting that stands for it, the distance.

Settings are small enough to run in a minute or two. What a source leaves open and what decides the figure is simulated
in several ways, and the published figure must lie among them; what was fitted on the very figure is said. A figure of a
system that is not simulated as a whole is told, and only its direction is judged.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.catalog import Parallelism
from gnomon.core.config import build
from gnomon.core.errors import UnknownNameError
from gnomon.core.text import own_yaml
from gnomon.report.blocks import Table, lines
from gnomon.serving.autoscaling.controllers import View, controller
from gnomon.serving.results.latency_breakdown import NAMES, accounts
from gnomon.serving.results.metrics import summarize
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.autoscaling import ColdStartConfig
from gnomon.verify.findings import Findings, Progress, each, proof
from gnomon.workload import Requests
from gnomon.workload.requests import Tokens
from gnomon.workload.sessions import mixed
from gnomon.workload.slo import UserClass


@dataclass(frozen=True)
class Effect:
    """One published figure beside the simulated ones."""

    name: str
    figure: str
    published: float
    simulated: tuple[float, ...]
    """One for each way in which what is not published was chosen."""
    setting: str
    source: str
    tolerance: float | None = 0.1
    """How far the published figure may lie outside of the simulated ones, as a share of it; None: only the direction is
    judged, since the system is simulated in part."""
    nothing: float = 0.0
    """What the figure would be without the effect: every simulated one is above it."""
    holds: bool = True
    """Whether what must be so beside the figure is so."""

    @property
    def distance(self) -> float:
        """Of the nearest simulated figure, relative to what is published; 0 where that lies among them."""
        low, high = min(self.simulated), max(self.simulated)
        return min(max(self.published, low), high) / self.published - 1

    @property
    def rule(self) -> str:
        """What is asked of it, in words."""
        return f"above {self.nothing:g}" if self.tolerance is None else f"within {self.tolerance:.0%}"

    @property
    def is_reproduced(self) -> bool:
        """Whether the rule is kept, and what must be so beside it is so."""
        is_near = self.tolerance is None or abs(self.distance) <= self.tolerance
        return self.holds and is_near and min(self.simulated) > self.nothing


WORDS: dict[str, dict[str, str]] = own_yaml(Path(__file__).parent / "data" / "fleet.yaml")


def _effect(
    name: str, figure: str, published: float, simulated: Iterable[float], setting: Any = (), **rule: Any
) -> Effect:
    """An effect with the words that fleet.yaml has for it; `told` fills them in."""
    words = WORDS[name]
    return Effect(
        name, figure, published, tuple(simulated), words["setting"].format(**dict(setting)), words["source"], **rule
    )


def _run(setup: dict[str, Any], requests: Requests | None = None, **more: Any) -> Run:
    """Kernels alone, timed by the roofline."""
    plain = {"engine": "none", "timing": {"source": "roofline"}}
    return run(build(Scenario, plain | setup), requests=requests, **more)


def cold_start() -> list[Effect]:
    """Kimi K2 (1.03 T parameters in FP8) with the default parts of a cold start. Their bandwidth of 2 GB/s is what the
    published 495 s come to for 1 TB, so only the model's size is tried here."""
    model = catalog.model("kimi-k2")
    parts = ColdStartConfig().parts(model.weight_bytes_per_rank(Parallelism(), "auto"))
    return [
        _effect("cold start", "seconds in all", 527.0, [sum(parts.values())]),
        _effect("cold start", "seconds for weights", 495.0, [parts["weights"]]),
    ]


RANKS = 32
TOKENS_S_BY_LOST = {1: 5552.0, 2: 5432.0, 4: 5265.0, 8: 4480.0, 16: 2825.0}
TPOT_S_BY_LOST = {1: 0.096, 2: 0.092, 4: 0.089, 8: 0.079, 16: 0.068}


def per_rank(lost: int) -> int:
    """Requests that a rank runs at once, by Little's law: tokens per second times seconds per token."""
    return round(TOKENS_S_BY_LOST[lost] * TPOT_S_BY_LOST[lost] / (RANKS - lost))


LENGTHS: dict[str, dict[str, object]] = {
    "1,024 and 512 tokens each": {"distribution": "fixed", "prompt": 1024, "output": 512},
    "medians of 600 and 350, P90 of 1,200 and 700": {
        "distribution": "lognormal", "prompt_median": 600, "prompt_p90": 1200, "output_median": 350, "output_p90": 700,
    },
}  # fmt: skip
"""Not published: where all are alike, all of a rank prefill together and TPOT hardly has prefills in it."""


def _group_tpot_s(ranks: int, requests: int, lengths: str) -> float:
    """Mean TPOT of a group of so many ranks, each of which runs so many requests."""
    load = {"process": "closed_loop", "concurrency": ranks * requests}
    setup = {
        "model": "deepseek-v3.2", "device": "h200", "replica": {"data_parallel": ranks, "expert_parallel": True},
        "batching": {"policy": "sglang", "max_sequences": requests},
        "workload": {"num_requests": 4 * ranks * requests, "lengths": LENGTHS[lengths], "arrivals": load},
    }  # fmt: skip
    mean = summarize(_run(setup)).latency.tpot_s.mean
    assert mean is not None, "every request has an answer of many tokens"
    return mean


def elastic_experts() -> list[Effect]:
    """DeepSeek-V3.2 over 32 ranks, some of which are lost: groups of 32 and of 16 ranks are simulated (others do not
    divide 256 experts); between them the TPOT goes by the experts that a rank has. All against the figure for one lost
    rank: the GPU and the lengths are not published, and copies of experts are not simulated. Tokens per second are no
    row of their own: how many requests a rank runs comes from them."""
    group_s = cache(_group_tpot_s)

    def tpot_s(lost: int, lengths: str) -> float:
        left, requests = RANKS - lost, per_rank(lost)
        whole_s, half_s = group_s(RANKS, requests, lengths), group_s(RANKS // 2, requests, lengths)
        return whole_s + (half_s - whole_s) * (RANKS / left - 1)

    scales = {lengths: TPOT_S_BY_LOST[1] / tpot_s(1, lengths) for lengths in LENGTHS}
    return [
        _effect(
            "elastic experts", f"TPOT in ms, {lost} of {RANKS} ranks lost", published * 1e3,
            [tpot_s(lost, lengths) * scale * 1e3 for lengths, scale in scales.items()],
            {"requests": per_rank(lost), "lengths": "; ".join(LENGTHS)},
        )
        for lost, published in TPOT_S_BY_LOST.items()
        if lost > 1
    ]  # fmt: skip


CLIENTS, DOCUMENTS, QUESTIONS = 8, 2, 24
DOCUMENT_TOKENS = 8000
CACHED = (3, 5, 9)  # Documents that the KV memory holds, of sixteen: not published, and what decides the effect.


def _questions(seed: int = 0) -> Requests:
    """Clients that ask about documents of their own, all at once; questions of one document are spread over the
    queue."""
    count = CLIENTS * DOCUMENTS * QUESTIONS
    client = np.arange(count) % CLIENTS
    document = client * DOCUMENTS + np.random.default_rng(seed).integers(0, DOCUMENTS, count)
    blocks = DOCUMENT_TOKENS // 16
    hashes = mixed(np.repeat(document, blocks), np.tile(np.arange(blocks), count))
    return Requests(
        np.linspace(0.0, 1.0, count), np.full(count, DOCUMENT_TOKENS + 100, np.int32), np.full(count, 16, np.int32),
        prefix_offsets=np.arange(count + 1, dtype=np.int64) * blocks, prefix_hashes=hashes,
        user_class=client.astype(np.int8), classes=tuple(UserClass(f"client {i}") for i in range(CLIENTS)),
    )  # fmt: skip


def _requests_per_s(policy: str, cached: int) -> float:
    setup = {
        "model": "llama-3.1-8b", "device": "a100-80gb", "batching": {"policy": policy, "max_sequences": 16},
        "replica": {"num_kv_blocks": cached * DOCUMENT_TOKENS // 16},
    }  # fmt: skip
    return summarize(_run(setup, _questions())).throughput.requests_per_s


def dlpm_over_vtc() -> list[Effect]:
    """Throughput of the two policies where the cache holds some of the documents."""
    gains = [_requests_per_s("dlpm", cached) / _requests_per_s("vtc", cached) for cached in CACHED]
    setting = {
        "clients": CLIENTS,
        "documents": DOCUMENTS,
        "tokens": DOCUMENT_TOKENS,
        "cached": ", ".join(map(str, CACHED)),
    }
    return [_effect("DLPM over VTC", "throughput, times", 2.87, gains, setting, nothing=1.0)]


SCALES_OUT, SCALES_IN = 0.5, 0.3
"""Shares of the KV memory. The first is the largest of 0.7, 0.6 and 0.5 with which 99 % of the requests, the planner's
goal, meet the SLO (98.7, 98.8 and 99.0 %): both sides are to serve as well."""


@controller("memory_thresholds")
def memory_thresholds(view: View) -> int:
    """One replica more above half of the KV memory, one less below 30 %; nothing while one starts."""
    if view.starting:
        return view.desired
    return view.desired + (view.kv_use > SCALES_OUT) - (view.kv_use < SCALES_IN and view.desired > 0)


def _day(name: str) -> Summary:
    """A day of Llama-3-70B under one controller: long requests, so that the peak needs about ten replicas."""
    setup = {
        "model": "llama-3-70b", "device": "h100", "num_replicas": 4, "replica": {"tensor_parallel": 4},
        "workload": {
            "rate": 6, "num_requests": 518_400, "prompt_scale": 6, "output_scale": 6, "over_long": "truncate",
            "arrivals": {"process": "diurnal", "peak_to_trough": 4, "cv": 2},
        },
        "slo": {"ttft_s": 2},
        "fleet": {
            "min_replicas": 2, "max_replicas": 24, "controller": {"name": name, "interval_s": 60},
            "cold_start": {"node_s": 300, "image_s": 60},
        },
    }  # fmt: skip
    return summarize(_run(setup))


def forecast_saving() -> list[Effect]:
    """GPU hours that a planner with a forecast saves of those of reactive scaling, where it meets the SLO as often."""
    reactive, planned = _day("memory_thresholds"), _day("slo_planner")
    assert reactive.fleet is not None and planned.fleet is not None
    assert reactive.slo is not None and planned.slo is not None
    met = f"SLO (TTFT below 2 s) met by {planned.slo.attainment:.1%}, reactive by {reactive.slo.attainment:.1%}"
    hours = {"planned": planned.fleet.gpu_hours, "reactive": reactive.fleet.gpu_hours}
    saved, holds = 1 - hours["planned"] / hours["reactive"], planned.slo.attainment >= reactive.slo.attainment
    rule = {"tolerance": None, "holds": holds}
    return [_effect("forecast scaling", "GPU hours saved, share", 0.25, [saved], hours | {"met": met}, **rule)]


SKEWS = {128: 2.0, 256: 1.5, 512: 1.15}  # Of the published power laws, by their mean in tokens.
LOADS = ((256, 256, 15.0), (512, 512, 4.2), (128, 512, 5.0))
"""Mean prompt and answer, requests per second at which 1.5 to 1.9 s are lost without migration (1.3 s / 70 % = 1.9)."""


def _skewed(mean: int, count: int, random: np.random.Generator) -> Tokens:
    """Tokens by a power law over the numbers below twice the mean, stretched to it, at most 6,144."""
    ranks = np.arange(1, 2 * mean)
    shares = ranks ** -SKEWS[mean]
    drawn = random.choice(ranks, count, p=shares / shares.sum())
    return np.minimum(np.ceil(drawn * mean / drawn.mean()), 6144).astype(np.int32)


def _losses(prompt: int, answer: int, rate: float, moves: bool) -> tuple[float, float]:
    """Mean seconds lost to pre-emptions, and until the first token, over two traces of 3,000 requests."""
    setup: dict[str, object] = {
        "model": "llama-2-7b", "device": "a6000", "num_replicas": 16, "router": "least_kv",
        "timing": {"source": "roofline", "scale": 1.28},
        "replica": {"num_kv_blocks": 851, "max_request_tokens": 12_400},
        "batching": {"policy": "vllm", "max_batch_tokens": 12_800, "max_sequences": 256},
    }  # fmt: skip
    if moves:
        setup["disaggregation"] = {"bandwidth_gb_s": 2}
        setup["fleet"] = {"controller": "fixed", "migration": {"name": "llumnix", "interval_s": 0.2}}
    lost, first = [], []
    for seed in range(2):
        random = np.random.default_rng(seed)
        offered = Requests(np.zeros(3000), _skewed(prompt, 3000, random), _skewed(answer, 3000, random))
        offered.arrival_s[:] = np.cumsum(random.exponential(1 / rate, 3000))
        done = accounts(_run(setup, offered, explained=True))
        lost.append(done.parts_s("e2e")[:, [NAMES.index("preempted"), NAMES.index("recomputed")]].sum(axis=1).mean())
        first.append(done.values_s("ttft").mean())
    return float(np.mean(lost)), float(np.mean(first))


def migration() -> list[Effect]:
    """What Llumnix's rule saves over sending each request to where the least memory is in use."""
    pairs = [[_losses(*load, moves) for moves in (False, True)] for load in LOADS]
    saved = [1 - after[0] / before[0] for before, after in pairs]
    most = max(before[1] / after[1] for before, after in pairs)
    first = "mean time to first token, times shorter, at most"
    return [
        _effect("migration", "pre-emption loss saved, share", 0.704, saved),
        _effect("migration", first, 7.7, [most], tolerance=None, nothing=1.0),
    ]


SHARED_TOKENS, OWN_TOKENS, SHARERS = 21_360, 2_114, 18
"""Of a question about a document: 23,474 tokens, 91 % of them shared, with 18 questions a document."""
OF_CAPACITY = (0.5, 0.75, 1.0, 1.2)
"""Loads, as shares of what round robin serves: not published as such, and what decides the effect."""


def _documents(router: str, rate: float | None) -> tuple[float, float, float]:
    """800 questions about documents in any order, by Poisson or all at once, over four replicas: their mean and P99
    latency, and how many are served per second."""
    count, random = 800, np.random.default_rng(0)
    document, blocks = random.integers(0, round(count / SHARERS), count), SHARED_TOKENS // 16
    arrival_s = np.zeros(count) if rate is None else np.cumsum(random.exponential(1 / rate, count))
    offered = Requests(
        arrival_s, np.full(count, SHARED_TOKENS + OWN_TOKENS, np.int32), np.full(count, 16, np.int32),
        prefix_offsets=np.arange(count + 1, dtype=np.int64) * blocks,
        prefix_hashes=mixed(np.repeat(document, blocks), np.tile(np.arange(blocks), count)),
    )  # fmt: skip
    setup = {
        "model": "mistral-7b", "device": "a6000", "num_replicas": 4, "router": router,
        "replica": {"max_request_tokens": 30_000}, "batching": {"policy": "sglang", "prefix_cache": True},
    }  # fmt: skip
    summary = summarize(_run(setup, offered))
    e2e_s = summary.latency.e2e_s
    assert e2e_s.mean is not None and e2e_s.p99 is not None, "every request ends"
    return e2e_s.mean, e2e_s.p99, summary.throughput.requests_per_s


def prefixes() -> list[Effect]:
    """What it gains to send prompts to where their prefix is, and little is to be computed, over round robin."""
    *_, served = _documents("round_robin", None)
    pairs = [[_documents(one, load * served) for one in ("round_robin", "prefix_aware")] for load in OF_CAPACITY]
    mean, p99 = ([before[k] / after[k] for before, after in pairs] for k in range(2))
    return [
        _effect("prefix routing", "mean latency, times shorter, at most", 14.5, mean, nothing=1.0),
        _effect("prefix routing", "P99 latency, times shorter, at most", 10.0, p99, nothing=1.0),
    ]


EFFECTS: dict[str, Callable[[], list[Effect]]] = {
    "cold-start": cold_start, "elastic-experts": elastic_experts, "dlpm": dlpm_over_vtc, "forecast": forecast_saving,
    "migration": migration, "prefixes": prefixes,
}  # fmt: skip


@proof("fleet")
def prove(*, only: Sequence[str] = (), on_progress: Progress | None = None) -> Findings:
    """Published effects of fleets; `only` those named."""
    for name in only:
        if name not in EFFECTS:
            raise UnknownNameError("effect", name, EFFECTS)
    wanted = [EFFECTS[name] for name in EFFECTS if not only or name in only]
    return findings([one for effect in each(wanted, on_progress) for one in effect()])


def findings(found: list[Effect]) -> Findings:
    """A row for every figure; those beyond their tolerance fail."""
    rows = [asdict(one) | {"distance": one.distance, "is_reproduced": one.is_reproduced} for one in found]
    failures = [
        f"{one.name}, {one.figure}: {_figures(one)}, published {one.published:.4g} ({one.distance:+z.0%})"
        for one in found
        if not one.is_reproduced
    ]
    shown = [
        {"effect": one.name, "figure": one.figure, "published": f"{one.published:,.4g}", "simulated": _figures(one),
         "distance": f"{one.distance:+z.1%}", "rule": one.rule}
        for one in found
    ]  # fmt: skip
    settings = dict.fromkeys(f"{one.name}: {one.setting}. {one.source}." for one in found)
    blocks = [Table(shown, "Published effects"), *lines(settings), *lines(failures, "warning")]
    return Findings(found, rows, {"effects": rows}, blocks, failures)


def _figures(one: Effect) -> str:
    return " / ".join(f"{value:,.4g}" for value in one.simulated)
