"""Latent attention (DeepSeek, Kimi) and sparse attention over it (DeepSeek-V3.2, GLM-5).

Some engines' tables hold the kernel alone, others the whole module: down- and up-projections, norms, rotary embedding,
writing the cache, the kernel, and the output projection. The projections have operators of their own, so their measured
time is taken off; what remains, with all the small kernels of the module, is the attention operator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import polars as pl

from gnomon.core.arrays import Floats
from gnomon.timing.operators import Decode, Operator, Prefill
from gnomon.timing.sources.profile.samples import Samples
from gnomon.timing.sources.silicon.attention import KV_DTYPES
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, less, read_kernels, scaled
from gnomon.timing.sources.silicon.products import DTYPES
from gnomon.timing.sources.silicon.tables import Table

PROJECTIONS = ("qkv_a_proj", "q_b_proj", "q_proj", "kv_b_proj", "o_proj")
"""Operators whose time a module contains and that are taken off."""
INSIDE = {
    *("latent_norm", "rotary", "kv_write", "absorb_q", "absorb_v", "o_quantize"),
    *("indexer_q_proj", "indexer_k_proj", "indexer_prefill", "indexer_decode"),
}
"""Operators that are part of a module's remainder."""


@dataclass(frozen=True)
class LatentQuery:
    """What a model's latent attention is, beside the heads."""

    projection_dtype: str
    """Number format of its projections."""
    architecture: str
    """"" for plain latent attention, else the name under which the sparse module was measured."""
    projections: Callable[[bool, Floats], Floats]
    """Seconds of all projections at token counts, of prompts (True) or decodes (False)."""


@dataclass(frozen=True)
class _Form:
    family: str
    table: str
    is_module: bool


_KERNEL = {
    "attention_prefill": _Form("mla", "context_mla_perf", False),
    "attention_decode": _Form("mla", "generation_mla_perf", False),
}
_MODULE = {
    "attention_prefill": _Form("mla", "mla_context_module_perf", True),
    "attention_decode": _Form("mla", "mla_generation_module_perf", True),
}
_SPARSE = {
    "attention_prefill": _Form("sparse_attention", "dsa_context_module_perf", True),
    "attention_decode": _Form("sparse_attention", "dsa_generation_module_perf", True),
}


def find_latent(
    query: Query, operator: Operator, work: Prefill | Decode, latent: LatentQuery
) -> tuple[Found, bool] | None:
    """The kernel or the module's remainder (then True), in the engine or the others."""
    forms = (_SPARSE,) if latent.architecture else (_MODULE, _KERNEL)
    tables = [
        (table, form[operator.kind])
        for form in forms
        for table in query.tables(form[operator.kind].family, form[operator.kind].table)
    ]
    order = {table.path: i for i, table in enumerate(t for t, _ in tables)}
    tables.sort(key=lambda one: (one[0].engine != query.engine, order[one[0].path]))
    for table, form in tables:
        for kv_dtype in dict.fromkeys((KV_DTYPES.get(query.kv_dtype, "bfloat16"), "bfloat16", "fp8")):
            kernels = latent_kernels(
                table, operator.kind, form.is_module, kv_dtype, latent.architecture, _gemm_type(latent)
            )
            found = _of_heads(kernels, operator, work, query)
            if found is None:
                continue
            if form.is_module:
                found = _remainder(found, operator.kind == "attention_prefill", latent)
            words = f"measured in {table.name}" + (", its module less the projections" if form.is_module else "")
            if kv_dtype != KV_DTYPES.get(query.kv_dtype, "bfloat16"):
                words += f", {kv_dtype} KV"
            return Found(found, words), form.is_module
    return None


def _gemm_type(latent: LatentQuery) -> str:
    known = DTYPES.get(latent.projection_dtype, ("bfloat16",))[0]
    return "fp8_block" if known == "fp8" else known


def _remainder(samples: Samples, is_prompt: bool, latent: LatentQuery) -> Samples:
    tokens = samples.sizes[:, 0]  # Of one prompt, or one of each decoding sequence.
    return less(samples, latent.projections(is_prompt, tokens))


def _of_heads(kernels: Kernels, operator: Operator, work: Prefill | Decode, query: Query) -> Samples | None:
    """The wanted number of heads, or the nearest, scaled."""
    shapes = sorted(kernels.bundle.samples, key=lambda key: abs(int(key[1]) - work.num_heads))
    if not shapes:
        return None
    samples, heads = kernels.bundle.samples[shapes[0]], int(shapes[0][1])
    if heads == work.num_heads:
        return samples
    like = type(work)(heads, work.num_kv_heads, work.qk_dim, work.v_dim, work.kv_bytes, work.window)
    return scaled(samples, operator, like, query.roofline)


@lru_cache(maxsize=64)
def latent_kernels(
    table: Table, kind: str, is_module: bool, kv_dtype: str, architecture: str, gemm_type: str
) -> Kernels:
    """Samples by the heads of one rank: prompts one by one, or decodes."""
    rows = table.rows("num_heads", "batch_size", "isl", "step", "kv_cache_dtype", "latency")
    chosen = [pl.col("kv_cache_dtype").str.starts_with(kv_dtype)]
    if is_module:
        types = rows["gemm_type"].unique().to_list()
        chosen.append(pl.col("gemm_type") == (gemm_type if gemm_type in types else "bfloat16"))
        chosen.append(~pl.col("op_name").str.contains("skip"))
    if architecture:
        chosen.append(pl.col("architecture") == architecture)
    if "mla_dtype" in rows.columns and "bfloat16" in rows["mla_dtype"]:
        chosen.append(pl.col("mla_dtype") == "bfloat16")
    rows = rows.filter(*chosen)
    if kind == "attention_decode":
        rows = rows.with_columns(kv=pl.col("step") + (0 if is_module else 1))
        return read_kernels(table, rows, kind, ("num_heads",), ("batch_size", "kv"))
    rows = rows.filter(pl.col("batch_size") == 1)
    return read_kernels(table, rows, kind, ("num_heads",), ("isl", "step"))
