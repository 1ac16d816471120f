"""Operator-level times of a run: where the seconds of its mean iterations go."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.serving.kinds import Kind
from gnomon.serving.simulate import Run
from gnomon.timing import SOURCES, Batch, Context, Timer, breakdown

_SCHEMA = {
    "kind": pl.Int64, "device": pl.String, "iteration": pl.String, "num_iterations": pl.Int64, "operator": pl.String,
    "calls": pl.Int64, "seconds": pl.Float64, "flops": pl.Float64, "bytes": pl.Float64, "mfu": pl.Float64,
    "limit": pl.String, "provenance": pl.String,
}  # fmt: skip


def operator_frame(run: Run) -> pl.DataFrame:
    """One row per kind of replica, kind of iteration (prefill, mixed, decode) and operator.

    The times are those of one iteration of the mean shape: mean prompt tokens, decodes and KV length. A source that
    gives whole iterations (`table`) has no operators: the frame is empty.
    """
    rows: list[dict[str, Any]] = []
    kind_of_replica = run.kind_of_replica
    log = run.log.iterations[: run.log.used[0]]
    first = log[log["stage"] == 0]
    for number, kind in enumerate(run.kinds):
        if SOURCES[kind.timing.source].gives_iterations:
            continue
        timer = _timer(run, kind)
        mine = first[kind_of_replica[first["replica"]] == number]
        for name, batch, count in _mean_batches(mine):
            same = {"kind": number, "device": kind.device.name, "iteration": name, "num_iterations": count}
            rows += [
                {**same, "operator": one.name, "calls": one.calls, "seconds": one.seconds, "flops": one.flops,
                 "bytes": one.bytes, "mfu": one.mfu, "limit": one.limit, "provenance": one.provenance}
                for one in breakdown(timer, batch)
            ]  # fmt: skip
    return pl.DataFrame(rows, schema=_SCHEMA)


def _timer(run: Run, kind: Kind) -> Timer:
    pool = kind
    assert pool.replica is not None and pool.timing is not None
    parallelism = pool.replica.parallelism
    node = catalog.node(pool.node) if pool.node else catalog.default_node(kind.device, parallelism.num_gpus)
    return Timer(Context(run.model, kind.device, node, parallelism, pool.timing))


def _mean_batches(rows: Any) -> list[tuple[str, Batch, int]]:
    """The mean iteration of each kind that occurred."""
    has_prefill, has_decodes = rows["prefill_tokens"] > 0, rows["decodes"] > 0
    found = []
    for name, chosen in (
        ("prefill", has_prefill & ~has_decodes),
        ("mixed", has_prefill & has_decodes),
        ("decode", ~has_prefill & has_decodes),
    ):
        some = rows[chosen]
        if not len(some):
            continue
        decodes = float(some["decodes"].mean())
        kv = float(some["decode_kv"].sum() / max(some["decodes"].sum(), 1))
        prefill = float(some["prefill_tokens"].mean())
        batch = Batch(prefill=_whole(prefill), decode=_whole(decodes), kv=_whole(kv) if decodes else 0)
        found.append((name, batch, len(some)))
    return found


def _whole(value: float) -> int:
    """The nearest whole number, at least one of what is there at all."""
    return max(1, int(np.rint(value))) if value > 0 else 0
