"""What the Serve page shows for a state of its controls."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

from dash import Dash
from flask import Response, abort, request
from plotly.io.json import to_json_plotly

from gnomon.api.comparison import Comparison
from gnomon.api.serving import Scenario, Simulation
from gnomon.core.errors import GnomonError
from gnomon.report.blocks import Block, Card, Command, Html, Section, Table, lines
from gnomon.report.page import html_of
from gnomon.report.serving import text as words
from gnomon.report.serving.compare import variant_row
from gnomon.report.serving.figures import COLOURS, LATENCIES, load_figure
from gnomon.report.serving.page import key_figures
from gnomon.ui import blocks, serving, uploads
from gnomon.ui.controls import Control, defaults_of, query_of, state_of
from gnomon.ui.scenarios import as_command, as_server, as_yaml, to_scenario, to_values
from gnomon.ui.site_page import OWN, Page
from gnomon.ui.turns import Kept, Question, Stale
from gnomon.ui.uploads import read_scenario

if TYPE_CHECKING:
    from gnomon.api.serving import Intervals, Summary

MAX_PINS = 4
_BETWEEN = ";"  # Never part of a query, which spells it %3B.
NOW = "now"


def pinned_queries(pins: str | None) -> dict[int, str]:
    """The queries of the pinned results by their places; a place gives a colour, and stays when another is emptied."""
    return {place: query for place, query in enumerate((pins or "").split(_BETWEEN)[:MAX_PINS]) if query}


def with_pin(controls: Sequence[Control], pins: str, raw: Mapping[str, Any]) -> str:
    """The pins and the present state in the first free place, unless it is pinned already or there is no room."""
    query, found = query_of(controls, raw) or "?", pinned_queries(pins)
    free = next((place for place in range(MAX_PINS) if place not in found), None)
    return _joined(found if query in found.values() or free is None else found | {free: query})


def without_pin(pins: str, place: int) -> str:
    return _joined({other: query for other, query in pinned_queries(pins).items() if other != place})


def _joined(found: Mapping[int, str]) -> str:
    return _BETWEEN.join(found.get(place, "") for place in range(max(found, default=-1) + 1))


def pin_colours(pins: str) -> list[str]:
    """Of the present result, always the same, and of the pinned ones by their places."""
    return [COLOURS[0], *(COLOURS[1 + place] for place in pinned_queries(pins))]


def pinned_states(controls: Sequence[Control], pins: str, raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The present state and the pinned ones, each under a name that says what tells it apart."""
    shown = [raw, *(state_of(controls, query) for query in pinned_queries(pins).values())]
    texts = [{one.name: one.to_query(state[one.name]) for one in controls} for state in shown]
    usual = defaults_of(controls)
    varying = [name for name in usual if len({text[name] for text in texts}) > 1]
    named: dict[str, Mapping[str, Any]] = {}
    for number, (state, text) in enumerate(zip(shown, texts, strict=True)):
        words = ", ".join(f"{name} {text[name] or '–'}" for name in varying)
        label = (f"{NOW}: {words}" if words else NOW) if number == 0 else words or f"pin {number}"
        named[label if label not in named else f"{label} ({number})"] = state
    return named


def comparison_row(summary: Summary) -> dict[str, Any]:
    """The figures by which deployments are compared: those of `gnomon compare`, and what an hour costs."""
    row = variant_row("", summary) | {"$/h": f"{summary.cost.per_hour:,.2f}"}
    del row["variant"]
    return row


Raw = Mapping[str, Any]
Line = dict[str, Any]
"""A part of an answer: `plots` by name, `texts` (HTML) by place, `messages` by slot (none: no mistake), `blank` for
plots without answer."""
OVER_TIME = ("queue", "kv")
COPIES = {"Scenario file": as_yaml, "Command line": as_command, "Server": as_server}

PREVIEW_REQUESTS = 1000
_scenarios: Kept[Scenario] = Kept(serving.KEPT)


def scenario_of(page: Page, raw: Raw) -> Scenario:
    """What the controls describe; the answers to one change ask for it one after the other."""
    if uploads.is_trace(str(raw["workload"])):
        return to_scenario(page.read(raw))
    return _scenarios.found(json.dumps(raw, sort_keys=True), lambda: to_scenario(page.read(raw)))


def preview(raw: Raw, scenario: Scenario, *, is_drawn: bool) -> Line:
    """Key figures and, where `is_drawn`, the distributions of the first requests only: what a drag shows on its way."""
    is_short = len(serving.requests_of(scenario.workload, scenario.seed)) <= PREVIEW_REQUESTS
    workload = scenario.workload.model_copy(update={"num_requests": PREVIEW_REQUESTS})
    result = serving.simulated(scenario if is_short else scenario.model_copy(update={"workload": workload}))
    drawn = result.drawings if is_drawn and not raw["pins"] else {}
    plots = {name: drawn[name] for name in LATENCIES if name in drawn}
    return {"plots": plots, "texts": figure_texts(result, of=0 if is_short else PREVIEW_REQUESTS)}


def latency_plots(page: Page, raw: Raw, scenario: Scenario) -> Line:
    """The distributions of the latencies, of this result and of the pinned ones."""
    result = serving.simulated(scenario)
    now, pinned = _pinned(page, raw)
    runs = {now if pinned else "": result}
    runs |= {name: one for name, one in pinned.items() if isinstance(one, Simulation)}
    drawings = Comparison(runs).drawings
    colours = [one for one, name in zip(pin_colours(raw["pins"]), ("", *pinned), strict=True)
               if not name or isinstance(pinned[name], Simulation)]  # fmt: skip
    return {latency: _coloured(drawings[latency], colours) for latency in LATENCIES}


def _coloured(figure: Mapping[str, Any], colours: Sequence[str]) -> dict[str, Any]:
    """Curves in colours that they keep; a single one stays as it is."""
    if len(colours) == 1:
        return dict(figure)
    pairs = zip(figure["data"], colours, strict=True)
    return {**figure, "data": [trace | {"line": trace["line"] | {"color": colour}} for trace, colour in pairs]}


def known_texts(scenario: Scenario) -> dict[str, str]:
    """What surrounds the plots, with intervals and what the timing sources say, where that was found before."""
    intervals = serving.known_intervals(scenario)
    return {} if intervals is None else texts(serving.judged(scenario), intervals)


def judged_texts(scenario: Scenario, question: Question) -> Line:
    """The key figures once more, with intervals and what the timing sources say: both take longer than all plots."""
    if serving.known_intervals(scenario) is not None:
        return {}
    serving.find_intervals(scenario, question)
    with question.turn():
        return {"texts": known_texts(scenario)}


def _pinned(page: Page, raw: Raw) -> tuple[str, dict[str, Simulation | GnomonError]]:
    """The name of the present state beside the pinned ones, and their results by name, or why there is none."""
    controls = [one for one in page.controls if not one.is_hidden]  # What is not shown tells none apart.
    (now, _), *others = pinned_states(controls, raw["pins"], raw).items()
    found: dict[str, Simulation | GnomonError] = {}
    for name, state in others:
        try:
            found[name] = serving.simulated(to_scenario(page.read(state)))
        except GnomonError as error:
            found[name] = error
    return now, found


def _comparison(page: Page, raw: Raw, now: Simulation) -> str:
    name_of_now, pinned = _pinned(page, raw)
    if not pinned:
        return ""
    first, *others = pin_colours(raw["pins"])
    figures = comparison_row(now.summary)
    rows: list[dict[str, Any]] = [{"result": _entry(name_of_now, first), **figures}]
    for (name, one), colour, index in zip(pinned.items(), others, pinned_queries(raw["pins"]), strict=True):
        found = comparison_row(one.summary) if isinstance(one, Simulation) else {"TTFT mean": str(one)}
        entry = _entry(name, colour, page.link(**{**raw, "pins": without_pin(raw["pins"], index)}))
        rows.append({"result": entry, **{key: found.get(key) for key in figures}})
    return html_of([Section("Compared", [Table(rows, left=("result",))])])


def _entry(name: str, colour: str, unpin: str = "") -> Html:
    """A result's name with its colour in the plots, and where one is without it."""
    cross = f" <a href='{escape(unpin)}' class=unpin aria-label='{escape(f'Unpin {name}')}'>×</a>" if unpin else ""
    return Html(f"<i class=swatch style='background:{colour}'></i>{escape(name)}{cross}")


def curve(name: str, scenario: Scenario, question: Question) -> Line:
    """Latency against load, with the limit, the capacity and the present load; the first one of a deployment takes
    about a second."""
    try:
        return {"plots": {"curve": _curve(name, scenario, question)}}
    except GnomonError:
        return {"plots": {"curve": blocks.blank(300, "There is no curve for these requests.")}}


def _curve(name: str, scenario: Scenario, question: Question) -> dict[str, Any]:
    if serving.requests_of(scenario.workload, scenario.seed).shape is None:
        return blocks.blank(300, "These arrivals have no rate to change.")
    found = serving.load_curve(scenario, question)
    most = serving.capacity(scenario, question)
    return load_figure(name, found, scenario.slo, capacity=most, load=scenario.workload.rate)


def loaded(name: str, content: str, columns: str = "") -> dict[str, Any]:
    """The controls that a file sets: all of them for a scenario, the load for a trace."""
    data = uploads.content(content)
    if name.endswith((".yaml", ".yml", ".json")):
        return to_values(read_scenario(name, data))
    key = uploads.keep_trace(name, data, columns)
    as_recorded = {"rate": ""} if uploads.trace(key).has_arrivals else {}
    return {"workload": key, "requests": "", **as_recorded}


# What surrounds the plots, as HTML: sixty components take the browser longer than a plot, at every move of a slider.
def texts(result: Simulation, intervals: Intervals | None) -> dict[str, str]:
    """The HTML of every place on the page, by the place's name."""
    lede = f"{words.workload_words(result.scenario)}; {words.policy_words(result.scenario)}."
    rows = dict(words.figure_rows(result.summary))
    kv = [f"{name}: {rows[name]}." for name in ("KV moved", "KV tiers") if name in rows]
    return {
        **figure_texts(result, intervals),
        "headline": f"<h1>{escape(words.title(result.scenario))}</h1><p>{escape(lede)}</p>",
        "copies": html_of(Command(name, write(result.scenario)) for name, write in COPIES.items()),
        "notes": html_of(lines([*kv, *result.summary.notes], "note")),
    }


def figure_texts(result: Simulation, intervals: Intervals | None = None, of: int = 0) -> dict[str, str]:
    """The key figures, with intervals where they are known; those of a preview `of` so many requests say so."""
    text = lines([f"Preview: the first {of:,} requests."], "note") if of else _warnings(result)
    style = "passing" if of else ""
    return {"figures": f"<div class=strip>{html_of(text)}</div><div class='{style}'>{_cards(result, intervals)}</div>"}


def _warnings(result: Simulation) -> list[Block]:
    """What must be known before the figures are believed; else how it went, so that nothing below moves."""
    if result.summary.warnings:
        return lines(result.summary.warnings, "warning")
    rows = dict(words.figure_rows(result.summary))
    return lines([f"{rows['requests']}; batches: {rows['batches']}. Iteration times: {rows['timing']}."], "note")


def _cards(result: Simulation, intervals: Intervals | None) -> str:
    cost = result.summary.cost
    gpus = "1 GPU" if cost.num_gpus == 1 else f"{cost.num_gpus} GPUs"
    thousand = f"${cost.per_thousand_requests:.3g}" if cost.per_thousand_requests is not None else "–"
    hour = Card(f"{gpus} per hour", f"${cost.per_hour:,.2f}", f"{thousand} per 1,000 requests")
    return html_of([*key_figures(result.summary, intervals=intervals), hour])


ROUTE = "/serve/answers"


def register_live(app: Dash, page: Page) -> None:
    names = json.dumps([one.name for one in page.controls])
    app.clientside_callback(
        f"function(...values) {{ return dash_clientside.gnomon.ask('{ROUTE}', 'serve', {names}, values); }}",
        page.output("asked", "data"),
        [*page.inputs().values(), page.state("view", "data")],
    )

    def answer() -> Response:
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict) or not isinstance(raw := asked.get("raw"), dict):
            abort(400)
        if {one.name for one in page.controls} - raw.keys():
            abort(400)
        lines = _lines(page, raw, str(asked.get("view")), is_dragged=bool(asked.get("isDragged")))
        return Response((f"{to_json_plotly(line)}\n" for line in lines), mimetype="application/x-ndjson")

    app.server.add_url_rule(ROUTE, "serve_answers", answer, methods=["POST"])


def _lines(page: Page, raw: Raw, view: str, *, is_dragged: bool) -> Iterator[Line]:
    """The lines of an answer; a mistake is one of them, and nothing follows it."""
    try:
        yield from answer_lines(page, raw, Question(f"{view} serve"), is_dragged=is_dragged)
    except Stale:
        return
    except GnomonError as error:
        yield {"messages": page.explain(error), "blank": blocks.blank()}
    except Exception:
        logging.getLogger(__name__).exception("the Serve page could not answer")
        text = "This could not be answered. The terminal in which gnomon ui runs says why."
        yield {"messages": page.explain(None) | {OWN: text}, "blank": blocks.blank()}


def answer_lines(page: Page, raw: Raw, question: Question, *, is_dragged: bool) -> Iterator[Line]:
    """A preview; unless this is one of many states of a drag, the plots, what surrounds them, and what takes longer.
    Each in a turn of its own; raises `Stale` where a newer question of the same view has come."""
    scenario = scenario_of(page, raw)
    with question.turn():
        line = preview(raw, scenario, is_drawn=is_dragged)
    yield {**line, "messages": {}}
    if is_dragged:
        return
    with question.turn():
        plots = latency_plots(page, raw, scenario)
    yield {"plots": plots}
    with question.turn():
        result = serving.simulated(scenario)
        compared = {"comparison": _comparison(page, raw, result)}
        line = {"texts": (known_texts(scenario) or texts(result, None)) | compared}
        plots = {name: result.drawings[name] for name in OVER_TIME}
    yield {**line, "plots": plots}
    with suppress(GnomonError):
        yield judged_texts(scenario, question)
    yield curve(page.read(raw)["curve"], scenario, question)
