"""Mixing of residual streams before and after both halves of a layer (manifold-constrained hyper-connections)."""

from functools import lru_cache

import polars as pl

from gnomon.catalog.models import Model
from gnomon.timing.operators import Elementwise, Operator
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, read_kernels, scaled
from gnomon.timing.sources.silicon.tables import Table

_NAMES = {"streams_in": "pre", "streams_out": "post"}


def find_streams(query: Query, operator: Operator, model: Model) -> Found | None:
    """Both halves of a layer together, as they were measured; another width is scaled."""
    for table in query.tables("mhc", "mhc_module_perf"):
        kernels = stream_kernels(table, _NAMES[operator.name], model.residual_streams)
        shapes = sorted(kernels.bundle.samples, key=lambda key: abs(int(key[1]) - model.hidden_size))
        if not shapes:
            continue
        samples, width = kernels.bundle.samples[shapes[0]], int(shapes[0][1])
        words = f"measured in {table.name}"
        if width != model.hidden_size:
            assert isinstance(operator.work, Elementwise)
            like = Elementwise(operator.work.bytes_each * width / model.hidden_size)
            samples, words = scaled(samples, operator, like, query.roofline), f"{words}, scaled from {width} wide"
        return Found(samples, words, kernels.left_out.get(shapes[0], ()))
    return None


@lru_cache(maxsize=16)
def stream_kernels(table: Table, part: str, streams: int) -> Kernels:
    """Samples by the width of a stream, over tokens."""
    rows = table.rows("op_name", "num_tokens", "num_sites", "hc_mult", "hidden_size", "latency")
    chosen = (pl.col("op_name") == part, pl.col("hc_mult") == streams, pl.col("num_sites") == 2)
    return read_kernels(table, rows.filter(*chosen), "streams", ("hidden_size",), ("num_tokens",))
