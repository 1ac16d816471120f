"""Ordinary attention: prompts, and decodes, by heads, head dimension and window."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import polars as pl

from gnomon.core.arrays import Floats
from gnomon.timing.iteration import SKEW_BINS
from gnomon.timing.operators import Decode, Operator, Prefill
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, between, exact, read_kernels, scaled
from gnomon.timing.sources.silicon.tables import Table

_HEADS = ("num_heads", "num_key_value_heads", "head_dim")
_TABLES = {"attention_prefill": "context_attention_perf", "attention_decode": "generation_attention_perf"}
ONE_BLOCK = ("b200_sxm", "b300_sxm", "gb200", "gb300")
"""Systems whose decode kernels leave a sequence and KV head to one block once these fill the GPU."""
KV_DTYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "nvfp4": "fp8", "fp4": "fp8"}


def find_attention(query: Query, operator: Operator, work: Prefill | Decode) -> Found | None:
    """The shape itself or one close by; with another KV format where the wanted one was not measured."""
    kv_dtype = KV_DTYPES.get(query.kv_dtype, "bfloat16")
    other = "bfloat16" if kv_dtype == "fp8" else "fp8"
    for wanted in (kv_dtype, other):
        for table in query.tables("attention", _TABLES[operator.kind]):
            kernels = attention_kernels(table, operator.kind, wanted, work.window)
            found = exact(kernels, operator, table) or between(kernels, operator, table, query.roofline)
            if found is None:
                continue
            if wanted == kv_dtype:
                return found
            like = replace(work, kv_bytes=work.kv_bytes * (2.0 if wanted == "bfloat16" else 0.5))
            samples = scaled(found.samples, operator, like, query.roofline)
            return Found(samples, f"{found.provenance}, scaled from {wanted} KV")
    if work.window:  # No such window was measured: the whole KV's kernel, and the roofline's ratio.
        full = replace(work, window=0)
        found = find_attention(query, replace(operator, work=full), full)
        if found:
            samples = scaled(found.samples, operator, full, query.roofline)
            return Found(samples, f"{found.provenance}, scaled to a window of {work.window}")
    return None


def waiting_for_the_longest(decodes: Floats, kv_heads: int, num_sms: int) -> Floats:
    """[decodes, 2 x SKEW_BINS]: `IterationTables.skew` of TensorRT-LLM's kernels for Blackwell, which all engines call.
    Tables hold batches of equal lengths. Once sequences times KV heads fill the SMs (`numCtasPerSeqKv` is 1), each
    is one block's, and the longest runs on when others have ended, with an SM's share of the bandwidth: of the time in
    which a batch of the longest were done, as much as a batch that just fills the GPU has of its blocks."""
    blocks = decodes * kv_heads
    share = np.where(blocks >= num_sms, num_sms / np.maximum(blocks, 1.0), 0.0)
    return np.repeat(share[:, None], 2 * SKEW_BINS, axis=1)


@lru_cache(maxsize=64)
def attention_kernels(table: Table, kind: str, kv_dtype: str, window: int) -> Kernels:
    """Prompts one by one (batches of them cost as one, see `IterationTables`), or decodes.

    `step` tokens lie before the chunk or the decoded token. Prompts whose KV is in 8 bits are computed in 8 bits where
    an engine does that.
    """
    rows = table.rows(*_HEADS, "batch_size", "isl", "step", "kv_cache_dtype", "latency")
    chosen = [pl.col("kv_cache_dtype") == kv_dtype]
    if "window_size" in rows.columns:
        chosen.append(pl.col("window_size") == window)
    elif window:
        return read_kernels(table, rows.head(0), kind, _HEADS, ("isl", "step"))
    name = f"{kind}/{window}" if window else kind
    rows = rows.filter(*chosen)
    if kind == "attention_decode":
        rows = rows.with_columns(kv=pl.col("step") + 1)
        return read_kernels(table, rows, name, _HEADS, ("batch_size", "kv"))
    rows = rows.filter(pl.col("batch_size") == 1)
    if "attn_dtype" in rows.columns and kv_dtype in rows["attn_dtype"]:
        rows = rows.filter(pl.col("attn_dtype") == kv_dtype)
    return read_kernels(table, rows, name, _HEADS, ("isl", "step"))
