"""What the Serve page shows for a state of its controls."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from gnomon.api.comparison import Comparison
from gnomon.api.serving import Scenario, Simulation
from gnomon.core.errors import GnomonError
from gnomon.report.serving.figures import LATENCIES
from gnomon.report.serving.load import load_figure
from gnomon.ui import blocks, load_curve, uploads
from gnomon.ui.foreign import read_scenario
from gnomon.ui.pages import serve_pins as pins
from gnomon.ui.pages.serve_texts import figure_texts, texts
from gnomon.ui.scenarios import to_scenario, to_values
from gnomon.ui.serving import KEPT, find_intervals, known_intervals, simulated
from gnomon.ui.site_page import Page
from gnomon.ui.turns import Question, Stale

Raw = Mapping[str, Any]
OVER_TIME = ("queue", "kv")


PREVIEW_REQUESTS = 1000
_scenarios: OrderedDict[str, Scenario] = OrderedDict()


def scenario_of(page: Page, raw: Raw) -> Scenario:
    """What the controls describe; the answers to one change ask for it one after the other."""
    key = json.dumps(raw, sort_keys=True)
    if key not in _scenarios or uploads.is_trace(str(raw["workload"])):
        _scenarios[key] = to_scenario(page.read(raw))
        while len(_scenarios) > KEPT:
            _scenarios.popitem(last=False)
    return _scenarios[key]


def preview(page: Page, raw: Raw, view: str, *, is_drawn: bool) -> dict[str, Any]:
    """Key figures and, where `is_drawn`, the distributions of the first requests only: what a drag shows on its way;
    raises `Stale` where a newer question has come. All within one turn, so that the whole answer waits."""
    scenario = scenario_of(page, raw)
    count = scenario.workload.num_requests
    is_short = count is not None and count <= PREVIEW_REQUESTS
    with Question(f"{view} preview").turn():
        workload = scenario.workload.model_copy(update={"num_requests": PREVIEW_REQUESTS})
        first = scenario.model_copy(update={"workload": workload})
        result = simulated(scenario) if is_short else simulated(first, is_judged=False)
        drawn = result.drawings if is_drawn and not raw["pins"] else {}
        return {
            "plots": {name: drawn[name] for name in LATENCIES if name in drawn},
            "texts": figure_texts(result, of=0 if is_short else PREVIEW_REQUESTS),
        }


def draw_latencies(page: Page, raw: Raw, view: str) -> dict[str, Any]:
    """The distributions of the latencies; raises `Stale` where a newer question has come."""
    scenario = scenario_of(page, raw)
    with Question(f"{view} latencies").turn():  # To the end: what else is asked waits until this is answered.
        result = simulated(scenario)
        pinned = _pinned(page, raw)
        runs = {_name_of_now(page, raw) if pinned else "": result}
        runs |= {name: one for name, one in pinned.items() if isinstance(one, Simulation)}
        drawings = Comparison(runs).drawings
        colours = [one for one, name in zip(pins.colours(raw["pins"]), ("", *pinned), strict=True)
                   if not name or isinstance(pinned[name], Simulation)]  # fmt: skip
        return {latency: _coloured(drawings[latency], colours) for latency in LATENCIES}


def _coloured(figure: Mapping[str, Any], colours: Sequence[str]) -> dict[str, Any]:
    """Curves in colours that they keep; a single one stays as it is."""
    if len(colours) == 1:
        return dict(figure)
    data = [
        trace | {"line": trace["line"] | {"color": colour}}
        for trace, colour in zip(figure["data"], colours, strict=True)
    ]
    return {**figure, "data": data}


def draw_rest(page: Page, raw: Raw, view: str) -> dict[str, Any]:
    """The plots over time, and what surrounds the plots; raises `Stale` where a newer question has come."""
    scenario = scenario_of(page, raw)
    with Question(f"{view} rest").turn():
        result = simulated(scenario)
        pinned = _pinned(page, raw)
    return {
        "plots": {name: result.drawings[name] for name in OVER_TIME},
        "comparison": _comparison(page, raw, result, pinned) if pinned else [],
        "texts": texts(result, known_intervals(scenario)),
    }


def add_intervals(page: Page, raw: Raw, view: str) -> dict[str, str]:
    """The key figures once more, with their intervals: they take several runs, and come after everything else; raises
    `Stale` where a newer question has come, or where they are shown already."""
    scenario = scenario_of(page, raw)
    if known_intervals(scenario) is not None:
        raise Stale
    question = Question(f"{view} intervals")
    found = find_intervals(scenario, question)
    with question.turn():
        return figure_texts(simulated(scenario), found)


def _name_of_now(page: Page, raw: Raw) -> str:
    return next(iter(_states(page, raw)))


def _states(page: Page, raw: Raw) -> dict[str, Raw]:
    """The present state and the pinned ones by name; what is not shown tells none apart."""
    return dict(pins.states([one for one in page.controls if not one.is_hidden], raw["pins"], raw))


def _pinned(page: Page, raw: Raw) -> dict[str, Simulation | GnomonError]:
    """The pinned results by name, or why there is none."""
    _, *others = _states(page, raw).items()
    found: dict[str, Simulation | GnomonError] = {}
    for name, state in others:
        try:
            found[name] = simulated(to_scenario(page.read(state)))
        except GnomonError as error:
            found[name] = error
    return found


def _comparison(page: Page, raw: Raw, now: Simulation, pinned: Mapping[str, Simulation | GnomonError]) -> Component:
    """A table of the present result and the pinned ones."""
    first, *others = pins.colours(raw["pins"])
    named = _entry(_name_of_now(page, raw), first)
    rows: list[dict[str, Any]] = [{"result": named, **pins.comparison_row(now.summary), "": None}]
    for (name, one), colour, index in zip(pinned.items(), others, pins.pinned(raw["pins"]), strict=True):
        figures_ = pins.comparison_row(one.summary) if isinstance(one, Simulation) else pins.failed_row(one)
        unpin = html.Button(
            "×", id={"type": page.id("unpin"), "index": index}, className="button unpin", n_clicks=0, type="button",
            **{"aria-label": f"Unpin {name}"},
        )  # fmt: skip
        rows.append(
            {"result": _entry(name, colour), **dict.fromkeys(rows[0].keys() - {"result", ""}), **figures_, "": unpin}
        )
    ordered = [{key: row[key] for key in rows[0]} for row in rows]
    ordered[0][""] = ""
    return blocks.section("Compared", blocks.table(ordered, left=("result",), id=page.id("compared")))


def _entry(name: str, colour: str) -> Component:
    """A result's name with its colour in the plots."""
    return html.Span([html.I(className="swatch", style={"background": colour}), name])


def draw_curve(page: Page, raw: Raw, view: str) -> dict[str, Any]:
    """Latency against load, with the limit, the capacity and the present load."""
    values = page.read(raw)
    scenario = to_scenario(values)
    question = Question(f"{view} curve")
    if not load_curve.is_rated(scenario):
        return blocks.blank(300, "These arrivals have no rate to change.")
    curve = load_curve.load_curve(scenario, question)
    name = values["curve"]
    return load_figure(
        name,
        curve.loads,
        curve.seconds[name],
        target=getattr(scenario.slo, f"{name}_s"),
        capacity=load_curve.capacity(scenario, question),
        load=scenario.workload.rate,
        num_requests=curve.num_requests,
    )


def loaded(name: str, content: str, columns: str = "") -> dict[str, Any]:
    """The controls that a file sets: all of them for a scenario, the load for a trace."""
    data = uploads.content(content)
    if name.endswith((".yaml", ".yml", ".json")):
        return to_values(read_scenario(name, data))
    key = uploads.keep_trace(name, data, columns)
    as_recorded = {"rate": ""} if uploads.trace(key).has_arrivals else {}
    return {"workload": key, "requests": "", **as_recorded}
