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
from gnomon.ui.serving import KEPT, find_intervals, judged, known_intervals, requests_of, simulated
from gnomon.ui.site_page import Page
from gnomon.ui.turns import Question

Raw = Mapping[str, Any]
Line = dict[str, Any]
"""A part of an answer (`serve_live`)."""
OVER_TIME = ("queue", "kv")


PREVIEW_REQUESTS = 1000
_scenarios: OrderedDict[str, Scenario] = OrderedDict()


def scenario_of(page: Page, raw: Raw) -> Scenario:
    """What the controls describe; the answers to one change ask for it one after the other."""
    key = json.dumps(raw, sort_keys=True)
    found = None if uploads.is_trace(str(raw["workload"])) else _scenarios.get(key)
    if found is None:
        _scenarios[key] = found = to_scenario(page.read(raw))
        while len(_scenarios) > KEPT:  # Maybe in several threads: it need not be there any more.
            _scenarios.popitem(last=False)
    return found


def preview(raw: Raw, scenario: Scenario, *, is_drawn: bool) -> Line:
    """Key figures and, where `is_drawn`, the distributions of the first requests only: what a drag shows on its way."""
    is_short = len(requests_of(scenario.workload, scenario.seed)) <= PREVIEW_REQUESTS
    workload = scenario.workload.model_copy(update={"num_requests": PREVIEW_REQUESTS})
    result = simulated(scenario if is_short else scenario.model_copy(update={"workload": workload}))
    drawn = result.drawings if is_drawn and not raw["pins"] else {}
    return {
        "plots": {name: drawn[name] for name in LATENCIES if name in drawn},
        "texts": figure_texts(result, of=0 if is_short else PREVIEW_REQUESTS),
    }


def latency_plots(page: Page, raw: Raw, scenario: Scenario) -> Line:
    """The distributions of the latencies, of this result and of the pinned ones."""
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


def plots_over_time(scenario: Scenario) -> Line:
    """Requests in the system and KV cache."""
    drawings = simulated(scenario).drawings
    return {name: drawings[name] for name in OVER_TIME}


def surroundings(page: Page, raw: Raw, scenario: Scenario) -> Line:
    """What surrounds the plots: key figures, copies, notes, and the comparison."""
    result, pinned = simulated(scenario), _pinned(page, raw)
    return {
        "texts": known_texts(scenario) or texts(result, None),
        "comparison": _comparison(page, raw, result, pinned) if pinned else [],
    }


def known_texts(scenario: Scenario) -> dict[str, str]:
    """What surrounds the plots, with intervals and what the timing sources say, where that was found before."""
    intervals = known_intervals(scenario)
    return {} if intervals is None else texts(judged(scenario), intervals)


def judged_texts(scenario: Scenario, question: Question) -> Line:
    """The key figures once more, with intervals and what the timing sources say: both take longer than all plots."""
    if known_intervals(scenario) is not None:
        return {}
    find_intervals(scenario, question)
    with question.turn():
        return {"texts": known_texts(scenario)}


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


def curve(name: str, scenario: Scenario, question: Question) -> Line:
    """Latency against load, with the limit, the capacity and the present load; the first one of a deployment takes
    about a second."""
    try:
        return {"plots": {"curve": _curve(name, scenario, question)}}
    except GnomonError:
        return {"plots": {"curve": blocks.blank(300, "There is no curve for these requests.")}}


def _curve(name: str, scenario: Scenario, question: Question) -> dict[str, Any]:
    if not load_curve.is_rated(scenario):
        return blocks.blank(300, "These arrivals have no rate to change.")
    found = load_curve.load_curve(scenario, question)
    return load_figure(
        name,
        found.loads,
        found.seconds[name],
        target=getattr(scenario.slo, f"{name}_s"),
        capacity=load_curve.capacity(scenario, question),
        load=scenario.workload.rate,
        num_requests=found.num_requests,
    )


def loaded(name: str, content: str, columns: str = "") -> dict[str, Any]:
    """The controls that a file sets: all of them for a scenario, the load for a trace."""
    data = uploads.content(content)
    if name.endswith((".yaml", ".yml", ".json")):
        return to_values(read_scenario(name, data))
    key = uploads.keep_trace(name, data, columns)
    as_recorded = {"rate": ""} if uploads.trace(key).has_arrivals else {}
    return {"workload": key, "requests": "", **as_recorded}
