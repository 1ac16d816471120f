"""Fleets that change: nothing lost, nothing served twice, no time travel; controllers by hand; breakdowns in theory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from gnomon.api.comparison import compare
from gnomon.api.serving import simulate
from gnomon.catalog.power import clock_under_cap
from gnomon.core.config import build, load
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.core.streams import stream
from gnomon.report.serving.fleet import day_tables, fleet_drawers, fleet_frame
from gnomon.serving.autoscaling.controllers import CONTROLLERS, View
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, OFF, SAMPLES, STARTING, UP
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.energy import joules
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.autoscaling import ColdStartConfig
from gnomon.serving.scenario.power import PowerConfig
from gnomon.workload.config import WorkloadConfig
from gnomon.workload.slo import SloConfig
from serving_kit import TABLE, outcome, requests_of, run, scenario

FAST = {"weights_s": 1.0, "compile_s": 0.0, "warmup_s": 0.0}
SECOND = {"source": "table", "table": {"per_iteration": 1.0}}


def check_books(done: Run) -> None:
    """Every request ended once, with all its tokens, in order of time; nothing is left in any replica."""
    q, replicas = done.cluster.requests, done.cluster.replicas
    assert (q.status == FINISHED).all()
    assert replicas.num_finished.sum() == q.size
    assert (q.processed == q.prompt_tokens + q.output_tokens).all()
    assert np.array_equal(replicas.free_blocks, replicas.num_blocks)
    for book in ("num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding",
                 "waiting_tokens", "prefill_left", "decode_left", "num_loose", "num_coming"):  # fmt: skip
        assert not replicas[book].any(), book
    assert (q.arrival_s <= q.scheduled_s).all() and (q.scheduled_s < q.first_token_s).all()
    assert (q.first_token_s <= q.finished_s).all()


def trouble(seed: int, **fleet: Any) -> Run:
    """A small fleet in which much goes wrong."""
    given = {
        "failures": {"mtbf_s": 6.0, "mttr_s": 2.0, "detect_s": 0.3, "keeps_tokens": seed % 2 == 0},
        "stragglers": {"mean_s": 5.0, "duration_s": 2.0, "factor": 3.0},
        "events": [{"at_s": 2.0, "what": "drain", "replica": 0}, {"at_s": 2.5, "what": "fail", "replica": 0}],
        "controller": {
            "name": "queue_driven",
            "interval_s": 0.7,
            "options": {"stabilization_s": 1.0, "running": 4},
        },
        "min_replicas": seed % 3,
        "max_replicas": 5,
        "cold_start": FAST,
    }
    return run(
        scenario(
            seed=seed,
            num_replicas=2,
            router=("round_robin", "least_outstanding", "power_of_two")[seed % 3],
            batching={"policy": ("vllm_v1", "priority", "sarathi")[seed % 3], "max_sequences": 6},
            replica={"num_kv_blocks": 60},
            workload={
                "classes": [
                    {"name": f"priority {i}", "share": share, "priority": i} for i, share in enumerate((0.5, 0.5))
                ],
                "num_requests": 120,
            },
            fleet={**given, **fleet},
        )
    )


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_nothing_served_twice(seed: int) -> None:
    done = trouble(seed)
    check_books(done)
    assert done.fleet is not None and done.fleet.failures > 0
    assert summarize(done).requests.finished == 120


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, two = trouble(1), trouble(1)
    assert np.array_equal(outcome(one)["rows"], outcome(two)["rows"])
    assert one.cluster.requests.tobytes() == two.cluster.requests.tobytes()
    assert one.fleet is not None and two.fleet is not None
    assert one.fleet.changes == two.fleet.changes
    assert trouble(2).cluster.requests.finished_s.tobytes() != one.cluster.requests.finished_s.tobytes()


def test_what_happens_to_replicas_is_marked_along_the_curve() -> None:
    done = trouble(0)
    assert done.fleet is not None
    marks = {one["name"]: one for one in fleet_drawers(done)["replicas"]()["data"] if one["mode"] == "markers"}
    failed = marks["failed"]
    assert len(failed["x"]) == sum(state == DOWN for _, _, state in done.fleet.changes) == done.fleet.failures
    told = sum(int(text.split(", ")[1].split()[0].replace(",", "")) for text in failed["text"] if "sent again" in text)
    assert told == done.fleet.retries > 0, "a failure is noticed later than it happens"
    assert {"starts", "drains"} & marks.keys()
    _, costs = day_tables(done)
    assert sum(row["requests sent again"] for row in costs.rows) == told


def test_a_fleet_in_which_nothing_happens_changes_nothing() -> None:
    plain, still = run(scenario(num_replicas=2)), run(scenario(num_replicas=2, fleet={}))
    assert np.array_equal(plain.cluster.requests.finished_s, still.cluster.requests.finished_s)


def test_littles_law_holds_at_every_sample() -> None:
    """What the engine counts in its queues and batches is what the requests' stamps say, through joins, drains and
    failures: those that have arrived and not ended."""
    done = trouble(0, failures={"mtbf_s": 4.0, "mttr_s": 1.0, "detect_s": 0.0})
    assert done.fleet is not None
    samples = done.fleet.samples[:, 0]
    q = done.cluster.requests
    at_s = samples[:, SAMPLES.index("time_s")]
    counted = samples[:, SAMPLES.index("waiting")] + samples[:, SAMPLES.index("running")]
    there = (q.arrival_s[:, None] < at_s) & (q.finished_s[:, None] >= at_s)
    assert np.array_equal(counted, there.sum(axis=0))
    assert done.fleet.failures > 0 and counted.max() > 5


def test_every_controller_meets_the_same_failures() -> None:
    """Who is up when trouble comes to its place dies, whatever the controller does: the moments are the same ones."""
    many = {"events": [], "stragglers": {}, "failures": {"mtbf_s": 3.0, "mttr_s": 1.0, "detect_s": 0.1}}
    options = {"stabilization_s": 0.5, "running": 2}
    others: dict[str, dict[str, Any]] = {
        "fixed": {}, "queue_driven": {"options": options}, "schedule": {"steps": [[0, 5], [4, 2], [8, 4]]},
    }  # fmt: skip
    planned = set()
    for i in range(5):
        draws = stream(3, f"fleet, place {i}").exponential(1.0, 400).reshape(-1, 2) * (3.0, 1.0)
        planned |= {(round(at_s, 9), i) for at_s in np.cumsum(draws[:, 0])}
    for name, given in others.items():
        record = trouble(3, **many, controller={"name": name, "interval_s": 0.5, **given}).fleet
        assert record is not None and record.failures >= 3
        assert {(round(at_s, 9), i) for at_s, i, state in record.changes if state == DOWN} <= planned, name


def one_by_one(fleet: dict[str, Any], count: int = 4, replicas: int = 1, **changes: Any) -> Run:
    """Requests of ten seconds each (one prompt, nine decodes), all at once, one place per replica."""
    return run(
        scenario(
            timing=SECOND,
            num_replicas=replicas,
            batching={"max_sequences": 1},
            replica={"num_kv_blocks": 1000, **changes},
            fleet={"cold_start": FAST, **fleet},
        ),
        requests=requests_of([0.0] * count, [4] * count, [10] * count),
    )


def test_a_drain_finishes_first() -> None:
    """Replica 1 has its two requests already when it is drained at 3 s: both end there, the last at 20 s."""
    done = one_by_one({"events": [{"at_s": 3.0, "what": "drain", "replica": 1}], "min_replicas": 1}, replicas=2)
    q, record = done.cluster.requests, done.fleet
    assert q.replica.tolist() == [0, 1, 0, 1]
    assert q.finished_s.tolist() == [10.0, 10.0, 20.0, 20.0]
    assert record is not None
    assert [(t, s) for t, i, s in record.changes if i == 1] == [(0.0, UP), (3.0, DRAINING), (20.0, OFF)]


def test_a_failure_loses_the_iteration_and_keeps_the_tokens() -> None:
    """At 3.5 s the replica dies with three tokens out (at 1, 2 and 3 s). It is noticed at 4 s, repaired at 5, up one
    second later: the four tokens of the prompt and the three are prefilled again and give the fourth token at 7 s."""
    events = [{"at_s": 3.5, "what": "fail", "replica": 0}, {"at_s": 5.0, "what": "repair", "replica": 0}]
    done = one_by_one({"events": events, "failures": {"detect_s": 0.5}}, count=1)
    q = done.cluster.requests
    assert q.first_token_s[0] == 1.0
    assert q.finished_s[0] == 13.0  # four tokens at 7 s, six more
    assert q.num_tries[0] == 3 and q.num_restarts[0] == 1  # sent, lost, and again when the replica is up
    assert done.fleet is not None and done.fleet.retries == 1
    again = one_by_one({"events": events, "failures": {"detect_s": 0.5, "keeps_tokens": False}}, count=1)
    assert again.cluster.requests.first_token_s[0] == 7.0
    assert again.cluster.requests.finished_s[0] == 16.0


def test_a_failure_is_no_preemption_and_the_first_schedule_is_that_of_the_life_that_counts() -> None:
    events = [{"at_s": 3.5, "what": "fail", "replica": 0}, {"at_s": 5.0, "what": "repair", "replica": 0}]
    done = one_by_one({"events": events, "failures": {"detect_s": 0.5, "keeps_tokens": False}}, count=1)
    counts = summarize(done).requests
    assert (counts.preempted, counts.preemptions) == (0, 0)
    assert done.cluster.requests.num_restarts.tolist() == [1]
    assert done.cluster.requests.scheduled_s.tolist() == [6.0]  # up again, one second after its repair


def test_until_a_failure_is_noticed_requests_go_on_being_sent_there() -> None:
    events = [{"at_s": 0.5, "what": "fail", "replica": 0}]
    done = run(
        scenario(
            timing=SECOND, num_replicas=2, replica={"num_kv_blocks": 1000}, fleet={"events": events,
            "failures": {"detect_s": 4.0}, "cold_start": FAST},
        ),
        requests=requests_of([0.0, 0.1, 2.0, 2.1, 6.0], [4] * 5, [2] * 5),
    )  # fmt: skip
    q = done.cluster.requests
    # Requests 0 and 2 were sent to replica 0 and wait until 4.5 s; request 4 comes when it is known to be dead.
    assert q.num_tries.tolist() == [2, 1, 2, 1, 1]
    assert (q.replica == 1).all()
    assert q.scheduled_s[2] >= 4.5 and q.finished_s[0] >= 6.0


def test_a_straggler_takes_longer_until_it_is_well_again() -> None:
    events = [{"at_s": 2.5, "what": "slow", "replica": 0, "factor": 3.0}, {"at_s": 5.5, "what": "slow", "replica": 0}]
    done = one_by_one({"events": events}, count=1)
    # Ends at 1, 2, 3; the fourth iteration takes three seconds; the fifth began before the spell was over.
    assert done.cluster.requests.finished_s[0] == 3.0 + 3.0 + 6.0


def test_cold_start_of_a_model_of_a_trillion_parameters() -> None:
    """Published: 527 s, 495 of them for the weights of a 1T-parameter model in FP8 (about 1 TB)."""
    parts = ColdStartConfig().parts(1e12)
    assert parts["weights"] == pytest.approx(495, rel=0.02)
    assert sum(parts.values()) == pytest.approx(527, rel=0.02)


def test_replicas_start_cold_by_the_schedule() -> None:
    controller = {"name": "schedule", "interval_s": 1.0, "steps": [[0, 1], [5, 3], [15, 1]]}
    done = one_by_one({"controller": controller, "max_replicas": 3}, count=12)
    record = done.fleet
    assert record is not None
    told = [(t, s) for t, i, s in record.changes if i == 1]
    assert told == [(5.0, STARTING), (6.0, UP), (15.0, DRAINING), (15.0, OFF)]
    summary = summarize(done).fleet
    assert summary is not None and summary.peak_up == 3 and summary.cold_starts >= 2


def test_gpu_hours_are_what_replicas_were_paid_for() -> None:
    events = [{"at_s": 4.0, "what": "drain", "replica": 1}]
    done = one_by_one({"events": events}, count=1, replicas=2, tensor_parallel=2)
    summary = summarize(done)
    assert summary.fleet is not None
    # Replica 0 for ten seconds, replica 1, which had nothing, for four; two GPUs each.
    assert summary.fleet.gpu_hours == pytest.approx(2 * 14 / 3600)
    price = done.pools[0].device.price_per_hour
    assert summary.cost.per_hour * 10 / 3600 == pytest.approx(28 * price / 3600)


# Controllers.


def view(**known: Any) -> View:
    base: dict[str, Any] = {
        "now_s": 1000.0, "interval_s": 30.0, "ready": 4, "starting": 0, "draining": 0, "desired": 4, "min_replicas": 1,
        "max_replicas": 100, "arrival_rate": 10.0, "waiting": 0, "running": 0, "output_rate": 0.0,
        "slo": SloConfig(), "utilization": 0.7, "kv_use": 0.1,
        "slo_met": None, "cold_start_s": 60.0, "mtbf_s": None, "pool_rates": {1: 2.0}, "steps": (), "memory": {},
    }  # fmt: skip
    name = known.pop("name")
    options = {**CONTROLLERS[name].options, **known.pop("options", {})}
    return View(**{**base, **known, "options": options})


def decide(name: str, **known: Any) -> float:
    return CONTROLLERS[name].decide(view(name=name, **known))


def test_target_utilization_as_the_autoscaler_of_kubernetes() -> None:
    assert decide("target_utilization", utilization=0.70) == 4
    assert decide("target_utilization", utilization=0.76) == 4  # within the tolerance of a tenth
    assert decide("target_utilization", utilization=0.90) == 6  # ceil(4 x 0.9 / 0.7)
    memory: dict[str, Any] = {}
    assert decide("target_utilization", utilization=0.70, memory=memory) == 4
    assert decide("target_utilization", utilization=0.10, memory=memory, now_s=1100.0) == 4  # not within five minutes
    assert decide("target_utilization", utilization=0.10, memory=memory, now_s=1350.0) == 1


def test_queue_driven_by_the_largest_trigger() -> None:
    assert decide("queue_driven", waiting=26) == 6
    assert decide("queue_driven", running=500) == 8
    assert decide("queue_driven", kv_use=1.0) == 5
    memory: dict[str, Any] = {}
    assert decide("queue_driven", waiting=20, memory=memory) == 4
    assert decide("queue_driven", waiting=0, memory=memory, now_s=1200.0) == 4
    assert decide("queue_driven", waiting=0, memory=memory, now_s=1301.0) <= 1


def test_queue_driven_shrinks_a_pool_that_was_too_large_from_the_start() -> None:
    memory: dict[str, Any] = {}
    assert [decide("queue_driven", memory=memory, now_s=now) for now in (60.0, 359.0)] == [4, 4]
    assert decide("queue_driven", memory=memory, now_s=360.0) <= 1


def test_slo_planner_looks_ahead_by_a_cold_start() -> None:
    """Ten more requests per second every 30 s: 90 s later, which is a start after the next decision, 30 + 30 = 60, with
    a tenth on top, two per replica."""
    memory: dict[str, Any] = {}
    answers = [
        decide("slo_planner", arrival_rate=rate, now_s=1000.0 + 3 * rate, memory=memory) for rate in (10.0, 20.0, 30.0)
    ]
    assert answers[-1] == 33


def test_schedule_repeats_every_day() -> None:
    steps = ((3600.0, 5), (7200.0, 2))
    assert [decide("schedule", now_s=now, steps=steps) for now in (0.0, 3600.0, 7199.0, 86400.0 + 3700.0)] == [
        2,
        5,
        5,
        5,
    ]


# Bad controllers.

BAD = """
from gnomon.serving.autoscaling.controllers import controller


@controller("{name}")
def {name}(view):
    {body}
"""


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        ("negative", "return -1", "answered -1"),
        ("nothing", "return None", "answered None"),
        ("unreal", "return float('nan')", "answered nan"),
        ("half", "return 1.5", "answered 1.5"),
        ("raises", "return 1 // 0", "raises"),
    ],
)
def test_a_controller_that_answers_no_count_ends_the_run(name: str, body: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(BAD.format(name=name, body=body))
    with pytest.raises(GnomonError, match=told) as caught:
        one_by_one({"controller": {"name": name, "file": str(file), "interval_s": 1.0}})
    assert f"{name}.py" in str(caught.value)


def test_a_controller_that_flaps_is_said_to(tmp_path: Path) -> None:
    file = tmp_path / "flapping.py"
    file.write_text(BAD.format(name="flapping", body="return 1 + int(view.now_s) % 2 * 2"))
    fleet = {"controller": {"name": "flapping", "file": str(file), "interval_s": 1.0}, "max_replicas": 3}
    done = one_by_one(fleet, count=12)
    check_books(done)
    assert any("flaps" in warning for warning in summarize(done).warnings)


def test_a_fleet_that_is_never_ready_ends_with_a_statement() -> None:
    """The only replica dies for good and nobody starts another: the requests wait for ever, the run does not."""
    events = [{"at_s": 3.5, "what": "fail", "replica": 0}]
    done = one_by_one({"events": events, "controller": {"interval_s": 5.0}})
    summary = summarize(done)
    assert summary.requests.unfinished == 4
    assert any("given up" in warning for warning in summary.warnings)
    assert "4 requests were never finished: no replica was there for them." in summary.warnings


@pytest.mark.parametrize("slow", [{"node_s": 1e9}, {"weights_bytes_per_s": 1.0}])
def test_a_cold_start_of_more_than_a_day_is_refused(slow: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="never ready"):
        one_by_one({"cold_start": slow})


def test_wrong_sections_are_refused() -> None:
    for section, told in (
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas"),
        ({"events": [{"at_s": 1, "what": "fail", "replica": 9}]}, "no replica 9"),
        ({"controller": "fixt"}, "fixed"),
        ({"controller": {"name": "fixed", "options": {"target": 1}}}, "target"),
        ({"controller": {"name": "schedule", "interval_s": 1}}, "steps"),
    ):
        with pytest.raises(GnomonError, match=told):
            one_by_one(section)
    with pytest.raises(ConfigError, match="max_replicas"):
        one_by_one({"max_replicas": 1}, replicas=2)


def rush(name: str, **controller: Any) -> Scenario:
    """Load that is eight times as high for a while, served by at most three replicas."""
    load = {"process": "piecewise", "pieces": [[20.0, 1.0], [20.0, 8.0], [20.0, 1.0]]}
    return scenario(
        slo={"ttft_s": 1.0},
        batching={"max_sequences": 4},
        workload={"rate": 4.0, "num_requests": 200, "arrivals": load},
        fleet={
            "max_replicas": 3,
            "cold_start": FAST,
            "controller": {"name": name, "interval_s": 2.0, **controller},
        },
    )


def paid_and_met(done: Run) -> tuple[float, float]:
    summary = summarize(done)
    assert summary.fleet is not None and summary.slo is not None
    return summary.fleet.gpu_hours, summary.slo.attainment


def test_no_schedule_is_cheaper_than_the_oracles() -> None:
    """All 81 schedules of four pieces: none that meets the SLO as often costs less."""
    found = {goal: run(rush("oracle", options={"pieces": 4, "goal": goal})) for goal in (0.9, 0.92)}
    sections = [done.scenario.fleet for done in found.values()]
    begins = {tuple(at_s for at_s, _ in section.controller.steps) for section in sections if section is not None}
    (begin_s,) = begins
    others = []
    for counts in itertools.product((1, 2, 3), repeat=4):
        steps = [list(one) for one in zip(begin_s, counts, strict=True)]
        others.append(paid_and_met(run(rush("oracle", steps=steps))))
    for goal, done in found.items():
        ours, met = paid_and_met(done)
        assert met >= goal
        assert ours == pytest.approx(min(paid for paid, share in others if share >= goal), rel=1e-9)
    assert len({paid for paid, _ in others}) > 40, "schedules differ"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("no slo", {"slo": {}}), ("classes without", {"slo": {}, "classes": [{"name": "a"}, {"name": "b", "slo": {}}]}),
     ("a closed loop", {"arrivals": {"process": "closed_loop", "concurrency": 4}})],
)  # fmt: skip
def test_an_oracle_that_cannot_plan_says_so(name: str, changes: dict[str, Any]) -> None:
    asked = rush("oracle")
    if "slo" in changes:
        workload = build(WorkloadConfig, {"num_requests": 50, "classes": changes.get("classes", [])})
        asked = asked.model_copy(update={"slo": SloConfig(), "workload": workload})
    else:
        asked = asked.model_copy(
            update={"workload": build(WorkloadConfig, {"num_requests": 50, "arrivals": changes["arrivals"]})}
        )
    with pytest.raises(ConfigError, match="the oracle needs one pool"):
        run(asked)


@pytest.mark.parametrize("options", [{"pieces": 0}, {"goal": 1.5}, {"goal": -1}])
def test_an_oracle_with_options_that_mean_nothing_says_so(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="at least one of its pieces"):
        run(rush("oracle", options=options))


def test_regret_against_the_oracle() -> None:
    """`fixed` keeps all three replicas all the time: it pays more and misses less."""
    asked = rush("fixed").model_copy(update={"num_replicas": 3})
    made = compare(asked, vary={"fleet.controller.name": ["oracle", "fixed"]}, intervals=False)
    found = made.to_dict()["regret"]
    oracle, fixed = found.values()
    assert oracle["more_gpu_hours"] == 0.0 and oracle["less_slo_met"] == 0.0
    summaries = list(made.summary.values())
    assert fixed["gpu_hours"] == summaries[1].fleet.gpu_hours
    assert fixed["more_gpu_hours"] == pytest.approx(summaries[1].fleet.gpu_hours / summaries[0].fleet.gpu_hours - 1)
    assert fixed["less_slo_met"] <= 0 < fixed["more_gpu_hours"]
    assert any("more than the oracle" in str(block) for block in made.text())


# Theory.


def mean_in_system(load: float, servers: int, fails: float, repairs: float, most: int = 1500) -> float:
    """Mean number in M/M/c whose servers break down together (rates per mean service time): the stationary chain over
    (number in system, up or down), solved by its matrix-geometric recursion on a truncated state space."""
    size = 2 * (most + 1)
    rates = np.zeros((size, size))
    for n in range(most + 1):
        up, down = 2 * n, 2 * n + 1
        if n < most:
            rates[up, up + 2] = rates[down, down + 2] = load
        if n > 0:
            rates[up, up - 2] = min(n, servers)
        rates[up, down], rates[down, up] = fails, repairs
    np.fill_diagonal(rates, -rates.sum(axis=1))
    system = np.vstack([rates.T[:-1], np.ones(size)])
    chances = np.linalg.solve(system, np.append(np.zeros(size - 1), 1.0))
    return float((chances.reshape(-1, 2).sum(axis=1) * np.arange(most + 1)).sum())


@pytest.mark.slow
def test_m_m_3_with_breakdowns() -> None:
    """Three servers that break down together: exponential times to failure and repair, work is resumed. One iteration
    is a hundredth of a mean service. The mean over eight runs, whose lives have nothing to do with one another."""
    iteration_s, mean_tokens = 0.01, 100
    load, fails, repairs = 1.8, 0.02, 0.1
    count = 40_000
    means = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        arrival_s = np.cumsum(random.exponential(1 / load, count))
        output = random.geometric(1 / mean_tokens, count)
        done = run(
            scenario(
                seed=seed,
                timing={"source": "table", "table": {"per_iteration": iteration_s}},
                batching={"max_sequences": 3},
                replica={"num_kv_blocks": 1_000_000, "max_request_tokens": 4096},
                fleet={
                    "failures": {"mtbf_s": 1 / fails, "mttr_s": 1 / repairs, "detect_s": 0.0},
                    "cold_start": {"weights_s": 0.0, "compile_s": 0.0, "warmup_s": 0.0},
                    "controller": {"interval_s": 200.0},
                },
            ),
            requests=requests_of(arrival_s, np.ones(count), output),
        )
        check_books(done)
        q = done.cluster.requests
        means.append(float((q.finished_s - q.arrival_s).mean()))
    margin = 2.365 * np.std(means, ddof=1) / np.sqrt(8)
    expected = mean_in_system(load, 3, fails, repairs, most=400) / load
    assert np.mean(means) == pytest.approx(expected, abs=margin + 2 * iteration_s)
    assert np.mean(means) > 1.5  # without breakdowns it would be 1.29


def test_down_is_a_state_of_its_own() -> None:
    done = trouble(3)
    assert done.fleet is not None
    assert {state for _, _, state in done.fleet.changes} == {OFF, STARTING, UP, DRAINING, DOWN}


def test_the_day_of_the_example(tmp_path: Path) -> None:
    """A small part of it: time lines, classes, cost and energy are there."""
    path = Path(__file__).parents[2] / "examples" / "fleet" / "day.yaml"
    few = {"workload.num_requests": 300, "workload.rate": 2.0, "fleet.controller.interval_s": 5.0, "timing": TABLE}
    few |= {"num_replicas": 3, "fleet.max_replicas": 3}
    few |= {"workload.arrivals": {"process": "diurnal", "period_s": 150.0, "peak_s": 75.0}}
    day = simulate(path, **few)
    summary, frame = day.summary, day.frames["fleet"]
    assert [one.name for one in summary.classes] == ["chat", "batch"]
    assert summary.energy is not None and summary.energy.kwh > 0 and summary.energy.carbon_kg is not None
    assert summary.fleet is not None and summary.fleet.gpu_hours > 0
    assert {"time_s", "arrivals_per_s", "up", "dollars_per_hour", "kw"} <= set(frame.columns)
    hours = next(one for one in day.text() if getattr(one, "title", "") == "Over the day")
    assert len(hours.rows) == 12 and hours.caption.startswith("Worst: from ")
    assert {"requests/s", "replicas up", "started", "drained", "failed", "SLO met, chat"} <= set(hours.rows[0])
    assert {"slo_met_chat", "slo_met_batch"} <= set(frame.columns)
    assert frame["arrivals_per_s"].max() > 2.0 and frame["kw"].min() > 0
    day.save(tmp_path / "day")
    assert (tmp_path / "day" / "fleet.parquet").exists()
    page = (tmp_path / "day" / "report.html").read_text()
    assert "The fleet over time" in page and '"name":"batch"' in page
    assert any("slo_planner" in str(block) for block in day.text())


def test_energy_by_hand() -> None:
    """An H200 for ten seconds, half of them busy, reading memory at full speed for two: 123 W idle, 577 W above it."""
    config = PowerConfig(pue=1.5, price_per_kwh=0.2)
    facts = config.facts("h200")
    assert facts is not None
    drawn = joules(config, facts, 2, 10.0, 5.0, 2.0, 0.0)
    assert float(drawn) == pytest.approx(2 * 1.5 * (123.0 * 10 + 577.0 * (0.05 * 5 + 0.63 * 2)))
    assert float(joules(config, facts, 1, 10.0, 10.0, 10.0, 10.0)) == pytest.approx(1.5 * (123.0 * 10 + 577.0 * 10))


def test_a_power_cap_lowers_the_clock() -> None:
    facts = PowerConfig().facts("h200")
    assert facts is not None
    assert clock_under_cap(facts, 700.0) == 1.0
    # Measured: 400 W ran at 947 MHz, 500 W at 1198, 700 W at 1481.
    assert clock_under_cap(facts, 400.0) == pytest.approx(947 / 1481, abs=0.003)
    assert clock_under_cap(facts, 450.0) == pytest.approx((947 + 1198) / 2 / 1481, abs=0.005)
    plain, capped = (run(scenario(device="h200", timing={"source": "roofline", "table": None}, power=power))
                     for power in ({}, {"cap_w": 300.0}))  # fmt: skip
    assert capped.pools[0].timing.clock < 0.8
    assert capped.cluster.requests.finished_s.mean() > plain.cluster.requests.finished_s.mean()
    with pytest.raises(ConfigError, match="idle"):
        run(scenario(device="h200", power={"cap_w": 50.0}))


@pytest.mark.parametrize("router", ["prefix_aware", "predicted_latency", "lookahead", "learned"])
def test_routers_that_look_closely_send_nothing_to_a_replica_that_drains(router: str) -> None:
    """Replica 0 drains before the first arrival: idle or not, nobody is sent there."""
    events = [{"at_s": 0.0, "what": "drain", "replica": 0}]
    done = run(scenario(num_replicas=3, router=router, fleet={"events": events}, workload={"num_requests": 40}))
    check_books(done)
    assert set(done.cluster.requests.replica.tolist()) == {1, 2}


def test_a_replica_that_has_drained_cannot_fail() -> None:
    """Replica 1 is drained at 3 s and has left at 10 s, when its request ended; nobody asked since. What was to kill it
    at 15 s finds nothing to kill: it is neither a failure nor down."""
    events = [{"at_s": 3.0, "what": "drain", "replica": 1}, {"at_s": 15.0, "what": "fail", "replica": 1}]
    record = one_by_one({"events": events}, count=3, replicas=2).fleet
    assert record is not None
    assert record.failures == 0
    assert [(t, s) for t, i, s in record.changes if i == 1] == [(0.0, UP), (3.0, DRAINING), (10.0, OFF)]


@pytest.mark.slow  # That the page itself opens is a quick test.
def test_the_day_that_the_page_opens_with_scales() -> None:
    pytest.importorskip("dash", reason="Dash is not installed (extra ui)")
    from gnomon.ui.pages.fleet import CONTROLS, scenario_of

    defaults = {one.name: one.default for one in CONTROLS}
    day = simulate(scenario_of(defaults)).summary
    assert day.fleet is not None and day.slo is not None
    assert day.fleet.peak_up >= 2 * day.fleet.least_up and day.fleet.peak_up < defaults["most"]
    assert day.slo.attainment > 0.99


def test_a_fleet_that_dies_before_it_serves_is_an_error() -> None:
    """Iterations of a second, replicas that live for one: no token ever comes, and the run would never end."""
    failing = {"mtbf_s": 1.0, "mttr_s": 0.0, "detect_s": 0.0}
    slow = {"source": "table", "table": {"per_iteration": 1000.0}}
    with pytest.raises(ConfigError, match="replicas die before they can serve"):
        run(scenario(timing=slow, workload={"num_requests": 3}, fleet={"failures": failing, "cold_start": FAST}))


def test_a_fleet_that_loses_all_tokens_again_and_again_is_an_error() -> None:
    """Requests of twenty seconds with a hundred tokens in each, replicas that live for one, and nothing is kept."""
    failing = {"mtbf_s": 1.0, "mttr_s": 0.0, "detect_s": 0.0, "keeps_tokens": False}
    slow = {"source": "table", "table": {"per_iteration": 0.01}}
    load = {"num_requests": 3, "lengths": {"distribution": "fixed", "prompt": 10, "output": 2000}}
    with pytest.raises(ConfigError, match="gave 0 requests, and 3 are missing: replicas die before they can serve"):
        run(scenario(timing=slow, workload=load, fleet={"failures": failing, "cold_start": FAST}))


def test_a_fleet_that_gives_a_token_now_and_then_is_an_error() -> None:
    """Iterations of five seconds, replicas that live for one and a half and are repaired in ten minutes: a token comes
    in an hour, for thousands of them it would go on for years."""
    failing = {"mtbf_s": 1.5, "detect_s": 0.0}
    slow = {"source": "table", "table": {"per_iteration": 5.0}}
    load = {"num_requests": 4, "lengths": {"distribution": "fixed", "prompt": 10, "output": 3000}}
    with pytest.raises(ConfigError, match=r"gave \d+ tokens, and 12,000 are missing: replicas die before"):
        run(scenario(timing=slow, workload=load, fleet={"failures": failing, "max_replicas": 4, "cold_start": FAST}))


@pytest.mark.parametrize("field", ["failures.mtbf_s", "stragglers.mean_s", "stragglers.duration_s"])
def test_events_at_every_moment_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        load(Scenario, None, {f"fleet.{field}": 5e-324})


def test_a_run_that_ends_before_the_controller_is_asked_has_a_report(tmp_path: Path) -> None:
    given = {
        "model": "llama-3-8b",
        "timing": {"source": "roofline"},
        "workload": {"num_requests": 20, "rate": 5.0},
        "slo": {"ttft_s": 1.0},
        "fleet": {"max_replicas": 2, "controller": {"name": "queue_driven", "interval_s": 3600.0}},
    }
    result = simulate(**given)
    assert result.run.fleet is not None and not result.run.fleet.samples.size
    folder = result.save(tmp_path / "short")
    frame = pl.read_parquet(folder / "fleet.parquet")
    assert frame["arrivals_per_s"].len() == 1 and frame["slo_met_all"][0] == 1.0


def test_the_first_interval_draws_power_for_what_was_done_in_it() -> None:
    workload = {"num_requests": 400, "rate": 10.0}
    controller = {"name": "fixed", "interval_s": 5.0}
    result = simulate(
        model="llama-3-8b", timing={"source": "roofline"}, workload=workload, fleet={"controller": controller}
    )
    watts = fleet_frame(result.run)["kw"].to_numpy()
    assert watts[0] == pytest.approx(watts[1], rel=0.2)


@pytest.mark.parametrize("arrivals", ["closed loop", "trace"])
def test_a_planner_measures_a_replica_whatever_arrivals_are_like(tmp_path: Path, arrivals: str) -> None:
    """The measured replica has arrivals of its own: warm-ups and lengths of a trace ended in pydantic's traceback."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{0.1 * i},10,3\n" for i in range(30)))
    lengths = {"distribution": "fixed", "prompt": 10, "output": 3}
    loop = {"arrivals": {"process": "closed_loop", "concurrency": 2}, "warmup_requests": 4, "num_requests": 20}
    workload = {**loop, "lengths": lengths} if arrivals == "closed loop" else {"trace": str(trace)}
    fleet = {"controller": {"name": "slo_planner", "interval_s": 1.0}, "max_replicas": 2}
    done = run(build(Scenario, {"timing": TABLE, "workload": workload, "fleet": fleet}))
    assert done.fleet is not None and done.fleet.rates[0][1] > 1.0


@pytest.mark.parametrize("stages", [1, 2])
def test_a_batch_that_a_replica_died_with_is_no_work_before_anybody_noticed(stages: int) -> None:
    """It dies 4 ms after the start of a batch of 20 ms, and the run ends before that is noticed: busy was 5."""
    lengths = {"distribution": "fixed", "prompt": 50, "output": 20}
    workload = {"num_requests": 8, "arrivals": {"process": "batch"}, "rate": None, "lengths": lengths}
    timing = {"source": "table", "table": {"per_iteration": 0.02}}
    fleet = {"events": [{"at_s": 0.004, "what": "fail", "replica": 0}]}
    replica = {"pipeline_parallel": stages}
    done = run(scenario(workload=workload, timing=timing, fleet=fleet, time_limit_s=0.2, replica=replica))
    assert summarize(done).utilization.busy == 0.0


def test_the_oracle_says_how_many_runs_it_has_made() -> None:
    told: list[tuple[int, int]] = []
    controller = {"name": "oracle", "interval_s": 1.0, "options": {"runs": 6, "pieces": 2}}
    setup = scenario(num_replicas=2, slo={"ttft_s": 1.0}, fleet={"controller": controller})
    run(setup, on_progress=lambda done, most: told.append((done, most)))
    assert told[:2] == [(1, 6), (2, 6)] and told[-1] == (80, 80)
