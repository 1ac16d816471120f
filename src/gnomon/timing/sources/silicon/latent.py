"""Latent attention (DeepSeek, Kimi), and sparse attention over it (DeepSeek-V3.2, GLM-5), over blocks (MiniMax-M3) or
over compressed entries (DeepSeek-V4).

Some engines' tables hold the kernel alone, others the whole module: down- and up-projections, norms, rotary embedding,
writing the cache, the kernel, and the output projection. The projections have operators of their own, so their measured
time is taken off; what remains, with all the small kernels of the module, is the attention operator's. It is the module
in 16 bits less products in 16 bits, whatever the model's are in: all engines run those tuned.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import polars as pl

from gnomon.core.arrays import Floats
from gnomon.timing.operators import Decode, Operator, Prefill
from gnomon.timing.sources.profile.measured import MIN_ROWS
from gnomon.timing.sources.profile.samples import Samples
from gnomon.timing.sources.silicon.attention import KV_DTYPES
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, less, read_kernels, scaled
from gnomon.timing.sources.silicon.products import OURS
from gnomon.timing.sources.silicon.tables import Table
from gnomon.timing.sources.silicon.untuned import SLOW, tuned

LAUNCH_BOUND = SLOW
"""A module whose shortest prompt takes this much longer than in another engine's waits for launches."""
PLATEAU = 1.6  # Up to this much above the shortest prompt's time, it still does.
PROJECTIONS = ("qkv_a_proj", "q_b_proj", "q_proj", "kv_b_proj", "qkv_proj", "o_proj")
"""Operators whose time a module contains and that are taken off."""
INSIDE = {
    *("latent_norm", "qk_norm", "rotary", "kv_write", "absorb_q", "absorb_v", "o_quantize"),
    *("indexer_q_proj", "indexer_k_proj", "indexer_prefill", "indexer_decode"),
    *("csa_compressor_proj", "hca_compressor_proj", "o_a_proj"),
}
"""Operators that are part of a module's remainder."""


@dataclass(frozen=True)
class LatentQuery:
    """What a model's latent attention is, beside the heads."""

    architecture: str
    """"" for plain latent attention, else the name under which the sparse module was measured; where several models
    have it, with the end of the model's name: "DeepseekV4ForCausalLM/Pro"."""
    has_module: bool
    """Whether it is the model whose module was measured: DeepSeek-V3's widths."""
    projections: Callable[[bool, Floats, str], Floats]
    """Seconds of all projections at token counts, of prompts (True) or decodes (False), in a number format."""


@dataclass(frozen=True)
class _Form:
    family: str
    table: str
    is_module: bool


BLOCKS_MODULE = "MiniMaxM3ForCausalLM"
COMPRESSED_MODULE = "DeepseekV4ForCausalLM"


def _forms(operator: Operator, latent: LatentQuery) -> tuple[_Form, ...]:
    """The tables that may hold it. DeepSeek-V4's layers with a window alone were not measured: as those that hardly
    read more."""
    phase = "context" if operator.kind == "attention_prefill" else "generation"
    kernel, module = _Form("mla", f"{phase}_mla_perf", False), _Form("mla", f"mla_{phase}_module_perf", True)
    if latent.architecture.startswith(COMPRESSED_MODULE):
        name = "dsv4_csa" if operator.name.startswith("csa") else "dsv4_hca"
        return (_Form("sparse_attention", f"{name}_{phase}_module_perf", True),)
    if latent.architecture == BLOCKS_MODULE:
        return (_Form("msa", f"msa_{phase}_module_perf", True),)
    if latent.architecture:
        return (_Form("sparse_attention", f"dsa_{phase}_module_perf", True),)
    return (module, kernel) if latent.has_module else (kernel,)


def find_latent(
    query: Query, operator: Operator, work: Prefill | Decode, latent: LatentQuery
) -> tuple[Found, bool] | None:
    """The kernel or the module's remainder (then True), in the engine or the others."""
    kv = KV_DTYPES.get(query.kv_dtype, "bfloat16")
    candidates, excuses = [], ""
    for form in _forms(operator, latent):
        of_form = query.tables(form.family, form.table)
        kept, excuse = tuned(of_form, _points, form, kv, latent.architecture)
        candidates += [(table, form) for table in kept]
        excuses += excuse if of_form and of_form[0].engine == query.engine else ""
    candidates.sort(key=lambda one: one[0].engine != query.engine)
    for table, form in candidates:
        shape = (latent.architecture, module_type(table, latent.architecture) if form.is_module else "")
        for kv_dtype in dict.fromkeys((kv, "bfloat16", "fp8")):
            kernels = latent_kernels(table, operator.kind, form.is_module, kv_dtype, *shape)
            found = _of_heads(kernels, operator, work, query)
            if found is None:
                continue
            words = f"measured in {table.name}"
            if form.is_module:
                words += ", its module less the projections"
                if operator.kind == "attention_prefill":
                    same = query.tables(form.family, form.table)
                    others = [latent_kernels(one, operator.kind, True, kv_dtype, *shape) for one in same]
                    found, is_cut = _without_launches(found, _shortest(others, work.num_heads))
                    words += ", without its launches" if is_cut else ""
                tokens = found.sizes[:, 0]  # Of one prompt, or one of each decoding sequence.
                found = less(found, latent.projections(operator.kind == "attention_prefill", tokens, OURS[shape[1]]))
            if kv_dtype != kv:
                words += f", {kv_dtype} KV"
            return Found(found, words + ("" if table.engine == query.engine else excuses)), form.is_module
    return None


@lru_cache(maxsize=64)
def _points(table: Table, form: _Form, kv_dtype: str, architecture: str) -> pl.DataFrame:
    """Small batches of decodes, where launches show; long prompts, where work does."""
    rows = _chosen(table, form.is_module, kv_dtype, architecture)
    if "generation" in form.table:
        rows = rows.filter(pl.col("batch_size") <= 16, pl.col("step") <= 4096)
    else:
        rows = rows.filter(pl.col("batch_size") == 1, pl.col("isl") >= 2048)
    names = ["num_heads", "batch_size", "isl", "step", *(["gemm_type"] if form.is_module else [])]
    return rows.group_by(names).agg(pl.col("latency").min())


def _without_launches(samples: Samples, shortest_s: float) -> tuple[Samples, bool]:
    """Leave out short prompts where an engine's module waits for launches: nothing changes with their length, and
    another engine takes far less. Host time is not a kernel's. The longest stays: there kernels take as long."""
    floor = float(samples.seconds[np.argmin(samples.sizes.sum(axis=1))])
    lengths, before = samples.sizes.T
    waits = (before == before.min()) & (samples.seconds <= PLATEAU * floor)
    keep = lengths >= lengths[waits].max(initial=0.0)
    if floor <= LAUNCH_BOUND * shortest_s or keep.sum() < MIN_ROWS:
        return samples, False
    return replace(samples, sizes=samples.sizes[keep], seconds=samples.seconds[keep]), True


@lru_cache(maxsize=64)
def module_type(table: Table, architecture: str) -> str:
    """The number format of a module's projections: 16 bits if it was measured so."""
    rows = table.rows("gemm_type")
    rows = rows.filter(*_of_architecture(architecture))
    types = sorted(rows["gemm_type"].unique().to_list())
    return next((one for one in types if one in OURS), "bfloat16")


def _shortest(others: list[Kernels], heads: int) -> float:
    """The least time of any prompt in any engine's table."""
    times = [s.seconds.min() for one in others for key, s in one.bundle.samples.items() if key[1] == heads]
    return float(min(times, default=np.inf))


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
    rows = _chosen(table, is_module, kv_dtype, architecture)
    if is_module:
        rows = rows.filter(pl.col("gemm_type") == gemm_type)
    if kind == "attention_decode":
        rows = rows.with_columns(kv=pl.col("step") + (0 if is_module else 1))
        kernels = read_kernels(table, rows, kind, ("num_heads",), ("batch_size", "kv"))
        for key, samples in kernels.bundle.samples.items():
            kernels.bundle.samples[key] = _inside_graphs(samples)
        return kernels
    rows = rows.filter(pl.col("batch_size") == 1)
    return read_kernels(table, rows, kind, ("num_heads",), ("isl", "step"))


def _chosen(table: Table, is_module: bool, kv_dtype: str, architecture: str) -> pl.DataFrame:
    """The rows of one KV format and one model's module."""
    rows = table.rows("num_heads", "batch_size", "isl", "step", "kv_cache_dtype", "latency")
    chosen = [pl.col("kv_cache_dtype").str.starts_with(kv_dtype)]
    if is_module:
        chosen.append(~pl.col("op_name").str.contains("skip"))
    chosen += _of_architecture(architecture)
    if "mla_dtype" in rows.columns and "bfloat16" in rows["mla_dtype"]:
        chosen.append(pl.col("mla_dtype") == "bfloat16")
    return rows.filter(*chosen)


def _of_architecture(name: str) -> list[pl.Expr]:
    """The rows of one module, and of one model where several have it."""
    architecture, _, model = name.partition("/")
    chosen = [pl.col("architecture") == architecture] if architecture else []
    return [*chosen, pl.col("model").str.contains(f"-{model}")] if model else chosen


def _inside_graphs(samples: Samples) -> Samples:
    """Batches up to the largest that ran inside a CUDA graph: beyond it, launches make the time jump by more than twice
    what the batch grows by."""
    batches = np.unique(samples.sizes[:, 0])
    for small, large in pairwise(batches):
        before, after = (samples.sizes[:, 0] == size for size in (small, large))
        common = np.intersect1d(samples.sizes[before, 1], samples.sizes[after, 1])
        if common.size == 0:
            continue
        times = [np.median(samples.seconds[at & np.isin(samples.sizes[:, 1], common)]) for at in (before, after)]
        if times[1] > 2.0 * times[0] * large / small:
            keep = samples.sizes[:, 0] < large
            return replace(samples, sizes=samples.sizes[keep], seconds=samples.seconds[keep])
    return samples
