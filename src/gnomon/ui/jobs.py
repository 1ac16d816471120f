"""Long work in a process of its own, with progress and cancel; known by an id that can stand in an address."""

import os
import secrets
import signal
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any, Literal

from dash import Dash, ctx, dcc, html, no_update
from dash.development.base_component import Component

from gnomon.core.errors import GnomonError
from gnomon.ui.blocks import button
from gnomon.ui.site_page import Page, callback

Report = Callable[[float, float, str], None]  # `report(done, total, words)`: how far the work is.
Work = Callable[[Any, Report], Any]
JobState = Literal["running", "done", "failed", "cancelled", "unknown"]
KEPT = 16  # Jobs whose result is kept; the oldest that are not running go first.
MAX_RUNNING = 2  # Jobs that run at a time, for all pages that are open.
GRACE_S = 2.0  # A cancelled process may clean up this long before it is killed.


@dataclass(frozen=True)
class Status:
    """Where a job stands."""

    state: JobState
    done: float = 0.0
    total: float = 0.0
    words: str = ""
    error: str = ""


@dataclass
class _Job:
    work: Work
    argument: Any
    process: Any
    status: Status = field(default_factory=lambda: Status("running"))
    value: Any = None


_jobs: OrderedDict[str, _Job] = OrderedDict()
_lock = threading.Lock()


def start(work: Work, argument: Any) -> str:
    """Begin `work(argument, report)`, an importable function, in a process of its own; returns its id.

    Where the same work runs already, its id: two searches must not write to one folder.
    """
    with _lock:
        running = {name: one for name, one in _jobs.items() if one.status.state == "running"}
        for name, one in running.items():
            if (one.work, one.argument) == (work, argument):
                return name
        if len(running) >= MAX_RUNNING:
            raise GnomonError(f"{len(running)} jobs are running on this server.", fix="Wait, or cancel one of them.")
        id, job = secrets.token_hex(6), _begun(work, argument)
        _jobs[id] = job
        finished = [name for name, one in _jobs.items() if one.status.state != "running"]
        for name in finished[: max(0, len(_jobs) - KEPT)]:
            del _jobs[name]
    return id


def _begun(work: Work, argument: Any) -> _Job:
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sending, work, argument), name=f"job {work.__name__}")
    process.start()
    sending.close()
    job = _Job(work, argument, process)
    threading.Thread(target=_listen, args=(job, receiving), daemon=True).start()
    return job


def status(id: str) -> Status:
    """Where the job stands; `unknown` after the server was started again, or for an id that never was."""
    job = _jobs.get(id)
    return job.status if job else Status("unknown")


def result(id: str) -> Any:
    job = _jobs.get(id)
    if job is None or job.status.state != "done":
        raise GnomonError("this work has no result here.", where=id, fix="Run it again.")
    return job.value


def cancel(id: str) -> None:
    """Stop a job and every process it has started."""
    job = _jobs.get(id)
    if job is None or job.status.state != "running":
        return
    job.status = Status("cancelled", job.status.done, job.status.total, job.status.words)
    _signal(job.process, signal.SIGTERM)
    job.process.join(GRACE_S)
    _signal(job.process, signal.SIGKILL)
    job.process.join()


def cancel_all() -> None:
    for id in list(_jobs):
        cancel(id)


def _signal(process: Any, number: int) -> None:
    """To the job's whole process group, so that its own workers end too."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # All have ended; or it had no time to make its group.
        if process.is_alive():
            with suppress(ProcessLookupError):  # It may end, and be waited for by `_listen`, at any moment.
                os.kill(process.pid, number)


def _listen(job: _Job, receiving: Connection) -> None:
    try:
        while True:
            kind, *content = receiving.recv()
            if job.status.state != "running":
                continue
            if kind == "progress":
                job.status = Status("running", *content)
            elif kind == "done":
                job.value = content[0]
                job.status = Status("done", 1, 1, job.status.words)
            else:
                job.status = Status("failed", error=content[0])
    except EOFError:
        job.process.join()
        if job.status.state == "running":
            job.status = Status("failed", error=f"Its process ended unexpectedly (exit code {job.process.exitcode}).")
    except Exception as error:  # A result that cannot be unpickled here.
        traceback.print_exc()
        job.status = Status("failed", error=f"Its result cannot be read: {type(error).__name__}: {error}.")


def _child(sending: Connection, work: Work, argument: Any) -> None:
    def report(done: float, total: float, words: str) -> None:
        sending.send(("progress", done, total, words))

    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which then cancels its jobs.
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    try:
        sending.send(("done", work(argument, report)))
    except GnomonError as error:
        sending.send(("failed", str(error)))
    except Exception as error:
        traceback.print_exc()
        sending.send(("failed", f"{type(error).__name__}: {error}"))


def _end_with_the_server() -> None:
    """A server that was killed cannot cancel its jobs: they see it and go."""
    server = parent_process()
    assert server is not None
    server.join()
    os.killpg(0, signal.SIGKILL)


POLL_MS = 400
Ask = Callable[[dict[str, Any]], Any]
"""From a page's typed values to what its job works on; a mistake is raised here, before anything is done."""


def job_panel(page: Page, label: str = "Run") -> Component:
    bar = html.Div(html.Div(className="bar-fill", id=page.id("bar")), className="bar", role="progressbar")
    return html.Div(
        [
            html.Div([button(page.id("run"), label, primary=True),
                      button(page.id("cancel"), "Cancel", disabled=True)], className="buttons"),
            bar,
            html.Div(id=page.id("progress"), className="progress", role="status"),
            dcc.Interval(id=page.id("poll"), interval=POLL_MS, disabled=True),
            dcc.Store(id=page.id("finished")),
        ],
        className="job",
    )  # fmt: skip


def register_job(app: Dash, page: Page, work: Work, ask: Ask) -> None:
    """The page's job is `work` on what `ask` returns; when it is done, the store `finished` gets its id."""

    @callback(
        app, output={"job": page.output("job", "value"), "messages": page.messages()},
        inputs={"clicks": page.input("run", "n_clicks")},
        state={"raw": {one.name: page.state(one.name) for one in page.controls}}, prevent_initial_call=True,
    )  # fmt: skip
    def run(clicks: int, raw: dict[str, Any]) -> dict[str, Any]:
        if not clicks:
            return {"job": no_update, "messages": dict.fromkeys(page.messages(), no_update)}
        try:
            return {"job": start_anew(page, work, ask, raw), "messages": page.explain(None)}
        except GnomonError as error:
            return {"job": no_update, "messages": page.explain(error)}

    shown = page.outputs("progress", bar="style", poll="disabled", cancel="disabled", finished="data")
    clicks = [page.input("job"), page.input("poll", "n_intervals"), page.input("cancel", "n_clicks")]

    @callback(app, list(shown.values()), [*clicks, page.state("finished", "data")])
    def follow(job: str, intervals: int, cancels: int, finished: str | None) -> tuple[Any, ...]:
        if ctx.triggered_id == page.id("cancel") and cancels:
            cancel(job or "")
        now = status(job or "")
        is_new = now.state == "done" and finished != job
        is_over = now.state != "running"
        share = 1.0 if now.state == "done" else min(now.done / now.total, 1.0) if now.total else 0.0
        return _words(job, now), {"width": f"{share:.1%}"}, is_over, is_over, job if is_new else no_update


def start_anew(page: Page, work: Work, ask: Ask, raw: Mapping[str, Any]) -> str:
    """The id of a new job in place of the page's last one, which a mistake leaves alone."""
    argument = ask(page.read(raw))
    cancel(raw["job"] or "")
    return start(work, argument)


def _words(job: str, now: Status) -> Any:
    if not job:
        return ""
    if now.state == "running":
        return now.words or "Starting …"
    if now.state == "failed":
        return html.Span(now.error, className="failed")
    lost = "The server no longer has this result: run it again."
    return {"done": "Done.", "cancelled": "Cancelled.", "unknown": lost}[now.state]
