"""Plan: which deployment is best? A search as a job, or one from disk; a click opens a point in Serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dash import Dash, Output, ctx, html, no_update
from dash.development.base_component import Component

from gnomon import __version__
from gnomon.api.search import OBJECTIVES, Search, SearchConfig, check, fingerprint, finished_search, search
from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.core.text import to_yaml
from gnomon.report.blocks import Card, Section
from gnomon.report.page import boxed
from gnomon.report.search.files import space_figure
from gnomon.ui import jobs
from gnomon.ui.blocks import commands, graph, plots, section, shown
from gnomon.ui.controls import Choices, ControlError, Hidden, Text
from gnomon.ui.jobs import job_panel, register_job
from gnomon.ui.pages.forms import form
from gnomon.ui.pages.pieces import register_boxes
from gnomon.ui.pages.serve import link
from gnomon.ui.run_folders import find_runs, runs_folder
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback


def question_of(values: Mapping[str, Any]) -> SearchConfig:
    """What the controls ask; names are checked."""
    limits: dict[str, Any] = {
        "ttft_s": {"p90": values["ttft"] / 1e3} if values["ttft"] else {},
        "tbt_s": {"p99": values["tbt"] / 1e3} if values["tbt"] else {},
    }
    if values["objective"] == "goodput_per_gpu":
        good = {"ttft_s": values["ttft"], "tpot_s": values["tbt"]}
        limits = {"goodput": {key: value / 1e3 for key, value in good.items() if value} or None}
    sizes = {"max_batch_tokens": values["tokens"], "max_sequences": values["sequences"]}
    schedulers = [{"engine": one} for one in values["engines"]] + [{"policy": one} for one in values["policies"]]
    if not schedulers:
        raise ControlError("engines", "Choose an engine, or a batching policy.")
    counts = {f"{role}_replicas": values[role] for role in ("prefill", "decode")}
    if any(counts.values()) and not all(counts.values()):
        raise ControlError("decode", "Give the replicas of both, or of neither.")
    degrees = {f"{role}_tensor_parallel": values["tp"] for role in ("prefill", "decode")}
    space = {
        "device": values["devices"], "tensor_parallel": values["tp"], "pipeline_parallel": values["pp"],
        "num_replicas": values["replicas"],
        "batching": [one | sizes for one in schedulers],
        "disaggregated": counts | degrees if all(counts.values()) else None,
    }  # fmt: skip
    data = {
        "model": values["model"], "workload": {"preset": values["workload"]}, "slo": limits, "space": space,
        "objective": values["objective"], "load": values["load"] if values["objective"] == "cost" else None,
        "strategy": values["strategy"], "effort": {"max_requests": values["effort"]}, "seed": values["seed"],
    }  # fmt: skip
    question = build(SearchConfig, data)
    check(question)
    return question


def short(question: SearchConfig) -> str:
    """A question as a file for `gnomon search`; defaults are left out."""
    return to_yaml({"model": question.model, **question.model_dump(mode="json", exclude_defaults=True)})


def searches() -> dict[str, str]:
    """Finished searches below the runs folder, newest first, after the choice of none."""
    names = [one.name for one in find_runs(runs_folder()) if one.is_finished_search]
    return {"": "none: ask below"} | {name: name for name in names}


def opened(name: str) -> Search:
    """The search in a folder of `searches`; no other folder is looked into."""
    if name not in searches():
        raise ControlError("dir", f"There is no finished search {name!r} in the runs folder.")
    return finished_search(runs_folder() / name)


def asked(values: Mapping[str, Any]) -> tuple[SearchConfig, Path]:
    """The search and its folder; one that was cancelled goes on from what it left there."""
    question = question_of(values)
    name = f"{question.model}-{fingerprint(question)[:8]}-{__version__}".replace("/", "_")
    return question, runs_folder() / "search" / name


def run_search(argument: tuple[SearchConfig, Path], report: jobs.Report) -> Search:
    """The job: search, and leave the usual folder behind."""
    question, folder = argument
    report(0, 1, "Looking at what cannot win …")

    def tell(done: int, total: int) -> None:
        report(done, total, f"{done} of {total} configurations settled")

    found = search(question, folder=folder, on_progress=tell)
    assert isinstance(found, Search)
    found.save(folder)
    return found


SPACE = "Price of every configuration against its KV cache"
PLOTS = ("ttft_front", "tbt_front")
PLOT_PX = 440
NO_SEARCH = (
    "Press Search, or open a search that was run before. A search finds the capacity of every combination of the space "
    "under the limits; it can be cancelled, and goes on where it stopped when it is run again."
)
TOP = 25  # Rows of the ranking.


@dataclass(frozen=True)
class Counts(Text):
    """Whole numbers with commas between them; none is allowed where `optional`."""

    optional: bool = False

    def read(self, raw: Any) -> tuple[int, ...]:
        parts = [part.strip() for part in super().read(raw).split(",") if part.strip()]
        if not all(part.isdecimal() and int(part) > 0 for part in parts) or not (parts or self.optional):
            raise self.refuse("Write whole numbers such as 1, 2, 4.")
        return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class Some(Choices):
    """At least one of several names."""

    def read(self, raw: Any) -> Any:
        chosen = super().read(raw)
        if not chosen:
            raise self.refuse("Choose at least one.")
        return chosen


CONTROLS = (*form("plan", Counts, Some, dir={"options": searches}, objective={"options": OBJECTIVES}), Hidden("job"))


def body(state: dict[str, Any]) -> list[Component]:
    """Run and cancel; then the answer: figures, the fronts, the ranking, and why others are not in it."""
    drawn = [graph(PAGE.id(name), PLOT_PX, label="Worth against latency at capacity") for name in PLOTS]
    hint = html.P("Click a point to open it in Serve.", className="more")
    plotted = section("Throughput per dollar against latency", hint, plots(*drawn))
    fits = html.P(id=PAGE.id("fits"), className="more")
    before = section("", fits, graph(PAGE.id("space"), PLOT_PX, label=SPACE))
    return [
        section("", job_panel(PAGE, "Search")),
        html.Div([html.P(NO_SEARCH, className="note"), before], id=PAGE.id("empty")),
        html.Div([PAGE.slot("answer"), plotted, PAGE.slot("tables")], id=PAGE.id("found"), style=HIDDEN),
        PAGE.copies(),
    ]


def register(app: Dash) -> None:
    register_job(app, PAGE, run_search, asked)

    @callback(
        app,
        output=list(PAGE.outputs("fits", "copies", space="figure").values()),
        inputs={"raw": {name: one for name, one in PAGE.inputs().items() if name not in ("dir", "job")}},
    )
    def look(raw: dict[str, Any]) -> Any:
        try:
            asked_for = question_of(PAGE.read(raw))
            drawn, text = space_figure(asked_for)
        except GnomonError:  # Said where it was made, when the search is asked for.
            return (no_update,) * 3
        return " ".join(text), commands({"This search: gnomon search FILE": short(asked_for)}), drawn

    @callback(
        app,
        output={
            "plots": PAGE.outputs(**dict.fromkeys(PLOTS, "figure")),
            **PAGE.outputs("answer", "tables", empty="style", found="style", dir="value"),
            "messages": PAGE.messages(),
        },
        inputs={"folder": PAGE.input("dir"), "job": PAGE.input("finished", "data")},
        prevent_initial_call="initial_duplicate",
    )
    def show(folder: str, job: str | None) -> dict[str, Any]:
        kept = {"plots": dict.fromkeys(PLOTS, no_update), **dict.fromkeys(("answer", "tables", "dir"), no_update)}
        is_new = ctx.triggered_id == PAGE.id("finished") and bool(job)
        try:
            found = _found("" if is_new else folder, job)
        except GnomonError as error:
            return kept | {"empty": SHOWN, "found": HIDDEN, "messages": PAGE.explain(error)}
        if found is None:
            return kept | {"empty": SHOWN, "found": HIDDEN, "messages": PAGE.explain(None)}
        blocks = found.text(TOP, lambda place: link(found.scenario(place)))
        cards = [one for one in blocks if isinstance(one, Card) or one is blocks[0]]
        rest = [one for one in blocks if one not in cards]
        return {
            "plots": dict(found.drawings) or dict.fromkeys(PLOTS, no_update), "messages": PAGE.explain(None),
            "answer": shown([Section(found.title, cards)]), "tables": shown(boxed(rest)),
            "empty": HIDDEN, "found": SHOWN, "dir": "" if is_new else no_update,
        }  # fmt: skip

    for name in PLOTS:
        _open_in_serve(app, name)
    register_boxes(app, PAGE, ("objective",), ("load", "replicas"))


def without_effect(state: dict[str, Any]) -> tuple[str, ...]:
    """The objective cost serves a given load with as many replicas as that takes."""
    return ("replicas",) if state["objective"] == "cost" else ("load",)


def _open_in_serve(app: Dash, name: str) -> None:
    serve = Output("address", "href", allow_duplicate=True)
    clicked = [PAGE.input(name, "clickData"), PAGE.state("dir"), PAGE.state("finished", "data")]

    @callback(app, serve, clicked, prevent_initial_call=True)
    def go(click: dict[str, Any] | None, folder: str, job: str | None) -> Any:
        place = click["points"][0].get("customdata") if click else None
        found = None if place is None else _found(folder, job)
        return no_update if place is None or found is None else link(found.scenario(place))


def _found(folder: str, job: str | None) -> Search | None:
    if folder:
        return opened(folder)
    return jobs.result(job) if job else None


PAGE = Page("plan", "Plan", body, register, CONTROLS, without_effect=without_effect)
