"""Replicas that go from prefill to decode and back, worked out by hand and under stress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.api.serving import controller_names
from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.report.serving.compare import _variant_tables
from gnomon.report.serving.fleet import day_cards, fleet_drawers, fleet_frame
from gnomon.report.serving.text import fleet_words
from gnomon.serving.autoscaling.controllers import CONTROLLERS, View, controller
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, OFF, STARTING, UP
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario
from serving_kit import requests_of, run, scenario
from test_fleet_roles import FAST, SECOND, apart, check_books, pools


@contextmanager
def known_as(name: str, rule: Callable[[View, View], float]) -> Iterator[None]:
    def decide(prefill: View, decode: View) -> float:
        return rule(prefill, decode)

    controller(name, shares=True)(decide)
    try:
        yield
    finally:
        CONTROLLERS.remove(name)


def switching(
    rule: Callable[[View, View], float],
    arrivals: tuple[float, ...] = (0.0,),
    start: tuple[int, int] = (2, 1),
    **fleet: Any,
) -> Run:
    """A second an iteration, and KV is there at once; asked at 2, 4, ... s. Places 0 and 1 prefill, 2 and 3 decode."""
    given = {"controller": {"name": "rule", "interval_s": 2.0}, "switch_s": 3.0, "cold_start": FAST, **fleet}
    with known_as("rule", rule):
        setup = scenario(
            timing=SECOND, num_replicas=1, pools=pools(*start), replica={"num_kv_blocks": 1000},
            disaggregation={"bandwidth_gb_s": 1e6, "latency_s": 0.0, "first_token": "transfer"}, fleet=given,
        )  # fmt: skip
        return run(setup, requests=requests_of([*arrivals], [4] * len(arrivals), [20] * len(arrivals)))


def changes(done: Run) -> list[tuple[float, int, int]]:
    """Those after the start."""
    assert done.fleet is not None
    return [(pytest.approx(at_s, abs=1e-6), i, state) for at_s, i, state in done.fleet.changes if at_s > 0]


def test_an_idle_replica_serves_the_other_role_after_the_switch() -> None:
    done = switching(lambda prefill, decode: 1)
    check_books(done)
    assert changes(done) == [(2.0, 1, DRAINING), (2.0, 1, OFF), (2.0, 3, STARTING), (5.0, 3, UP)]
    summary = summarize(done).fleet
    assert summary is not None and (summary.switches, summary.cold_starts, summary.drains) == (1, 0, 1)
    assert (summary.peak_up, summary.least_up) == (3, 2)
    assert "0 cold starts of 1 s, 1 replicas switched pools" in fleet_words(summary)
    assert ("switched", "1") in [(card.name, card.value) for card in day_cards(summarize(done))]


def test_a_busy_decode_replica_is_waited_for() -> None:
    """Five requests, of which both decode replicas have some when one of them is called at 10 s. It drains until the
    last of its own ends, and prefills three seconds after that was seen, a tenth of a second later at most."""
    done = switching(lambda prefill, decode: 2 if decode.now_s >= 10 else 1, (0.0, 8.0, 8.5, 9.0, 60.0), (1, 2))
    check_books(done)
    assert done.fleet is not None
    q, told = done.cluster.requests, done.fleet.changes[3:]
    drained = told[0][1]
    last_s = q.finished_s[:4][q.replica[:4] == drained].max()
    assert drained in (2, 3) and last_s > 20.0
    assert told[:2] == [(10.0, drained, DRAINING), (last_s, drained, OFF)]
    seen_s = told[2][0]
    assert (
        told[2:] == [(seen_s, 1, STARTING), (pytest.approx(seen_s + 3.0), 1, UP)] and last_s <= seen_s < last_s + 0.11
    )


def test_one_that_is_called_back_switches_again() -> None:
    """Wanted elsewhere at 2 s and back at 4 s, before it was there at 5: it begins anew, and nothing starts cold."""
    done = switching(lambda prefill, decode: 1 if decode.now_s < 4 else 2)
    check_books(done)
    assert changes(done)[2:] == [(2.0, 3, STARTING), (4.0, 3, OFF), (4.0, 1, STARTING), (7.0, 1, UP)]
    summary = summarize(done).fleet
    assert summary is not None and (summary.switches, summary.cold_starts) == (2, 0)


@pytest.mark.parametrize(
    ("wanted", "limits", "prefill", "decode"),
    [
        (0, {}, 1, 3),
        (99, {}, 3, 1),
        (2, {}, 2, 2),
        (0, {"max_replicas": 2}, 2, 2),
        (99, {"max_replicas": 3}, 3, 1),
        (99, {"min_replicas": 2}, 2, 2),
    ],
)
def test_each_role_keeps_within_its_limits(wanted: int, limits: dict[str, int], prefill: int, decode: int) -> None:
    done = switching(lambda *_: wanted, start=(2, 2), switch_s=0.0, **limits)
    assert done.fleet is not None
    places = len(done.fleet.members)
    state = np.zeros(places, np.int64)
    for _, i, new in done.fleet.changes:
        state[i] = new
    up = state == UP
    assert (up[: places // 2].sum(), up[places // 2 :].sum()) == (prefill, decode)


def test_a_place_whose_replica_died_starts_cold() -> None:
    """The switched replica dies at 6 s and is repaired at 7: nothing drained then, so that it starts as any does."""
    events = [{"at_s": 6.0, "what": "fail", "replica": 3}, {"at_s": 7.0, "what": "repair", "replica": 3}]
    done = switching(lambda *_: 1, events=events, failures={"detect_s": 0.5})
    check_books(done)
    assert changes(done)[3:] == [(5.0, 3, UP), (6.0, 3, DOWN), (7.0, 3, OFF), (7.0, 3, STARTING), (8.0, 3, UP)]
    summary = summarize(done).fleet
    assert summary is not None and (summary.switches, summary.cold_starts) == (1, 1)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_never_more_replicas_than_there_are(seed: int) -> None:
    """Roles drawn at every look, with failures and slow links."""
    draws = np.random.default_rng(seed)
    with known_as("any", lambda prefill, decode: int(draws.integers(0, 5))):
        fleet = {
            "controller": {"name": "any", "interval_s": 0.7}, "switch_s": 0.3 * (seed % 3), "cold_start": FAST,
            "failures": {"mtbf_s": 9.0, "mttr_s": 2.0, "detect_s": 0.3} if seed % 2 else {},
        }  # fmt: skip
        done = apart(seed, fleet=fleet)
    check_books(done)
    assert done.fleet is not None and done.fleet.switches > 3
    state = np.zeros(6, np.int64)
    for _, i, new in sorted(done.fleet.changes, key=lambda one: one[0]):
        state[i] = new
        assert (state != OFF).sum() <= 4


def test_pools_of_other_controllers_share_their_replicas_too() -> None:
    """Each pool asks for what it wants; there are never more than at the start."""
    fleet = {
        "controller": {"name": "queue_driven", "interval_s": 0.7, "options": {"stabilization_s": 1.0, "running": 4}},
        "switch_s": 0.5,
        "cold_start": FAST,
    }
    done = apart(1, fleet=fleet)
    check_books(done)
    assert done.fleet is not None and done.fleet.switches > 0
    summary = summarize(done).fleet
    assert summary is not None and summary.peak_up <= 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pools": [{"num_replicas": 2}], "disaggregation": {}, "fleet": {"switch_s": 1.0}}, "share them"),
        ({"fleet": {"controller": {"name": "arrow"}}}, "each pool has its own"),
        ({"pools": [{}, {"role": "prefill"}, {"role": "decode"}], "fleet": {"switch_s": 0.0}}, "between a pool that"),
        ({"fleet": {"switch_s": 0.0, "min_replicas": 0}}, "every pool with a role needs a replica"),
        ({"fleet": {"switch_s": 0.0, "min_replicas": 3}}, "4 replicas are not 3 for each of two pools"),
        ({"fleet": {"switch_s": 0.0, "events": [{"at_s": 1.0, "what": "start", "replica": 0}]}}, "when another has"),
        (
            {"pools": [{"role": "prefill"}, {"role": "decode", "replica": {"tensor_parallel": 2}}],
             "fleet": {"switch_s": 0.0}},
            "as many GPUs",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(changed: dict[str, Any], said: str) -> None:
    fleet = {"controller": {"name": "arrow"}, "cold_start": FAST, **changed.pop("fleet")}
    given = {"num_replicas": 1, "pools": pools(), "disaggregation": {"bandwidth_gb_s": 1.0}, **changed}
    with pytest.raises(ConfigError, match=said):
        run(scenario(fleet=fleet, **given))


def test_an_answer_that_is_no_count_is_refused() -> None:
    with pytest.raises(ConfigError, match="no number of replicas"):
        switching(lambda *_: float("nan"))


def test_the_example_follows_what_is_asked() -> None:
    """Documents, then answers: first more prefill, then more decode."""
    example = Path(__file__).parents[2] / "examples/fleet/roles.yaml"
    stages = {"workload.arrivals.stages": [[50, 60], [60, 60]], "workload.arrivals.classes": ["documents", "answers"]}
    done = run(load(Scenario, example, stages))
    check_books(done)
    assert done.fleet is not None
    counts = [count for _, count in done.fleet.decisions[0]]
    assert max(counts) > 4 > counts[-1]


def test_the_report_has_replicas_by_role_and_marks_the_switch() -> None:
    """From 5 s on one prefills and two decode; looked at every two seconds."""
    done = switching(lambda *_: 1)
    frame = fleet_frame(done)
    assert frame["time_s"].to_list()[:3] == [2.0, 4.0, 6.0]
    assert frame["prefill"].to_list()[:3] == [1, 1, 1] and frame["decode"].to_list()[:3] == [1, 1, 2]
    drawn = {line["name"]: line for line in fleet_drawers(done)["replicas"]()["data"]}
    assert {"prefill", "decode", "starts", "drains"} <= set(drawn) and "up" not in drawn
    assert drawn["drains"]["text"] == ["replica 1 drains"] and drawn["starts"]["text"] == ["replica 3 starts"]


def test_a_comparison_counts_who_switched() -> None:
    summary = summarize(switching(lambda *_: 1))
    tables = _variant_tables({"as it was": summary, "without a fleet": replace(summary, fleet=None)}, {})
    assert [(row.get("switched"), row.get("moved")) for row in tables[0].rows] == [("1", None), ("0", None)]  # type: ignore[union-attr]


def test_a_page_with_one_pool_offers_no_roles() -> None:
    assert {"arrow", "load_planner"} <= set(controller_names()) - set(controller_names(of_one_pool=True))
