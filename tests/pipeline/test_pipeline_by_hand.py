"""Small pieces of the pipeline wing, worked out by hand: graphs, ranges, priorities, choices, files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError
from gnomon.jit import jit
from gnomon.pipeline import pytorch_csv, sweeps
from gnomon.pipeline.costs import NO_TIER, StepCosts, check_priority, priorities
from gnomon.pipeline.execution import execute, jittered, step_graph
from gnomon.pipeline.explain import critical_path, faster_links, idle_time, total
from gnomon.pipeline.fluid import COMPUTE, FREE, LINK
from gnomon.pipeline.graph import GraphBuilder, Label
from gnomon.pipeline.memory import activations, micro_batches_held
from gnomon.pipeline.schedule import Action
from gnomon.pipeline.step import StepConfig, StepRecord, _changed, run_step
from gnomon.pipeline.study import Study, simulate, step_costs, study_plan
from gnomon.pipeline.sweeps import COLUMNS, Priorities, Range, Sweep, SweepConfig, priority_grid, read_csv, sweep
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import Plan, make, zero_bubble_auto
from gnomon.pipeline.zoo.packing import Timeline
from gnomon.pipeline.zoo.plan import check_passes
from gnomon.timing.fair_share import LINK as LINK_RECORD
from gnomon.timing.fair_share import share_links


def test_a_graph_is_arrays_of_tasks_and_of_those_that_wait_for_each() -> None:
    b = GraphBuilder()
    first = b.add(Label("forward", 0, 0), 2.0, COMPUTE, 0, order=5, impact=0.3)
    sent = b.add(Label("fwd_prop", 0, 0), 0.5, LINK, 0, order=7, receiver=1)
    late = b.add(Label("latency", 0, 0), 0.1, FREE, 1, kind=2)
    last = b.add(Label("forward", 0, 1), 3.0, COMPUTE, 1, order=6)
    b.after(sent, first)
    b.after(late, sent)
    b.after(last, late, first)
    graph = b.build()
    tasks = graph.tasks
    assert tasks.channel.tolist() == [COMPUTE, LINK, FREE, COMPUTE]
    assert tasks.work.tolist() == tasks.remaining.tolist() == [2.0, 0.5, 0.1, 3.0]
    assert tasks.order.tolist() == [5, 7, 0, 6]
    assert tasks.missing.tolist() == [0, 1, 1, 2]
    followers = [
        graph.successors[a:b].tolist() for a, b in zip(tasks.first_successor, tasks.end_successor, strict=True)
    ]
    assert followers == [[sent, last], [late], [last], []]
    assert np.isnan(tasks.start).all()


def test_tasks_of_a_step() -> None:
    """1F1B of two ranks and three micro-batches: 12 passes, 6 transfers; syncs only where they take time, one or three
    for each rank; latencies only where there are some."""
    schedule = make("1f1b", Plan(2, 3))

    def count(**costs: Any) -> int:
        return len(step_graph(schedule, StepCosts(**costs))[1])

    assert count() == 12
    assert count(send=0.1) == 18
    assert count(send=0.1, sync=0.1) == 20
    assert count(send=0.1, sync=0.1, sync_freq=1) == 24
    assert count(send=0.1, sync=0.1, sync_freq=2) == 22
    assert count(send=0.1, latency=0.1) == 24
    assert count(sync=(0.0, 0.1)) == 13


def test_syncs_wait_for_the_one_before_but_a_leftover_does_not() -> None:
    """One rank, three micro-batches of F 1 and B 2; a sync of 4 for each. After every one: from 3, 6 and 9 on, one
    behind the other: 3-7, 7-11, 11-15. After every two: 8 from 6 on, and the leftover 4 from 9 on beside it: at half
    the rate it is done at 17, and the first has 1 left then: 18. Once at the end: 12 from 9 on."""
    schedule = make("gpipe", Plan(1, 3))
    one_by_one = make("1f1b", Plan(1, 3))
    costs = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 1.0, "sync": 4.0}
    assert execute(one_by_one, StepCosts(**costs, sync_freq=1)).total_time == pytest.approx(15.0)
    assert execute(one_by_one, StepCosts(**costs, sync_freq=2)).total_time == pytest.approx(18.0)
    assert execute(one_by_one, StepCosts(**costs)).total_time == pytest.approx(9.0 + 12.0)
    assert execute(schedule, StepCosts(**costs)).total_time == pytest.approx(9.0 + 12.0)


def test_when_each_sync_is_done() -> None:
    """As above, one by one: 7, 11 and 15, though sharing the link would end at 15, too; with a leftover: 17 and 18."""

    def ends(every: int) -> list[float]:
        costs = StepCosts(forward=1.0, input_grad=1.0, weight_grad=1.0, sync=4.0, sync_freq=every)
        run = execute(make("1f1b", Plan(1, 3)), costs)
        done = zip(run.labels, run.trace.tasks.end, strict=True)
        return sorted(float(end) for label, end in done if label.kind == "grad_sync")

    assert ends(1) == pytest.approx([7.0, 11.0, 15.0])
    assert ends(2) == pytest.approx([17.0, 18.0])
    assert ends(3) == pytest.approx([21.0])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),  # it waits for the next rank anyway: 5 is not before 2 + 1 + 1 + 1
        ({"clock": [4.9, 2.0]}, False),  # 4.9 + 1 is after 5: it would delay, but by no more than others idle
        ({"clock": [4.9, 2.0], "bubble": [0.0, 0.2]}, True),  # others idle for longer
        ({"clock": [4.0, 2.0], "bubble": [0.0, 9.0]}, False),  # a forward just fits
        ({"clock": [4.0, 2.0], "bubble": [0.0, 9.0], "memory": [4.0, 0.0]}, True),  # and a weight gradient does not
        ({"count": [[3, 0], [2, 0]]}, False),  # not two forwards ahead
        ({"rank": 1}, False),  # the last rank
    ],
)
def test_a_rank_is_ahead_where_a_forward_would_delay_a_backward(change: dict[str, Any], expected: bool) -> None:
    """Two ranks, passes of 1, hops of 1, a limit of four activations of which a weight gradient gives one back."""
    state: dict[str, Any] = {
        "plan": Plan(2, 8, hop=1.0), "time": {"F": 1.0, "I": 1.0, "W": 1.0}, "count": [[4, 0], [2, 0]],
        "clock": [5.0, 2.0], "memory": [2.0, 0.0], "limit": 4.0, "put_off": [[Action("W", 0, 0)], []],
        "bubble": [0.0, 0.0],
    }  # fmt: skip
    rank = change.get("rank", 0)
    timeline = SimpleNamespace(**{**state, **change})
    assert zero_bubble_auto._is_ahead(timeline, rank) is expected  # type: ignore[arg-type]


def test_jitter_keeps_the_mean() -> None:
    graph, _ = step_graph(make("gpipe", Plan(1, 4000)), StepCosts(send=1.0))
    changed = jittered(graph, 0.5, 1, 0).tasks
    factors = changed.work / graph.tasks.work
    assert factors.mean() == pytest.approx(1.0, abs=0.03)
    assert np.log(factors).std() == pytest.approx(0.5, abs=0.03)
    assert (changed.remaining == changed.work).all()
    assert not np.array_equal(jittered(graph, 0.5, 1, 1).tasks.work, changed.work)
    assert np.array_equal(jittered(graph, 0.0, 1, 1).tasks.work, graph.tasks.work)


def test_memory_of_one_rank() -> None:
    """Two micro-batches through GPipe hold two; of split gradients the weights' part stays until it is done."""
    run = execute(make("gpipe", Plan(1, 2)), StepCosts(), record=False)
    (curve,) = activations(run)
    assert curve.values.tolist() == [1, 2, 1, 0]
    (sized,) = activations(run, per_stage=np.array([3.0]))
    assert sized.peak == 6.0
    split = execute(make("zb-h1", Plan(2, 4)), StepCosts(), record=False)
    kept = [activations(split, weight_grad_memory=share)[0].peak for share in (0.0, 1.0)]
    assert kept == [2.0, 2.0]
    assert activations(split, weight_grad_memory=0.5)[1].values.min() == 0.0
    halves = execute(make("interleaved", Plan(2, 4)), StepCosts(), record=False)
    assert max(c.peak for c in micro_batches_held(halves)) == max(c.peak for c in activations(halves)) / 2


def test_ranges_include_both_ends() -> None:
    assert Range(start=0.5, stop=2.0, step=0.5).values() == [0.5, 1.0, 1.5, 2.0]
    assert Range(start=3.0, stop=3.0, step=0.1).values() == [3.0]
    assert Range(start=0.0, stop=0.3, step=0.1).values() == [0.0, 0.1, 0.2, 0.3]
    for given in ((1.0, 0.0, 0.1), (0.0, 1.0, 0.0), (0.0, 1.0, -1.0), (0.0, 1.0, 0.3), (0.0, 100_001.0, 1.0)):
        with pytest.raises((ConfigError, ValueError)):
            Range(start=given[0], stop=given[1], step=given[2])
    assert len(Range(start=1.0, stop=100_000.0, step=1.0).values()) == 100_000
    with pytest.raises(ConfigError, match="a range of 100,001 values; at most 100,000"):
        Range(start=0.0, stop=100_000.0, step=1.0)


def test_a_range_may_miss_its_end_by_a_millionth_of_a_step() -> None:
    assert Range(start=0.0, stop=1.999999, step=1.0).values() == [0.0, 1.0, 2.0]
    assert Range(start=0.0, stop=1e-6, step=1.0).values() == [0.0]
    for stop in (1.9999985, 2.0000015):
        with pytest.raises(ConfigError, match="is not reached from 0 in steps of 1"):
            Range(start=0.0, stop=stop, step=1.0)


def test_a_priority_is_a_weight_or_the_letter_of_a_tier() -> None:
    """Weights count from 0 on, tiers from a on; what has the one has not the other."""
    for good in (0.0, 0.5, 1e9, "a", "m", "z"):
        check_priority("grad_sync", good)
    for bad in (-0.1, float("inf"), float("nan"), "", "A", "`", "{", "ab"):
        with pytest.raises(ConfigError, match="grad_sync must be a weight of at least 0 or a tier letter"):
            check_priority("grad_sync", bad)
    weights, tiers = priorities(0.5, "a", "c")
    assert weights.tolist() == [0.5, 0.0, 0.0]
    assert tiers.tolist() == [NO_TIER, 0, 2]


@pytest.mark.parametrize("share", [-0.01, 1.01, float("nan")])
def test_an_impact_is_a_share(share: float) -> None:
    for good in (0.0, 1.0):
        assert build(StepCosts, {"fwd_impact": good}).fwd_impact == good
    with pytest.raises(ConfigError, match="fwd_impact: Input should be"):
        build(StepCosts, {"fwd_impact": share})


def test_costs_are_one_number_or_one_for_each_stage() -> None:
    costs = StepCosts(forward=(1.0, 2.0), send=0.5, link_speed={"0-1": 2.0})
    assert costs.per_stage("forward", 2).tolist() == [1.0, 2.0]
    assert costs.per_stage("send", 3).tolist() == [0.5] * 3
    with pytest.raises(ConfigError, match="forward has 2 numbers for 3 stages"):
        costs.per_stage("forward", 3)


def test_cells_of_pytorch_schedules() -> None:
    """Stage, kind and micro-batch; no micro-batch where a whole stage is meant; one F and one B in either order."""
    schedule = pytorch_csv.parse("0F0, ,1UNSHARD\n,,\n(0F3;1B2)OVERLAP_F_B,(1B4;0F5)OVERLAP_F_B,12SEND_F7\n")
    first, second = schedule.ranks
    assert first == (Action("F", 0, 0), Action("UNSHARD", 1, 0))
    assert second[0] == Action("OVERLAP_F_B", 0, 3, (Action("F", 0, 3), Action("B", 1, 2)))
    assert second[1] == Action("OVERLAP_F_B", 1, 4, (Action("B", 1, 4), Action("F", 0, 5)))
    assert second[2] == Action("SEND_F", 12, 7)
    assert pytorch_csv.parse(pytorch_csv.text(schedule)).ranks == schedule.ranks
    for text, message in (
        ("0F0,(0F3;1F2)OVERLAP_F_B", r"schedule:1, cell 2.*must overlap one F and one B"),
        ("0F0,(0I3;1B2)OVERLAP_F_B", "must overlap one F and one B"),
        ("0F0\n0F", r"schedule:2, cell 1.*'0F' is not an action"),
        ("0F0,0X1", "'0X1' is not an action"),
        ("0UNSHARD\n", "no F, I, W or B"),
        ("\n", "no F, I, W or B"),
    ):
        with pytest.raises(DataError, match=message):
            pytorch_csv.parse(text)


def test_priorities_sum_to_one() -> None:
    """Steps of a half: six ways to share, three with forwards first, three with gradients first."""
    grid = priority_grid(0.5)
    assert len(grid) == 12
    assert grid[:6] == [(0, 0, 1), (0, 0.5, 0.5), (0, 1, 0), (0.5, 0, 0.5), (0.5, 0.5, 0), (1, 0, 0)]
    assert grid[6:9] == [("a", 0, 1), ("a", 0.5, 0.5), ("a", 1, 0)]
    assert grid[9:] == [(0, "a", 1), (0.5, "a", 0.5), (1, "a", 0)]
    assert len(priority_grid(1.0)) == 7
    assert len(priority_grid(1 / 316)) == 317 * 318 / 2 + 2 * 317, "316 squared is less than 100,000"
    for step in (0.3, 1.5, 0.0, -1.0, 1 / 317):
        with pytest.raises(ConfigError):
            priority_grid(step)


def test_configurations_of_a_sweep() -> None:
    """n of 1, 2, 3 with sync_freq 1, 2: all six but (1, 2); the last key changes fastest."""
    config = build(
        SweepConfig,
        {"n": {"start": 1, "stop": 3, "step": 1}, "sync_freq": [1, 2], "bwd_impact": [0.1, 0.2], "stages": 5},
    )
    pairs = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)]
    studies = config.studies()
    assert [(s.n, s.sync_freq, s.bwd_impact) for s in studies] == [(*p, share) for p in pairs for share in (0.1, 0.2)]
    assert {(s.stages, s.fwd_len, s.bwd_len, s.fwd_impact) for s in studies} == {(5, 1.0, 2.0, 0.2)}
    assert config.num_configurations == 10
    assert config.seconds_each == pytest.approx(4e-6 * 3 * 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fwd_len": []}, "fwd_len is an empty list"),
        ({"n": {"start": 1, "stop": 2, "step": 0.5}}, "n must be whole"),
        ({"n": 4, "sync_freq": [5, 6]}, "nothing to run"),
        ({"fwd_len": [1.0, float("inf")]}, "finite"),
        ({"bwd_len": [1.0, -1.0]}, "bwd_len"),
        ({"fwd_len": {"start": 1, "stop": 10_000, "step": 1}, "prop_len": {"start": 1, "stop": 1001, "step": 1}},
         "10,010,000 configurations; at most 10,000,000"),
    ],
)  # fmt: skip
def test_mistakes_in_a_sweep_are_found_before_it_begins(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(SweepConfig, given)


def test_the_largest_sweep() -> None:
    many = {"fwd_len": {"start": 1, "stop": 10_000, "step": 1}, "prop_len": {"start": 1, "stop": 1000, "step": 1}}
    assert build(SweepConfig, many).num_configurations == 10_000_000
    assert build(SweepConfig, {"n": 4, "sync_freq": 4}).num_configurations == 1


def test_a_sweep_of_a_single_stage(tmp_path: Path) -> None:
    """Three micro-batches of F 1 and B 2; syncs of 4 from 3 on, one behind the other, whatever their priority."""
    given = {"stages": 1, "n": 3, "fwd_impact": 0.0, "bwd_impact": 0.0, "sync_base_len": [4.0, 0.0]}
    told: list[float] = []
    done = sweep(build(SweepConfig, given), step=1.0, jobs=1, workspace=tmp_path, progress=told.append)
    assert done.totals == pytest.approx(np.array([[15.0] * 7, [9.0] * 7]))
    assert (len(done.studies), done.grid, told) == (2, priority_grid(1.0), [14])
    assert list(tmp_path.iterdir()) == [], "what was kept is deleted at the end"


def test_rows_of_a_sweep_by_rounded_time() -> None:
    """0.00004 is less than a row shows: those two stay in the order of their configurations."""
    grid = [Priorities("a", 0.5, 0.5), Priorities(1.0, 0.0, 0.0)]
    done = Sweep([Study(n=4), Study(n=8)], grid, np.array([[3.00004, 5.0], [3.0, 2.5]]))
    assert list(done.rows()) == [
        "8,1,1.0,2.0,1.0,2.0,0.2,0.2,1.0,0.0,0.0,2.5000\n",
        "4,1,1.0,2.0,1.0,2.0,0.2,0.2,a,0.5,0.5,3.0000\n",
        "8,1,1.0,2.0,1.0,2.0,0.2,0.2,a,0.5,0.5,3.0000\n",
        "4,1,1.0,2.0,1.0,2.0,0.2,0.2,1.0,0.0,0.0,5.0000\n",
    ]


def test_where_the_time_of_one_micro_batch_goes() -> None:
    """F on 0 until 1, sent until 1.5, F on 1 until 2.5, B until 4.5, sent back until 5.5, B on 0 until 7.5."""
    run = execute(make("1f1b", Plan(2, 1)), StepCosts(send=0.5, send_grad=1.0))
    first, second = idle_time(run)
    assert (first.warm_up, first.busy, first.dependency, first.communication) == pytest.approx((0.0, 3.0, 3.5, 1.0))
    assert (first.contention, first.cool_down, first.slowed) == pytest.approx((0.0, 0.0, 0.0))
    assert (second.warm_up, second.busy, second.dependency, second.cool_down) == pytest.approx((1.5, 3.0, 0.0, 3.0))
    assert (first.idle, second.idle, total([first, second]).idle) == pytest.approx((4.5, 4.5, 9.0))
    path = critical_path(run)
    assert [(step.label.kind, step.rank) for step in path] == [
        ("forward", 0), ("fwd_prop", 0), ("forward", 1), ("backward", 1), ("grad_prop", 1), ("backward", 0),
    ]  # fmt: skip
    assert [step.end for step in path] == pytest.approx([1.0, 1.5, 2.5, 4.5, 5.5, 7.5])
    assert [step.start for step in path] == pytest.approx([0.0, 1.0, 1.5, 2.5, 4.5, 5.5])
    rows = [(one.sender, one.receiver, one.total_time, one.gain) for one in faster_links(run)]
    assert rows == [(1, 0, 7.0, pytest.approx(0.5 / 7.5)), (0, 1, 7.25, pytest.approx(0.25 / 7.5))]
    assert faster_links(run, 4.0)[0].total_time == pytest.approx(6.75)


def test_the_critical_path_stays_on_a_rank_that_is_never_free() -> None:
    """Two micro-batches on one rank: every pass waits for the rank, not for an input."""
    path = critical_path(execute(make("1f1b", Plan(1, 2)), StepCosts()))
    assert [(step.label.kind, step.label.microbatch, step.end) for step in path] == [
        ("forward", 0, 1.0), ("backward", 0, 3.0), ("forward", 1, 4.0), ("backward", 1, 6.0),
    ]  # fmt: skip


def test_the_bubble_is_the_idle_share_of_all_ranks() -> None:
    """1F1B of two ranks and four micro-batches: 15 long, of which each rank computes for 12."""
    run = execute(make("1f1b", Plan(2, 4)), StepCosts())
    assert (run.total_time, run.busy.tolist()) == (pytest.approx(15.0), pytest.approx([12.0, 12.0]))
    assert run.bubble == pytest.approx(1 - 24 / 30)
    assert run.spans.tolist() == pytest.approx([15.0, 12.0]), "the last rank never waits"


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_memory_limits_are_positive(limit: float) -> None:
    assert Plan(2, 4, memory_limit=0.5).memory_limit == 0.5
    with pytest.raises(ConfigError, match="memory_limit must be positive"):
        Plan(2, 4, memory_limit=limit)


def test_a_weight_gradient_as_long_as_the_backward_leaves_nothing() -> None:
    plan = study_plan(Study(fwd_len=2.0, bwd_len=5.0), Plan(2, 4), 5.0)
    assert (plan.input_grad, plan.weight_grad) == (0.0, 5.0)


def test_chunks_of_a_sweep_are_put_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two configurations at a time, of five; what another process has kept is read back."""
    config = build(SweepConfig, {"stages": 1, "n": [1, 2, 3, 4, 5], "sync_base_len": 0.0})
    monkeypatch.setattr(sweeps, "RUNS_PER_CHUNK", 2 * len(priority_grid(1.0)))
    expected = [3.0, 6.0, 9.0, 12.0, 15.0]
    assert sweep(config, step=1.0, jobs=1).totals[:, 0] == pytest.approx(expected)
    with monkeypatch.context() as stopped:
        stopped.setattr(sweeps.shutil, "rmtree", lambda *given, **options: None)
        sweep(config, step=1.0, jobs=1, workspace=tmp_path)
    told: list[float] = []
    monkeypatch.setattr(sweeps, "run_chunk", lambda *given: pytest.fail("was kept"))
    again = sweep(config, step=1.0, jobs=1, workspace=tmp_path, progress=told.append)
    assert again.totals[:, 0] == pytest.approx(expected)
    assert told == [35]


def test_a_pass_stands_still_while_its_gradients_have_the_whole_link() -> None:
    """One rank, two micro-batches of F 1 and B 2, syncs of 4 that stop all passes. F0 and B0 until 3, a sync until 7,
    F1 and B1 until 10, a sync until 14. At half the impact they run at half their speed until 7: F1 and half of B1,
    which ends at 8."""

    def ends(impact: float) -> list[float]:
        costs = StepCosts(sync=4.0, sync_freq=1, fwd_impact=impact, bwd_impact=impact)
        run = execute(make("1f1b", Plan(1, 2)), costs)
        return [float(run.trace.tasks.end[number]) for number in run.computes[0]]

    assert ends(1.0) == pytest.approx([1.0, 3.0, 8.0, 10.0])
    assert ends(0.5) == pytest.approx([1.0, 3.0, 5.0, 8.0])
    assert ends(0.0) == pytest.approx([1.0, 3.0, 4.0, 6.0])


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_straggle_are_there(rank: int) -> None:
    """1F1B of two ranks and two micro-batches takes 9. The first at half its speed: F0 until 2, F1 until 4; rank 1 is
    through with both at 7, and B0 and B1 take 4 each from 5 on."""
    schedule = make("1f1b", Plan(2, 2))
    assert execute(schedule, StepCosts(stragglers={0: 2.0})).total_time == pytest.approx(13.0)
    with pytest.raises(ConfigError, match=rf"there is no rank {rank} to straggle.*Ranks: 0 to 1"):
        execute(schedule, StepCosts(stragglers={rank: 2.0}))


def test_models_in_more_than_two_chunks_have_more_passes() -> None:
    assert Plan(25, 10_000, chunks=2).chunks == 2, "what has not been said does not count"
    with pytest.raises(ConfigError, match="at most 250,000"):
        Plan(25, 10_000, chunks=3)


def test_passes_are_bounded() -> None:
    check_passes(25, 10_000)
    check_passes(5, 10_000, 5)
    for given in ((25, 10_001), (5, 10_001, 5)):
        with pytest.raises(ConfigError, match="at most 250,000"):
            check_passes(*given)


@pytest.mark.parametrize(("clock", "filled"), [(0.0, True), (0.5, True), (1.0, False), (1.5, False)])
def test_gaps_are_filled_with_weight_gradients(clock: float, filled: bool) -> None:
    """Rank 1 waits until 1 for what rank 0 sends. A weight gradient of 1 fits from 0 on; from 0.5 on it overruns, as is
    allowed here; where nothing is waited for, none is put in."""
    timeline = Timeline(Plan(2, 4), zero_bubble_auto.LEGS, pieces=1, memory_limit=4.0)
    timeline.put(0, 0)
    timeline.clock[1] = clock
    timeline.put_off[1].append(Action("W", 1, 0))
    timeline.fill_gap(0, 1, overrun_long=True, overrun_short=True)
    assert bool(timeline.order[1]) is filled


def test_zb_v_needs_the_memory_of_1f1b_and_two_micro_batches_a_rank() -> None:
    assert len(make("zb-v", Plan(4, 8, memory_limit=4.0)).ranks) == 4
    with pytest.raises(ConfigError, match=r"zb-v needs 4 activations per rank \(limit: 3\.9\)"):
        make("zb-v", Plan(4, 8, memory_limit=3.9))
    with pytest.raises(ConfigError, match="at least 8 micro-batches for 4 ranks"):
        make("zb-v", Plan(4, 7))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jitter": 0.1}, "jitter needs a schedule"),
        ({"chunks": 3}, "chunks has no effect"),
        ({"draws": 3}, "draws has no effect"),
        ({"schedule": "1f1b", "chunks": 3}, "chunks has no effect"),
        ({"schedule": "1f1b", "draws": 3}, "draws has no effect"),
        ({"schedule": "1f1b", "dispatch": "greedy"}, "greedy dispatch"),
        ({"costs": {}, "sync_freq": 2}, "sync_freq has no effect with costs"),
        ({"schedule": "x.csv", "n": 4}, "n has no effect with a schedule from a file"),
        ({"sync_freq": 9}, "more than the 8"),
    ],
)
def test_what_has_no_effect_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(StepConfig, given).check()


def test_what_has_an_effect_is_not_refused() -> None:
    def ran(**given: Any) -> StepRecord:
        return run_step(build(StepConfig, given))

    assert ran(schedule="interleaved", chunks=3).schedule.num_stages == 3 * 4
    for jitter in ({"jitter": 0.1, "schedule": "1f1b"}, {"costs": {"jitter": 0.1}}):
        draws = ran(**jitter, draws=3).draws
        assert draws is not None and len(set(draws)) == 3
    assert ran(sync_freq=8).run.total_time > ran().run.total_time
    plain, strict, same = ran(schedule="1f1b"), ran(schedule="1f1b", dispatch="strict"), {"grad_prop_len": None}
    assert plain.run.total_time == strict.run.total_time == ran(schedule="1f1b", **same).run.total_time


def test_lengths_become_costs() -> None:
    study = Study(fwd_len=2.0, bwd_len=5.0, prop_len=0.3, grad_prop_len=0.4, sync_base_len=1.0, sync_freq=2)
    costs = step_costs(study, pieces=2.0, weight_grad_len=3.0)
    assert (costs.forward, costs.input_grad, costs.weight_grad) == (1.0, 1.0, 1.5)
    assert (costs.send, costs.send_grad, costs.sync, costs.sync_freq, costs.contention) == (0.3, 0.4, 0.5, 2, True)
    assert step_costs(study).weight_grad == 2.5
    assert step_costs(study.model_copy(update={"ideal": True})).contention is False
    with pytest.raises(ConfigError, match="longer than the backward"):
        step_costs(study, weight_grad_len=5.1)
    plan = study_plan(study, Plan(2, 4), 3.0, 0.2)
    assert (plan.forward, plan.input_grad, plan.weight_grad, plan.hop) == (2.0, 2.0, 3.0, 0.5)


def test_the_study_by_hand() -> None:
    """Two stages, two micro-batches, F 1, B 2, no communication: F0 F1 on the first, then B0 and B1 come back."""
    quiet: dict[str, Any] = {"stages": 2, "n": 2, "prop_len": 0.0, "sync_base_len": 0.0}
    assert simulate(Study(**quiet)).total_time == pytest.approx(9.0)
    alone = {"stages": 1, "n": 3, "prop_len": 1.0, "fwd_impact": 0.0, "bwd_impact": 0.0}
    assert simulate(Study(**alone, sync_base_len=0.0)).total_time == pytest.approx(9.0)
    assert simulate(Study(**alone, sync_base_len=4.0)).total_time == pytest.approx(3.0 + 12.0), "one behind the other"
    ideal = simulate(Study(stages=2, n=2, prop_len=1.0, sync_base_len=0.0, ideal=True)).total_time
    assert ideal == pytest.approx(1 + 1 + 1 + 2 + 1 + 2 + 3.0)


def test_a_changed_step() -> None:
    base = {"stages": 2, "n": 4, "schedule": "1f1b", "prop_len": 0.0, "sync_base_len": 0.0}
    assert run_step(build(StepConfig, base)).run.total_time == pytest.approx(15.0)
    slow = run_step(build(StepConfig, {**base, "stragglers": {1: 2.0}})).run.total_time
    assert slow == pytest.approx(1 + 4 * 6 + 2)
    late = run_step(build(StepConfig, {**base, "latency": 0.5})).run.total_time
    assert late > 15.0
    assert run_step(build(StepConfig, {**base, "memory_limit": 2.0})).run.total_time == pytest.approx(15.0)
    with pytest.raises(DataError, match="more than the limit of 1"):
        run_step(build(StepConfig, {**base, "memory_limit": 1.0}))
    validate(make("1f1b", Plan(2, 4)), memory_limit=2.0)
    ideal = build(StepConfig, {**base, "ideal": True})
    assert _changed(StepCosts(), ideal).contention is False
    assert _changed(StepCosts(), build(StepConfig, base)).contention is True


def test_a_table_of_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    rows = ["8,1,1,2,1,2,0.2,0.2,a,0.5,0.5,60.5", "4,1,1,2,1,2,0.2,0.2,0.5,0.5,0,30.5", "8,1,1,2,1,2,0.2,0.2,0,1,0,61"]
    path.write_text("\n".join([",".join(COLUMNS), *rows, ""]))
    first, second = read_csv(path)
    assert first.total_time.tolist() == [30.5]
    assert second.total_time.tolist() == [60.5, 61.0]
    assert second.priorities == [("a", "0.5", "0.5"), ("0", "1", "0")]
    assert second.parameters[COLUMNS[0]] == 8
    for text, message in (("", "not a sweep"), (",".join(COLUMNS), "no row"), (f"{','.join(COLUMNS)}\n1,2", "2 cells")):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_csv(path)


FLOW = np.dtype([
    ("rank", np.int64), ("receiver", np.int64), ("type", np.int64), ("order", np.int64), ("share", np.float64),
    ("fixed", np.bool_), ("throttled", np.bool_),
])  # fmt: skip


@jit
def _shared(flows: Any, links: Any, present: Any, weights: Any, tiers: Any) -> None:
    share_links(flows, links, np.arange(flows.size), flows.size, present, weights, tiers)


@pytest.mark.parametrize(
    ("flows", "weights", "tiers", "shares", "throttled"),
    [
        ([(0, -1, 0), (0, -1, 2)], (0, 0, 0), (NO_TIER,) * 3, [2, 2], []),
        ([(0, -1, 0), (0, -1, 0), (0, -1, 2)], (3, 0, 1), (NO_TIER,) * 3, [1.5, 1.5, 1], []),
        ([(0, -1, 0), (0, -1, 1)], (3, 0, 1), (NO_TIER,) * 3, [4, 0], []),  # no weight where others have one
        ([(0, -1, 1), (0, -1, 0)], (1, 1, 1), (NO_TIER, 0, NO_TIER), [4, 0], []),  # the first of all is exclusive
        ([(0, -1, 0), (0, -1, 1)], (1, 1, 1), (NO_TIER, 0, NO_TIER), [0, 4], []),
        ([(0, -1, 0), (0, -1, 1)], (1, 1, 1), (2, 1, NO_TIER), [0, 4], []),
        ([(0, -1, 1), (0, -1, 1)], (1, 1, 1), (2, 1, NO_TIER), [4, 0], []),  # in order
        ([(0, 2, 0), (1, 2, 0)], (0, 0, 0), (NO_TIER,) * 3, [2, 2], [0, 1]),  # 8 come to where 4 can be taken
        ([(0, 2, 0), (1, 2, 0), (1, 0, 0)], (0, 0, 0), (NO_TIER,) * 3, [8 / 3, 4 / 3, 8 / 3], [0, 1]),
        ([(0, 2, 1), (1, 2, 1), (0, 1, 0)], (0, 0, 0), (NO_TIER, 0, NO_TIER), [2, 2, 2], [0, 1]),
    ],
)
def test_senders_divide_and_receivers_push_back(
    flows: list[tuple[int, int, int]], weights: Any, tiers: Any, shares: list[float], throttled: list[int]
) -> None:
    """Links of 4 units a second each way."""
    made = np.zeros(len(flows), FLOW).view(np.recarray)
    for order, (rank, receiver, kind) in enumerate(flows):
        made[order] = (rank, receiver, kind, order, 9.0, True, False)
    links = np.zeros(3, LINK_RECORD).view(np.recarray)
    links.capacity = 4.0
    _shared(made, links, np.ones((3, 3), np.int64), np.array(weights, float), np.array(tiers))
    assert made.share == pytest.approx(shares)
    assert np.flatnonzero(made.throttled).tolist() == throttled
