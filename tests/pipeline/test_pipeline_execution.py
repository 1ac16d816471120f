"""Executing schedules: costs, contention, explanations, memory, jitter, real models, search."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.core.errors import ConfigError
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute, monte_carlo
from gnomon.pipeline.explain import critical_path, faster_links, idle_time, total
from gnomon.pipeline.memory import activations
from gnomon.pipeline.run import Run
from gnomon.pipeline.study import Study, simulate, step_costs
from gnomon.pipeline.zoo import Plan, make

CONTENDED = StepCosts(send=0.4, latency=0.05, sync=0.7, sync_freq=2, bwd_impact=0.3)
RUNS = st.builds(
    lambda name, p, m, costs: execute(make(name, Plan(p, m)), costs),
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe-v"]),
    st.integers(1, 5),
    st.integers(10, 14),
    st.builds(
        StepCosts,
        forward=st.floats(0.2, 2.0),
        input_grad=st.floats(0.2, 2.0),
        weight_grad=st.floats(0.2, 2.0),
        send=st.floats(0.0, 1.5),
        latency=st.floats(0.0, 0.5),
        sync=st.floats(0.0, 1.0),
        sync_freq=st.integers(1, 4),
        fwd_impact=st.floats(0.0, 0.5),
        bwd_impact=st.floats(0.0, 0.5),
        contention=st.booleans(),
    ),
)


@settings(max_examples=40, deadline=None)
@given(RUNS)
def test_idle_time_is_explained_to_the_last_bit(run: Run) -> None:
    for rank in idle_time(run):
        assert rank.busy + rank.idle == pytest.approx(run.total_time, abs=1e-7)
        assert min(rank.warm_up, rank.dependency, rank.communication, rank.contention, rank.cool_down) > -1e-9
    whole = total(idle_time(run))
    assert whole.idle == pytest.approx(run.bubble * run.num_ranks * run.total_time, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(RUNS)
def test_the_critical_path_has_no_gap(run: Run) -> None:
    path = critical_path(run)
    assert path[0].start == 0.0
    assert path[-1].end == run.total_time
    assert all(a.end == pytest.approx(b.start, abs=1e-12) for a, b in pairwise(path))


@settings(max_examples=25, deadline=None)
@given(RUNS)
def test_memory_is_given_back(run: Run) -> None:
    for curve in activations(run, weight_grad_memory=0.5):
        assert curve.values[-1] == pytest.approx(0.0, abs=1e-9)
        assert curve.values.min() > -1e-9
        assert (np.diff(curve.times) >= 0).all()


def test_strict_1f1b_is_the_schedule_under_the_study_s_costs() -> None:
    run = execute(make("1f1b", Plan(4, 8)), step_costs(Study()))
    assert run.total_time == pytest.approx(63.679522, abs=1e-6)


def test_contention_appears_only_where_links_are_shared() -> None:
    schedule = make("1f1b", Plan(4, 8))
    shared = total(idle_time(execute(schedule, CONTENDED)))
    alone = total(idle_time(execute(schedule, CONTENDED.model_copy(update={"contention": False}))))
    assert shared.contention > 0.1
    assert alone.contention == 0.0
    assert alone.communication > 0.0


def test_synchronising_early_hides_behind_compute() -> None:
    schedule = make("1f1b", Plan(4, 16))
    once = execute(schedule, StepCosts(sync=0.2)).total_time
    often = execute(schedule, StepCosts(sync=0.2, sync_freq=2)).total_time
    assert often < once
    assert once == pytest.approx(execute(schedule, StepCosts()).total_time + 16 * 0.2, abs=1e-6)


def test_a_straggler_slows_the_step() -> None:
    schedule = make("1f1b", Plan(4, 32))
    base, slow = (execute(schedule, StepCosts(stragglers=s)).total_time for s in ({}, {2: 1.5}))
    # In the steady state everyone waits for the slow rank.
    assert slow == pytest.approx(base * 1.5, rel=0.1)


def test_costs_may_differ_by_stage() -> None:
    schedule = make("gpipe", Plan(3, 4))
    run = execute(schedule, StepCosts(forward=(1.0, 2.0, 1.0), input_grad=1.0, weight_grad=0.0))
    # Forwards leave the middle stage every 2, backwards pass at 1 each.
    assert run.total_time == pytest.approx(1 + 4 * 2 + 1 + 3 + 3)
    with pytest.raises(ConfigError, match="forward has 2 numbers for 3 stages"):
        execute(schedule, StepCosts(forward=(1.0, 2.0)))


def test_jitter_is_seeded() -> None:
    schedule, costs = make("1f1b", Plan(4, 8)), StepCosts(jitter=0.1)
    first = monte_carlo(schedule, costs, draws=30, seed=1)
    assert np.array_equal(first, monte_carlo(schedule, costs, draws=30, seed=1))
    assert not np.array_equal(first, monte_carlo(schedule, costs, draws=30, seed=2))
    quiet = execute(schedule, StepCosts()).total_time
    # Waiting for the slowest makes the mean longer than the step without jitter.
    assert quiet < first.mean() < 1.3 * quiet
    assert execute(schedule, costs, seed=1).total_time == first[0]


def test_what_if_a_link_were_faster() -> None:
    run = simulate(Study())
    rows = {(row.sender, row.receiver): row for row in faster_links(run, 2.0)}
    assert set(rows) == {(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)}
    assert rows[2, 1].gain > 0
    half = execute(make("1f1b", Plan(2, 4)), StepCosts(send=1.0))
    faster = next(row for row in faster_links(half, 4.0) if (row.sender, row.receiver) == (0, 1))
    direct = execute(make("1f1b", Plan(2, 4)), StepCosts(send=1.0, link_speed={"0-1": 4.0}))
    assert faster.total_time == pytest.approx(direct.total_time)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"forward": -1.0}, "forward: Input should be greater than or equal to 0"),
        ({"stragglers": {9: 2.0}}, "no rank 9"),
        ({"stragglers": {0: 0.0}}, "stragglers.0: Input should be greater than 0"),
        ({"sync_freq": 0}, "sync_freq: Input should be greater than 0"),
        ({"bwd_impact": 2.0}, "bwd_impact: Input should be less than or equal to 1"),
    ],
)
def test_bad_costs(given: dict[str, Any], message: str) -> None:
    from gnomon.core.config import build

    with pytest.raises(ConfigError, match=message):
        execute(make("1f1b", Plan(2, 2)), build(StepCosts, given))
