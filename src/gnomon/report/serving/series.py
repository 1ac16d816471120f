"""Curves of a serving run, thinned to what a screen can show: distribution functions and time series."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.engine.state import FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.run.simulate import Run

CURVE_POINTS = 400
TIME_POINTS = 600

MARKED_SHARES = (0.5, 0.9, 0.99)
_TAIL = 1 - np.geomspace(1, 1e-4, CURVE_POINTS // 2)
_SHARES = np.unique(np.concatenate([np.linspace(0, 1, CURVE_POINTS // 2), _TAIL, MARKED_SHARES]))


@dataclass(frozen=True)
class Curve:
    """Points of a line."""

    x: Floats
    y: Floats


def distribution(values: Floats, counts: Ints | None = None) -> Curve:
    """The empirical distribution function; finer towards the upper tail, where people look."""
    known = ~np.isnan(values)
    values = values[known]
    if not values.size:
        return Curve(np.empty(0), np.empty(0))
    if counts is None:
        return Curve(np.quantile(values, _SHARES), _SHARES)
    order = np.argsort(values)
    accumulated = np.cumsum(counts[known][order])
    ranks = np.minimum(np.ceil(_SHARES * accumulated[-1]), accumulated[-1])
    return Curve(values[order[np.searchsorted(accumulated, ranks)]], _SHARES)


@dataclass(frozen=True)
class Levels:
    """How full the fleet was, at `TIME_POINTS` moments."""

    at_s: Floats
    waiting: Floats
    """Requests that have arrived and were in no batch yet."""
    running: Floats
    """Requests between their first batch and their end."""
    kv_mean: Floats
    """Share of KV blocks in use, mean over the replicas."""
    kv_max: Floats
    """Share of KV blocks in use of the fullest replica."""


@dataclass(frozen=True)
class Rates:
    """What the fleet did per second, in bins wide enough to hold a few requests each."""

    middle_s: Floats
    """Middles of the bins."""
    arrivals_per_s: Floats
    finished_per_s: Floats
    prompt_tokens_per_s: Floats
    output_tokens_per_s: Floats


def levels(run: Run, start_s: float, end_s: float) -> Levels:
    """Sample the run from `start_s` to `end_s`."""
    q = run.cluster.requests
    at = np.linspace(start_s, max(end_s, start_s + 1e-9), TIME_POINTS)
    served = _served(run)
    started = served & (q.scheduled_s >= 0)
    done = q.status == FINISHED
    arrived, scheduled, finished = (
        _count_by(at, stamps) for stamps in (q.arrival_s[served], q.scheduled_s[started], q.finished_s[done])
    )
    kv = _kv_shares(run, at)
    return Levels(at, arrived - scheduled, scheduled - finished, kv.mean(axis=0), kv.max(axis=0))


def rates(run: Run, start_s: float, end_s: float) -> Rates:
    """Count over the run from `start_s` to `end_s`."""
    q = run.cluster.requests
    served, done = _served(run), q.status == FINISHED
    end_s = max(end_s, start_s + 1e-9)
    edges = np.linspace(start_s, end_s, int(np.clip(np.count_nonzero(done) // 50, 10, 120)) + 1)
    width = edges[1] - edges[0]
    return Rates(
        middle_s=(edges[1:] + edges[:-1]) / 2,
        arrivals_per_s=np.histogram(q.arrival_s[served], edges)[0] / width,
        finished_per_s=np.histogram(q.finished_s[done], edges)[0] / width,
        prompt_tokens_per_s=np.histogram(q.first_token_s[done], edges, weights=q.prompt_tokens[done])[0] / width,
        output_tokens_per_s=np.diff(_output_tokens_by(edges, run)) / width,
    )


def _served(run: Run) -> NDArray[np.bool_]:
    status = run.cluster.requests.status
    return (status != NOT_ARRIVED) & (status != REJECTED) & (status != SHED)


def _count_by(at: Floats, stamps_s: Floats) -> Floats:
    return np.searchsorted(np.sort(stamps_s), at, side="right").astype(np.float64)


def _kv_shares(run: Run, at: Floats) -> Floats:
    """[replica, moment]: share of blocks in use after the last iteration that ended by then."""
    rows = run.log.iterations[: run.log.used[0]]
    first = np.flatnonzero(rows["stage"] == 0)
    order = first[np.argsort(rows["replica"][first], kind="stable")]
    replica, end_s, used = rows["replica"][order], rows["end_s"][order], rows["used_blocks"][order]
    bounds = np.searchsorted(replica, np.arange(run.cluster.replicas.size + 1))
    shares = np.zeros((run.cluster.replicas.size, at.size))
    for r, (first, last) in enumerate(pairwise(bounds.tolist())):
        if last > first:
            index = np.searchsorted(end_s[first:last], at, side="right") - 1
            blocks = np.where(index >= 0, used[first + np.maximum(index, 0)], 0)
            shares[r] = blocks / max(int(run.cluster.replicas.num_blocks[r]), 1)
    return shares


def _output_tokens_by(at: Floats, run: Run) -> Floats:
    """Output tokens of finished requests by each moment, spread evenly between a request's first token and its end."""
    q = run.cluster.requests
    done = (q.status == FINISHED) & (q.first_token_s >= 0)
    first, last, tokens = q.first_token_s[done], q.finished_s[done], q.output_tokens[done]
    lasting = last > first
    slope = np.divide(tokens - 1.0, last - first, out=np.zeros(first.size), where=lasting)
    at_once = np.where(lasting, 1.0, tokens)
    begun, rising, offset = _sums_by(at, first, at_once, slope, slope * first)
    ended, last_offset = _sums_by(at, last, slope, slope * last)
    return begun + (at * rising - offset) - (at * ended - last_offset)


def _sums_by(at: Floats, stamps_s: Floats, *values: Floats) -> list[Floats]:
    """The sum of each of the values stamped by each moment."""
    order = np.argsort(stamps_s)
    count = np.searchsorted(stamps_s[order], at, side="right")
    return [np.concatenate([[0.0], np.cumsum(each[order])])[count] for each in values]
