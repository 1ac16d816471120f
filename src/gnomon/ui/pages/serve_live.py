"""The Serve page follows its controls: a preview at every change, also during a drag; then two answers, of which the
browser draws the one while the other is being worked out; then what takes longer. During a drag all but the previews
wait for its end (`settled`, assets/gnomon.js).

Every state of the controls has a `serial` number, which its answers carry: the browser shows none that is older, or
less whole, than what it shows already, in whatever order they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, no_update

from gnomon.core.errors import GnomonError
from gnomon.report.serving.figures import LATENCIES
from gnomon.ui import blocks
from gnomon.ui.callbacks import callback
from gnomon.ui.pages import serve_answers as answers
from gnomon.ui.pages.serve_answers import OVER_TIME
from gnomon.ui.site_page import Page
from gnomon.ui.turns import Stale

Asked = dict[str, Any]
"""What the browser asks: the values of the controls (`raw`), and the `serial` of their state."""


TOLD = ("told-preview", "told-whole", "told-intervals")
"""Texts of each answer, in stores of their own: the browser holds back what hangs on a store that a callback under way
may still change."""
STORES = (*TOLD, *(f"{store}-filled" for store in TOLD), "drawn", "settled", "passing", "previewed")


def register_live(app: Dash, page: Page) -> None:
    """All answers to a change of a control, in the order in which they come."""
    names = json.dumps([one.name for one in page.controls])
    app.clientside_callback(
        f"function(...values) {{ return dash_clientside.gnomon.settle('serve', {names}, values); }}",
        Output(page.id("passing"), "data"),
        list(page.inputs().values()),
    )
    _previews(app, page)
    _latencies(app, page)
    _rest(app, page)
    _curve(app, page)
    _intervals(app, page)
    app.clientside_callback(
        "function(found, whole) { return dash_clientside.gnomon.preview(found, whole); }",
        *_plots(page, tuple(LATENCIES), allow_duplicate=True).values(),
        Input(page.id("previewed"), "data"),
        State(page.id("whole"), "data"),
        prevent_initial_call=True,
    )
    for store in TOLD:
        app.clientside_callback(
            "function(texts) { return dash_clientside.gnomon.fill('serve', texts); }",
            Output(page.id(store, "filled"), "data"),
            Input(page.id(store), "data"),
        )


def _told(texts: Mapping[str, str], asked: Asked, rank: int) -> dict[str, Any]:
    """Texts for `fill`: of which state they are, and how whole an answer (0: preview, 1: whole, 2: with intervals)."""
    return {"serial": asked["serial"], "rank": rank, "places": texts}


def _plots(page: Page, names: tuple[str, ...], **more: Any) -> dict[str, Output]:
    return {name: Output(page.id("plot", name), "figure", **more) for name in names}


def _previews(app: Dash, page: Page) -> None:
    @callback(
        app,
        output={
            "found": Output(page.id("previewed"), "data"),
            "texts": Output(page.id("told-preview"), "data"),
        },
        inputs={"asked": Input(page.id("passing"), "data")},
        state={"view": State(page.id("view"), "data")},
        prevent_initial_call=True,
    )
    def draw_preview(asked: Asked | None, view: str) -> dict[str, Any]:
        kept = {"found": no_update, "texts": no_update}
        if not asked:
            return kept
        try:
            found = answers.preview(page, asked["raw"], view, is_drawn=asked["isDragged"])
        except GnomonError:  # Told by the whole answer, which is asked for when this one is there.
            return kept | {"texts": _told({}, asked, 0)}
        except Stale:
            return kept
        drawn = {"serial": asked["serial"], "plots": list(found["plots"].values())}
        return {"found": drawn if found["plots"] else no_update, "texts": _told(found["texts"], asked, 0)}


def _latencies(app: Dash, page: Page) -> None:
    messages = page.messages()

    @callback(
        app,
        output={
            "plots": _plots(page, tuple(LATENCIES)),
            "mistaken": Output(page.id("mistaken"), "data"),
            "whole": Output(page.id("whole"), "data"),
            "messages": messages,
        },
        inputs={"asked": Input(page.id("settled"), "data")},
        state={name: State(page.id(name), "data") for name in ("view", "mistaken", "drawn")},
        prevent_initial_call=True,
    )
    def draw_latencies(asked: Asked | None, view: str, mistaken: bool, drawn: Any) -> dict[str, Any]:
        unchanged = {
            "plots": dict.fromkeys(LATENCIES, no_update),
            "mistaken": no_update,
            "whole": no_update,
            "messages": dict.fromkeys(messages, no_update),
        }
        if asked is None:
            return unchanged
        unchanged["whole"] = asked["serial"]
        try:
            answer = {**unchanged, "plots": answers.draw_latencies(page, asked["raw"], view)}
        except GnomonError as error:
            plots = unchanged["plots"] if drawn else dict.fromkeys(LATENCIES, blocks.blank())
            return {**unchanged, "plots": plots, "mistaken": True, "messages": page.explain(error)}
        except Stale:
            return unchanged | {"whole": no_update}
        # What is not sent need not be drawn: messages only where there is one to take away.
        return {**answer, "mistaken": False, "messages": page.explain(None)} if mistaken else answer


def _rest(app: Dash, page: Page) -> None:
    @callback(
        app,
        output={
            "plots": _plots(page, OVER_TIME),
            "comparison": Output(page.id("comparison"), "children"),
            "texts": Output(page.id("told-whole"), "data"),
            "drawn": Output(page.id("drawn"), "data"),
        },
        inputs={"asked": Input(page.id("settled"), "data")},
        state={name: State(page.id(name), "data") for name in ("view", "drawn")},
        prevent_initial_call=True,
    )
    def draw_rest(asked: Asked | None, view: str, drawn: Any) -> dict[str, Any]:
        kept = {"plots": dict.fromkeys(OVER_TIME, no_update)}
        kept |= dict.fromkeys(("comparison", "texts", "drawn"), no_update)
        if asked is None:
            return kept
        try:
            found = answers.draw_rest(page, asked["raw"], view)
            return {**found, "texts": _told(found["texts"], asked, 1), "drawn": asked}
        except (GnomonError, Stale):  # A mistake is told by the other answer.
            return kept if drawn else kept | {"plots": dict.fromkeys(OVER_TIME, blocks.blank())}


def _curve(app: Dash, page: Page) -> None:
    """After the rest: the first curve of a deployment takes about a second."""

    @callback(
        app,
        output=Output(page.id("plot", "curve"), "figure"),
        inputs={"asked": Input(page.id("drawn"), "data")},
        state={"view": State(page.id("view"), "data")},
    )
    def draw_curve(asked: Asked | None, view: str) -> Any:
        if asked is None:
            return no_update
        try:
            return answers.draw_curve(page, asked["raw"], view)
        except GnomonError:
            return blocks.blank(300, "There is no curve for these requests.")
        except Stale:
            return no_update


def _intervals(app: Dash, page: Page) -> None:
    """After the rest too: they take a few runs more."""

    @callback(
        app,
        output=Output(page.id("told-intervals"), "data"),
        inputs={"asked": Input(page.id("drawn"), "data")},
        state={"view": State(page.id("view"), "data")},
        prevent_initial_call=True,
    )
    def add_intervals(asked: Asked | None, view: str) -> Any:
        if asked is None:
            return no_update
        try:
            return _told(answers.add_intervals(page, asked["raw"], view), asked, 2)
        except (GnomonError, Stale):
            return no_update
