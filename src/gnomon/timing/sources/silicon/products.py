"""Matrix products, and the per-head products of latent attention.

FP8 products were measured together with the quantising of their input, row by row. In serving the norm or the
activation before them writes FP8 itself. So that part is taken off, as the engine's own tables of it have it.
(Block-wise FP8 and NVFP4 products keep it: their engines run it as a kernel of its own.)
"""

from functools import lru_cache

import numpy as np
import polars as pl

from gnomon.catalog.quantization import weight_format
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Gemm, Operator
from gnomon.timing.sources.profile.samples import Key
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
from gnomon.timing.sources.silicon.quantizing import row_wise_s
from gnomon.timing.sources.silicon.tables import NAMES, Table
from gnomon.timing.sources.silicon.untuned import tuned

DTYPES: dict[str, list[str]] = NAMES["products"]
OURS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}

FEW_ROWS = (1, 4, 16, 64, 128)
MIN_WIDTH = 512


def find_gemm(query: Query, operator: Operator, work: Gemm) -> Found | None:
    """A product: its own shape or one between shapes, in the engine's tables or the others'."""
    names = DTYPES.get(work.format.name, ["", "bfloat16"])
    for dtype in filter(None, names):
        tables, excuse = tuned(query.tables("gemm", "gemm_perf"), product_points, dtype)
        for look in (_close, _far):
            for table in tables:
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
        for key, samples in kernels.bundle.samples.items():
            kernels.bundle.samples[key] = less(samples, _quantizing_s(table, samples.sizes[:, 0], int(key[2])))
    return kernels


@lru_cache(maxsize=64)
def product_points(table: Table, dtype: str) -> pl.DataFrame:
    """Products of few rows, where weights decide and no tile does, without the quantising that is taken off."""
    chosen = (pl.col("gemm_dtype") == dtype, pl.col("m").is_in(FEW_ROWS), pl.min_horizontal("n", "k") >= MIN_WIDTH)
    rows = table.rows("gemm_dtype", "m", "n", "k", "latency").filter(*chosen)
    points = rows.group_by("m", "n", "k").agg(pl.col("latency").min())
    if dtype != "fp8":
        return points
    sizes, widths, part = points["m"].to_numpy(), points["k"].to_numpy(), np.zeros(points.height)
    for width in np.unique(widths):
        part[widths == width] = _quantizing_s(table, sizes[widths == width], int(width))
    return points.with_columns(latency=pl.col("latency") - part / MS)


def _quantizing_s(table: Table, rows: Floats, width: int) -> Floats:
    return row_wise_s(table.system, table.engine, np.asarray(rows, float), width)


def find_absorbed(query: Query, operator: Operator, work: Gemm) -> Found | None:
    """The per-head products with which decoding applies the latent expansion (`pre` to queries, `post` to outputs)."""
    name = "mla_gen_pre" if operator.name == "absorb_q" else "mla_gen_post"
    for table in query.tables("mla_bmm", "mla_bmm_perf"):
        has_fp8 = "fp8" in table.rows("bmm_dtype")["bmm_dtype"]
        wanted = "fp8" if work.format.name.startswith("fp8") and has_fp8 else "bfloat16"
        found = exact(absorbed_kernels(table, name, wanted, work.n, work.k), operator, table)
        if found:
            return found
    return None


@lru_cache(maxsize=64)
def absorbed_kernels(table: Table, name: str, dtype: str, n: int, k: int) -> Kernels:
    """Samples by heads, of products with [k, n] each."""
    rows = table.rows("op_name", "bmm_dtype", "num_tokens", "num_heads", "latency")
    chosen = (pl.col("op_name") == name) & (pl.col("bmm_dtype") == dtype)
    shape = rows.filter(chosen).with_columns(n=pl.lit(n), k=pl.lit(k))
    return read_kernels(table, shape, "bmm", ("num_heads", "n", "k"), ("num_tokens",))
