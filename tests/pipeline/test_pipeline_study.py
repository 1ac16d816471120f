"""The communication-priority study against its pins and the reference runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.core.errors import ConfigError
from gnomon.pipeline.run import Run
from gnomon.pipeline.study import Study, simulate
from gnomon.verify.pipeline import verify

PINS: list[tuple[dict[str, Any], float]] = [
    ({}, 58.902661),
    ({"sync_freq": 2}, 61.960031),
    ({"sync_freq": 4}, 62.945324),
    ({"fwd_prop": "a"}, 59.629445),
    ({"grad_prop": "a"}, 53.753001),
    ({"grad_sync": "a"}, 64.364020),
    ({"grad_sync": 0.0}, 52.744108),
    ({"fwd_impact": 0.0, "bwd_impact": 0.0}, 57.0),
    ({"n": 16}, 108.627229),
    ({"dispatch": "strict"}, 63.679522),
    ({"dispatch": "strict", "sync_freq": 2}, 63.018316),
    ({"dispatch": "strict", "sync_freq": 4}, 67.294778),
]


@pytest.mark.parametrize(("given", "expected"), PINS)
def test_pins(given: dict[str, Any], expected: float) -> None:
    assert simulate(Study(**given)).total_time == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("stages", "n", "expected"), [(8, 16, 69), (8, 32, 117), (6, 12, 51)])
def test_strict_without_communication(stages: int, n: int, expected: float) -> None:
    study = Study(stages=stages, n=n, prop_len=0.0, sync_base_len=0.0, dispatch="strict")
    assert simulate(study).total_time == pytest.approx(expected, abs=1e-6)


def test_greedy_and_strict_agree_without_communication() -> None:
    quiet: dict[str, Any] = {"prop_len": 0.0, "sync_base_len": 0.0}
    strict = simulate(Study(dispatch="strict", **quiet)).total_time
    assert simulate(Study(**quiet)).total_time == pytest.approx(strict, abs=1e-6)


def test_reference_runs(reference: Path) -> None:
    runs = json.loads((reference / "pipeline" / "single_runs.json").read_text())
    checks = verify(reference / "pipeline" / "single_runs.json")
    assert len(checks) == 2 * len(runs)
    assert [check.what for check in checks if not check.ok] == []


def test_a_lone_type_takes_the_whole_link_whatever_its_weight() -> None:
    lengths: dict[str, Any] = {"n": 1, "stages": 2, "sync_base_len": 0.0}
    assert simulate(Study(fwd_prop=0.001, **lengths)).total_time == pytest.approx(
        simulate(Study(fwd_prop=1.0, **lengths)).total_time
    )


PRIORITY = st.one_of(st.floats(0.0, 1.0), st.sampled_from("abc"))
STUDIES = st.builds(
    lambda n, sync_freq, **rest: Study(n=n, sync_freq=min(sync_freq, n), **rest),
    n=st.integers(1, 10),
    sync_freq=st.integers(1, 5),
    stages=st.integers(1, 6),
    fwd_len=st.floats(0.0, 3.0),
    bwd_len=st.floats(0.0, 5.0),
    prop_len=st.floats(0.0, 4.0),
    sync_base_len=st.floats(0.0, 4.0),
    fwd_impact=st.floats(0.0, 1.0),
    bwd_impact=st.floats(0.0, 1.0),
    fwd_prop=PRIORITY,
    grad_prop=PRIORITY,
    grad_sync=PRIORITY,
)


def assert_sound(run: Run) -> None:
    """Every task ran once its predecessors were done; links and receivers were never overfull; steps were few."""
    tasks = run.trace.tasks
    assert np.isfinite(tasks.end).all()
    assert (tasks.end >= tasks.start).all()
    assert (tasks.start >= tasks.ready - 1e-12).all()
    assert run.trace.num_events <= 2 * tasks.size
    for task, row in enumerate(tasks):
        for successor in run.graph.successors[row.first_successor : row.end_successor]:
            assert tasks.start[successor] >= tasks.end[task]
    for row in run.computes:
        assert all(tasks.end[a] <= tasks.start[b] + 1e-9 for a, b in pairwise(row))
    assert_capacity(run)


def assert_capacity(run: Run) -> None:
    tasks, segments = run.trace.tasks, run.trace.segments
    for at in np.unique(segments[:, 1]):
        now = segments[(segments[:, 1] <= at) & (segments[:, 2] > at)]
        out, into = np.zeros(run.num_ranks), np.zeros(run.num_ranks)
        for task, _, _, share in now:
            out[tasks.rank[int(task)]] += share
            if tasks.receiver[int(task)] >= 0:
                into[tasks.receiver[int(task)]] += share
        assert out.max() <= 1.0 + 1e-9
        assert into.max() <= 1.0 + 1e-8


@settings(max_examples=60, deadline=None)
@given(STUDIES)
def test_any_study_ends_and_respects_its_resources(study: Study) -> None:
    assert_sound(simulate(study))


@pytest.mark.parametrize("kind", ["fwd_prop", "grad_prop", "grad_sync"])
@pytest.mark.parametrize("prop_len", [1.5, 2.0, 3.7])
@pytest.mark.parametrize("sync_base_len", [0.0, 0.3, 1.0])
def test_exclusive_tiers_do_not_livelock(kind: str, prop_len: float, sync_base_len: float) -> None:
    """A transfer that was pre-empted while nearly done must finish although it was never marked running again."""
    run = simulate(Study(prop_len=prop_len, sync_base_len=sync_base_len, **{kind: "a"}))
    assert_sound(run)


def test_what_waits_for_a_full_receiver_waits_with_it() -> None:
    """Two activations queue in an exclusive tier; the second must not take what the receiver denies to the first."""
    run = simulate(Study(n=9, stages=6, prop_len=2.0, fwd_prop="b", grad_prop="b", grad_sync=1.0))
    tasks, segments = run.trace.tasks, run.trace.segments
    for rank in range(run.num_ranks):
        mine = [
            row for row in segments if tasks.rank[int(row[0])] == rank and tasks.type[int(row[0])] < 2 and row[3] > 0
        ]
        for one in mine:
            same_way = [
                other
                for other in mine
                if tasks.receiver[int(other[0])] == tasks.receiver[int(one[0])] and other[1] <= one[1] < other[2]
            ]
            assert len(same_way) == 1


def test_leftover_gradients_are_synchronised_at_the_end() -> None:
    run = simulate(Study(n=5, sync_freq=3, stages=2))
    work = {label: run.trace.tasks.work[task] for task, label in enumerate(run.labels) if label.kind == "grad_sync"}
    assert sorted((label.microbatch, label.stage, float(seconds)) for label, seconds in work.items()) == [
        (2, 0, 6.0),
        (2, 1, 6.0),
        (4, 0, 4.0),
        (4, 1, 4.0),
    ]
    only_leftover = simulate(Study(n=2, sync_freq=3, stages=2))
    assert sum(label.kind == "grad_sync" for label in only_leftover.labels) == 2


def test_the_ideal_network_is_never_slower() -> None:
    for sync_freq in (1, 2, 4):
        ideal = simulate(Study(sync_freq=sync_freq, ideal=True)).total_time
        assert ideal < simulate(Study(sync_freq=sync_freq)).total_time


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 0}, "n: Input should be greater than 0"),
        ({"stages": 0}, "stages: Input should be greater than 0"),
        ({"sync_freq": 0}, "sync_freq: Input should be greater than 0"),
        ({"prop_len": -1.0}, "prop_len: Input should be greater than or equal to 0"),
        ({"fwd_impact": 1.5}, "fwd_impact: Input should be less than or equal to 1"),
        ({"fwd_prop": "ab"}, "tier letter"),
        ({"grad_sync": -0.1}, "weight of at least 0"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    from gnomon.core.config import build

    with pytest.raises(ConfigError, match=message):
        build(Study, given)


def test_plain_python_gives_the_same_numbers() -> None:
    """The compiled engine and the plain one agree to the last bit."""
    program = (
        "from gnomon.pipeline.study import Study, simulate\n"
        "for given in ({}, {'grad_prop': 'a'}, {'n': 5, 'sync_freq': 2, 'stages': 3}):\n"
        "    run = simulate(Study(**given))\n"
        "    print(repr(run.total_time), run.trace.num_events, len(run.trace.segments), run.throttled)\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"GNOMON_JIT": jit},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for jit in ("0", "1")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 3
