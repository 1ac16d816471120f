"""Stated errors by the operators of a run, and sources that contradict each other."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gnomon
import gnomon.serving.results.mean_iteration as mix
from gnomon import catalog
from gnomon.core.config import build
from gnomon.report.serving.text import timing_words
from gnomon.serving.engine.log import ITERATION
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.timing import Batch, Context, Timer, TimingConfig
from gnomon.timing.agreement import Estimate, estimate, in_words
from gnomon.timing.breakdown import OperatorTime, expected_error, server_error, total
from gnomon.timing.source_registry import SOURCES
from gnomon.timing.sources import auto
from gnomon.timing.sources.auto import sources_at_hand


def timer(model: str = "llama-3-8b", device_name: str = "h200", **config: object) -> Timer:
    device = catalog.device(device_name)
    place = (catalog.model(model), device, catalog.default_node(device), catalog.Parallelism())
    return Timer(Context(*place, build(TimingConfig, config)))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Estimate("a", 1.0, 0.1), Estimate("b", 1.2, 0.1), False),  # 1.1 x 1.1 = 1.21
        (Estimate("a", 1.0, 0.1), Estimate("b", 1.22, 0.1), True),
        (Estimate("a", 1.22, 0.1), Estimate("b", 1.0, 0.1), True),
        (Estimate("a", 1.0, 0.0), Estimate("b", 1.0, 0.0), False),
        (Estimate("a", 0.0, 0.0), Estimate("b", 1.0, 0.1), False),
    ],
)
def test_a_contradiction_is_more_than_both_errors(ours, theirs, expected):
    assert ours.contradicts(theirs) is theirs.contradicts(ours) is expected


def test_errors_are_weighted_by_the_time_of_the_iterations():
    """A hundred decodes count as much more than one prefill as they take longer."""
    measured, prefill, decode = timer(source="profile"), Batch(prefill=2048), Batch(decode=32, kv=2000)
    errors = [expected_error(measured, one) for one in (prefill, decode)]
    seconds = [estimate(measured, [(one, 1)]).seconds for one in (prefill, decode)]
    both = estimate(measured, [(prefill, 1), (decode, 100)])
    assert both.seconds == pytest.approx(seconds[0] + 100 * seconds[1])
    assert both.error == pytest.approx((errors[0] * seconds[0] + 100 * errors[1] * seconds[1]) / both.seconds)
    assert errors[0] != errors[1]


def test_the_error_depends_on_the_estimator():
    """Straight lines miss what a grid follows."""
    batch = [(Batch(prefill=512, decode=32, kv=1000), 1)]
    assert estimate(timer(source="profile", estimator="linear"), batch).error > 1.5 * (
        estimate(timer(source="profile"), batch).error
    )


def test_mean_iterations_of_each_sort():
    rows = np.zeros(5, ITERATION)
    rows["prefill_tokens"] = [100, 300, 50, 0, 0]
    rows["decodes"] = [0, 0, 10, 4, 8]
    rows["decode_kv"] = [0, 0, 5000, 400, 2000]
    assert [(one.sort, one.batch, one.count) for one in mix.mean_iterations(rows)] == [
        ("prefill", Batch(prefill=200), 2),
        ("mixed", Batch(prefill=50, decode=10, kv=500), 1),
        ("decode", Batch(decode=6, kv=200), 2),
    ]


@pytest.mark.parametrize(
    ("knows", "allowed", "expected"),
    [
        (True, "1", ["roofline", "silicon", "profile"]),
        (True, "0", ["roofline", "profile"]),
        (False, "1", ["roofline", "profile"]),
        (False, "0", ["roofline", "profile"]),
    ],
)
def test_sources_that_need_nothing_else(monkeypatch, knows, allowed, expected):
    monkeypatch.setenv("GNOMON_SILICON", allowed)
    monkeypatch.setattr(auto, "has_device", lambda device: knows)
    assert sources_at_hand(timer().context) == expected


@pytest.mark.parametrize(("model", "device"), [("gemma-3-27b", "h200"), ("llama-3-8b", "b200")])
def test_shipped_profiles_are_of_some_devices_and_of_full_attention(monkeypatch, model, device):
    monkeypatch.setenv("GNOMON_SILICON", "0")
    assert sources_at_hand(timer(model, device).context) == ["roofline"]


SMALL = {"device": "h200", "model": "llama-3-8b", "timing": {"source": "roofline"}, "workload": {"num_requests": 20}}


def test_a_run_says_where_a_source_contradicts_it(monkeypatch):
    """A source that is twice as slow and claims to be more exact is warned of; one that claims less is noted."""
    monkeypatch.setenv("GNOMON_SILICON", "0")
    done = run(build(Scenario, SMALL))
    said = mix.judged(done)
    assert (said.warnings, said.notes) == ([], [])
    assert said.sources == {"profile": pytest.approx(0.95, abs=0.15)}, "they agree, and that is said, too"
    slow = Timer(timer(source="profile").context)
    monkeypatch.setattr(mix, "other_timer", lambda *_: _Twice(slow))
    said = mix.judged(done)
    assert "profile has these iterations take" in said.warnings[0] and not said.notes
    assert said.sources["profile"] == pytest.approx(1.9, abs=0.3)
    slow.source.uncertainty = lambda operator: 0.3
    said = mix.judged(done)
    assert said.warnings == [] and len(said.notes) == 1


class _Twice:
    """A timer whose operators take twice as long."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def __getattr__(self, name):
        return getattr(self._timer, name)

    def seconds(self, operator, *sizes):
        return 2.0 * self._timer.seconds(operator, *sizes)


def test_a_run_and_its_iterations_state_one_error():
    """What the intervals are made of, the line "timing" and `gnomon time` say the same of a source."""
    done = gnomon.simulate(SMALL, requests=20)
    assert done.summary.timing_error == pytest.approx(1.645 * done.run.spread)
    asked = timer(source="roofline")
    batch = Batch(decode=8, kv=100)
    both = math.hypot(expected_error(asked, batch), SOURCES["roofline"].server_error)
    assert server_error(asked, batch) == pytest.approx(1.645 * both)
    assert f"within ±{done.summary.timing_error:.0%} in nine of ten cases" in timing_words(done.summary)


def test_words_name_both():
    assert in_words(Estimate("silicon", 1.0, 0.05), Estimate("roofline", 1.5, 0.1)).startswith(
        "roofline has these iterations take 1.50 times as long as silicon; what their kernels were found"
    )


def test_a_whole_iteration_is_the_sum_of_its_operators() -> None:
    """Bytes on the network are none of memory's; the peak's share is weighted by time; the longest says what limits."""
    rows = [
        OperatorTime("a", 2, 3.0, 12.0, 8.0, 0.5, "compute"),
        OperatorTime("b", 1, 1.0, 2.0, 16.0, 0.1, "memory"),
        OperatorTime("c", 4, 2.0, 0.0, 64.0, 0.0, "network"),
    ]
    assert total(rows) == OperatorTime("total", 7, 6.0, 14.0, 24.0, pytest.approx(1.6 / 6.0), "compute")  # type: ignore[arg-type]
