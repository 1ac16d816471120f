"""What controllers answer, and what a replica is measured to serve, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling.capacity import measured_rate, measured_rates, slo_check
from gnomon.serving.autoscaling.controllers import CONTROLLERS, ControllerSpec, View
from gnomon.serving.autoscaling.controllers.slo_planner import forecast
from gnomon.serving.autoscaling.controllers.target_utilization import PACE
from gnomon.serving.engine.state import FINISHED, REJECTED
from gnomon.workload.slo import SloConfig, UserClass


def view(name: str, options: dict[str, float] | None = None, **changes: Any) -> View:
    """What a controller sees: two replicas that are up, of at most ten."""
    seen: dict[str, Any] = {
        "now_s": 100.0, "interval_s": 10.0, "ready": 2, "starting": 0, "draining": 0, "desired": 2, "min_replicas": 0,
        "max_replicas": 10, "arrival_rate": 4.0, "waiting": 0, "running": 0, "output_rate": 0.0,
        "utilization": 0.5, "kv_use": 0.1,
        "slo_met": None, "slo": SloConfig(), "cold_start_s": 20.0, "mtbf_s": None, "pool_rates": {1: 2.0},
        "steps": (), "memory": {},
    }  # fmt: skip
    return View(**{**seen, **changes, "options": {**CONTROLLERS[name].options, **(options or {})}})


def answer(name: str, options: dict[str, float] | None = None, **changes: Any) -> int:
    return CONTROLLERS[name].decide(view(name, options, **changes))


@pytest.mark.parametrize(
    ("name", "options", "traits"),
    [
        ("fixed", {}, ()),
        ("schedule", {}, ("needs_steps",)),
        ("target_utilization", {"target": 0.7, "tolerance": 0.1, **PACE}, ()),
        ("queue_driven", {"waiting": 5.0, "running": 64.0, "kv_use": 0.8, "cooldown_s": 300.0, **PACE}, ()),
        (
            "slo_planner",
            {"history": 20.0, "margin": 0.1, "correction": 0.05, "goal": 0.99, "errors_s": 3600.0, "season_s": 0.0},
            ("profiles",),
        ),
        ("oracle", {"goal": 0.99, "pieces": 24.0, "runs": 150.0}, ("sees_future",)),
        ("arrow", {}, ("shares",)),
        ("load_planner", {"queue_up": 5.0, "queue_down": 0.2, "kv_up": 0.9, "kv_down": 0.5}, ("shares",)),
    ],
)
def test_what_controllers_are_told_and_may_be_told(name: str, options: Any, traits: tuple[str, ...]) -> None:
    """A controller knows no more than it asks for."""
    spec = CONTROLLERS[name]
    assert dict(spec.options) == options
    assert tuple(one for one in ("profiles", "sees_future", "needs_steps", "shares") if getattr(spec, one)) == traits
    alone = ControllerSpec(name, spec.decide)
    assert (alone.options, alone.profiles, alone.sees_future, alone.needs_steps) == ({}, False, False, False)


def test_fixed() -> None:
    assert answer("fixed", desired=7) == 7


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ({"waiting": 11}, 3),  # Five wait for a replica.
        ({"waiting": 10}, 2),
        ({"running": 129}, 3),  # 64 run on a replica.
        ({"ready": 4, "kv_use": 0.81}, 5),  # 4 x 0.81 / 0.8.
        ({"ready": 4, "kv_use": 0.8}, 4),
        ({"ready": 4, "waiting": 11, "running": 500}, 8),  # The largest one counts.
        ({"ready": 1, "starting": 2, "waiting": 1}, 3),  # Fewer than are there or start: not within five minutes.
    ],
)
def test_queue_driven(seen: dict[str, Any], wanted: int) -> None:
    assert answer("queue_driven", **seen) == wanted


def test_queue_driven_shrinks_to_the_highest_answer_of_five_minutes() -> None:
    memory: dict[str, Any] = {}
    assert answer("queue_driven", ready=3, waiting=14, memory=memory) == 3
    assert answer("queue_driven", ready=3, waiting=6, memory=memory, now_s=399.0) == 3
    assert answer("queue_driven", ready=3, waiting=1, memory=memory, now_s=400.0) == 2, "two were wanted a second ago"
    assert answer("queue_driven", ready=2, waiting=1, memory=memory, now_s=700.0) == 1


def test_queue_driven_goes_to_none_when_nothing_was_there_for_its_cooldown() -> None:
    memory: dict[str, Any] = {}
    assert answer("queue_driven", {"stabilization_s": 10.0}, ready=1, running=1, memory=memory) == 1
    assert answer("queue_driven", {"stabilization_s": 10.0}, ready=1, kv_use=0.0, memory=memory, now_s=399.0) == 1
    assert answer("queue_driven", {"stabilization_s": 10.0}, ready=1, kv_use=0.0, memory=memory, now_s=410.0) == 0


def test_up_by_twice_as_many_or_four_in_fifteen_seconds() -> None:
    """1 to 5 in the first quarter of a minute, 10 in the second; and with `up_s` not before all answers of a while were
    as high."""
    assert answer("queue_driven", ready=1, waiting=500, max_replicas=100) == 5
    assert answer("queue_driven", ready=1, waiting=500, max_replicas=100, interval_s=30.0) == 10
    assert answer("queue_driven", ready=1, waiting=500, interval_s=30.0, max_replicas=7) == 7
    memory: dict[str, Any] = {}
    assert answer("queue_driven", {"up_s": 20.0}, ready=2, waiting=10, memory=memory, max_replicas=100) == 2
    assert answer("queue_driven", {"up_s": 20.0}, ready=2, waiting=25, memory=memory, now_s=110.0) == 2
    assert answer("queue_driven", {"up_s": 20.0}, ready=2, waiting=25, memory=memory, now_s=121.0) == 5


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ({"utilization": 0.76}, 2),  # Less than 10 % above 0.7: within the tolerance.
        ({"utilization": 0.78}, 3),  # ceil(2 x 0.78 / 0.7)
        ({"utilization": 1.0, "ready": 4}, 6),
        ({"utilization": 0.64}, 2),
        ({"utilization": 0.7, "starting": 1}, 3),  # The one that starts is kept.
        ({"utilization": 0.3}, 2),  # ceil(2 x 0.3 / 0.7) is 1, but two are there: they are taken for wanted.
        ({"utilization": 1.0, "ready": 0, "starting": 1}, 2),  # At least one is taken to be there.
    ],
)
def test_target_utilization(seen: dict[str, Any], wanted: int) -> None:
    assert answer("target_utilization", **seen) == wanted


def test_target_utilization_goes_down_when_all_answers_of_a_while_were_lower() -> None:
    memory: dict[str, Any] = {}
    assert answer("target_utilization", utilization=1.0, ready=2, memory=memory) == 3
    assert answer("target_utilization", utilization=0.1, ready=3, memory=memory, now_s=399.0) == 3
    assert answer("target_utilization", utilization=0.1, ready=3, memory=memory, now_s=400.0) == 1


@pytest.mark.parametrize(("now_s", "wanted"), [(5.0, 4), (10.0, 2), (49.0, 2), (50.0, 4), (86_400.0 + 12.0, 2)])
def test_schedule(now_s: float, wanted: int) -> None:
    assert answer("schedule", steps=((10.0, 2), (50.0, 4)), now_s=now_s) == wanted


def test_a_schedule_without_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="a schedule needs steps"):
        answer("schedule")


@pytest.mark.parametrize(("now_s", "wanted"), [(5.0, 2), (10.0, 2), (49.0, 2), (50.0, 4), (86_400.0 + 12.0, 4)])
def test_oracle_follows_its_steps_once(now_s: float, wanted: int) -> None:
    assert answer("oracle", steps=((10.0, 2), (50.0, 4)), now_s=now_s) == wanted


def test_slo_planner_forecasts_on_a_line() -> None:
    """4, 6 and 8 per second at 80, 90 and 100 s: 14 at 130 s, when a replica of the next decision would be ready;
    14 x 1.1 / 2 = 7.7. Of one or two the last counts: 4 x 1.1 / 2 = 2.2, 6 x 1.1 / 2 = 3.3."""
    memory: dict[str, Any] = {}
    asked = [answer("slo_planner", now_s=80.0 + 10 * i, arrival_rate=4.0 + 2 * i, memory=memory) for i in range(3)]
    assert asked == [3, 4, 8]


def test_slo_planner_counts_for_what_comes_before_the_next_decision_helps() -> None:
    """8, 6 and 4 per second: 0 at 120 s, when a replica that is asked for now would be ready, and less later."""
    memory: dict[str, Any] = {}
    asked = [answer("slo_planner", now_s=80.0 + 10 * i, arrival_rate=8.0 - 2 * i, memory=memory) for i in range(3)]
    assert asked == [5, 5, 4], "5 were wanted 20 s ago, which is as long as a start takes; then 4"


@pytest.mark.parametrize(
    ("rates", "at_s", "expected"),
    [
        ([4.0, 4.0, 4.0, 9.0], 130.0, 9.0),  # A burst: no line of three holds both.
        ([4.0, 9.0, 10.0, 11.0], 130.0, 13.0),  # Three behind the jump lie on one: one more in ten seconds.
        ([5.0, 9.0, 10.0, 11.0], 130.0, 15.4),  # 2.7 off in squares for 2 x 2 x 8.75 / 10 s of noise: one line for all.
        ([4.0, 4.3, 3.8, 4.1], 130.0, 4.0),  # Noise of counting: 4 x 10 s = 40 requests, give or take six.
        ([7.0], 130.0, 7.0),
    ],
)
def test_a_forecast_is_on_the_longest_line_that_noise_explains(
    rates: list[float], at_s: float, expected: float
) -> None:
    seen = [(110.0 - 10.0 * (len(rates) - 1 - i), rate) for i, rate in enumerate(rates)]
    assert forecast(seen, at_s, 10.0) == pytest.approx(expected, abs=0.15)


def test_bends_that_are_usual_are_noise() -> None:
    """4, 8, 4, 8, ...: more than counting explains, but a line is through them all; through three alone it is not."""
    assert forecast([(10.0 * i, 4.0 + 4.0 * (i % 2)) for i in range(9)], 90.0, 100.0) == pytest.approx(5.78, abs=0.01)
    assert forecast([(0.0, 4.0), (10.0, 8.0), (20.0, 4.0)], 30.0, 100.0) == 4.0


def test_slo_planner_goes_down_when_fewer_were_wanted_for_as_long_as_a_start_takes() -> None:
    memory: dict[str, Any] = {}
    options = {"history": 1.0}
    assert answer("slo_planner", options, arrival_rate=8.0, memory=memory) == 5
    assert answer("slo_planner", options, arrival_rate=2.0, memory=memory, now_s=119.0) == 5
    assert answer("slo_planner", options, arrival_rate=2.0, memory=memory, now_s=120.0) == 2


def test_the_margin_is_what_forecasts_missed_by() -> None:
    """Always 4 forecast, and 6 come in the last three of twelve decisions (30 s, a start and a look): 2 more in the
    mean of three. Until six errors are known it is a tenth. (9 came, as was forecast, before.)"""
    memory: dict[str, Any] = {
        "forecasts": [(100.0 + 10.0 * i, 4.0) for i in range(20)], "errors": [(99.0, 0.0, 9.0)],
    }  # fmt: skip
    options = {"history": 1.0}
    asked = [
        answer("slo_planner", options, now_s=100.0 + 10.0 * i, arrival_rate=rate, memory=memory, max_replicas=99)
        for i, rate in enumerate([4.0] * 9 + [6.0] * 3)
    ]
    assert asked[:5] == [3] * 5, "4 x 1.1 / 2"
    assert asked[8] == 2, "no error, no margin"
    assert asked[-1] == 4, "(6 + 2) / 2; were it a share, 6 x 1.5 / 2 = 4.5"


@pytest.mark.parametrize(("cold_start_s", "count"), [(0.0, 8), (10.0, 6), (20.0, 6), (50.0, 6), (60.0, 6)])
def test_the_margin_is_of_as_many_decisions_as_it_takes_until_one_helps(cold_start_s: float, count: int) -> None:
    """Every third time 4 per second more came than forecast, and an interval is 10 s. Of single decisions the worst is
    all of that, of two a half, of three, six or seven a third or a bit more: 4 + 4, 6, 5.3, 5.3, 5.7 replicas."""
    memory: dict[str, Any] = {"errors": [(99.0, error, 8.0) for error in [0.0, 0.0, 4.0] * 4]}
    seen = {"arrival_rate": 4.0, "pool_rates": {1: 1.0}, "cold_start_s": cold_start_s, "memory": memory}
    assert answer("slo_planner", {"goal": 1.0}, **seen) == count


@pytest.mark.parametrize(("most", "count"), [(2.0, 5), (4.0, 5), (6.0, 7), (9.0, 8)])
def test_the_margin_is_for_hardly_more_than_the_most_that_came(most: float, count: int) -> None:
    """4 more came than were forecast, six times, and now 4 are: 8 replicas, but at most a tenth more than for the
    most of the last hour, or for what is forecast where that is more."""
    memory: dict[str, Any] = {"errors": [(99.0, 4.0, most)] * 6}
    seen = {"arrival_rate": 4.0, "pool_rates": {1: 1.0}, "memory": memory}
    assert answer("slo_planner", {"goal": 1.0}, **seen) == count


def test_a_forecast_of_nothing_is_no_margin_without_end() -> None:
    """4 come where 0 was forecast, once in twelve decisions: a third of it in the mean of three."""
    memory: dict[str, Any] = {"errors": [(99.0, 0.0, 8.0)] * 11, "forecasts": [(99.0, 0.0)]}
    asked = answer("slo_planner", {"goal": 1.0}, arrival_rate=4.0, pool_rates={1: 1.0}, memory=memory)
    assert memory["errors"][-1][1] == 4.0 and asked == 6


@pytest.mark.parametrize("goal", [-1.0, 0.0, 1.0, 7.0])
def test_a_goal_beyond_all_requests_is_all_of_them(goal: float) -> None:
    memory: dict[str, Any] = {"errors": [(99.0, 0.8 * i, 12.0) for i in range(6)]}
    assert answer("slo_planner", {"goal": goal}, arrival_rate=8.0, memory=memory) == (6 if goal >= 1.0 else 4)


@pytest.mark.parametrize(("rate", "count"), [(0.0, 0), (2.0, 1), (2.1, 2), (12.0, 4), (12.1, 5), (15.0, 5), (99.0, 10)])
def test_replicas_for_a_rate(rate: float, count: int) -> None:
    """One serves 2, four 12: three each, as do more; two serve 2 x 2.5 and three 3 x 2.79."""
    assert view("slo_planner", pool_rates={1: 2.0, 4: 12.0}).replicas_for(rate) == count


@pytest.mark.parametrize(("mtbf_s", "count"), [(None, 4), (12_000.0, 4), (11_000.0, 5), (1200.0, 5), (120.0, 8)])
def test_spares_are_what_is_down_at_once_in_all_but_one_of_a_hundred(mtbf_s: float | None, count: int) -> None:
    """Four replicas, each down for 30 s at a time. Of 0.01 in the mean (12,000 s between failures) none is down in
    99.005 % of the time, of 0.0109 in 98.9; of 0.1 at most one in 99.5; of 1 at most four in 99.6."""
    assert answer("slo_planner", {"margin": 0.0}, arrival_rate=8.0, mtbf_s=mtbf_s) == count


def test_spares_are_not_beside_the_margin() -> None:
    """4 + 1 are enough for 8 per second, and 5 for 8.8."""
    assert answer("slo_planner", {"margin": 0.1}, arrival_rate=8.0, mtbf_s=1200.0) == 5


def test_slo_planner_expects_what_came_a_season_ago() -> None:
    """10 per second between 150 and 160 s. Who is asked for at the decision after 220 s is ready at 250 s, when that
    may come again: 10, and 3.3 x the root of 10 / 10 s for counting, so 13.3 x 1.1 / 2 = 7.3. That is so until 250 s,
    and what was wanted holds for as long as a start takes. Of 1 per second it is 1 + 1.04, so 2.04 x 1.1 / 2 = 1.1."""
    memory: dict[str, Any] = {}
    options = {"history": 1.0, "season_s": 100.0, "errors_s": 0.0}
    asked = {
        now_s: answer("slo_planner", options, now_s=now_s, arrival_rate=10.0 if now_s == 160.0 else 1.0, memory=memory)
        for now_s in np.arange(100.0, 310.0, 10.0).tolist()
    }
    assert asked[110.0] == 1 and asked[160.0] == asked[170.0] == 6 and asked[200.0] == 2
    assert [now_s for now_s, count in asked.items() if count == 8] == [220.0, 230.0, 240.0, 250.0, 260.0]


def test_slo_planner_corrects_what_was_measured() -> None:
    """5 % less a replica whenever the SLO is missed while more wait than there are replicas; a quarter of it back."""
    memory: dict[str, Any] = {}

    def corrected(number: int, slo_met: float, waiting: int = 3) -> float:
        answer("slo_planner", now_s=10.0 * number, slo_met=slo_met, waiting=waiting, memory=memory)
        return float(memory["correction"])

    assert corrected(1, 0.98) == pytest.approx(0.95)
    assert corrected(2, 0.98, waiting=2) == pytest.approx(0.95 * 1.0125)
    assert corrected(3, 0.99) == pytest.approx(0.95 * 1.0125**2)
    assert [corrected(number, 1.0) for number in range(4, 14)][-1] == 1.0
    assert [corrected(number, 0.5) for number in range(14, 44)][-1] == pytest.approx(0.3)


# What one replica serves.


def records(count: int, **changes: Any) -> Any:
    """Finished requests that waited for nothing."""
    columns = {"status": FINISHED, "user_class": 0, "output_tokens": 11, "arrival_s": 0.0, "scheduled_s": 0.0,
               "first_token_s": 0.1, "finished_s": 1.1}  # fmt: skip
    made = np.zeros(count, [(name, np.int64 if isinstance(one, int) else np.float64) for name, one in columns.items()])
    for name, value in (columns | changes).items():
        made[name] = value
    return made.view(np.recarray)


def of(slo: dict[str, float]) -> Any:
    return SimpleNamespace(slo=SloConfig(**slo), has_roles=False)


NOBODY = SimpleNamespace(classes=())


def test_the_queue_decides_where_no_slo_does() -> None:
    """Up to 37 per second half of the requests wait for less than half a second: 64 is too much, and seven halvings
    between 32 and 64 find 37."""
    rates: list[float] = []

    def measure(_: Any, pool: int, size: int, others: int, rate: float, count: int) -> Any:
        rates.append(rate)
        assert (pool, size, others, count) == (1, 1, 1, 2000)
        waits = np.array([0.0, 0.49, 9.0] if rate <= 37.0 else [0.0, 0.5, 0.5])
        return NOBODY, records(3, arrival_s=5.0, scheduled_s=5.0 + waits)

    assert measured_rate(of({}), 1, measure) == 37.0
    assert rates[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0] and rates[7:10] == [48.0, 40.0, 36.0]
    assert len(rates) == 14


@pytest.mark.parametrize(("late", "holds"), [(range(25), True), (range(26), True), (range(27), False), ([5, 99], True)])
def test_all_but_one_in_a_hundred_meet_their_slo_once_it_has_settled(late: Any, holds: bool) -> None:
    """The first fifth of 125 does not count: of the other 100 one may be late."""

    def measure(_: Any, pool: int, size: int, others: int, rate: float, count: int) -> Any:
        first_s = np.where(np.isin(np.arange(125), list(late)), 0.3, 0.1) if rate <= 1.0 else np.full(125, 0.3)
        return NOBODY, records(125, first_token_s=first_s)

    if holds:
        assert measured_rate(of({"ttft_s": 0.2}), 0, measure) == 1.0
    else:
        with pytest.raises(ConfigError, match=r"cannot serve 0.01 requests per second"):
            measured_rate(of({"ttft_s": 0.2}), 0, measure)


def test_a_replica_that_serves_nobody_or_everybody_has_no_rate() -> None:
    with pytest.raises(ConfigError, match="serves none of the requests: they are all rejected"):
        measured_rate(of({}), 0, lambda *_: (NOBODY, records(3, status=REJECTED)))
    rates: list[float] = []

    def measure(_: Any, pool: int, size: int, others: int, rate: float, count: int) -> Any:
        rates.append(rate)
        return NOBODY, records(3)

    with pytest.raises(ConfigError, match="serves any load"):
        measured_rate(of({}), 0, measure)
    assert rates[-1] == 2.0**19, "a million a second is any load"


def test_one_four_and_sixteen_are_measured_as_far_as_there_are_so_many() -> None:
    """Each of several serves a tenth more than one alone; a search begins at what so many singles serve."""
    asked: dict[int, list[float]] = {}

    def measure(_: Any, pool: int, size: int, others: int, rate: float, count: int) -> Any:
        asked.setdefault(size, []).append(rate)
        assert count == {1: 2000, 4: 4000, 16: 8000}[size]
        wait_s = 0.0 if rate <= (8.0 if size == 1 else 8.8 * size) else 9.0
        return NOBODY, records(3, arrival_s=5.0, scheduled_s=5.0 + wait_s)

    assert measured_rates(of({}), 0, 3, measure) == {1: 8.0}
    rates = measured_rates(of({}), 0, 15, measure)
    assert list(rates) == [1, 4] and rates[4] == pytest.approx(35.2, rel=0.02)
    assert asked[4][0] == 32.0
    assert list(measured_rates(of({}), 0, 16, measure)) == [1, 4, 16]


def test_pools_with_roles_are_measured_beside_enough_of_the_others() -> None:
    """A replica serves 2 per second for each of the other pool, 6 at most: beside eight it serves what it serves beside
    four, so four of the other pool stand for each that is measured."""
    roles = of({})
    roles.has_roles = True
    beside: dict[int, set[int]] = {}

    def measure(_: Any, pool: int, size: int, others: int, rate: float, count: int) -> Any:
        beside.setdefault(size, set()).add(others)
        wait_s = 0.0 if rate <= min(6.0 * size, 2.0 * others) else 9.0
        return NOBODY, records(3, arrival_s=5.0, scheduled_s=5.0 + wait_s)

    rates = measured_rates(roles, 0, 4, measure)
    assert rates == pytest.approx({1: 6.0, 4: 24.0}, rel=0.02)
    assert beside == {1: {1, 2, 4, 8}, 4: {16}}


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ({"ttft_s": 0.1}, 1.0), ({"ttft_s": 0.099}, 0.0), ({"tpot_s": 0.1001}, 1.0), ({"tpot_s": 0.099}, 0.0),
        ({"e2e_s": 1.1}, 1.0), ({"e2e_s": 1.09}, 0.0), ({"ttft_s": 0.2, "tpot_s": 0.2, "e2e_s": 2.0}, 1.0),
    ],
)  # fmt: skip
def test_who_meets_an_slo(limits: dict[str, float], met: float) -> None:
    """The first token after 0.1 s, ten more within a second."""
    check = slo_check(SloConfig(**limits), NOBODY, records(1))  # type: ignore[arg-type]
    assert check is not None and check(np.array([0])).tolist() == [met]


@pytest.mark.parametrize(("tokens", "met"), [(1, 0.0), (2, 0.0), (3, 1.0)])
def test_time_per_token_is_that_behind_the_first(tokens: int, met: float) -> None:
    """A second from the first token to the last: of one token that is all of it, as of two."""
    check = slo_check(SloConfig(tpot_s=0.6), NOBODY, records(1, output_tokens=tokens))  # type: ignore[arg-type]
    assert check is not None and check(np.array([0])).tolist() == [met]


@pytest.mark.parametrize(("finished_s", "met"), [(1.125, 1.0), (1.25, 0.0)])
def test_who_takes_as_long_as_an_slo_allows_meets_it(finished_s: float, met: float) -> None:
    """A first token after an eighth of a second, and one in each eighth behind it."""
    limits = SloConfig(ttft_s=0.125, tpot_s=0.125, e2e_s=1.125)
    found = records(1, output_tokens=9, first_token_s=0.125, finished_s=finished_s)
    check = slo_check(limits, NOBODY, found)  # type: ignore[arg-type]
    assert check is not None and check(np.array([0])).tolist() == [met]


def test_classes_have_their_own_slo_and_who_was_rejected_meets_none() -> None:
    classes = SimpleNamespace(classes=(UserClass("any"), UserClass("strict", slo=SloConfig(ttft_s=0.05))))
    found = records(3, user_class=[0, 1, 0], status=[FINISHED, FINISHED, REJECTED])
    check = slo_check(SloConfig(ttft_s=0.1), classes, found)  # type: ignore[arg-type]
    assert check is not None and check(np.arange(3)).tolist() == [1.0, 0.0, 0.0]
    assert slo_check(SloConfig(), NOBODY, found) is None  # type: ignore[arg-type]


# Controllers of two pools that share their replicas: how many of four prefill, where two do.

LIMITS = SloConfig(ttft_s=1.0, tpot_s=0.05)


def divided(name: str, prefill: dict[str, Any], decode: dict[str, Any], memory: dict[str, Any] | None = None) -> int:
    """`before`: requests that were there ten seconds ago; `token_s`: seconds a token of the 20 that run."""
    known = {"slo": LIMITS, "memory": {"before": 0} if memory is None else memory}
    given = {"running": 20, "output_rate": 20 / decode.pop("token_s", 0.01)}
    return CONTROLLERS[name].decide(view(name, **{**known, **prefill}), view(name, **{**known, **given, **decode}))


@pytest.mark.parametrize(
    ("prefill", "decode", "wanted"),
    [
        # Three are there after ten seconds in which four a second came: 3 / (4 - 0.3) = 0.8 s, within 1 s.
        ({"waiting": 3}, {}, 2),
        ({"waiting": 4}, {}, 3),  # 4 / 3.6 = 1.1 s.
        ({"waiting": 4}, {"token_s": 0.024}, 3),  # A replica less has half as much again: 0.024 < 0.05 / 2.
        ({"waiting": 4}, {"token_s": 0.026}, 2),
        ({"waiting": 4}, {"ready": 1}, 2),  # The only one is not taken.
        ({"waiting": 1}, {"token_s": 0.06}, 1),  # 1 / 3.9 = 0.26 s: half of 1 s is enough.
        ({"waiting": 3}, {"token_s": 0.06}, 2),  # 0.8 s: not with one less.
        ({"waiting": 3}, {"token_s": 0.06, "ready": 1}, 1),  # Fewer decode than prefill.
        ({"waiting": 4}, {"draining": 1}, 2),  # One is on its way.
        ({"waiting": 4, "starting": 1}, {}, 2),
        ({"waiting": 4, "ready": 0}, {}, 2),
    ],
)
def test_arrow(prefill: dict[str, Any], decode: dict[str, Any], wanted: int) -> None:
    assert divided("arrow", prefill, dict(decode)) == wanted


def test_arrow_counts_what_left_of_late() -> None:
    """Four a second come, and ten are there as ten seconds ago: 10 / 4 s. Twenty fewer than then: 10 / 6 s."""
    memory: dict[str, Any] = {"before": 10}
    assert divided("arrow", {"running": 10, "slo": SloConfig(ttft_s=2.4, tpot_s=0.05)}, {}, memory) == 3
    assert divided("arrow", {"running": 10, "slo": SloConfig(ttft_s=2.6, tpot_s=0.05)}, {}, memory) == 2
    memory["before"] = 30
    assert divided("arrow", {"running": 10, "slo": SloConfig(ttft_s=1.7, tpot_s=0.05)}, {}, memory) == 2
    assert memory == {"before": 10}


@pytest.mark.parametrize("slo", [SloConfig(ttft_s=1.0), SloConfig(tpot_s=1.0)])
def test_arrow_needs_limits_of_both_roles(slo: SloConfig) -> None:
    with pytest.raises(ConfigError, match="arrow holds both roles against limits"):
        divided("arrow", {"slo": slo}, {})


@pytest.mark.parametrize(
    ("prefill", "decode", "wanted"),
    [
        ({"waiting": 5}, {"kv_use": 0.4}, 2),  # Above 5.
        ({"waiting": 6}, {"kv_use": 0.4}, 3),
        ({"waiting": 6}, {"kv_use": 0.5}, 2),  # Below 0.5.
        ({"waiting": 6}, {"kv_use": 0.4, "waiting": 12}, 2),  # 0.4 + 0.02 x 12 / 2.
        ({"waiting": 0}, {"kv_use": 0.91}, 1),
        ({"waiting": 0}, {"kv_use": 0.9}, 2),
        ({"waiting": 1}, {"kv_use": 0.95}, 2),  # Below 0.2.
        ({"waiting": 6}, {"kv_use": 0.4, "starting": 1}, 2),
        ({"waiting": 6, "draining": 1}, {"kv_use": 0.4}, 2),
    ],
)
def test_load_planner(prefill: dict[str, Any], decode: dict[str, Any], wanted: int) -> None:
    assert divided("load_planner", prefill, dict(decode), {}) == wanted


def test_load_planner_waits_for_a_queue_that_goes_by_itself() -> None:
    """10 after 12: 10 + 3 x -2 = 4, and 5 are too many."""
    assert divided("load_planner", {"waiting": 10}, {}, {"queue": 11}) == 3
    assert divided("load_planner", {"waiting": 10}, {}, {"queue": 12}) == 2


def test_load_planner_leaves_a_new_decode_replica_alone_for_three_decisions() -> None:
    memory: dict[str, Any] = {}
    assert divided("load_planner", {}, {"kv_use": 0.95}, memory) == 1
    queue: dict[str, Any] = {"waiting": 9}
    assert [divided("load_planner", queue, {}, memory) for _ in range(4)] == [2, 2, 2, 3]
