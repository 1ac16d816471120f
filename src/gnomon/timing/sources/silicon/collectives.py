"""Collectives: the engine's own all-reduce, NCCL's others, and the exchange of tokens with experts."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import polars as pl

from gnomon.catalog.topology import Group
from gnomon.timing.operators import Communication, Operator
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, exact, read_kernels, scaled
from gnomon.timing.sources.silicon.tables import Table, find_tables

_NCCL = {"all_gather": "all_gather", "all_to_all": "alltoall", "reduce_scatter": "reduce_scatter"}


def find_collective(query: Query, operator: Operator, work: Communication) -> Found | None:
    """The group size itself; inside one node also the largest that was measured, scaled. The engine's kernel for
    all-reduce, else NCCL."""
    found = _measured(query, operator, work)
    at = work.group.on(query.roofline.node)
    if found or at.num_nodes > 1 or at.is_across_pairs:
        return found
    for size in (8, 4, 2):
        like = replace(work, group=Group(range(size)))
        smaller = _measured(query, replace(operator, work=like), like) if size < work.group.size else None
        if smaller:
            samples = scaled(smaller.samples, operator, like, query.roofline)
            return Found(samples, f"{smaller.provenance}, scaled from {size} GPUs", smaller.left_out)
    return None


def _measured(query: Query, operator: Operator, work: Communication) -> Found | None:
    if work.collective == "all_reduce":
        own = _first(query, operator, query.engine, query.version)
        fused = _first(query, operator, "trtllm") if query.all_reduce == "flashinfer" else None
        if own:
            return _faster(own, fused) if fused else own
    if work.collective in _NCCL:
        for table in find_tables(query.system, "comm", "nccl_perf", "nccl"):
            found = exact(nccl_kernels(table, work.collective), operator, table, query.roofline.node)
            if found:
                return found
    return None


def _first(query: Query, operator: Operator, engine: str, version: str = "") -> Found | None:
    """The all-reduce of an engine, or of another that has it."""
    tables = find_tables(query.system, "comm", "custom_allreduce_perf", engine, version)
    found = (exact(all_reduce_kernels(table), operator, table, query.roofline.node) for table in tables)
    return next((one for one in found if one), None)


def _faster(own: Found, fused: Found) -> Found:
    """At each size of a message the faster of two kernels: engines turn to the fused one where it is."""
    sizes, at, there = np.intersect1d(own.samples.sizes[:, 0], fused.samples.sizes[:, 0], return_indices=True)
    seconds = np.minimum(own.samples.seconds[at], fused.samples.seconds[there])
    origin = fused.provenance.removeprefix("measured in ").removesuffix(", other engine")
    samples = replace(own.samples, sizes=sizes[:, None], seconds=seconds, spread=None)
    return Found(samples, f"{own.provenance}, or FlashInfer's as in {origin}", own.left_out + fused.left_out)


@lru_cache(maxsize=64)
def all_reduce_kernels(table: Table) -> Kernels:
    """As it runs inside CUDA graphs; `message_size` counts 16-bit elements."""
    rows = table.rows("num_gpus", "message_size", "latency")
    if "backend" in rows.columns and rows["backend"].str.ends_with("_graph").any():
        rows = rows.filter(pl.col("backend").str.ends_with("_graph"))
    rows = rows.with_columns(bytes=pl.col("message_size") * 2)
    return read_kernels(table, rows, "all_reduce", ("num_gpus",), ("bytes",))


@lru_cache(maxsize=64)
def nccl_kernels(table: Table, collective: str) -> Kernels:
    """`message_size` counts elements of the whole buffer; ours is the bytes that one rank contributes."""
    rows = table.rows("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    rows = rows.filter((pl.col("op_name") == _NCCL[collective]) & (pl.col("nccl_dtype") == "half"))
    whole = pl.col("message_size") * 2
    share = whole / pl.col("num_gpus") if collective == "all_gather" else whole
    return read_kernels(table, rows.with_columns(bytes=share), collective, ("num_gpus",), ("bytes",))
