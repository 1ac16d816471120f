"""Long work outside the request: progress, results, failures, and an end to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon.core.errors import ConfigError, GnomonError
from gnomon.ui import jobs
from gnomon.ui.controls import ControlError, Hidden, Number
from gnomon.ui.jobs import start_anew
from gnomon.ui.site_page import Page


def doubled(argument: int, report: jobs.Report) -> int:
    report(1, 2, "half of it")
    return 2 * argument


def mistaken(argument: Any, report: jobs.Report) -> None:
    raise ConfigError("the space is empty.", where="space")


def broken(argument: Any, report: jobs.Report) -> None:
    os._exit(3)


def endless(path: str, report: jobs.Report) -> None:
    """Starts a process of its own, writes its id down, and never ends."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(path).write_text(str(child.pid))
    report(1, 4, "working")
    child.wait()


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)


def ended(id: str) -> jobs.Status:
    wait_for(lambda: jobs.status(id).state != "running")
    return jobs.status(id)


def test_a_job_returns_its_result() -> None:
    id = jobs.start(doubled, 21)
    assert ended(id) == jobs.Status("done", 1, 1, "half of it")
    assert jobs.result(id) == 42


def test_a_mistake_is_told_in_its_own_words() -> None:
    assert ended(jobs.start(mistaken, None)) == jobs.Status("failed", error="space: the space is empty.")


def test_a_process_that_dies_is_a_failure() -> None:
    assert "exit code 3" in ended(jobs.start(broken, None)).error


def test_cancel_ends_the_job_and_what_it_started(tmp_path: Path) -> None:
    id = jobs.start(endless, str(tmp_path / "pid"))
    wait_for(lambda: jobs.status(id).words == "working")
    assert jobs.status(id) == jobs.Status("running", 1, 4, "working")
    jobs.cancel(id)
    assert jobs.status(id).state == "cancelled"
    child = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_running(child))
    with pytest.raises(GnomonError, match="no result"):
        jobs.result(id)


def test_the_same_work_runs_once_and_not_too_much_at_a_time(tmp_path: Path) -> None:
    first, second = (jobs.start(endless, str(tmp_path / name)) for name in "ab")
    try:
        assert jobs.start(endless, str(tmp_path / "a")) == first != second
        with pytest.raises(GnomonError, match="2 jobs are running"):
            jobs.start(doubled, 1)
    finally:
        jobs.cancel(first)
        jobs.cancel(second)
    assert ended(jobs.start(doubled, 1)).state == "done"


def test_a_mistake_leaves_the_running_job_alone(tmp_path: Path) -> None:
    """Run is pressed again after a typo."""
    controls = (Number("n"), Hidden("job"))
    page = Page("p", "P", body=lambda state: [], register=lambda app: None, controls=controls)
    running = jobs.start(endless, str(tmp_path / "pid"))
    try:
        with pytest.raises(ControlError):
            start_anew(page, doubled, lambda values: values["n"], {"n": "typo", "job": running})
        assert jobs.status(running).state == "running"
        new = start_anew(page, doubled, lambda values: values["n"], {"n": "4", "job": running})
        assert jobs.status(running).state == "cancelled"
        assert ended(new).state == "done" and jobs.result(new) == 8
    finally:
        jobs.cancel(running)


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not merely waiting to be reaped."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_jobs_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    code = f"import time, test_ui_jobs as t; t.jobs.start(t.endless, {str(tmp_path / 'pid')!r}); time.sleep(600)"
    server = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent)
    wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    server.kill()
    server.wait()
    job = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_running(job))
    assert not is_running(job)


def test_an_id_that_never_was_is_unknown() -> None:
    assert jobs.status("nothing") == jobs.Status("unknown")
    jobs.cancel("nothing")


def test_old_results_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KEPT", 2)
    ids = []
    for number in range(4):
        ids.append(jobs.start(doubled, number))
        ended(ids[-1])
    assert [jobs.status(id).state for id in ids[:2]] == ["unknown", "unknown"]
    assert jobs.result(ids[-1]) == 6
