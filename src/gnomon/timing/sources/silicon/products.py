"""Matrix products, per-head products of latent attention, and quantising activations.

FP8 products were measured together with the quantising of their input, call by call. In serving the norm or the
activation before them writes FP8 itself. So that part is taken off: what the narrowest product takes beyond the same
product in 16 bits. (Block-wise FP8 and NVFP4 products keep it: their engines run it as a kernel of its own.)
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import polars as pl

from gnomon.catalog.quantization import weight_format
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Elementwise, Gemm, Operator
from gnomon.timing.sources.profile.samples import Key, Samples
from gnomon.timing.sources.silicon.kernels import (
    MS,
    Found,
    Kernels,
    Query,
    between,
    exact,
    less,
    nearest,
    read_kernels,
    scaled,
)
from gnomon.timing.sources.silicon.tables import Table

DTYPES: dict[str, tuple[str, ...]] = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    "fp8": ("fp8", "fp8_block"),
    "fp8_block": ("fp8_block", "fp8"),
    "mxfp8": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4", "fp8"),
    "fp4": ("nvfp4", "fp8"),
}
"""Number format -> what the tables call it, then what stands in for it (scaled by the roofline). Weights that are only
stored smaller have no products of their own in the tables: those of 16 bits stand in."""
OURS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}

NARROWEST = 128
LAUNCH_BOUND = 4.0
"""A table whose shortest products take this much longer than another engine's measured launches, not kernels."""


def find_gemm(query: Query, operator: Operator, work: Gemm) -> Found | None:
    """A product: its own shape or one between shapes, in the engine's tables or the others'."""
    names = DTYPES.get(work.format.name, ("", "bfloat16"))
    for dtype in filter(None, names):
        tables = without_launch_bound(query.tables("gemm", "gemm_perf"), dtype)
        for look in (_close, _far):
            for table, excuse in tables:
                found = look(gemm_kernels(table, dtype), operator, table, query)
                if found and dtype != names[0]:
                    like = Gemm(work.n, work.k, weight_format(OURS[dtype]))
                    samples = scaled(found.samples, operator, like, query.roofline)
                    found = Found(samples, f"{found.provenance}, scaled from {dtype}", found.left_out)
                if found:
                    return Found(found.samples, found.provenance + excuse, found.left_out)
    return None


def _close(kernels: Kernels, operator: Operator, table: Table, query: Query) -> Found | None:
    return exact(kernels, operator, table) or between(kernels, operator, table, query.roofline)


def _far(kernels: Kernels, operator: Operator, table: Table, query: Query) -> Found | None:
    work = operator.work
    assert isinstance(work, Gemm)

    def shaped(key: Key) -> Gemm:
        return Gemm(int(key[1]), int(key[2]), work.format)

    return nearest(kernels, operator, table, query.roofline, shaped)


@lru_cache(maxsize=64)
def gemm_kernels(table: Table, dtype: str) -> Kernels:
    """All measured shapes of one number format."""
    frame = table.rows("gemm_dtype", "m", "n", "k", "latency").filter(pl.col("gemm_dtype") == dtype)
    kernels = read_kernels(table, frame, "gemm", ("n", "k"), ("m",))
    if dtype == "fp8":
        plain = gemm_kernels(table, "bfloat16").bundle.samples
        measured = dict(kernels.bundle.samples)
        for key, samples in measured.items():
            narrow, same = measured.get(("gemm", NARROWEST, key[2])), plain.get(("gemm", NARROWEST, key[2]))
            if narrow and same:
                kernels.bundle.samples[key] = less(samples, _quantizing(samples.sizes, narrow, same))
    return kernels


def _quantizing(sizes: Floats, narrow: Samples, same: Samples) -> Floats:
    """Seconds of quantising [m, k], from the narrowest product in 8 and in 16 bits."""
    at = np.log(sizes[:, 0])
    eight = np.interp(at, np.log(narrow.sizes[:, 0]), narrow.seconds)
    sixteen = np.interp(at, np.log(same.sizes[:, 0]), same.seconds)
    return np.maximum(eight - sixteen, 0.0)


def without_launch_bound(tables: list[Table], dtype: str) -> list[tuple[Table, str]]:
    """The tables that measured kernels; the first one's excuse names those that are passed over."""
    floors = {table: _floor(table, dtype) for table in tables}
    shortest = min((floor for floor in floors.values() if floor > 0), default=np.inf)
    bad = [table for table in tables if floors[table] > LAUNCH_BOUND * shortest]
    excuse = f" ({bad[0].engine} {bad[0].version} measured launches)" if bad and bad[0] == tables[0] else ""
    return [(table, excuse) for table in tables if table not in bad]


@lru_cache(maxsize=64)
def _floor(table: Table, dtype: str) -> float:
    """The time of small products, of up to 16 rows and some megabytes of weights; 0 where there are none."""
    small = (pl.col("gemm_dtype") == dtype) & (pl.col("m") <= 16) & (pl.col("n") * pl.col("k") <= 4_194_304)
    rows = table.rows("gemm_dtype", "m", "n", "k", "latency").filter(small)
    return 0.0 if rows.is_empty() else float(rows["latency"].quantile(0.25) or 0.0) * MS


def find_absorbed(query: Query, operator: Operator, work: Gemm) -> Found | None:
    """The per-head products with which decoding applies the latent expansion (`pre` to queries, `post` to outputs)."""
    name = "mla_gen_pre" if operator.name == "absorb_q" else "mla_gen_post"
    for table in query.tables("mla_bmm", "mla_bmm_perf"):
        rows = table.rows("op_name", "bmm_dtype", "num_tokens", "num_heads", "latency")
        wanted = "fp8" if work.format.name.startswith("fp8") and "fp8" in rows["bmm_dtype"] else "bfloat16"
        chosen = (pl.col("op_name") == name) & (pl.col("bmm_dtype") == wanted)
        shape = rows.filter(chosen).with_columns(n=pl.lit(work.n), k=pl.lit(work.k))
        kernels = read_kernels(table, shape, "bmm", ("num_heads", "n", "k"), ("num_tokens",))
        found = exact(kernels, operator, table)
        if found:
            return found
    return None


def find_quantize(query: Query, operator: Operator, work: Elementwise) -> Found | None:
    """Quantising a tensor of a known width to FP8 with a scale that is known."""
    width = round(work.bytes_each / 3.0)
    for table in query.tables("quantize", "scale_matrix_perf"):
        rows = table.rows("m", "k", "quant_dtype", "latency").filter(pl.col("quant_dtype") == "fp8")
        kernels = read_kernels(table, rows, "quantize", ("k",), ("m",))
        widths = np.array([float(key[1]) for key in kernels.bundle.samples])
        if widths.size == 0:
            continue
        near = int(widths[np.argmin(np.abs(np.log(widths / width)))])
        found = kernels.bundle.samples[("quantize", near)]
        like = Elementwise(3.0 * near)
        return Found(scaled(found, operator, like, query.roofline), f"measured in {table.name}")
    return None
