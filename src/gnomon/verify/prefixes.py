"""Published effects of routing by prefixes and of KV in host memory, beside their simulation.

Both were measured by llm-d with vLLM, Qwen3-32B on 16 H100s: eight replicas of two.

Routing (September 2025): 150 prefixes of 6,000 tokens, five users of each with questions of 1,200, answers of 1,000;
four settings of the endpoint picker (`gnomon.serving.routers.llmd`). Its waiting queues and times to first token say
that the client had a limited number of requests under way (27.3 x 8 of them waited 45 s in the mean at 4.4 requests a
second). That number is not published: it is fitted here, on the mean time to first token with random routing, and the
other three settings are predicted.

Offloading: 45 prefixes of 30,000 (or 8,000) tokens, ten questions of 256 to each, answers of 1,024, 45 requests under
way; 9,271 blocks of 16 tokens on the GPUs of a replica and 41,000 in its host's memory. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.serving.metrics import summarize
from gnomon.serving.scenario import Scenario
from gnomon.serving.simulate import run
from gnomon.workload import Requests

SETTINGS: dict[str, Any] = {
    "model": "qwen3-32b",
    "device": "h100",
    "engine": "vllm",
    "timing": {"dtype": "bf16"},
    "num_replicas": 8,
    "replica": {"tensor_parallel": 2},
}
ROUTERS: dict[str, Any] = {
    "random": "random",
    "load": {"name": "llmd", "options": {"prefix": 0.0}},
    "estimated": "llmd_estimated",
    "precise": {"name": "llmd", "options": {"queue": 2.0, "kv": 2.0, "prefix": 3.0}},
}
"""The weights are those of the benchmark's presets."""
KV_TOKENS, ROUTING_BLOCK = 307_328, 64
OFFLOADING_BLOCKS, HOST_BLOCKS, OFFLOADING_BLOCK = 9_271, 41_000, 16
BLOCK_GB = OFFLOADING_BLOCK * 2 * 64 * 8 * 128 * 2 / 1e9
"""Of 16 tokens of Qwen3-32B: keys and values of 64 layers, 8 heads of 128, two bytes each."""
HOST_GB_S = 50.0
"""Between a host and the two GPUs of a replica; PCIe 5.0 has 63 GB/s each, and copies of blocks do not reach it."""
ROUNDS = 6
"""How often each of the 750 prompts is asked; in the first round nothing is found."""
MOST_UNDER_WAY = 2048


@dataclass(frozen=True)
class Published:
    """A measured run: tokens a second (of answers; with prompts for offloading) and mean seconds to the first token."""

    name: str
    tokens_s: float
    ttft_s: float


ROUTING = (
    Published("random", 4428.7, 45.281),
    Published("load", 4428.7, 46.987),
    Published("estimated", 6944.4, 13.316),
    Published("precise", 8730.0, 0.298),
)
OFFLOADING = {
    30_000: (Published("GPU only", 38534.8, 9.0), Published("with host memory", 46662.5, 6.7)),
    8_000: (Published("GPU only", 23389.6, 0.12), Published("with host memory", 23032.6, 0.13)),
}
EFFECTS = (
    ("load over random", "load", "random"),
    ("estimated over random", "estimated", "random"),
    ("precise over random", "precise", "random"),
    ("precise over estimated", "precise", "estimated"),
)
TOLERANCE = 0.15
"""Of the ratio of two throughputs."""


@dataclass(frozen=True)
class Effect:
    """The ratio of two throughputs, published and simulated."""

    name: str
    published: float
    simulated: float

    @property
    def error(self) -> float:
        """Of the simulated ratio."""
        return self.simulated / self.published - 1


@dataclass(frozen=True)
class Row:
    """A published run and its simulation."""

    part: str
    published: Published
    tokens_s: float
    ttft_s: float


def shared_prompts(
    groups: int, users: int, prefix: int, question: int, output: int, *, block: int, rounds: int, concurrency: int
) -> Requests:
    """Every user's question behind their group's prefix, in one random order, over and over, so many at a time."""
    pairs = np.stack(np.meshgrid(np.arange(groups), np.arange(users), indexing="ij"), axis=-1).reshape(-1, 2)
    pairs = np.tile(np.random.default_rng(0).permutation(pairs), (rounds, 1))
    common, whole = prefix // block, (prefix + question) // block
    own = whole - common
    start = 1 + pairs[:, 0] * (common + users * own)
    hashes = np.concatenate(
        [
            start[:, None] + np.arange(common),
            (start + common + pairs[:, 1] * own)[:, None] + np.arange(own),
        ],
        axis=1,
    )
    count = len(pairs)
    return Requests(
        arrival_s=np.where(np.arange(count) < concurrency, 0.0, np.inf),
        prompt_tokens=np.full(count, prefix + question, np.int32),
        output_tokens=np.full(count, output, np.int32),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=np.arange(count + 1, dtype=np.int64) * whole,
        prefix_hashes=hashes.ravel().astype(np.int64),
        prefix_block_tokens=block,
        concurrency=concurrency,
        think_s=np.zeros(count),
    )


def route(name: str, under_way: int, rounds: int = ROUNDS) -> tuple[float, float]:
    """Answer tokens a second and mean seconds to the first token with one of the four settings."""
    blocks = {**SETTINGS["replica"], "num_kv_blocks": KV_TOKENS // ROUTING_BLOCK}
    setup = SETTINGS | {"replica": blocks, "batching": {"block_size": ROUTING_BLOCK}, "router": ROUTERS[name]}
    asked = shared_prompts(150, 5, 6000, 1200, 1000, block=ROUTING_BLOCK, rounds=rounds, concurrency=under_way)
    return _figures(setup, asked)


def _figures(setup: dict[str, Any], asked: Requests) -> tuple[float, float]:
    found = summarize(run(build(Scenario, setup), requests=asked))
    return found.throughput.output_tokens_per_s, found.latency.ttft_s.mean or 0.0


def fit_client(ttft: Callable[[int], float], goal_s: float) -> int:
    """How many requests the client had under way, to a 16th: where `ttft` of them is the one measured."""
    low, high = 8, MOST_UNDER_WAY
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if ttft(middle) < goal_s else (low, middle)
    return high


def offload(prefix: int, *, with_host: bool) -> tuple[float, float]:
    """Tokens a second, prompts and answers, and mean seconds to the first token."""
    host = {"size_gb": HOST_BLOCKS * BLOCK_GB, "bandwidth_gb_s": HOST_GB_S}
    setup = SETTINGS | {
        "replica": {**SETTINGS["replica"], "num_kv_blocks": OFFLOADING_BLOCKS},
        "batching": {"block_size": OFFLOADING_BLOCK},
        "router": ROUTERS["estimated"],
        "kv_tiers": {"host": host} if with_host else {},
    }
    asked = shared_prompts(45, 10, prefix, 256, 1024, block=OFFLOADING_BLOCK, rounds=1, concurrency=45)
    answers_s, ttft_s = _figures(setup, asked)
    return answers_s * (prefix + 256 + 1024) / 1024, ttft_s


def routing_rows(under_way: int, rounds: int = ROUNDS) -> list[Row]:
    """The four settings."""
    return [Row("routing", one, *route(one.name, under_way, rounds)) for one in ROUTING]


def offloading_rows() -> list[Row]:
    """Both sizes of prefixes, without and with host memory."""
    return [
        Row(f"prefixes of {prefix:,} tokens", one, *offload(prefix, with_host=one.name != "GPU only"))
        for prefix, pair in OFFLOADING.items()
        for one in pair
    ]


def effects(rows: list[Row]) -> list[Effect]:
    """The published ratios and the simulated ones."""
    by_name = {(row.part, row.published.name): row for row in rows}
    wanted = [(name, "routing", one, other) for name, one, other in EFFECTS]
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
