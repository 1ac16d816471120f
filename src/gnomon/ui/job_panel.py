"""Run, progress and cancel for a page's long work. The job's id is in the address: a reload finds it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from gnomon.core.errors import GnomonError
from gnomon.ui import jobs
from gnomon.ui.blocks import button
from gnomon.ui.callbacks import callback
from gnomon.ui.site_page import Page

POLL_MS = 400
Ask = Callable[[dict[str, Any]], Any]
"""From a page's typed values to what its job works on; a mistake is raised here, before anything is done."""


def job_panel(page: Page, label: str = "Run") -> Component:
    """The buttons and the bar; the page needs a control `Hidden("job")`."""
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


def register_job(app: Dash, page: Page, work: jobs.Work, ask: Ask) -> None:
    """The page's job is `work` on what `ask` returns; when it is done, the store `finished` gets its id."""

    @callback(
        app,
        output={"job": Output(page.id("job"), "value"), "messages": page.messages()},
        inputs={"clicks": Input(page.id("run"), "n_clicks")},
        state={"raw": {one.name: State(page.id(one.name), "value") for one in page.controls}},
        prevent_initial_call=True,
    )
    def run(clicks: int, raw: dict[str, Any]) -> dict[str, Any]:
        if not clicks:
            return {"job": no_update, "messages": dict.fromkeys(page.messages(), no_update)}
        try:
            return {"job": start_anew(page, work, ask, raw), "messages": page.explain(None)}
        except GnomonError as error:
            return {"job": no_update, "messages": page.explain(error)}

    @callback(
        app,
        Output(page.id("bar"), "style"),
        Output(page.id("progress"), "children"),
        Output(page.id("poll"), "disabled"),
        Output(page.id("cancel"), "disabled"),
        Output(page.id("finished"), "data"),
        Input(page.id("job"), "value"),
        Input(page.id("poll"), "n_intervals"),
        Input(page.id("cancel"), "n_clicks"),
        State(page.id("finished"), "data"),
    )
    def follow(job: str, intervals: int, cancels: int, finished: str | None) -> tuple[Any, ...]:
        if ctx.triggered_id == page.id("cancel") and cancels:
            jobs.cancel(job or "")
        now = jobs.status(job or "")
        is_new = now.state == "done" and finished != job
        is_over = now.state != "running"
        return {"width": f"{_share(now):.1%}"}, _words(job, now), is_over, is_over, job if is_new else no_update


def start_anew(page: Page, work: jobs.Work, ask: Ask, raw: Mapping[str, Any]) -> str:
    """The id of a new job in place of the page's last one, which a mistake leaves alone."""
    argument = ask(page.read(raw))
    jobs.cancel(raw["job"] or "")
    return jobs.start(work, argument)


def _share(now: jobs.Status) -> float:
    if now.state == "done":
        return 1.0
    return min(now.done / now.total, 1.0) if now.total else 0.0


def _words(job: str, now: jobs.Status) -> Any:
    if not job:
        return ""
    if now.state == "running":
        return now.words or "Starting …"
    if now.state == "failed":
        return html.Span(now.error, className="failed")
    ends = {
        "done": "Done.",
        "cancelled": "Cancelled.",
        "unknown": "The server no longer has this result: run it again.",
    }
    return ends[now.state]
