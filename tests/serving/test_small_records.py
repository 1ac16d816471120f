"""Records that are small, and a log that is merged: what is computed from them is the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from gnomon.core.arrays import Floats
from gnomon.core.user_files import plain
from gnomon.jit import borrow, jit
from gnomon.report.serving.files import iteration_frame
from gnomon.serving.engine.allocation import new_cluster
from gnomon.serving.engine.log import Log, log_gap, new_log
from gnomon.serving.engine.state import REQUEST, Cluster
from gnomon.serving.routers import ROUTERS
from serving_kit import requests_of, run, scenario


@jit
def multiplied(cluster: Cluster) -> int:
    lent = borrow(cluster)
    request = lent.requests[0]
    request.session = 2_000_000_000
    request.status = 7
    return request.session * 3 + request.status


def test_compiled_code_reads_small_numbers_as_large_ones() -> None:
    cluster = new_cluster(1, 1, 1, 1, 1, 1)
    assert multiplied(cluster) == 6_000_000_007
    assert cluster.requests.session[0] == 2_000_000_000 and cluster.requests.status[0] == 7


def test_a_request_takes_little_memory() -> None:
    assert REQUEST.itemsize <= 240  # Ten million in 2.4 GB.


def test_sessions_are_spread_alike_in_plain_python_and_compiled() -> None:
    sessions = np.array([0, 1, 5, 70_000, 2_147_483_000] * 4, np.int32)
    offered = requests_of(np.arange(sessions.size), [10] * sessions.size, [2] * sessions.size)
    done = run(scenario(num_replicas=7, router="sticky_session"), requests=replace(offered, session=sessions))
    chosen = [(session * 2_654_435_761 % 2**32) * 7 // 2**32 for session in sessions.tolist()]
    assert done.cluster.requests.replica.tolist() == chosen
    fleet: Any = SimpleNamespace(cluster=done.cluster, candidates=np.arange(7), memory=np.zeros(8))
    route = plain(ROUTERS["sticky_session"].route)
    assert [route(fleet, i) for i in range(sessions.size)] == chosen


def test_sums_over_iterations_do_not_wrap() -> None:
    """Polars adds 32 bits up in 32 bits."""
    frame = iteration_frame(run(scenario()))
    assert {kind for kind in frame.schema.dtypes() if kind.is_integer()} == {pl.Int64}


@jit
def _write(log: Log, gaps: Floats) -> None:
    lent = borrow(log)
    for gap in gaps:
        log_gap(lent, gap, 1)


def test_merged_gaps_keep_counts_sums_and_percentiles() -> None:
    gaps = np.random.default_rng(0).lognormal(-4.0, 1.0, 200_000)
    gaps[::1000] = 0.0
    log = new_log(64, 50_000)
    _write(log, gaps)
    used = log.used[2]
    seconds, counts = log.gap_s[:used], log.gap_count[:used]
    assert log.used[4] > 1 and counts.sum() == gaps.size
    assert np.dot(seconds, counts) == pytest.approx(gaps.sum())
    order = np.argsort(seconds)
    reached = np.cumsum(counts[order]) / counts.sum()
    for share in (0.1, 0.5, 0.99):
        found = seconds[order[np.searchsorted(reached, share)]]
        assert found == pytest.approx(np.quantile(gaps, share), rel=0.003)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_full_log_keeps_every_second_iteration_again_and_again(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnomon.serving.run import simulate

    setup = scenario(num_replicas=replicas, workload={"num_requests": 20})
    whole, columns = run(setup).log, ["replica", "number", "start_s", "end_s", "size", "tokens"]
    monkeypatch.setattr(simulate, "new_log", lambda **kept: new_log(64, 100, **kept))
    log = run(setup).log
    assert log.used[3] > 2 and log.used[0] > 32
    rows = whole.iterations[: whole.used[0]]
    expected = rows[(rows.number - 1) % log.used[3] == 0]
    assert log.iterations[: log.used[0]][columns].tolist() == expected[columns].tolist()
