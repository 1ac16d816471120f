"""Admission control: who is turned away, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import GnomonError
from gnomon.search.config import GoodputConfig, SloTargets
from gnomon.search.slo import judge
from gnomon.serving.engine.state import FINISHED, SHED
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from gnomon.workload.slo import UserClass
from serving_kit import requests_of, run, scenario

TWO = (UserClass("low", weight=1.0), UserClass("high", priority=1, weight=3.0))
SECOND = {"source": "table", "table": {"per_iteration": 1.0}}


def served(admission: Any, offered: list[tuple[float, int, int, int]], **changes: Any) -> Run:
    setup = scenario(
        timing=SECOND, replica={"num_kv_blocks": 1000}, batching={"max_sequences": 1}, admission=admission, **changes
    )
    *columns, of_class = zip(*offered, strict=True)
    requests = replace(requests_of(*columns), user_class=np.array(of_class, np.int8), classes=TWO)
    return run(setup, requests=requests)


def let_in(done: Run) -> list[bool]:
    status = done.cluster.requests.status
    assert np.isin(status, (FINISHED, SHED)).all()
    return [bool(one) for one in status == FINISHED]


def test_queue_limit_turns_away_while_two_wait() -> None:
    """One place, two seconds each. The first runs; the next two wait; the fourth finds two waiting. At 2.5 s the second
    runs and one waits, so that the fifth is let in."""
    offered = [(0.0, 4, 2, 0), (0.1, 4, 2, 0), (0.2, 4, 2, 0), (0.3, 4, 2, 0), (2.5, 4, 2, 0)]
    done = served({"name": "queue_limit", "options": {"max_waiting": 2}}, offered)
    assert let_in(done) == [True, True, True, False, True]
    q = done.cluster.requests
    assert q.finished_s[3] == 0.3 and q.replica[3] == -1 and q.first_token_s[3] < 0


def test_shed_by_class_turns_the_least_urgent_away_first() -> None:
    offered = [(0.0, 4, 9, 0), (0.1, 4, 1, 0), (0.2, 4, 1, 0), (0.3, 4, 1, 1), (0.4, 4, 1, 1), (0.5, 4, 1, 1)]
    done = served({"name": "shed_by_class", "options": {"first_waiting": 1, "last_waiting": 3}}, offered)
    assert let_in(done) == [True, True, False, True, True, False]


def test_token_bucket_of_each_class() -> None:
    """40 tokens per second, 10 for the low class, at most two seconds of them: 20 and 60. A request has ten."""
    offered = [(0.0, 8, 2, 0), (0.0, 8, 2, 0), (0.0, 8, 2, 0), (0.9, 8, 2, 0), (1.0, 8, 2, 0), (1.0, 8, 2, 1)]
    done = served({"name": "token_bucket", "options": {"tokens_per_s": 40, "burst_s": 2}}, offered)
    assert let_in(done) == [True, True, False, False, True, True]


def test_those_turned_away_count_against_the_slo_of_their_class() -> None:
    offered = [(0.0, 4, 2, 0), (0.1, 4, 2, 0), (0.2, 4, 2, 1)]
    done = served({"name": "queue_limit", "options": {"max_waiting": 1}}, offered, slo={"e2e_s": 100.0})
    summary = summarize(done)
    assert summary.requests.shed == 1 and summary.slo is not None
    assert summary.slo.attainment == pytest.approx(2 / 3)
    assert [one.shed for one in summary.classes] == [0, 1]
    assert summary.classes[1].slo is not None and summary.classes[1].slo.attainment == 0.0


def test_goodput_says_itself_how_many_may_be_turned_away() -> None:
    offered = [(0.0, 4, 2, 0), (0.1, 4, 2, 0), (0.2, 4, 2, 0), (0.3, 4, 2, 0)]
    done = served({"name": "queue_limit", "options": {"max_waiting": 2}}, offered)
    good = [judge(done, SloTargets(goodput=GoodputConfig(e2e_s=100.0, share=share))) for share in (0.75, 0.8)]
    assert [one.met for one in good] == [True, False] and good[1].worst == "goodput"
    assert judge(done, SloTargets(e2e_s={"p50": 100.0})).worst == "requests turned away"


def test_a_closed_loop_goes_on_after_a_refusal() -> None:
    workload = {
        "arrivals": {"process": "closed_loop", "concurrency": 4},
        "rate": None,
        "num_requests": 40,
        "lengths": {"distribution": "fixed", "prompt": 4, "output": 2},
    }
    setup = scenario(
        timing=SECOND,
        workload=workload,
        batching={"max_sequences": 1},
        admission={"name": "queue_limit", "options": {"max_waiting": 2}},
    )
    done = run(setup)
    assert np.isin(done.cluster.requests.status, (FINISHED, SHED)).all()
    assert (done.cluster.requests.status == SHED).any()


def test_everyone_changes_nothing() -> None:
    plain, same = run(scenario()), run(scenario(admission="everyone"))
    assert np.array_equal(plain.cluster.requests.finished_s, same.cluster.requests.finished_s)


@pytest.mark.parametrize(
    ("admission", "told"),
    [("everybody", "everyone"), ({"name": "queue_limit", "options": {"max_wait": 1}}, "max_waiting")],
)
def test_wrong_names_are_answered_with_the_nearest(admission: Any, told: str) -> None:
    with pytest.raises(GnomonError, match=told):
        run(scenario(admission=admission))


def test_own_admission_control_that_fails_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from gnomon.serving.admission import admission\n\n\n"
        "@admission('broken')\ndef broken(fleet, request_id):\n    return fleet.gate[99] > 0.0\n"
    )
    with pytest.raises(GnomonError, match="broken"):
        run(scenario(admission={"name": "broken", "file": str(file)}))
