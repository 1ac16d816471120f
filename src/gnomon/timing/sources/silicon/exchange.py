"""Tokens to their experts and back by all-to-all: DeepEP in all three engines, NVLink kernels in TensorRT-LLM."""

from functools import lru_cache

import numpy as np
import polars as pl

from gnomon.catalog.models import Model
from gnomon.timing.operators import Communication
from gnomon.timing.sources.profile.samples import Samples
from gnomon.timing.sources.silicon.kernels import MS, Found, Query
from gnomon.timing.sources.silicon.tables import Table

US = 1e-6
EXCHANGES = ("moe_a2a_perf", "wideep_deepep_ll_perf", "wideep_deepep_normal_perf", "trtllm_alltoall_perf")
_NODE_RANKS = {"gb200": 4, "gb300": 4}  # GPUs of a node where the tables count nodes; 8 elsewhere.


def node_ranks(system: str) -> int:
    """GPUs of what the tables of a system call a node."""
    return _NODE_RANKS.get(system, 8)


def find_exchange(query: Query, name: str, work: Communication, model: Model) -> Found | None:
    """`name` is expert_dispatch or expert_combine. The faster of an engine's ways at each size counts: short for
    decodes, wide for prompts. Another width or number of choices is scaled by bytes."""
    phase, ranks = name.removeprefix("expert_"), work.group.size
    width, choices = model.expert_hidden_size or model.hidden_size, model.experts_per_token
    by_table = [query.tables("comm", one) for one in EXCHANGES]
    engines = dict.fromkeys(table.engine for tables in by_table for table in tables)
    # Where NVLink joins nodes, vLLM's recipes ask for FlashInfer's one-sided kernels, which are TensorRT-LLM's.
    own = "trtllm" if query.engine == "vllm" and query.system in _NODE_RANKS else query.engine
    for engine in sorted(engines, key=lambda one: one != own):
        first = [next((t for t in tables if t.engine == engine), None) for tables in by_table]
        read = [(t, exchange_rows(t, phase, node_ranks(query.system))) for t in first if t]
        parts = [(t, rows.filter(pl.col("ranks") == ranks)) for t, rows in read]
        parts = [(t, _nearest(rows, width, choices)) for t, rows in parts if not rows.is_empty()]
        if not parts:
            continue
        rows = pl.concat([rows for _, rows in parts]).group_by("tokens").agg(pl.col("seconds").min()).sort("tokens")
        sizes = rows["tokens"].to_numpy().astype(np.float64)[:, None] * work.bytes_each
        return Found(Samples(sizes, rows["seconds"].to_numpy(), engine), f"measured in {parts[0][0].name}")
    return None


def _nearest(rows: pl.DataFrame, width: int, choices: int) -> pl.DataFrame:
    """The shape that is nearest in bytes per token, scaled to them."""
    wanted = float(width * choices)
    apart = (pl.col("width") * pl.col("choices") / wanted).log().abs()
    best = rows.sort(apart).row(0, named=True)
    chosen = rows.filter((pl.col("width") == best["width"]) & (pl.col("choices") == best["choices"]))
    factor = wanted / (best["width"] * best["choices"])
    return chosen.select("tokens", seconds=pl.col("seconds") * factor)


@lru_cache(maxsize=64)
def exchange_rows(table: Table, phase: str, node_ranks: int) -> pl.DataFrame:
    """[tokens of one rank, ranks, width, choices, seconds] of dispatching or combining."""
    rows = table.rows()
    if "phase" in rows.columns:
        rows = rows.filter(pl.col("phase") == phase).rename({"ep_size": "ranks", "topk": "choices"})
        return _select(rows, "num_tokens", (pl.col("transmit_us") + pl.col("notify_us")) * US)
    if "moe_ep_size" in rows.columns:
        wanted = pl.col("op_name").is_in([f"alltoall_{phase}", *(["alltoall_prepare"] if phase == "dispatch" else [])])
        rows = rows.filter(wanted).rename({"moe_ep_size": "ranks", "topk": "choices"})
        keys = ["num_tokens", "ranks", "hidden_size", "choices", "kernel_source", "moe_dtype"]
        whole = rows.group_by(keys).agg(pl.col("latency").sum())  # Preparing belongs to dispatching.
        return _select(whole, "num_tokens", pl.col("latency") * MS)
    rows = rows.with_columns(ranks=pl.col("node_num") * node_ranks).rename({"num_topk": "choices"})
    if f"{phase}_avg_t_us" in rows.columns:
        return _select(rows, "num_token", pl.col(f"{phase}_avg_t_us") * US)
    return _select(rows, "num_token", (pl.col(f"{phase}_transmit_us") + pl.col(f"{phase}_notify_us")) * US)


def _select(rows: pl.DataFrame, tokens: str, seconds: pl.Expr) -> pl.DataFrame:
    named = rows.select(tokens=tokens, ranks="ranks", width="hidden_size", choices="choices", seconds=seconds)
    return named.group_by("tokens", "ranks", "width", "choices").agg(pl.col("seconds").min())
