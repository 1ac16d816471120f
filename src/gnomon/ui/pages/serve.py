"""Serve: a deployment under a load, answered while a slider moves."""

import secrets
from typing import Any

import numpy as np
from dash import Dash, ctx, dcc, html, no_update
from dash.development.base_component import Component

from gnomon.api.serving import DEFAULT_RATE, NO_ENGINE, Scenario, decider_names, policy_names
from gnomon.convert.commands import ENGINES
from gnomon.core.errors import GnomonError
from gnomon.report.blocks import Table
from gnomon.report.serving.figures import LATENCIES
from gnomon.ui import blocks, uploads
from gnomon.ui.controls import Hidden, select_options
from gnomon.ui.pages import serve_answers as answers
from gnomon.ui.pages.forms import form
from gnomon.ui.pages.serve_answers import register_live
from gnomon.ui.scenarios import LINKS, OF_ENGINE, OTHER, to_scenario, to_values
from gnomon.ui.serving import simulated
from gnomon.ui.site_page import Page, callback
from gnomon.ui.turns import Question, Stale
from gnomon.ui.uploads import MAX_REQUESTS
from gnomon.workload.presets import preset_names


def _workloads() -> dict[str, str]:
    presets = {name: name for name in preset_names()}
    return presets | uploads.traces() | {OTHER: "set in further settings"}


def _policies() -> dict[str, str]:
    return {OF_ENGINE: "engine's own"} | {name: name for name in policy_names()}


HINT = "Click a point of a latency distribution to see why that request took so long."
CONTROLS = form(
    "serve", engine={"options": {name: one.name for name, one in ENGINES.items()} | {NO_ENGINE: "none: kernels only"}},
    policy={"options": _policies}, rate={"default": DEFAULT_RATE}, workload={"options": _workloads},
    requests={"most": MAX_REQUESTS}, decider={"options": decider_names},
    **{f"{name}_gb": {"help": f"{bandwidth:g} GB/s"} for name, (bandwidth, _) in LINKS.items()},
)  # fmt: skip


def _top() -> Component:
    load = html.Button("Load a scenario or trace …", className="button", type="button")
    kinds = ".yaml,.yml,.json,.csv,.jsonl"
    upload = dcc.Upload(load, id=PAGE.id("upload"), className="upload-box", accept=kinds)
    limited = {"data-limit": uploads.MAX_BYTES, "data-message": PAGE.id("upload", "error")}
    pin = blocks.button(PAGE.id("pin"), "Pin to compare")
    buttons = html.Div([html.Div(upload, **limited), pin], className="buttons")
    message = html.Div(id=PAGE.id("upload", "error"), className="message", role="alert")
    return html.Div([PAGE.slot("headline", "headline"), html.Div([buttons, message])], className="page-top")


def body(state: dict[str, Any]) -> list[Component]:
    waiting = blocks.blank(words="Simulating …")
    latency = [blocks.graph(PAGE.id("plot", name), label=title, figure=waiting) for name, title in LATENCIES.items()]
    curve = blocks.graph(PAGE.id("plot", "curve"), label="Latency against load")
    labels = {"queue": "Requests in the system", "kv": "KV cache in use"}
    over_time = [blocks.graph(PAGE.id("plot", name), label=label, figure=waiting) for name, label in labels.items()]
    return [
        _top(), PAGE.slot("figures", "serve-figures"), blocks.section("Latency", blocks.plots(*latency, curve)),
        blocks.section("Why", html.Div(html.P(HINT, className="more"), id=PAGE.id("story"), **{"aria-live": "polite"})),
        PAGE.slot("comparison"), blocks.section("Over time", blocks.plots(*over_time, together=True)), PAGE.copies(),
        PAGE.slot("notes"), dcc.Store(id=PAGE.id("view"), data=secrets.token_hex(6)), dcc.Store(id=PAGE.id("asked")),
    ]  # fmt: skip


def register(app: Dash) -> None:
    register_live(app, PAGE)
    _register_story(app)
    _register_pins(app)
    _register_upload(app)


def _register_story(app: Dash) -> None:
    """A click on a latency's curve tells the story of a request that took so long."""

    @callback(
        app,
        output=PAGE.output("story", "children"),
        inputs={"clicked": {name: PAGE.input(f"plot-{name}", "clickData") for name in LATENCIES}},
        state={"raw": {one.name: PAGE.state(one.name) for one in PAGE.controls}, "view": PAGE.state("view", "data")},
        prevent_initial_call=True,
    )
    def tell(clicked: dict[str, Any], raw: dict[str, Any], view: str) -> Any:
        name = next((one for one in LATENCIES if ctx.triggered_id == PAGE.id("plot", one)), None)
        point = (clicked.get(name) or {}).get("points") if name else None
        if not point:
            return no_update
        try:
            return _story(raw, view, name, float(point[0]["y"]))
        except GnomonError as error:
            return html.P(str(error), className="more")
        except Stale:
            return no_update


def _story(raw: dict[str, Any], view: str, metric: Any, share: float) -> list[Component]:
    """What the request did that a share of all requests did not exceed in a latency: sentences, parts, neighbours."""
    scenario = to_scenario(PAGE.read(raw))
    with Question(f"{view} story").turn():
        simulation = simulated(scenario).explained()
        found = simulation.explain(advice=False, metric=metric)
        values = found.accounts.values_s(metric)
        order = np.argsort(values, kind="stable")
        order = order[~np.isnan(values[order])]
        rank = min(max(int(np.ceil(share * order.size)) - 1, 0), order.size - 1)
        request = int(found.accounts.ids[order[rank]])
        explained = simulation.explain(advice=False, metric=metric, request=request)
        drawn = explained.drawings["neighbours"]
    graph = dcc.Graph(figure=drawn, config=blocks.QUIET, style={"height": f"{drawn['layout']['height']}px"})
    tables = blocks.shown(one for one in explained.text() if isinstance(one, Table))
    return [html.P(" ".join(explained.sentences), className="story"), html.Div(graph, className="plot"), tables]


def _register_pins(app: Dash) -> None:
    @callback(
        app, output=PAGE.output("pins", "value"), inputs={"pin": PAGE.input("pin", "n_clicks")},
        state={"raw": {one.name: PAGE.state(one.name) for one in CONTROLS}, "kept": PAGE.state("pins")},
        prevent_initial_call=True,
    )  # fmt: skip
    def change(pin: int, raw: dict[str, Any], kept: str) -> Any:
        return answers.with_pin(CONTROLS, kept, raw) if pin else no_update


def _register_upload(app: Dash) -> None:
    @callback(
        app,
        output={
            "values": PAGE.values(),
            "workloads": PAGE.output("workload-select", "children"),
            "message": PAGE.output("upload-error", "children"),
        },
        inputs={"content": PAGE.input("upload", "contents")},
        state={"name": PAGE.state("upload", "filename"), "columns": PAGE.state("columns")},
        prevent_initial_call=True,
    )
    def load(content: str | None, name: str, columns: str | None) -> dict[str, Any]:
        values: dict[str, Any] = dict.fromkeys(PAGE.values(), no_update)
        if content is None:
            return {"values": values, "workloads": no_update, "message": no_update}
        try:
            values |= answers.loaded(name, content, columns or "")
        except GnomonError as error:
            return {"values": values, "workloads": no_update, "message": str(error)}
        texts = {one.name: one for one in PAGE.controls}
        given = {key: value for key, value in values.items() if value is not no_update}
        values |= {key: texts[key].from_query(texts[key].to_query(value)) for key, value in given.items()}
        return {"values": values, "workloads": select_options(_workloads()), "message": ""}


PAGE = Page("serve", "Serve", body, register, (*CONTROLS, Hidden("pins")))


def link(scenario: Scenario) -> str:
    """The address that opens `scenario` in this page."""
    return PAGE.link(**to_values(scenario))
