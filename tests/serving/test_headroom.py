"""How near capacity a run is, and what is said about its times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gnomon
from gnomon.report.serving.text import headroom_words, timing_words
from gnomon.search.capacity import saturation
from gnomon.search.load_curve import Headroom, LoadCurve
from gnomon.workload import generate

ONE_MS = {"timing": {"source": "table", "table": {"per_iteration": 0.001}}, "model": "llama-3-8b", "device": "h200"}


def simulated(rate: float, **more: object) -> gnomon.Simulation:
    workload = {"rate": rate, "num_requests": 2000, "lengths": {"distribution": "fixed", "prompt": 10, "output": 1}}
    return gnomon.simulate({**ONE_MS, "workload": workload, "batching": {"max_sequences": 1}, **more})


def test_capacity_is_that_of_one_request_at_a_time() -> None:
    """One request per iteration of 1 ms: 1,000 requests per second, whatever the load."""
    room = simulated(500.0).headroom
    assert room.capacity_per_s == pytest.approx(1000, rel=0.06)
    assert room.share == pytest.approx(0.5, abs=0.04)
    assert room.curve.seconds["ttft"]["p99"][0] < room.curve.seconds["ttft"]["p99"][-1]


def test_limits_lower_the_capacity() -> None:
    free, limited = simulated(100.0).headroom, simulated(100.0, slo={"ttft_s": 0.0025}).headroom
    assert 0 < limited.capacity_per_s < 0.9 * free.capacity_per_s
    assert limited.has_limits and not free.has_limits


def test_it_stands_in_the_text_the_data_and_the_report(tmp_path) -> None:
    result = simulated(500.0)
    assert "headroom" in "\n".join(str(block) for block in result.text())
    data = json.loads(json.dumps(result.to_dict()))["capacity"]
    assert data["load_per_s"] == 500 and data["headroom"] == pytest.approx(1 - 500 / data["capacity_per_s"])
    page = (result.save(tmp_path / "run") / "report.html").read_text()
    assert "id=load_ttft" in page and '"load_ttft":' in page
    assert "href='trace.json.gz'" in page and "href='requests.parquet'" in page


def test_arrivals_without_a_rate_have_no_capacity() -> None:
    workload = {"num_requests": 500, "arrivals": {"process": "batch"}, "rate": None}
    assert "no rate" in gnomon.simulate({**ONE_MS, "workload": workload}).headroom.why_unknown


@pytest.mark.parametrize(("count", "is_rough"), [(999, True), (1000, False)])
def test_a_capacity_from_few_recorded_requests_is_rough(tmp_path: Path, count: int, is_rough: bool) -> None:
    trace = tmp_path / "trace.csv"
    lines = (f"{number / 500},10,1" for number in range(count))
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    room = gnomon.simulate({**ONE_MS, "workload": {"trace": str(trace)}}).headroom
    assert room.is_rough is is_rough


def test_where_requests_are_drawn_there_are_enough_of_them() -> None:
    lengths = {"distribution": "fixed", "prompt": 10, "output": 1}
    room = gnomon.simulate({**ONE_MS, "workload": {"rate": 500.0, "num_requests": 300, "lengths": lengths}}).headroom
    assert not room.is_rough and room.curve.num_requests == 2000


def test_of_those_that_are_drawn_some_may_be_too_long() -> None:
    """Neither of two is, but a quarter of the others."""
    lengths = {"distribution": "uniform", "prompt": [1, 200], "output": [1, 1]}
    workload = {"rate": 500.0, "num_requests": 2, "lengths": lengths, "max_tokens": 150}
    done = gnomon.simulate({**ONE_MS, "workload": workload, "seed": 2})
    assert len(done.requests) == 2 and done.headroom.curve.num_requests == 1494


@pytest.mark.parametrize("num_requests", [600, 3000])
def test_capacity_where_a_batch_has_a_place_for_everyone(num_requests: int) -> None:
    """An iteration takes 1 ms and another 1 ms for each sequence: 1,000 tokens per second at most, 50 requests of 20
    tokens, however many run at once. Nobody ever waits for a place."""
    table = {"source": "table", "table": {"per_iteration": 0.001, "per_sequence": 0.001}}
    lengths = {"distribution": "fixed", "prompt": 1, "output": 20}
    workload = {"rate": 20.0, "num_requests": num_requests, "lengths": lengths}
    room = gnomon.simulate(
        {**ONE_MS, "timing": table, "workload": workload, "batching": {"max_sequences": 4096}}
    ).headroom
    assert room.capacity_per_s == pytest.approx(50, rel=0.1)


def test_nobody_leaves_while_a_backlog_is_worked_off() -> None:
    """One of a millisecond at a time: most of thousands at once would leave."""
    lengths = {"distribution": "fixed", "prompt": 10, "output": 1}
    workload = {"rate": 500.0, "num_requests": 2000, "lengths": lengths, "patience": {"give_up_after_s": 0.1}}
    given = gnomon.simulate({**ONE_MS, "workload": workload, "batching": {"max_sequences": 1}}).scenario
    most, is_sure = saturation(given, generate(given.workload, 0))
    assert most == pytest.approx(1000.0) and is_sure


def test_words() -> None:
    curve = LoadCurve((), {}, 0)
    assert (
        headroom_words(Headroom(31, 38.1, True, curve))
        == "≈ 38.1 requests/s at which 99 % of the requests meet the SLO, headroom 19%"
    )
    assert "30% above" in headroom_words(Headroom(130, 100, False, curve))
    rough = headroom_words(Headroom(31, 80, False, curve, is_rough=True))
    assert rough.endswith("headroom 61% (rough: too few requests to see whether they pile up)")
    assert headroom_words(Headroom(10, 0, True, curve)) == "no load meets the SLO"
    summary = simulated(500.0).summary
    assert timing_words(summary) == "as given"
    measured = gnomon.simulate({"workload": {"num_requests": 50}}).summary
    assert "host time included" in timing_words(measured)
    alone = gnomon.simulate({"workload": {"num_requests": 50}, "engine": "none"}).summary
    assert "kernels only: no host time" in timing_words(alone)


def test_requests_that_are_turned_away_are_beyond_capacity() -> None:
    """Admission control keeps the queue short at any load: what it turns away tells the capacity."""
    room = simulated(500.0, admission={"name": "queue_limit", "options": {"max_waiting": 20}}).headroom
    assert room.capacity_per_s == pytest.approx(1000, rel=0.06)


def test_a_fleet_that_changes_has_no_capacity() -> None:
    result = simulated(500.0, fleet={"max_replicas": 2, "controller": {"name": "target_utilization"}})
    assert "fleet" in result.headroom.why_unknown and result.text()


def test_admission_that_lets_nobody_in_ends_with_no_capacity() -> None:
    room = simulated(500.0, admission={"name": "token_bucket", "options": {"tokens_per_s": 1e-6}}).headroom
    assert room.capacity_per_s == 0.0
