"""Fleet: a day of load over replicas that a controller starts and drains and that fail, live."""

from functools import partial
from typing import Any

from dash import Dash
from dash.development.base_component import Component

from gnomon.api.serving import Simulation, controller_names, simulate
from gnomon.report.blocks import lines
from gnomon.report.page import boxed
from gnomon.report.serving.fleet import day_cards, day_tables
from gnomon.ui.blocks import commands, graph, plots, section, shown
from gnomon.ui.pages.forms import form, keys_of
from gnomon.ui.pages.pieces import draw_live, view_of
from gnomon.ui.scenarios import as_command, as_yaml
from gnomon.ui.site_page import Page

DAY_S = 86_400
FIGURES = {
    "load": "Requests per second over the day",
    "replicas": "Replicas over the day",
    "slo_over_time": "SLO met over the day",
    "cost_over_time": "Dollars per hour over the day",
    "power": "Power over the day",
}

CONTROLS = form("fleet", controller={"options": partial(controller_names, of_one_pool=True)})
KEYS = keys_of(CONTROLS)


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
    given = {key: values[name] for name, key in KEYS.items() if values[name] not in (None, "")}
    given |= {"num_replicas": max(values["least"], 1), "workload.num_requests": max(1, round(values["rate"] * DAY_S))}
    failures = {"fleet.failures.mtbf_s": values["mtbf"] * 3600} if values["mtbf"] else {}
    return given | failures | {"workload.arrivals.process": "diurnal"}


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
