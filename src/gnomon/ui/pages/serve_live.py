"""The Serve page follows its controls: one request for every state of them, whose answer comes line by line, each a
JSON object, as it is worked out. The browser (assets/live.js) shows a line while the next is worked out.

Not by Dash's callbacks: a plot that a callback sets takes the browser twice as long as plotly alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dash import Dash, Output, State
from flask import Response, abort, request
from plotly.io.json import to_json_plotly

from gnomon.core.errors import GnomonError
from gnomon.ui import blocks
from gnomon.ui.pages import serve_answers as answers
from gnomon.ui.pages.serve_answers import Raw
from gnomon.ui.site_page import OWN, Page
from gnomon.ui.turns import Question, Stale

ROUTE = "/serve/answers"

Line = dict[str, Any]
"""`plots` by name, `texts` (HTML) by place, `messages` by slot (none: no mistake), `blank` for plots without answer."""


def register_live(app: Dash, page: Page) -> None:
    """Answer every change of a control."""
    names = json.dumps([one.name for one in page.controls])
    app.clientside_callback(
        f"function(...values) {{ return dash_clientside.gnomon.ask('{ROUTE}', 'serve', {names}, values); }}",
        Output(page.id("asked"), "data"),
        [*page.inputs().values(), State(page.id("view"), "data")],
    )

    def answer() -> Response:
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict) or not isinstance(raw := asked.get("raw"), dict):
            abort(400)
        if {one.name for one in page.controls} - raw.keys():
            abort(400)
        lines = _told(page, raw, str(asked.get("view")), is_dragged=bool(asked.get("isDragged")))
        return Response((f"{to_json_plotly(line)}\n" for line in lines), mimetype="application/x-ndjson")

    app.server.add_url_rule(ROUTE, "serve_answers", answer, methods=["POST"])


def _told(page: Page, raw: Raw, view: str, *, is_dragged: bool) -> Iterator[Line]:
    """The lines of an answer; a mistake is one of them, and nothing follows it."""
    try:
        yield from lines(page, raw, Question(f"{view} serve"), is_dragged=is_dragged)
    except Stale:
        return
    except GnomonError as error:
        yield {"messages": page.explain(error), "blank": blocks.blank()}
    except Exception:
        logging.getLogger(__name__).exception("the Serve page could not answer")
        said = "This could not be answered. The terminal in which gnomon ui runs says why."
        yield {"messages": page.explain(None) | {OWN: said}, "blank": blocks.blank()}


def lines(page: Page, raw: Raw, question: Question, *, is_dragged: bool) -> Iterator[Line]:
    """A preview; unless this is one of many states of a drag, the plots, what surrounds them, and what takes longer.
    Each in a turn of its own; raises `Stale` where a newer question of the same view has come."""
    scenario = answers.scenario_of(page, raw)
    with question.turn():
        line = answers.preview(raw, scenario, is_drawn=is_dragged)
    yield {**line, "messages": {}}
    if is_dragged:
        return
    with question.turn():
        plots = answers.latency_plots(page, raw, scenario)
    yield {"plots": plots}
    with question.turn():
        line = answers.surroundings(page, raw, scenario)
        plots = answers.plots_over_time(scenario)
    yield {**line, "plots": plots}
    with suppress(GnomonError):
        yield answers.judged_texts(scenario, question)
    yield answers.curve(page.read(raw)["curve"], scenario, question)
