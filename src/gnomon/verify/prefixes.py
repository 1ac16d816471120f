"""Published effects of routing by prefixes and of KV in host memory, beside their simulation: measured by llm-d with
vLLM, Qwen3-32B on eight replicas of two H100s (docs/kv-tiers.md). Nothing is fitted.

Stages of Poisson arrivals are sent when the one before has ended, as the benchmark's client does. KV blocks are as
published; 0.12 s to the first token of 8,000 say that caches were warm: here all prompts are asked once before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.core.text import own_yaml
from gnomon.report.blocks import Table, lines
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.verify.findings import Findings, Progress, each, proof
from gnomon.workload import Requests
from gnomon.workload.requests import first_wave

SETTINGS: dict[str, Any] = {
    "model": "qwen3-32b", "device": "h100", "engine": "vllm", "sampling": {"temperature": 0},
    "timing": {"dtype": "bf16"}, "num_replicas": 8, "replica": {"tensor_parallel": 2},
}  # fmt: skip
DATA: dict[str, Any] = own_yaml(Path(__file__).parent / "data" / "prefixes.yaml")
ROUTERS: dict[str, Any] = DATA["routers"]
KV_TOKENS, ROUTING_BLOCK = 307_328, 64
OFFLOADING_BLOCKS, HOST_BLOCKS, OFFLOADING_BLOCK = 9_271, 41_000, 16
BLOCK_GB = OFFLOADING_BLOCK * 2 * 64 * 8 * 128 * 2 / 1e9
"""Of 16 tokens of Qwen3-32B: keys and values of 64 layers, 8 heads of 128, two bytes each."""
HOST_GB_S = 50.0
"""Between a host and the two GPUs of a replica; PCIe 5.0 has 63 GB/s each, and copies of blocks do not reach it."""
STAGES: list[tuple[float, float]] = DATA["stages"]  # Requests a second, and seconds.
ANSWER = 1000


@dataclass(frozen=True)
class Published:
    """A measured run: tokens a second (of answers; with prompts for offloading) and mean seconds to the first token."""

    name: str
    tokens_s: float
    ttft_s: float


ROUTING = [Published(name, *figures) for name, figures in DATA["routing"].items()]
OFFLOADING = {
    prefix: [Published(name, *figures) for name, figures in pair.items()] for prefix, pair in DATA["offloading"].items()
}
TOLERANCE = 0.15  # Of the ratio of two throughputs.


@dataclass(frozen=True)
class Effect:
    """The ratio of two throughputs, published and simulated."""

    name: str
    published: float
    simulated: float

    @property
    def error(self) -> float:
        return self.simulated / self.published - 1


@dataclass(frozen=True)
class Row:
    part: str
    published: Published
    tokens_s: float
    ttft_s: float


def shared_prompts(
    groups: int, users: int, prefix: int, question: int, output: int, *, block: int, count: int
) -> Requests:
    """Every user's question behind their group's prefix, in one random order, over and over, all at once."""
    pairs = np.stack(np.meshgrid(np.arange(groups), np.arange(users), indexing="ij"), axis=-1).reshape(-1, 2)
    pairs = np.random.default_rng(0).permutation(pairs)[np.arange(count) % len(pairs)]
    common, whole = prefix // block, (prefix + question) // block
    own = whole - common
    start = 1 + pairs[:, 0] * (common + users * own)
    of_group = start[:, None] + np.arange(common)
    of_user = (start + common + pairs[:, 1] * own)[:, None] + np.arange(own)
    return Requests(
        np.zeros(count), np.full(count, prefix + question, np.int32), np.full(count, output, np.int32),
        prefix_offsets=np.arange(count + 1, dtype=np.int64) * whole,
        prefix_hashes=np.concatenate([of_group, of_user], axis=1).ravel().astype(np.int64), prefix_block_tokens=block,
    )  # fmt: skip


def at_a_time(requests: Requests, under_way: int, num_warmup: int) -> Requests:
    """A client that has so many under way; the first requests warm the caches and are not counted."""
    count = len(requests)
    return replace(
        requests, arrival_s=first_wave(count, under_way, num_warmup), concurrency=under_way, num_warmup=num_warmup,
        think_s=np.zeros(count),
    )  # fmt: skip


def in_stages(requests: Requests, stages: Sequence[tuple[float, float]]) -> Requests:
    """Poisson arrivals in stages, each sent when the one before has ended. Between two, the last request of the first
    stands for all of it: it is sent when the others have ended, and the next stage when it has."""
    draw = np.random.default_rng(1)
    counts = [round(rate * seconds) for rate, seconds in stages]
    assert sum(counts) == len(requests)
    think_s = np.zeros(len(requests))
    parents: list[list[int]] = []
    first = 0
    for (rate, _), count in zip(stages, counts, strict=True):
        last = first + count - 1
        think_s[first:last] = np.cumsum(draw.exponential(1 / rate, count - 1))
        parents += [[first - 1] if first else [] for _ in range(first, last)]
        parents.append(list(range(first, last)))
        first += count
    waits_for = np.array([len(one) for one in parents])
    return replace(
        requests, arrival_s=np.where(waits_for == 0, think_s, np.inf), think_s=think_s,
        parent_offsets=np.concatenate(([0], np.cumsum(waits_for))),
        parents=np.array([parent for one in parents for parent in one], np.int64),
    )  # fmt: skip


def route(name: str, stages: Sequence[tuple[float, float]] = STAGES) -> tuple[float, float]:
    """Answer tokens a second and mean seconds to the first token with one of the four settings."""
    blocks = {**SETTINGS["replica"], "num_kv_blocks": KV_TOKENS // ROUTING_BLOCK}
    setup = SETTINGS | {"replica": blocks, "batching": {"block_size": ROUTING_BLOCK}, "router": ROUTERS[name]}
    count = sum(round(rate * seconds) for rate, seconds in stages)
    asked = shared_prompts(150, 5, 6000, 1200, ANSWER, block=ROUTING_BLOCK, count=count)
    return _figures(setup, in_stages(asked, stages))


def _figures(setup: dict[str, Any], asked: Requests) -> tuple[float, float]:
    found = summarize(run(build(Scenario, setup), requests=asked))
    return found.throughput.output_tokens_per_s, found.latency.ttft_s.mean or 0.0


def offload(prefix: int, *, with_host: bool) -> tuple[float, float]:
    """Tokens a second, prompts and answers, and mean seconds to the first token."""
    host = {"size_gb": HOST_BLOCKS * BLOCK_GB, "bandwidth_gb_s": HOST_GB_S}
    setup = SETTINGS | {
        "replica": {**SETTINGS["replica"], "num_kv_blocks": OFFLOADING_BLOCKS},
        "batching": {"block_size": OFFLOADING_BLOCK},
        "router": ROUTERS["estimated"],
        "kv_tiers": {"host": host} if with_host else {},
    }
    asked = shared_prompts(45, 10, prefix, 256, 1024, block=OFFLOADING_BLOCK, count=900)
    answers_s, ttft_s = _figures(setup, at_a_time(asked, 45, num_warmup=450))
    return answers_s * (prefix + 256 + 1024) / 1024, ttft_s


def routing_rows() -> list[Row]:
    return [Row("routing", one, *route(one.name)) for one in ROUTING]


def offloading_rows() -> list[Row]:
    """Both sizes of prefixes, without and with host memory."""
    return [
        Row(f"prefixes of {prefix:,} tokens", one, *offload(prefix, with_host=one.name != "GPU only"))
        for prefix, pair in OFFLOADING.items()
        for one in pair
    ]


def effects(rows: list[Row]) -> list[Effect]:
    by_name = {(row.part, row.published.name): row for row in rows}
    wanted = [(name, "routing", *pair) for name, pair in DATA["effects"].items()]
    wanted += [
        (f"host memory, {prefix:,}-token prefixes", f"prefixes of {prefix:,} tokens", "with host memory", "GPU only")
        for prefix in OFFLOADING
    ]
    found = []
    for name, part, one, other in wanted:
        if (part, one) in by_name and (part, other) in by_name:
            a, b = by_name[part, one], by_name[part, other]
            found.append(Effect(name, a.published.tokens_s / b.published.tokens_s, a.tokens_s / b.tokens_s))
    return found


@proof("prefixes")
def prove(*, on_progress: Progress | None = None) -> Findings:
    """Routing by prefixes and KV in host memory, as llm-d published it."""
    return findings([row for part in each([routing_rows, offloading_rows], on_progress) for row in part()])


def findings(rows: list[Row]) -> Findings:
    """A row for every run, the ratios between them, and those that are too far from the published ones."""
    found = effects(rows)
    failures = [
        f"{one.name}: {one.simulated:.2f} times the throughput, published {one.published:.2f} ({one.error:+z.0%})"
        for one in found
        if abs(one.error) > TOLERANCE
    ]
    shown = [_row(row) for row in rows]
    ratios = [
        {"effect": one.name, "published": f"{one.published:.2f}", "simulated": f"{one.simulated:.2f}",
         "error": f"{one.error:+z.0%}"}
        for one in found
    ]  # fmt: skip
    blocks = [
        Table(shown, "Runs", "Tokens per second: of answers; for offloading of prompts, too."),
        Table(ratios, "Effects on throughput"),
        *lines(failures, "warning"),
    ]
    return Findings(rows, shown, {"rows": shown, "effects": ratios}, blocks, failures)


def _row(row: Row) -> dict[str, Any]:
    one = row.published
    return {
        "part": row.part, "run": one.name, "published tokens/s": round(one.tokens_s), "tokens/s": round(row.tokens_s),
        "published TTFT s": one.ttft_s, "TTFT s": round(row.ttft_s, 3),
    }  # fmt: skip
