"""Random scenarios over all features: a few here, hundreds among the slow tests, thousands with
`python -m benchmarks.combinations`; and the harness itself."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from combinations import cases, checks, shown
from combinations.cases import examined
from combinations.checks import Violation, check_same
from combinations.draw import LEFT_OUT, RANGES, Drawer, models, registries, unknown_texts
from combinations.hunt import Hunt
from combinations.shrink import shrunk
from combinations.worker import Worker
from gnomon.serving.engine.state import RUNNING


def found(folder: Path, seed: int, count: int) -> tuple[list[str], float]:
    """Violations, and the share of the draws that were refused."""
    hunt = Hunt(folder)
    try:
        rows = [hunt.case(seed, number) for number in range(count)]
    finally:
        hunt.close()
    wrong = [f"{row.kind}: {row.what}\n{row.scenario}" for row in rows if row.status == "violation"]
    return wrong, sum(row.status == "refused" for row in rows) / count


def test_a_few_combinations(tmp_path: Path) -> None:
    assert found(tmp_path, seed=20, count=5)[0] == []


@pytest.mark.slow
def test_many_combinations(tmp_path: Path) -> None:
    wrong, refused = found(tmp_path, seed=21, count=300)
    assert wrong == []
    assert refused < 0.05


# What is drawn.


def test_every_name_of_every_registry_and_every_section_is_drawn(tmp_path: Path) -> None:
    texts = str([Drawer(random.Random(number), str(tmp_path)).scenario() for number in range(1500)])
    for where, registry in registries().items():
        if where != "timing.source":  # Those that read measurements are not drawn.
            assert [name for name in registry.names() if f"'{name}'" not in texts] == [], where
    fields = {name for model in models() for name in model.model_fields if f"{model.__name__}.{name}" not in LEFT_OUT}
    assert sorted(name for name in fields if f"'{name}'" not in texts) == []


def test_a_text_that_nobody_knows_the_names_of_is_noticed() -> None:
    assert unknown_texts() == []


def test_what_is_bounded_or_left_out_by_name_is_there() -> None:
    """A field that was renamed would otherwise be drawn without its bound."""
    known = {f"{model.__name__}.{name}" for model in models() for name in model.model_fields}
    assert sorted({*RANGES, *LEFT_OUT} - known) == []


# What is noticed.


def test_a_run_that_differs_in_one_bit_is_not_the_same() -> None:
    with pytest.raises(Violation, match=r"a differs: 1 of 2, first \[1\]: \[\(2.0, 2.0000000000000004\)\]"):
        check_same({"a": [1.0, 2.0]}, {"a": [1.0, 2.0000000000000004]}, "alike")
    check_same({"a": [float("nan")]}, {"a": [float("nan")]}, "alike")


TABLE = {"source": "table", "table": {"per_iteration": 0.01}}
SMALL: dict[str, Any] = {
    "workload": {"num_requests": 5, "rate": 2.0, "lengths": {"distribution": "fixed", "prompt": 9, "output": 4}},
    "front_end": {"per_request_s": 0.001},
    "timing": TABLE,
}


def test_what_gnomon_refuses_is_no_violation() -> None:
    assert examined(SMALL).status == "ok"
    assert examined({**SMALL, "router": "nobody"}).status == "refused"


SUMMARY = "AssertionError in summary.py:check_summary"
"""Shares above 1 are noticed by the run's own summary."""


def _unending(done: Any) -> None:
    done.cluster.requests.status[3] = RUNNING


def _ended_twice(done: Any) -> None:
    done.cluster.replicas.num_finished += 1


def _token_lost(done: Any) -> None:
    done.cluster.requests.processed[3] -= 1


def _token_too_many(done: Any) -> None:
    done.cluster.replicas.num_produced += 1


def _block_lost(done: Any) -> None:
    done.cluster.replicas.free_blocks -= 1


def _more_than_there_is(done: Any) -> None:
    done.cluster.replicas.peak_blocks = done.cluster.replicas.num_blocks + 1


def _still_waiting(done: Any) -> None:
    done.cluster.replicas.num_waiting += 1


def _token_before_its_batch(done: Any) -> None:
    done.cluster.requests.scheduled_s[2] = done.cluster.requests.first_token_s[2] + 1e-3


def _gap_missing(done: Any) -> None:
    done.log.gap_count[0] -= 1


def _two_batches_at_a_time(done: Any) -> None:
    done.log.iterations.start_s[1] = done.log.iterations.start_s[0]


def _kept_by_nobody(done: Any) -> None:
    done.cluster.requests.front_s[3] += 0.1


def _busier_than_time(done: Any) -> None:
    done.cluster.replicas.busy_s *= 1000.0


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_unending, "ends once"), (_ended_twice, "ends once"), (_token_lost, "tokens"), (_token_too_many, "tokens"),
        (_block_lost, "blocks"), (_more_than_there_is, SUMMARY), (_still_waiting, "books"),
        (_token_before_its_batch, "stamps"), (_gap_missing, "gaps"), (_two_batches_at_a_time, "iterations"),
        (_kept_by_nobody, "front end"), (_busier_than_time, SUMMARY),
    ],
)  # fmt: skip
def test_what_is_wrong_in_one_run_is_noticed(monkeypatch: pytest.MonkeyPatch, spoil: Any, kind: str) -> None:
    """The first run of a case is spoiled by hand."""
    assert _examined_with(monkeypatch, spoil, runs={1}).kind == kind


def test_a_part_of_a_latency_below_zero_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def owe(done: Any) -> None:
        done.cluster.parts_ns[1, 0, 3] -= 5_000
        done.cluster.parts_ns[1, 0, 4] += 5_000

    assert _examined_with(monkeypatch, owe, runs={2}).kind == "parts"


def test_runs_that_should_be_alike_and_are_not_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(done: Any) -> None:
        done.cluster.requests.finished_s[4] += 1e-12

    assert _examined_with(monkeypatch, later, runs={2}).kind == "explained"
    assert _examined_with(monkeypatch, later, runs={3}).kind == "same seed"


def test_runs_that_should_be_easier_and_take_longer_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(done: Any) -> None:
        done.cluster.requests.finished_s += 10.0

    ended = _examined_with(monkeypatch, longer, runs={4})
    assert (ended.kind, ended.what[:13]) == ("worse", "half the load")
    ended = _examined_with(monkeypatch, longer, runs={5})
    assert (ended.kind, ended.what[:16]) == ("worse", "one more replica")


def test_a_replica_that_keeps_something_of_its_former_life_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {**SMALL, "workload": {**SMALL["workload"], "rate": 100.0, "num_requests": 12}}
    real = checks.run

    def keeping(scenario: Any, **changes: Any) -> Any:
        done = real(scenario, **changes)
        if scenario.fleet is not None and scenario.fleet.events[0].at_s > 0.0:
            done.cluster.requests.finished_s += 1e-3
        return done

    assert checks.check_restarted(busy, 0.3)
    monkeypatch.setattr(checks, "run", keeping)
    with pytest.raises(Violation, match="restarted"):
        checks.check_restarted(busy, 0.3)


def test_a_saved_scenario_that_runs_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined(SMALL, ("saved",)).status == "ok"
    monkeypatch.setattr(shown, "spelled_out", lambda one: one.model_copy(update={"seed": 7}))
    assert examined(SMALL, ("saved",)).kind == "saved"


def test_what_cannot_be_shown_and_json_that_is_none_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examined(SMALL, ("shown",)).status == "ok"

    def write_nothing(done: Any, summary: Any, folder: str, extras: Any) -> None:
        (Path(folder) / "summary.json").write_text('{"mean": NaN}')

    monkeypatch.setattr(shown, "write_run", write_nothing)
    ended = examined(SMALL, ("shown",))
    assert (ended.kind, ended.what) == ("shown", "summary.json says NaN, which is no JSON")
    monkeypatch.setattr(shown, "write_run", None)
    assert examined(SMALL, ("shown",)).kind[:9] == "TypeError"


def test_a_server_that_answers_otherwise_than_simulated_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, real = examined(SMALL, ("served",)), shown._opened
    assert (ended.status, ended.done) == ("ok", ("served",))

    def slower(scenario: Any, count: int) -> Any:
        front = scenario.front_end.model_copy(update={"per_request_s": 0.002})
        return real(scenario.model_copy(update={"front_end": front}), count)

    monkeypatch.setattr(shown, "_opened", slower)
    assert examined(SMALL, ("served",)).kind == "served"


def test_a_warning_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(done: Any) -> None:
        warnings.warn("mean of nothing", RuntimeWarning, stacklevel=1)

    assert "RuntimeWarning" in _examined_with(monkeypatch, warn, runs={1}).kind


def _examined_with(monkeypatch: pytest.MonkeyPatch, spoil: Any, runs: set[int]) -> Any:
    """What becomes of the small case where some of its runs are spoiled, by number."""
    count = 0
    with monkeypatch.context() as patch:

        def spoiling(data: Any, **changes: Any) -> Any:
            nonlocal count
            done, count = checks.simulated(data, **changes), count + 1
            if count in runs:
                spoil(done)
            return done

        patch.setattr(cases, "simulated", spoiling)
        return examined(SMALL, checks=("explained", "again", "easier"))


def test_a_case_that_never_ends_is_given_up_and_the_next_one_is_answered() -> None:
    """With functions that Python brings along: a process that imports nothing starts at once."""
    worker = Worker(os.getpid, limit_s=1.0)
    try:
        with pytest.raises(TimeoutError):
            worker.ask(eval, "sum(0 for _ in iter(int, 1))")
        assert worker.ask(divmod, 17, 5) == (3, 2)
        with pytest.raises(RuntimeError, match="exit code 3"):
            worker.ask(os._exit, 3)
    finally:
        worker.close()


def test_a_failing_scenario_becomes_small() -> None:
    data = {"a": {"b": 12, "c": [1, 2, 3], "d": "x"}, "seed": 77, "e": {"f": 0.123456}}
    assert shrunk(data, lambda one: one.get("a", {}).get("b", 0) >= 5 and "e" in one) == {"a": {"b": 5}, "e": {}}
