"""Quantising activations to FP8: with a scale that is known, or with one that is found row by row.

`scale_matrix` holds the first; `computescale` what finding the scale takes beyond it.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from gnomon.core.arrays import Floats
from gnomon.timing.operators import Elementwise, Operator
from gnomon.timing.sources.silicon.kernels import MS, Found, Kernels, Query, read_kernels, scaled
from gnomon.timing.sources.silicon.tables import Table, tables_in
from gnomon.timing.sources.silicon.untuned import MIN_COMMON, tuned


def find_quantize(query: Query, operator: Operator, work: Elementwise) -> Found | None:
    """Quantising a tensor of a known width to FP8 with a scale that is known."""
    width = round(work.bytes_each / 3.0)
    tables, excuse = tuned(query.tables("quantize", "scale_matrix_perf"), quantize_points)
    for table in tables:
        kernels = quantize_kernels(table)
        widths = np.array([float(key[1]) for key in kernels.bundle.samples])
        if widths.size == 0:
            continue
        near = int(widths[np.argmin(np.abs(np.log(widths / width)))])
        found = kernels.bundle.samples[("quantize", near)]
        like = Elementwise(3.0 * near)
        return Found(scaled(found, operator, like, query.roofline), f"measured in {table.name}{excuse}")
    return None


@lru_cache(maxsize=64)
def quantize_kernels(table: Table) -> Kernels:
    """Samples by width, over rows."""
    return read_kernels(table, quantize_points(table), "quantize", ("k",), ("m",))


@lru_cache(maxsize=64)
def quantize_points(table: Table) -> pl.DataFrame:
    """What was measured, one row per size."""
    rows = table.rows("m", "k", "quant_dtype", "latency").filter(pl.col("quant_dtype") == "fp8")
    return rows.group_by("m", "k").agg(pl.col("latency").min())


def row_wise_s(system: Path, engine: str, rows: Floats, width: int) -> Floats:
    """Seconds of finding each row's scale and quantising [rows, width], in the engine or else another that measured
    both; nothing where none did."""
    grid = _row_wise(system, engine)
    if grid is None:
        return np.zeros_like(rows)
    widths, sizes, seconds = grid
    at = np.log(np.clip(rows, 1.0, None))
    by_width = np.array([np.interp(at, sizes, row) for row in seconds])
    place = np.clip(np.interp(np.log(width), widths, np.arange(len(widths))), 0, len(widths) - 1)
    low = int(place)
    high, share = min(low + 1, len(widths) - 1), place - low
    beyond = rows / np.exp(sizes[-1])  # A long tensor takes its share of the longest.
    return ((1.0 - share) * by_width[low] + share * by_width[high]) * np.maximum(beyond, 1.0)


@lru_cache(maxsize=64)
def _row_wise(system: Path, engine: str) -> tuple[Floats, Floats, Floats] | None:
    """Logarithms of widths and of rows, and the seconds over both."""
    tables, _ = tuned(tables_in(system, "quantize", "scale_matrix_perf", engine), quantize_points)
    for table in tables:
        scales = table.path.with_name("computescale_perf.parquet")
        if not scales.is_file():
            continue
        both = quantize_points(table).join(quantize_points(Table(scales, engine, "")), on=["m", "k"], suffix="_scale")
        if both.height < MIN_COMMON:
            continue
        whole = both.with_columns(seconds=(pl.col("latency") + pl.col("latency_scale")) * MS)
        wide = whole.pivot("m", index="k", values="seconds", sort_columns=False).sort("k")
        sizes = sorted(int(name) for name in wide.columns if name != "k")
        frame = wide.select([str(size) for size in sizes]).interpolate()
        filled = frame.fill_null(strategy="backward").fill_null(strategy="forward")
        return np.log(wide["k"].to_numpy()), np.log(np.array(sizes, float)), filled.to_numpy()
    return None
