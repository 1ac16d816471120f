"""Schedules: validity, closed forms, published tables, PyTorch's CSV."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.core.errors import ConfigError, DataError
from gnomon.pipeline import pytorch_csv
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.memory import activations
from gnomon.pipeline.run import Run
from gnomon.pipeline.schedule import Action, Schedule
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import SCHEDULES, Plan, make
from gnomon.pipeline.zoo.controllable_memory import Offsets, _Slots, _v_half, _v_min
from gnomon.verify.pipeline import verify

COST = st.floats(0.1, 5.0)
RANKS = st.integers(1, 9)


def run_rank_costs(schedule: Schedule, forward: float, input_grad: float, weight_grad: float) -> Run:
    """Execute with the times of a whole rank, without communication."""
    pieces = schedule.num_stages / schedule.num_ranks
    costs = StepCosts(forward=forward / pieces, input_grad=input_grad / pieces, weight_grad=weight_grad / pieces)
    return execute(schedule, costs, record=False)


def peaks(run: Run) -> list[float]:
    return [curve.peak for curve in activations(run)]


@settings(max_examples=40, deadline=None)
@given(RANKS, st.integers(1, 24), COST, COST, COST)
def test_gpipe_and_1f1b(p: int, m: int, f: float, i: float, w: float) -> None:
    for name in ("gpipe", "1f1b"):
        run = run_rank_costs(make(name, Plan(p, m)), f, i, w)
        assert run.total_time == pytest.approx((m + p - 1) * (f + i + w), rel=1e-6)
        assert run.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-6)
        wanted = [m] * p if name == "gpipe" else [min(p - stage, m) for stage in range(p)]
        assert peaks(run) == wanted


@settings(max_examples=40, deadline=None)
@given(RANKS, st.integers(1, 4), st.integers(1, 4), COST, COST, COST)
def test_interleaved(p: int, rounds: int, v: int, f: float, i: float, w: float) -> None:
    m = p * rounds
    run = run_rank_costs(make("interleaved", Plan(p, m, chunks=v)), f, i, w)
    b = i + w
    assert run.total_time == pytest.approx(m * (f + b) + (p - 1) * (f + b) / v, rel=1e-6)
    if v > 1 and p > 1 and rounds > 1:
        assert max(peaks(run)) / v > min(p, m)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10), COST, COST, st.floats(0.1, 1.0))
def test_zb_h1(p: int, more: int, f: float, i: float, part: float) -> None:
    """For W <= min(F, I): with W > F rank 0 waits (p-1) I for its first backward, whatever the order."""
    m, w = 2 * p + more, part * min(f, i)
    run = run_rank_costs(make("zb-h1", Plan(p, m)), f, i, w)
    assert run.total_time == pytest.approx(m * (f + i + w) + (p - 1) * (f + i - w), rel=1e-6)
    assert max(peaks(run)) == p


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10), COST, COST, st.floats(0.1, 1.0))
def test_zb_h2(p: int, more: int, f: float, i: float, part: float) -> None:
    m, w = 2 * p + more, part * min(f, i)
    run = run_rank_costs(make("zb-h2", Plan(p, m)), f, i, w)
    assert run.spans.max() == pytest.approx(m * (f + i + w) + (p - 1) * (f + i - 2 * w), rel=1e-6)
    assert max(peaks(run)) == 2 * p - 1


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 8), st.integers(0, 20), COST)
def test_zb_v_has_no_bubble_where_passes_are_equal(p: int, more: int, cost: float) -> None:
    m = 2 * p + more
    run = run_rank_costs(make("zb-v", Plan(p, m, forward=cost, input_grad=cost, weight_grad=cost)), cost, cost, cost)
    assert run.spans.max() == pytest.approx(3 * m * cost, rel=1e-6)
    assert max(peaks(run)) / 2 <= p


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(0, 16))
def test_v_half_and_v_min(p: int, more: int) -> None:
    """Bubble and memory of the two, within one slot (a sixth of a rank's micro-batch) per stage."""
    m = 2 * p + more
    classic = 6 * (p - 1)
    for name, bubble, memory in (("v-half", 1 / 2, 1 / 2), ("v-min", 2 / 3, 1 / 3)):
        run = run_rank_costs(make(name, Plan(p, m)), 2.0, 2.0, 2.0)
        assert abs(run.total_time - 6 * m - bubble * classic) <= p
        assert max(peaks(run)) <= memory * 2 * p + 3


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(0, 8), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3))
def test_dualpipe(p: int, more: int, passes: int, w: int, overlap: int) -> None:
    """With F = I >= W and a pair that takes between one backward and the sum."""
    f = i = max(passes, w)
    both = f + i + w - min(overlap, f)
    b = i + w
    costs = StepCosts(forward=f, input_grad=i, weight_grad=w, overlapped=both)
    m = 2 * p + more
    for name, plan in (("dualpipe-v", Plan(p, m)), ("dualpipe", Plan(2 * p, 2 * m))):
        run = execute(make(name, plan), costs, record=False)
        idle = run.total_time - run.busy
        assert idle.max() == pytest.approx((p - 1) * (both + b - 3 * w), abs=1e-6)
        assert max(peaks(run)) == 2 * p + 1


@pytest.mark.parametrize(
    ("costs", "make_span", "idle"),
    [((1, 1, 1, 3), 66, 6), ((1, 1, 1, 2), 52, 3), ((2, 2, 1, 5), 115, 15), ((3, 3, 2, 7), 167, 18)],
)
def test_dualpipe_v_figures(costs: tuple[int, int, int, int], make_span: float, idle: float) -> None:
    f, i, w, both = costs
    run = execute(make("dualpipe-v", Plan(4, 10)), StepCosts(forward=f, input_grad=i, weight_grad=w, overlapped=both))
    assert run.total_time == pytest.approx(make_span)
    assert (run.total_time - run.busy).max() == pytest.approx(idle)
    assert peaks(run) == [9, 9, 9, 9]


def test_dualpipe_v_is_pytorchs(reference: Path) -> None:
    path = reference / "pipeline" / "pytorch_dualpipev_4rank_10mb.csv"
    assert make("dualpipe-v", Plan(4, 10)).ranks == pytorch_csv.read(path).ranks
    assert pytorch_csv.text(pytorch_csv.read(path)).split() == path.read_text().split()
    assert all(check.ok for check in verify(path))


def test_published_tables(reference: Path) -> None:
    checks = verify(reference / "pipeline" / "zero_bubble_tables.json")
    assert len(checks) == 67
    assert [check.what for check in checks if not check.ok] == []
    strict = next(check for check in checks if "m=24 1F1B-I (strict)" in check.what)
    assert strict.obtained == pytest.approx(0.1090, abs=5e-5)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 7), st.integers(1, 20), st.floats(0.0, 2.0), COST, COST, COST)
def test_every_schedule_is_valid_or_refused(
    name: str, p: int, m: int, hop: float, f: float, i: float, w: float
) -> None:
    plan = Plan(p, m, forward=f, input_grad=i, weight_grad=w, hop=hop)
    try:
        schedule = make(name, plan)
    except ConfigError:
        assert name in ("interleaved", "1f1b-a2a", "dualpipe", "dualpipe-v", "zb-v")
        return
    validate(schedule)
    assert pytorch_csv.parse(pytorch_csv.text(schedule)).ranks == schedule.ranks
    assert execute(schedule, StepCosts(send=hop), record=False).total_time > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 20), st.floats(1.0, 3.0), st.floats(0.2, 1.0))
def test_the_packed_schedule_keeps_its_memory_limit(p: int, m: int, factor: float, kept: float) -> None:
    limit = p * factor
    run = run_rank_costs(make("zb-auto", Plan(p, m, memory_limit=limit, weight_grad_memory=kept)), 1.0, 1.0, 1.0)
    for curve in activations(run, weight_grad_memory=kept):
        assert curve.peak <= limit + 1e-6


def test_more_memory_never_hurts_the_packed_schedule_much() -> None:
    times = [
        run_rank_costs(make("zb-auto", Plan(8, 24, memory_limit=limit)), 1.0, 1.0, 1.0).spans.max()
        for limit in (8.0, 12.0, 16.0)
    ]
    assert times == sorted(times, reverse=True)


def swapped(schedule: Schedule, rank: int, a: int, b: int) -> Schedule:
    row = list(schedule.ranks[rank])
    row[a], row[b] = row[b], row[a]
    return replace(schedule, ranks=(*schedule.ranks[:rank], tuple(row), *schedule.ranks[rank + 1 :]))


def test_a_deadlock_is_named_by_its_cycle() -> None:
    good = make("1f1b", Plan(2, 3))
    # Rank 0 wants the backward of 0 before it has sent the forward of 0.
    bad = swapped(good, 0, 0, 2)
    with pytest.raises(DataError, match="deadlocks") as caught:
        validate(bad)
    cycle = re.findall(r"(\S+) \(rank (\d)\)", str(caught.value))
    assert cycle[0] == cycle[-1]
    assert ("0B0", "0") in cycle
    assert ("0F0", "0") in cycle


def test_a_memory_limit_is_checked() -> None:
    validate(make("1f1b", Plan(4, 8)), memory_limit=4)
    with pytest.raises(DataError, match="rank 0 holds 4 activations at 0F3, more than the limit of 3"):
        validate(make("1f1b", Plan(4, 8)), memory_limit=3)
    validate(make("dualpipe-v", Plan(4, 10)), memory_limit=4.5)
    with pytest.raises(DataError, match="more than the limit of 4"):
        validate(make("dualpipe-v", Plan(4, 10)), memory_limit=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0,0B0\n", "0B0 is there 2 times"),
        ("0F0,0I0\n", "needs either B or both I and W; found 0I0"),
        ("0F1,0B1\n", "0F0 is missing"),
        ("0F0,0X0\n", r"schedule:1, cell 2: '0X0' is not an action"),
        ("0F\n", "is not an action"),
        ("(0F0;0F1)OVERLAP_F_B\n", "must overlap one F and one B"),
        (",,\n", "there is no F, I, W or B"),
        ("0F0,1B0,0B0\n1F0\n", "stage 1, micro-batch 0 is spread over ranks 0 and 1"),
        ("0F0,0B0\n0RESHARD\n", "rank 1 computes nothing"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0\n", "1RECV_F0 is missing"),
        ("0F0,0B0\n1RECV_F0,1F0,1B0\n", "0SEND_F0 is missing"),
        ("0F0,0RECV_B0,0B0\n1F0,1B0\n", "1SEND_B0 is missing"),
        ("0F0,0B0\n1F0,1B0,1SEND_B0\n", "0RECV_B0 is missing"),
        ("0F0,0RECV_B0,0B0\n1F0,1SEND_B0,1B0\n", "rank 1 sends 1SEND_B0 before it has computed it"),
        ("0F0,0B0,0RECV_B0\n1F0,1B0,1SEND_B0\n", "rank 0 receives 0RECV_B0 after it has used it"),
        ("0SEND_F0,0F0,0B0\n1RECV_F0,1F0,1B0\n", "before it has computed it"),
        ("0F0,0SEND_F0,0B0\n1F0,1RECV_F0,1B0\n", "after it has used it"),
    ],
)
def test_broken_files(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        validate(pytorch_csv.parse(text))


def test_all_cells_of_pytorch_are_read() -> None:
    text = "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0I0,0W0,0RESHARD,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    schedule = pytorch_csv.parse(text)
    validate(schedule)
    assert Action("REDUCE_GRAD", 1) in schedule.ranks[1]
    assert pytorch_csv.parse(pytorch_csv.text(schedule)) == schedule
    run = execute(schedule, StepCosts(sync=1.0))
    syncs = [task for task, label in enumerate(run.labels) if label.kind == "grad_sync"]
    assert len(syncs) == 2
    assert np.isfinite(run.trace.tasks.end[syncs]).all()


def test_interleaved_needs_multiples() -> None:
    with pytest.raises(ConfigError, match="multiples of the 4 ranks"):
        make("interleaved", Plan(4, 6))


@pytest.mark.parametrize(
    ("offsets", "ranks", "microbatches"),
    [(_v_half, 2, 4), (_v_half, 3, 4), (_v_half, 5, 6), (_v_min, 2, 3), (_v_min, 4, 4), (_v_min, 6, 6)],
)
def test_only_warm_up_and_cool_down_are_moved(offsets: Offsets, ranks: int, microbatches: int) -> None:
    """From the first rank's first last pass to its last first one blocks repeat: whatever lies there stays."""
    slots = _Slots(ranks, microbatches, offsets)
    before = slots.at.copy()
    first, last = before[0, 3, 0], before[0, 0, -1]
    steady = (first <= before) & (before <= last)
    slots.squeeze()
    assert (slots.at[steady] == before[steady]).all()
    assert (slots.at <= before).all() and (slots.at < before).any()
