"""Routing: every router on the same requests; and the training curves of run directories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from dash import Dash, dcc, html, no_update
from dash.development.base_component import Component

from gnomon.api.comparison import Comparison, compare
from gnomon.api.serving import Scenario, router_names
from gnomon.api.serving import scenario as new_scenario
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.report.blocks import Line, Table, legend, lines
from gnomon.report.blocks import link as link_to
from gnomon.report.routing import files
from gnomon.report.serving.compare import variant_row
from gnomon.ui import jobs
from gnomon.ui.blocks import commands, graph, plots, section, shown
from gnomon.ui.controls import Hidden
from gnomon.ui.jobs import job_panel, register_job
from gnomon.ui.pages.forms import form
from gnomon.ui.pages.pieces import not_tall, tall, tall_graph, tall_outputs
from gnomon.ui.pages.serve import link
from gnomon.ui.run_folders import folders, runs_folder
from gnomon.ui.scenarios import as_yaml, further_settings, to_scenario
from gnomon.ui.serving import requests_of
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback
from gnomon.ui.turns import refused_if_too_large

METRICS = {"e2e_s": "End to end", "ttft_s": "Time to first token", "tpot_s": "Time per output token"}
STATISTICS = {"mean": "mean", "p99": "P99"}
MAX_REQUESTS = 100_000  # Requests that every router serves.


@dataclass(frozen=True)
class View:
    """A comparison by one figure."""

    differences: dict[str, Any]
    distributions: dict[str, Any]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class RoutersCompared:
    """What a job leaves: every view of the comparison, drawn."""

    views: dict[tuple[str, str], View]
    links: dict[str, str]
    warnings: list[str]


def asked(values: Mapping[str, Any]) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario and the routers; a mistake is raised here."""
    scenario = scenario_of(values)
    names = (values["baseline"], *(name for name in values["routers"] if name != values["baseline"]))
    if len(names) < 2:
        raise ConfigError("there is nothing to compare.", where="routers", fix="Choose another router.")
    return scenario, names


def run_comparison(argument: tuple[Scenario, tuple[str, ...]], report: jobs.Report) -> RoutersCompared:
    """The job: every router on the same requests, and all views of that."""
    scenario, names = argument
    served, last = 0, 0

    def tell(done: int, total: int) -> None:
        nonlocal served, last
        served, last = served + (done < last), done
        report(served + done / total, len(names), f"{names[served]}: {done:,} of {total:,} requests served")

    with refused_if_too_large():
        compared = compare(scenario, vary={"router.name": list(names)}, on_progress=tell)
    found = Comparison(dict(zip(names, compared.results.values(), strict=True)))
    views = {}
    for metric, words in METRICS.items():
        for statistic, short in STATISTICS.items():
            order = sorted(names, key=lambda name: _figure(found, name, metric, statistic))
            views[metric, statistic] = View(
                found.change_drawn(f"{words}, {short}", metric, statistic, order),
                found.distributions_drawn(f"{words}, all requests", metric, order),
                [_row(found, name, metric, statistic) for name in order],
            )
    links = {name: link(new_scenario(scenario, **{"router.name": name})) for name in names}
    return RoutersCompared(views, links, found.warnings)


def _figure(found: Comparison, name: str, metric: str, statistic: str) -> float:
    """One figure of one router; infinite where nothing finished."""
    value = getattr(getattr(found.summary[name].latency, metric), statistic)
    return float("inf") if value is None else value


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    scenario = to_scenario(values)
    is_arrival_given = any(key == "workload" or "arrivals" in key for key in further_settings(values["scenario"]))
    if values["cv"] != 1 and not is_arrival_given:
        bursts = {"workload.arrivals.process": "gamma", "workload.arrivals.cv": values["cv"]}
        scenario = new_scenario(scenario, **bursts)
    if len(requests_of(scenario.workload, scenario.seed)) > MAX_REQUESTS:
        raise ConfigError(f"more than {MAX_REQUESTS:,} requests.", where="workload.num_requests", fix="Use fewer.")
    return scenario


def _row(found: Comparison, name: str, metric: str, statistic: str) -> dict[str, Any]:
    """A router's figures, how evenly it loads the replicas, and what it gains on the baseline."""
    summary = found.summary[name]
    busy = [one.utilization.busy for one in summary.replicas]
    row = {"router": name} | variant_row(name, summary)
    for column in ("variant", "busy", "$/M output", "output tokens/s"):
        del row[column]
    row["busiest/mean"] = f"{max(busy) * len(busy) / sum(busy) if sum(busy) else 1.0:.2f}"
    if summary.prefix_hit_rate is not None:
        row["prefix hits"] = f"{summary.prefix_hit_rate:.1%}"
    one = found.against(metric, statistic).get(name)
    sure = "" if one is None or one.is_clear else " (not clear)"
    cell = "–" if one is None or one.relative is None else f"{one.relative:+z.1%}{sure}"
    return row | {f"against {found.baseline}": cell}


def metric_folders() -> dict[str, str]:
    """Run directories with metrics below the runs folder, newest first."""
    root = runs_folder()
    tables = [folder / file for folder in folders(root) for file in files.FILES if (folder / file).is_file()]
    tables.sort(key=lambda one: -one.stat().st_mtime)
    return {name: name for name in (str(one.parent.relative_to(root)) for one in tables)}


def tables_of(names: Sequence[str]) -> dict[str, pl.DataFrame]:
    return {name: files.read_metrics(runs_folder() / name) for name in names}


CURVES = "Training curves"
MAX_CURVES = 40
FOLLOW_MS = 4000
NOT_COMPARED = "Compare simulates every chosen router on the same requests: differences in latency, request by request."
HINT = (
    "Choose run directories in the settings: folders below the runs folder that hold a table metrics.csv, "
    "such as those of gnomon route."
)

CONTROLS = (
    *form(
        "routing", routers={"default": router_names()}, metric={"options": METRICS}, statistic={"options": STATISTICS},
        requests={"most": MAX_REQUESTS}, runs={"options": metric_folders},
    ),
    Hidden("job"),
)  # fmt: skip
FOR_CURVES = tuple(one.name for one in CONTROLS if one.group == CURVES)
VIEWED = ("metric", "statistic")  # What is shown of a comparison that has been made.


def body(state: dict[str, Any]) -> list[Component]:
    return [
        section(
            "Routers on the same requests",
            job_panel(PAGE, "Compare"),
            html.P(NOT_COMPARED, className="more", id=PAGE.id("empty")),
            html.Div(_comparison(), id=PAGE.id("found"), style=HIDDEN),
        ),
        section(
            CURVES,
            html.Div(id=PAGE.id("curves"), children=html.P(HINT, className="note")),
            dcc.Interval(id=PAGE.id("tick"), interval=FOLLOW_MS, disabled=True),
        ),
        PAGE.copies(),
    ]


def _comparison() -> list[Component]:
    return [
        PAGE.slot("warnings"),
        plots(
            graph(
                PAGE.id("differences"),
                files.differences_height(len(router_names())),
                label="Change against the baseline",
            ),
            tall_graph(PAGE.id("distributions"), 350, "Distributions of latency", is_legend_below=True),
        ),
        PAGE.slot("rows", "under-plot"),
    ]


def register(app: Dash) -> None:
    register_job(app, PAGE, run_comparison, asked)
    inputs, slots = PAGE.inputs(), PAGE.messages()
    plain = PAGE.outputs("rows", "warnings", differences="figure", empty="style", found="style")
    of_curves = {name: slot for name, slot in slots.items() if name in FOR_CURVES}

    @callback(
        app,
        output={**plain, "distributions": tall_outputs(PAGE.id("distributions"))},
        inputs={"job": PAGE.input("finished", "data"), "view": {name: inputs[name] for name in VIEWED}},
        prevent_initial_call=True,
    )
    def show(job: str | None, view: dict[str, Any]) -> dict[str, Any]:
        try:
            found: RoutersCompared = jobs.result(job or "")
        except GnomonError:
            return {"distributions": not_tall(), **dict.fromkeys(plain, no_update)}
        one = found.views[view["metric"], view["statistic"]]
        rows = [row | {"router": link_to(row["router"], found.links[row["router"]])} for row in one.rows]
        return {
            "differences": one.differences, "distributions": tall(one.distributions), "empty": HIDDEN, "found": SHOWN,
            "rows": shown([Table(rows, left=("router",))]), "warnings": shown(lines(found.warnings, "warning")),
        }  # fmt: skip

    @callback(
        app,
        output={"curves": PAGE.output("curves", "children"), "messages": of_curves},
        inputs={"raw": {name: inputs[name] for name in FOR_CURVES}, "tick": PAGE.input("tick", "n_intervals")},
        prevent_initial_call="initial_duplicate",
    )
    def curves(raw: dict[str, Any], tick: int | None) -> dict[str, Any]:
        try:
            return {"curves": _curves(PAGE.read(raw)), "messages": dict.fromkeys(of_curves, "")}
        except GnomonError as error:
            texts = PAGE.explain(error)
            return {"curves": no_update, "messages": {name: texts[name] for name in of_curves}}

    @callback(
        app,
        output=PAGE.output("copies", "children"),
        inputs={"raw": {name: one for name, one in inputs.items() if name not in (*FOR_CURVES, *VIEWED, "job")}},
    )
    def copies(raw: dict[str, Any]) -> Any:
        try:
            scenario, names = asked(PAGE.read(raw))
        except GnomonError:  # Said where it was made, when the comparison is asked for.
            return no_update
        command = f"gnomon compare scenario.yaml --vary router.name={','.join(names)}"
        return commands({"scenario.yaml": as_yaml(scenario), "Command line": command})

    @callback(app, PAGE.output("tick", "disabled"), PAGE.input("follow"))
    def follow(ticked: list[str] | None) -> bool:
        return not ticked


def _curves(values: dict[str, Any]) -> Any:
    if not values["runs"]:
        return html.P(HINT, className="note")
    tables = tables_of(values["runs"])
    wanted = [word.strip().casefold() for word in values["columns"].split(",") if word.strip()]
    names = [one for one in files.curve_names(tables) if not wanted or any(word in one.casefold() for word in wanted)]
    if not names:
        return shown([Line("No column has these words in its name.", "warning")])
    figures = {name: files.curve_figure(name, tables, values["smooth"]) for name in names[:MAX_CURVES]}
    drawn = [graph(PAGE.id("curve", str(number)), files.CURVE_PX, label=name, figure=figure)
             for number, (name, figure) in enumerate(figures.items())]  # fmt: skip
    return [shown([legend(files.run_colours(tables))]), plots(*drawn)]


PAGE = Page("routing", "Routing", body, register, CONTROLS)
