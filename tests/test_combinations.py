"""Random scenarios over all features: a few here, hundreds among the slow tests, thousands with
`python -m benchmarks.combinations`; and the harness itself."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from combinations.cases import examined
from combinations.checks import Violation, check_same
from combinations.draw import LEFT_OUT, RANGES, Drawer, models, registries, unknown_texts
from combinations.hunt import Hunt
from combinations.shrink import shrunk
from combinations.worker import Worker


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
    assert found(tmp_path, seed=20, count=8)[0] == []


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


def test_what_a_run_lacks_is_a_violation_and_what_gnomon_refuses_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from combinations import cases

    table = {"timing": {"source": "table", "table": {"per_iteration": 0.01}}}
    small: dict[str, Any] = {"workload": {"num_requests": 5, "lengths": {"distribution": "fixed", "prompt": 9,
                             "output": 4}}, **table}  # fmt: skip
    assert examined(small).status == "ok"
    assert examined({**small, "router": "nobody"}).status == "refused"
    real = cases.simulated

    def losing(data: Any, **changes: Any) -> Any:
        done = real(data, **changes)
        done.cluster.requests.processed[3] -= 1
        return done

    monkeypatch.setattr(cases, "simulated", losing)
    ended = examined(small)
    assert (ended.status, ended.kind) == ("violation", "tokens")


def test_a_case_that_never_ends_is_given_up_and_the_next_one_is_answered() -> None:
    worker = Worker(_nothing, limit_s=1.0)
    try:
        with pytest.raises(TimeoutError):
            worker.ask(_for_ever)
        assert worker.ask(_doubled, 4) == 8
        with pytest.raises(RuntimeError, match="exit code 3"):
            worker.ask(_die)
    finally:
        worker.close()


def _nothing() -> None:
    pass


def _for_ever() -> None:
    while True:
        time.process_time()


def _doubled(number: int) -> int:
    return 2 * number


def _die() -> None:
    import os

    os._exit(3)


def test_a_failing_scenario_becomes_small() -> None:
    data = {"a": {"b": 12, "c": [1, 2, 3], "d": "x"}, "seed": 77, "e": {"f": 0.123456}}
    assert shrunk(data, lambda one: one.get("a", {}).get("b", 0) >= 5 and "e" in one) == {"a": {"b": 5}, "e": {}}
