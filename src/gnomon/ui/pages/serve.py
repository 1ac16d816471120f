"""Serve: a deployment under a load, answered while a slider moves."""

import secrets
from typing import Any

import numpy as np
from dash import Dash, ctx, dcc, html, no_update
from dash.development.base_component import Component

from gnomon import catalog
from gnomon.api.serving import DEFAULT_RATE, NO_ENGINE, Scenario, policy_names, router_names
from gnomon.convert.commands import ENGINES
from gnomon.core.errors import GnomonError
from gnomon.report.blocks import Table
from gnomon.report.serving.figures import LATENCIES
from gnomon.report.serving.page import TERMS
from gnomon.ui import blocks, uploads
from gnomon.ui.controls import Choice, Control, Hidden, Number, Slider, Text, select_options
from gnomon.ui.pages import serve_answers as answers
from gnomon.ui.pages.serve_answers import register_live
from gnomon.ui.scenarios import KV_CONTROLS, OF_ENGINE, OTHER, to_scenario, to_values
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
DEPLOYMENT, LOAD, LIMITS = "Deployment", "Load", "SLO"
CONTROLS: tuple[Control, ...] = (
    Choice("model", "Model", "llama-3-8b", field="model", options=catalog.model_names, wide=True, is_open=True,
           group=DEPLOYMENT),
    Choice("device", "GPU", "h200", field=("device", "node"), options=catalog.device_names, is_open=True,
           group=DEPLOYMENT),
    Number("replicas", "Replicas", 1, field=("num_replicas", "pools"), least=1, most=512, whole=True,
           group=DEPLOYMENT),
    Number("tp", "Tensor parallel", 1, field=("replica.tensor_parallel", "tensor_parallel", "DoesNotFitError"),
           least=1, most=64, whole=True, group=DEPLOYMENT),
    Number("pp", "Pipeline parallel", 1, field=("replica.pipeline_parallel", "pipeline_parallel"), least=1, most=64,
           whole=True, group=DEPLOYMENT),
    Choice("engine", "Engine", "vllm", field="engine", group=DEPLOYMENT,
           options={**{name: one.name for name, one in ENGINES.items()}, NO_ENGINE: "none: kernels only"},
           tip="Its scheduler, limits, memory, kernels and host time, where nothing else is set"),
    Choice("policy", "Batching", OF_ENGINE, field=("batching.policy", "batching policy"), options=_policies,
           group=DEPLOYMENT, tip="Without an engine: vllm_v1"),
    Choice("router", "Router", "round_robin", field=("router.name", "router"), options=router_names, wide=True,
           group=DEPLOYMENT),
    Slider("rate", "Requests per second", DEFAULT_RATE, field=("workload.rate", "workload.arrivals", "workload"),
           least=0.1, most=2000, log=True, optional=True, group=LOAD),
    Choice("workload", "Workload", "chat-1m", field=("workload.preset", "workload.trace.file", "preset"),
           options=_workloads, group=LOAD),
    Number("requests", "Requests", 10000, field="workload.num_requests", least=10, most=MAX_REQUESTS, whole=True,
           optional=True, group=LOAD),
    Number("ttft", "TTFT P99 at most", 500, field="slo.ttft_s", least=0.001, optional=True, unit="ms", group=LIMITS,
           tip=TERMS["time to first token"]),
    Number("tpot", "TPOT P99 at most", 50, field="slo.tpot_s", least=0.001, optional=True, unit="ms", group=LIMITS,
           tip=TERMS["time per output token"]),
    Number("e2e", "E2E P99 at most", "", field="slo.e2e_s", least=0.001, optional=True, unit="s", group=LIMITS,
           tip=TERMS["end to end"]),
    Choice("curve", "Load curve of", "ttft", options={"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}, group=LIMITS),
    *KV_CONTROLS,
    Text("scenario", "Further settings", "", wide=True, group="More",
         help="Any field of a scenario, such as replica.data_parallel: 2"),
    Text("columns", "Trace columns", "", wide=True, group="More",
         help="For a trace with other names: prompt=NAME, output=NAME, arrival=NAME, time_unit=ms"),
)  # fmt: skip


def _top() -> Component:
    upload = dcc.Upload(
        html.Button("Load a scenario or trace …", className="button", type="button"),
        id=PAGE.id("upload"),
        className="upload-box",
        accept=".yaml,.yml,.json,.csv,.jsonl",
    )
    limited = {"data-limit": uploads.MAX_BYTES, "data-message": PAGE.id("upload", "error")}
    buttons = html.Div(
        [html.Div(upload, **limited), blocks.button(PAGE.id("pin"), "Pin to compare")], className="buttons"
    )
    message = html.Div(id=PAGE.id("upload", "error"), className="message", role="alert")
    return html.Div([PAGE.slot("headline", "headline"), html.Div([buttons, message])], className="page-top")


def body(state: dict[str, Any]) -> list[Component]:
    waiting = blocks.blank(words="Simulating …")
    latency = [blocks.graph(PAGE.id("plot", name), label=title, figure=waiting) for name, title in LATENCIES.items()]
    curve = blocks.graph(PAGE.id("plot", "curve"), label="Latency against load")
    over_time = [
        blocks.graph(PAGE.id("plot", "queue"), label="Requests in the system", figure=waiting),
        blocks.graph(PAGE.id("plot", "kv"), label="KV cache in use", figure=waiting),
    ]
    return [
        _top(),
        PAGE.slot("figures", "serve-figures"),
        blocks.section("Latency", blocks.plots(*latency, curve)),
        blocks.section("Why", html.Div(html.P(HINT, className="more"), id=PAGE.id("story"), **{"aria-live": "polite"})),
        PAGE.slot("comparison"),
        blocks.section("Over time", blocks.plots(*over_time, together=True)),
        PAGE.copies(),
        PAGE.slot("notes"),
        dcc.Store(id=PAGE.id("view"), data=secrets.token_hex(6)),
        dcc.Store(id=PAGE.id("asked")),
    ]


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
        told = simulation.explain(advice=False, metric=metric, request=request)
        drawn = told.drawings["neighbours"]
    graph = dcc.Graph(figure=drawn, config=blocks.QUIET, style={"height": f"{drawn['layout']['height']}px"})
    tables = blocks.shown(one for one in told.text() if isinstance(one, Table))
    return [html.P(" ".join(told.sentences), className="story"), html.Div(graph, className="plot"), tables]


def _register_pins(app: Dash) -> None:
    @callback(
        app,
        output=PAGE.output("pins", "value"),
        inputs={"pin": PAGE.input("pin", "n_clicks")},
        state={"raw": {one.name: PAGE.state(one.name) for one in CONTROLS}, "kept": PAGE.state("pins")},
        prevent_initial_call=True,
    )
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
        values = {
            key: value if value is no_update else texts[key].from_query(texts[key].to_query(value))
            for key, value in values.items()
        }
        return {"values": values, "workloads": select_options(_workloads()), "message": ""}


PAGE = Page("serve", "Serve", body, register, (*CONTROLS, Hidden("pins")))


def link(scenario: Scenario) -> str:
    """The address that opens `scenario` in this page."""
    return PAGE.link(**to_values(scenario))
