"""Runs: run directories on disk, opened without running again."""

from pathlib import Path
from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from gnomon.api.serving import Scenario
from gnomon.core.config import load
from gnomon.core.errors import GnomonError
from gnomon.report.blocks import Line, Table, link
from gnomon.ui import blocks
from gnomon.ui.controls import Hidden, Text
from gnomon.ui.run_folders import KEPT_BACK, RunFolder, file_address, find_runs, open_run, runs_folder
from gnomon.ui.site_page import Page, callback

CONTROLS = (Text("find", "Find", "", wide=True, help="Part of a name, a kind, a model, …"), Hidden("run"))


def body(state: dict[str, Any]) -> list[Component]:
    if not state["run"]:
        return [PAGE.slot("list")]
    back = dcc.Link("← All runs", href=PAGE.link(find=state["find"]))
    try:
        found = open_run(runs_folder(), state["run"])
    except GnomonError as error:
        return [html.P(back, className="opened"), blocks.shown([Line(str(error), "error")])]
    return [html.P(back, className="opened"), *_opened(found), html.Div(id=PAGE.id("list"), hidden=True)]


def register(app: Dash) -> None:
    @callback(app, PAGE.output("list", "children"), PAGE.input("find"), PAGE.input("run"))
    def show(find: str | None, run: str) -> Any:
        return [] if run else _listed(runs_folder(), (find or "").strip().lower())


def _listed(root: Path, wanted: str) -> Component:
    runs = find_runs(root)
    cells = ((one.name, one.kind.name, one.words, one.when) for one in runs)
    rows: list[dict[str, Any]] = [dict(zip(("run", "kind", "what", "when"), one, strict=True)) for one in cells]
    rows = [row for row in rows if wanted in " ".join(str(value) for value in row.values()).lower()]
    count = f"{len(rows)} run{'s' if len(rows) != 1 else ''} in {root}"
    if not rows:
        hint = "Write one with gnomon simulate --out runs/NAME, or choose another folder: gnomon ui --runs."
        return blocks.section(count, html.P(hint))
    for row in rows:
        row["run"] = link(row["run"], PAGE.link(run=row["run"]))
    return blocks.section(count, blocks.shown([Table(rows, left=("run", "kind", "what"))]))


def _opened(one: RunFolder) -> list[Component]:
    files = [
        html.A(name, href=file_address(one.name, name), target="_blank")
        for name in one.files
        if not name.endswith(KEPT_BACK)
    ]
    links = [link for link in (_elsewhere(one),) if link is not None]
    top = html.Div(
        [html.Div([html.H1(one.name), html.P(f"{one.kind.name}, {one.when}. {one.words}")], className="headline"),
         html.Div(links, className="buttons")],
        className="page-top",
    )  # fmt: skip
    shown = []
    if one.kind.page and (one.path / one.kind.page).is_file():
        src, title = file_address(one.name, one.kind.page), f"Report of {one.name}"
        shown.append(html.Iframe(src=src, sandbox="allow-scripts allow-downloads", className="report", title=title))
    return [top, *shown, blocks.section("Files", html.Div(files, className="files"))]


def _elsewhere(one: RunFolder) -> Component | None:
    """A link that opens the run in the page of its kind."""
    from gnomon.ui.pages import plan, routing, serve

    match one.kind.name:
        case "search" if one.is_finished_search:
            return dcc.Link("Open in Plan", href=plan.PAGE.link(dir=one.name), className="button")
        case "learned router":
            return dcc.Link("Open in Routing", href=routing.PAGE.link(runs=(one.name,)), className="button")
        case "serving":
            try:
                scenario = load(Scenario, one.path / "scenario.yaml")
            except GnomonError:
                return None
            return dcc.Link("Open in Serve", href=serve.link(scenario), className="button")
    return None


PAGE = Page("runs", "Runs", body, register, CONTROLS, is_stacked=True, is_live=False)
