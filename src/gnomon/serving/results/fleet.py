"""The figures of a fleet that changed: replicas over time, what they cost, what failed."""

from dataclasses import dataclass

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.autoscaling.replicas import DRAINING, PAID, STARTING, UP, FleetRecord, History, history


@dataclass(frozen=True)
class FleetSummary:
    """What became of the replicas."""

    controller: str
    mean_up: float
    """Replicas that took requests, over time."""
    peak_up: int
    least_up: int
    gpu_hours: float
    """Paid for: while replicas start, serve and drain."""
    starting_gpu_hours: float
    """Of those, spent on cold starts."""
    cold_starts: int
    cold_start_s: float
    """Seconds of one cold start (of the first pool)."""
    drains: int
    failures: int
    retries: int
    """Requests that were sent again after a failure."""
    decisions: int
    """How often the controller changed what it wanted."""
    moves: int = 0
    """Requests that left for another replica while they decoded, counted each time."""
    switches: int = 0
    """Replicas that went from one pool to another; those were no cold starts."""
    sees_future: bool = False
    """The controller knew the arrivals to come: others are held against it."""


def past(record: FleetRecord, end_s: float) -> History:
    """Replicas by state over time."""
    return history(record.members, record.changes, end_s)


def paid_s(record: FleetRecord, end_s: float) -> Floats:
    """[replica]: seconds it was paid for."""
    return past(record, end_s).seconds[:, PAID].sum(axis=1)


def fleet_summary(record: FleetRecord, gpus: Floats, end_s: float) -> FleetSummary:
    """The figures up to `end_s`; `gpus[replica]` are its GPUs."""
    seen = past(record, end_s)
    up = seen.counts[:, :, UP].sum(axis=1)
    lasts_s = np.diff(np.append(seen.time_s, max(end_s, seen.time_s[-1])))
    states = [state for _, _, state in record.changes]
    started = states.count(STARTING) - record.switches
    return FleetSummary(
        controller=record.controller, mean_up=float((up * lasts_s).sum() / max(lasts_s.sum(), 1e-12)),
        peak_up=int(up.max()), least_up=int(up[lasts_s > 0].min()) if (lasts_s > 0).any() else int(up.min()),
        gpu_hours=float((seen.seconds[:, PAID].sum(axis=1) * gpus).sum() / 3600),
        starting_gpu_hours=float((seen.seconds[:, STARTING] * gpus).sum() / 3600), cold_starts=started,
        cold_start_s=sum(record.cold_start[0].values()), drains=states.count(DRAINING), failures=record.failures,
        retries=record.retries, moves=len(record.moved), switches=record.switches,
        decisions=sum(len(one) for one in record.decisions), sees_future=record.sees_future,
    )  # fmt: skip


@dataclass(frozen=True)
class Regret:
    """What a controller costs beside one that knows the arrivals to come, on the same requests."""

    gpu_hours: float
    more_gpu_hours: float
    """Than the oracle, as a share of its own."""
    slo_met: float | None
    """Share of the requests."""
    less_slo_met: float | None
    """Than the oracle, as a share of the requests."""


def regret(one: FleetSummary, slo_met: float | None, oracle: FleetSummary, oracle_slo_met: float | None) -> Regret:
    has_slo = slo_met is not None and oracle_slo_met is not None
    return Regret(
        gpu_hours=one.gpu_hours,
        more_gpu_hours=one.gpu_hours / max(oracle.gpu_hours, 1e-12) - 1,
        slo_met=slo_met,
        less_slo_met=oracle_slo_met - slo_met if has_slo else None,  # type: ignore[operator]
    )
