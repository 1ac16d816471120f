"""Linear attention: convolution and recurrence, over prompts in chunks and step by step."""

from dataclasses import replace
from functools import lru_cache

import polars as pl

from gnomon.timing.operators import Operator, Recurrence
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, exact, nearest, read_kernels, scaled
from gnomon.timing.sources.silicon.tables import Table

_FAMILIES = {"gdn": "linear_attention", "mamba2": "linear_attention", "kda": "kda"}
_STAND_IN = "gdn"
"""Of Mamba-2 only the convolution was measured. Gated DeltaNet has the same parts: a convolution, and a recurrence over
a state of keys x values per head, in chunks of a prompt or step by step."""


def find_recurrence(query: Query, operator: Operator, work: Recurrence) -> Found | None:
    """The heads themselves, or the nearest, scaled; another kernel's where the whole was not measured."""
    found = _find(query, operator, work)
    if found or work.kernel == _STAND_IN:
        return found
    like = replace(work, kernel=_STAND_IN)
    found = _find(query, replace(operator, work=like), like)
    if found is None:
        return None
    samples = scaled(found.samples, operator, like, query.roofline)
    return Found(samples, f"{found.provenance}, of gated delta nets", found.left_out)


def _find(query: Query, operator: Operator, work: Recurrence) -> Found | None:
    tables = query.tables(_FAMILIES[work.kernel], f"{work.kernel}_perf")
    for table in tables:
        found = exact(recurrence_kernels(table, work.kernel, work.is_step), operator, table)
        if found:
            return found
    for table in tables:
        kernels = recurrence_kernels(table, work.kernel, work.is_step)

        def shaped(key: tuple[str | int, ...]) -> Recurrence:
            heads = [int(value) for value in key[1:]]
            return Recurrence(work.kernel, heads[0], heads[1], heads[2], heads[3], work.conv, work.is_step)

        found = nearest(kernels, operator, table, query.roofline, shaped)
        if found:
            return found
    return None


@lru_cache(maxsize=32)
def recurrence_kernels(table: Table, kernel: str, is_step: bool) -> Kernels:
    """The convolution and the fastest recurrence together: of one prompt, or of one step of each sequence."""
    rows = table.rows("phase", "batch_size", "num_tokens", "kernel_source", "latency")
    if kernel == "mamba2":
        rows = rows.rename({"n_groups": "num_k_heads", "nheads": "num_v_heads", "d_state": "head_k_dim"})
        rows = rows.rename({"head_dim": "head_v_dim"})
    shape = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    rows = rows.filter(pl.col("phase") == ("generation" if is_step else "context"))
    if not is_step:
        rows = rows.filter(pl.col("batch_size") == 1)
    size = "batch_size" if is_step else "num_tokens"
    is_convolution = pl.col("kernel_source").str.starts_with("causal_conv1d")
    fastest = rows.group_by(*shape, size, convolution=is_convolution).agg(pl.col("latency").min())
    both = fastest.group_by(*shape, size).agg(pl.col("latency").sum(), parts=pl.len())
    return read_kernels(table, both.filter(pl.col("parts") == 2), kernel, shape, (size,))
