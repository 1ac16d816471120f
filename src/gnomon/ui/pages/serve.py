"""Serve: a deployment under a load, answered live."""

from __future__ import annotations

from typing import Any

from dash import Dash, Output
from dash.development.base_component import Component

from gnomon import catalog
from gnomon.api import DEFAULT_RATE, simulate
from gnomon.core.errors import GnomonError
from gnomon.report.serving_figures import figures
from gnomon.serving.policies import policy_names
from gnomon.serving.routers import router_names
from gnomon.serving.scenario import Scenario
from gnomon.ui import blocks, uploads
from gnomon.ui.callbacks import callback
from gnomon.ui.controls import Choice, Number, Slider, Text
from gnomon.ui.page import Page
from gnomon.ui.scenarios import MAX_REQUESTS, OTHER, to_scenario, to_values
from gnomon.ui.turns import turn
from gnomon.workload.presets import preset_names


def _workloads() -> dict[str, str]:
    presets = {name: name for name in preset_names()}
    return presets | uploads.traces() | {OTHER: "as the further settings say"}


CONTROLS = (
    Choice("model", "Model", "llama-3-8b", field="model", options=catalog.model_names, wide=True),
    Choice("device", "GPU", "h200", field=("device", "node"), options=catalog.device_names),
    Number("replicas", "Replicas", 1, field="num_replicas", least=1, most=512, whole=True),
    Number("tp", "Tensor parallel", 1, field=("replica.tensor_parallel", "DoesNotFitError"), least=1, most=64,
           whole=True),
    Number("pp", "Pipeline parallel", 1, field="replica.pipeline_parallel", least=1, most=64, whole=True),
    Choice("policy", "Batching", "vllm_v1", field=("batching.policy", "batching policy"), options=policy_names),
    Choice("router", "Router", "round_robin", field=("router.name", "router"), options=router_names),
    Choice("workload", "Workload", "chat-1m", field=("workload.preset", "workload.trace.file"), options=_workloads),
    Number("requests", "Requests", 10000, field="workload.num_requests", least=10, most=MAX_REQUESTS, whole=True,
           optional=True),
    Slider("rate", "Requests per second", DEFAULT_RATE, field=("workload.rate", "workload.arrivals"), least=0.1,
           most=2000, log=True, optional=True),
    Number("ttft", "TTFT at most", 500, field="slo.ttft_s", least=0.001, optional=True, unit="ms"),
    Number("tpot", "TPOT at most", 50, field="slo.tpot_s", least=0.001, optional=True, unit="ms"),
    Number("e2e", "E2E at most", "", field="slo.e2e_s", least=0.001, optional=True, unit="s"),
    Text("scenario", "Further settings", "", wide=True, help="Any field of a scenario, e.g. replica.data_parallel: 2"),
)  # fmt: skip


def body(state: dict[str, Any]) -> list[Component]:
    """Plots."""
    names = ("ttft", "tpot", "e2e", "queue", "kv")
    return [blocks.section("Latency", blocks.plots(*(blocks.graph(PAGE.id("plot", name)) for name in names)))]


def register(app: Dash) -> None:
    """Answer every change."""

    @callback(
        app,
        output={
            "plots": {name: Output(PAGE.id("plot", name), "figure") for name in ("ttft", "tpot", "e2e", "queue", "kv")},
            "messages": PAGE.messages(),
        },
        inputs={"raw": PAGE.inputs()},
    )
    def draw(raw: dict[str, Any]) -> dict[str, Any]:
        from dash import no_update

        try:
            with turn("x"):
                result = simulate(to_scenario(PAGE.read(raw)))
                drawn = figures(result.run, result.summary)
        except GnomonError as error:
            return {
                "plots": dict.fromkeys(("ttft", "tpot", "e2e", "queue", "kv"), no_update),
                "messages": PAGE.explain(error),
            }
        return {
            "plots": {name: drawn[name] for name in ("ttft", "tpot", "e2e", "queue", "kv")},
            "messages": PAGE.explain(None),
        }


PAGE = Page(name="serve", title="Serve", controls=CONTROLS, body=body, register=register)


def link(scenario: Scenario) -> str:
    """The address that opens `scenario` in this page."""
    return PAGE.link(**to_values(scenario))
