"""Whose question is answered when: the newest of a view, whatever other views ask, and none for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon.core.config import load
from gnomon.core.errors import GnomonError
from gnomon.serving.scenario import Scenario
from gnomon.ui import turns
from gnomon.ui.serving import simulated
from gnomon.ui.turns import Kept, Question, Stale

SOON_S = 30.0
"""For a machine that is busy; nothing here takes longer than a moment."""


class Asking(threading.Thread):
    """Asks in a thread of its own, as a server does, and keeps what came of it."""

    def __init__(self, view: str, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.question, self.work, self.answer = Question(view), work, None
        self.start()

    def run(self) -> None:
        try:
            with self.question.turn():
                self.answer = self.work()
        except Exception as error:
            self.answer = error


def for_ever() -> None:
    while True:
        pass


def test_a_question_that_never_ends_keeps_no_other_view_waiting_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    hung = Asking("one", lambda: (begun.set(), goes_on.wait(4 * SOON_S)))
    assert begun.wait(SOON_S)
    other = Asking("other", lambda: 42)
    other.join(SOON_S)
    assert other.answer == 42
    assert hung.is_alive()
    goes_on.set()
    hung.join(SOON_S)

    monkeypatch.setattr(turns, "LONGEST_S", 0.2)
    endless = Asking("one", for_ever)
    endless.join(SOON_S)
    assert isinstance(endless.answer, GnomonError) and "given up after 0.2 s" in str(endless.answer)
    again = Asking("one", lambda: 43)
    again.join(SOON_S)
    assert again.answer == 43


def test_compiling_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_S", 0.1)
    looked: list[int] = []
    monkeypatch.setattr(turns, "_is_compiling", lambda thread: looked.append(thread) or len(looked) < 4)
    endless = Asking("compiles", for_ever)
    endless.join(SOON_S)
    assert isinstance(endless.answer, GnomonError) and len(looked) == 4, "it was given up before it had compiled"

    now = [0.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    look = turns.patience()
    now[0] = 10 * turns.PATIENCE_S  # Compiled so long before the first request was served.
    look(1, 10)
    now[0] += 2 * turns.PATIENCE_S
    with pytest.raises(GnomonError, match="stopped after"):
        look(2, 10)


def test_a_question_behind_one_that_cannot_be_stopped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_S", 0.1)
    begun, goes_on = threading.Event(), threading.Event()
    hung = Asking("stuck", lambda: (begun.set(), goes_on.wait(4 * SOON_S)))  # It waits outside Python.
    assert begun.wait(SOON_S)
    behind = Asking("stuck", lambda: 1)
    behind.join(SOON_S)
    assert "the question before this one has not ended" in str(behind.answer)
    goes_on.set()
    hung.join(SOON_S)


def test_only_the_newest_question_of_a_view_is_answered() -> None:
    old = Question("two")
    with Question("two").turn():
        pass
    with pytest.raises(Stale), old.turn():
        raise AssertionError("nobody waits for this")
    with Question("three").turn():
        pass


def test_questions_wait_while_everything_is_compiled() -> None:
    with turns.warming_up():
        early = Asking("early", lambda: 5)
        early.join(0.05)
        assert early.answer is None
    early.join(SOON_S)
    assert early.answer == 5


def test_views_that_ask_at_once_get_what_they_would_get_alone() -> None:
    table = {"timing.source": "table", "timing.table.per_iteration": 0.01, "workload.num_requests": 300}
    scenarios = [load(Scenario, None, {**table, "workload.rate": rate}) for rate in (3, 5, 7, 9)]
    asking = [Asking(f"view {i}", lambda one=one: simulated(one).summary.latency.e2e_s.mean)  # type: ignore[misc]
              for i, one in enumerate(scenarios)]  # fmt: skip
    for one in asking:
        one.join(4 * SOON_S)
    from gnomon.api.serving import simulate

    assert [one.answer for one in asking] == [simulate(one).summary.latency.e2e_s.mean for one in scenarios]


def test_the_newest_few_are_kept() -> None:
    kept: Kept[int] = Kept(2)
    assert [kept.found(key, lambda: 1) for key in "abca"] == [1, 1, 1, 1]
    assert kept.get("b") is None  # c and a came after it.
    assert kept.found("a", lambda: 2) == 1
    kept.found("d", lambda: 3)
    assert (kept.get("c"), kept.get("a"), kept.get("d")) == (None, 1, 3)
