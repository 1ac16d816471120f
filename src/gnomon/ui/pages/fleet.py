"""Fleet: a day of load over replicas that a controller starts and drains and that fail, live."""

from typing import Any

from dash import Dash
from dash.development.base_component import Component

from gnomon import catalog
from gnomon.api.serving import Simulation, controller_names, simulate
from gnomon.report.blocks import lines
from gnomon.report.page import boxed
from gnomon.report.serving.fleet import day_cards, day_tables
from gnomon.ui.blocks import commands, graph, plots, section, shown
from gnomon.ui.controls import Choice, Control, Number, Slider
from gnomon.ui.pages.pieces import draw_live, view_of
from gnomon.ui.scenarios import as_command, as_yaml
from gnomon.ui.site_page import Page
from gnomon.workload.presets import preset_names

DAY_S = 86_400
FIGURES = {
    "load": "Requests per second over the day",
    "replicas": "Replicas over the day",
    "slo_over_time": "SLO met over the day",
    "cost_over_time": "Dollars per hour over the day",
    "power": "Power over the day",
}

CONTROLS: tuple[Control, ...] = (
    Choice("controller", "Controller", "slo_planner", options=lambda: controller_names(of_one_pool=True), wide=True,
           field="fleet.controller.name"),
    Choice("preset", "Requests", "bwb-4k", options=preset_names, wide=True, field="workload.preset"),
    Slider("rate", "Requests per second", 5, least=0.1, most=10, step=0.1, field="workload.rate",
           help="in the mean of the day"),
    Slider("swing", "Peak over trough", 4, least=1, most=20, step=1, field="workload.arrivals"),
    Number("least", "Min replicas", 1, least=0, most=64, whole=True, field="fleet.min_replicas"),
    Number("most", "Max replicas", 12, least=1, most=64, whole=True, field=("fleet.max_replicas", "max_replicas")),
    Number("interval", "Control interval", 60, least=5, most=3600, field="fleet.controller.interval_s", help="seconds"),
    Number("node", "Node start-up", 60, least=0, most=3600, field="fleet.cold_start", help="seconds"),
    Number("mtbf", "MTBF, hours", "", optional=True, least=0.1, most=1e5, field="fleet.failures",
           help="of one replica; none unless given"),
    Number("ttft", "TTFT at most", 2.0, least=0.01, most=600, field="slo", help="seconds"),
    Choice("model", "Model", "llama-3-70b", options=catalog.model_names, field="model", wide=True, group="Replica"),
    Choice("device", "GPU", "h200", options=catalog.device_names, field="device", group="Replica"),
    Number("tensor_parallel", "Tensor parallel", 2, least=1, most=64, whole=True, field="replica.tensor_parallel",
           group="Replica"),
)  # fmt: skip


def body(state: dict[str, Any]) -> list[Component]:
    return [
        view_of(PAGE),
        PAGE.slot("cards", "card-space"),
        PAGE.slot("notes"),
        section(
            "The day", plots(*(graph(PAGE.id(name), label=label) for name, label in FIGURES.items()), together=True)
        ),
        PAGE.copies(),
        PAGE.slot("rest"),
    ]


def register(app: Dash) -> None:
    figures = PAGE.outputs(**dict.fromkeys(FIGURES, "figure"))
    outputs = {**PAGE.outputs("cards", "notes", "copies", "rest"), "figures": figures}
    draw_live(app, PAGE, outputs, lambda values: _drawn(simulate(scenario_of(values))))


def scenario_of(values: dict[str, Any]) -> dict[str, Any]:
    failures = {"mtbf_s": values["mtbf"] * 3600} if values["mtbf"] else {}
    return {
        "model": values["model"],
        "device": values["device"],
        "num_replicas": max(values["least"], 1),
        "replica": {"tensor_parallel": values["tensor_parallel"]},
        "workload": {
            "preset": values["preset"],
            "rate": values["rate"],
            "num_requests": max(1, round(values["rate"] * DAY_S)),
            "arrivals": {"process": "diurnal", "peak_to_trough": values["swing"]},
        },
        "slo": {"ttft_s": values["ttft"]},
        "fleet": {
            "min_replicas": values["least"],
            "max_replicas": values["most"],
            "controller": {"name": values["controller"], "interval_s": values["interval"]},
            "cold_start": {"node_s": values["node"]},
            "failures": failures,
        },
    }


def _drawn(day: Simulation) -> dict[str, Any]:
    warnings = [text for text in day.summary.warnings if "table of" not in text]
    return {
        "cards": shown(day_cards(day.summary)),
        "notes": shown(lines(warnings, "warning")),
        "figures": {name: day.drawings[name] for name in FIGURES},
        "copies": commands({"Scenario file": as_yaml(day.scenario), "Command line": as_command(day.scenario)}),
        "rest": shown(boxed(day_tables(day.run))),
    }


PAGE = Page("fleet", "Fleet", body, register, CONTROLS)
