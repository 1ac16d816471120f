"""How busy the replicas were: time, arithmetic, memory traffic and KV cache, from the engine's accounts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.autoscaling.replicas import DRAINING, UP
from gnomon.serving.engine.state import ABANDONED
from gnomon.serving.results.fleet import past
from gnomon.serving.run.simulate import Run


@dataclass(frozen=True)
class Utilization:
    """Shares of what was there; for the whole fleet each GPU counts the same."""

    mfu: float
    """FLOPs of the model over what the GPUs' peak would do in the whole run."""
    hbm: float
    """Bytes of weights and KV read over what the memory bandwidth would carry in the whole run."""
    busy: float
    """Share of the run in which a stage computes (mean over pipeline stages)."""
    bubble: float | None
    """Share in which a stage waits while its replica has a batch in another one; None where rows were left out."""
    idle: float | None
    """Share in which the replica has nothing to do."""
    kv_mean: float
    """KV blocks in use over blocks there are, averaged over busy time."""
    kv_peak: float
    """The most KV blocks in use at once, over blocks there are."""


@dataclass(frozen=True)
class ReplicaUse:
    """One replica (of data-parallel ranks: one rank)."""

    replica: int
    role: str
    """prefill, decode or both."""
    device: str
    num_gpus: int
    num_kv_blocks: int
    finished: int
    rejected: int
    preemptions: int
    iterations: int
    tokens: int
    """Tokens computed, prompt and output, repeated ones included."""
    prefix_hit_rate: float | None
    """Share of the looked-up prompt tokens that the prefix cache held; None without lookups."""
    utilization: Utilization


def replica_uses(run: Run, start_s: float, end_s: float) -> list[ReplicaUse]:
    replicas, pool_of = run.cluster.replicas, run.pool_of_replica
    work = run.tables.work[np.minimum(replicas.row, len(run.tables.work) - 1)]
    if (run.cluster.requests.status == ABANDONED).any():  # Replicas may be at work for clients that have left.
        end_s = max(end_s, float(run.cluster.stage_free_s.max()))
    span = np.maximum(seconds_on(run, start_s, end_s), 1e-12)
    busy, active = _busy_and_active(run, end_s, span)
    blocks = np.maximum(replicas.num_blocks, 1)
    kv_mean = np.where(replicas.busy_s > 0, replicas.kv_block_s / np.maximum(replicas.busy_s, 1e-12), 0.0) / blocks
    cut = _cut_off(run, end_s)
    shares = np.column_stack([
        (replicas.flops - cut[:, 0]) / np.maximum(work[:, 5], 1.0) / span,
        (replicas.bytes - cut[:, 1]) / np.maximum(work[:, 6], 1.0) / span,
        busy, active, kv_mean, replicas.peak_blocks / blocks,
    ])  # fmt: skip
    rows = []
    for r, (mfu, hbm, is_busy, is_active, mean, peak) in enumerate(shares.tolist()):
        pool, account = run.pools[pool_of[r]], replicas[r]
        known = not np.isnan(is_active)
        use = Utilization(
            mfu, hbm, is_busy, bubble=max(is_active - is_busy, 0.0) if known else None,
            idle=max(1.0 - is_active, 0.0) if known else None, kv_mean=mean, kv_peak=peak,
        )  # fmt: skip
        counts = {name: int(account[field]) for name, field in _COUNTS.items()}
        gpus = pool.replica.num_gpus // pool.replica.data_parallel
        hits = prefix_hit_rate(replicas[r : r + 1])
        rows.append(ReplicaUse(r, pool.role, pool.device.name, gpus, **counts, prefix_hit_rate=hits, utilization=use))
    return rows


_COUNTS = {
    "num_kv_blocks": "num_blocks", "finished": "num_finished", "rejected": "num_rejected",
    "preemptions": "num_preemptions", "iterations": "num_iterations", "tokens": "tokens_computed",
}  # fmt: skip
"""What is told of a replica, and the engine's name for it."""


def seconds_on(run: Run, start_s: float, end_s: float) -> Floats:
    """[replica]: how long it was there; in a fleet that changes, while it served."""
    if run.fleet is None:
        return np.full(run.cluster.replicas.size, end_s - start_s)
    seconds = past(run.fleet, end_s).seconds[:, [UP, DRAINING]].sum(axis=1)
    return np.repeat(seconds, [len(one.ranks) for one in run.fleet.members])


def prefix_hit_rate(replicas: Any) -> float | None:
    """Share of the prompt tokens looked up that the replicas' prefix caches held; None where they have none."""
    caching = replicas[replicas.prefix_cache != 0]
    queries = int(caching.cache_queries.sum())
    return int(caching.cache_hits.sum()) / queries if queries else None


def overall(uses: list[ReplicaUse], share_on: Floats | None = None) -> Utilization:
    """The fleet's shares: the mean over GPUs (and the time they were there); for the KV cache over blocks, and the
    highest peak of any replica."""
    gpus = np.array([use.num_gpus for use in uses], dtype=np.float64)
    blocks = np.array([max(use.num_kv_blocks, 1) for use in uses], dtype=np.float64)
    if share_on is not None and share_on.any():
        gpus, blocks = gpus * share_on, blocks * share_on

    def mean(name: str, weights: Floats) -> float:
        return float(np.average([getattr(use.utilization, name) for use in uses], weights=weights))

    known = all(use.utilization.idle is not None for use in uses)
    return Utilization(
        mfu=mean("mfu", gpus), hbm=mean("hbm", gpus), busy=mean("busy", gpus),
        bubble=mean("bubble", gpus) if known else None, idle=mean("idle", gpus) if known else None,
        kv_mean=mean("kv_mean", blocks), kv_peak=max(use.utilization.kv_peak for use in uses),
    )  # fmt: skip


def _cut_off(run: Run, end_s: float) -> Floats:
    """[replica, (FLOPs, bytes)]: what the batches that are under way at the end do after it, by their share of time."""
    cluster, replicas = run.cluster, run.cluster.replicas
    cut = np.zeros((replicas.size, 2))
    for r in np.flatnonzero(replicas.num_in_flight):
        for position in _in_flight(run, r):
            stages = slice(replicas.num_stages[r])
            start_s, stop_s = cluster.stage_start_s[r, position, stages], cluster.stage_end_s[r, position, stages]
            from_s = -np.inf if replicas.frozen[r] else end_s  # Of a replica that has died it is lost.
            after_s = np.maximum(stop_s - np.maximum(start_s, from_s), 0.0).sum()
            flight = cluster.flights[r, position]
            cut[r] += np.array([flight.flops, flight.bytes]) * after_s / max((stop_s - start_s).sum(), 1e-12)
    return cut


def _in_flight(run: Run, r: Any) -> Ints:
    state = run.cluster.replicas[r]
    return (state.oldest + np.arange(state.num_in_flight)) % run.cluster.flights.shape[1]


def _busy_and_active(run: Run, end_s: float, span_s: Floats) -> tuple[Floats, Floats]:
    """Per replica: share of time a stage computes, and share of time it has a batch in flight (NaN if not known)."""
    replicas = run.cluster.replicas
    # A time limit cuts through iterations whose whole time is on the account already.
    beyond_s = np.maximum(run.cluster.stage_free_s[:, 0] - end_s, 0.0)
    dead = np.flatnonzero((replicas.frozen != 0) & (replicas.num_in_flight > 0))
    for r in dead:  # What they were at when they died never ends, and nobody has noticed it yet.
        lost = run.cluster.stage_end_s[r, :, 0] - run.cluster.stage_start_s[r, :, 0]
        beyond_s[r] = lost[_in_flight(run, r)].sum()
    busy = (replicas.busy_s - beyond_s) / span_s
    active = busy.copy()
    if replicas.num_stages.max() == 1:
        return busy, active
    rows, is_thinned = run.log.iterations[: run.log.used[0]], run.log.used[3] > 1
    for r in np.flatnonzero(replicas.num_stages > 1):
        mine = rows[rows.replica == r]
        if r in dead:
            mine = mine[~np.isin(mine.number, run.cluster.flights.number[r, _in_flight(run, r)])]
        first, last = mine.stage == 0, mine.stage == replicas.num_stages[r] - 1
        seconds = mine.end_s - mine.start_s
        mean_s = float(seconds.sum()) / int(replicas.num_stages[r])
        if is_thinned:
            # The first stage's account is exact; the others are to it as in the rows that are left.
            busy[r] *= mean_s / max(float(seconds[first].sum()), 1e-12)
            active[r] = np.nan
        else:
            busy[r] = mean_s / span_s[r]
            active[r] = _covered_s(mine.start_s[first], mine.end_s[last]) / span_s[r]
    return busy, active


def _covered_s(start_s: Floats, end_s: Floats) -> float:
    """Length of the union of intervals given in order of their starts."""
    if not start_s.size:
        return 0.0
    latest = np.maximum.accumulate(end_s)
    gaps = np.maximum(start_s[1:] - latest[:-1], 0.0)
    return float(latest[-1] - start_s[0] - gaps.sum())
