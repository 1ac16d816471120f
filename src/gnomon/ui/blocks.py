"""The pieces that pages are built from."""

from collections.abc import Iterable, Mapping
from itertools import compress
from operator import not_
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gnomon.report.blocks import Block, Card, Command, Line, Plot, without
from gnomon.report.page import boxed, html_of

QUIET = {"displaylogo": False, "displayModeBar": False, "responsive": True, "showTips": False}
WITH_TOOLS = {"displaylogo": False, "displayModeBar": "hover", "responsive": True, "showTips": False,
              "modeBarButtonsToRemove": ["select2d", "lasso2d", "sendDataToCloud", "sendChartToCloud"]}  # fmt: skip


def graph(id: str, height: int = 300, *, label: str = "", figure: Any = None) -> Component:
    """A plot of fixed height, so that nothing moves when it is drawn; `label` is read out by screen readers."""
    drawn = figure if figure is not None else blank(height)
    size = {"height": f"{height}px"}
    plot = dcc.Graph(id=id, figure=drawn, config=QUIET, style=size, responsive=True)
    return html.Div(plot, className="plot", style=size, role="img", **{"aria-label": label or id})


def blank(height: int = 300, words: str = "") -> dict[str, Any]:
    """A figure with nothing in it, or with a few words, on the grey of its place."""
    note = {"text": words, "showarrow": False, "font": {"size": 13, "color": "#8A94A3"},
            "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}  # fmt: skip
    hidden = {"visible": False}
    layout = {"height": height, "xaxis": hidden, "yaxis": hidden, "paper_bgcolor": "rgba(0,0,0,0)",
              "plot_bgcolor": "rgba(0,0,0,0)", "annotations": [note] if words else []}  # fmt: skip
    return {"data": [], "layout": layout}


def section(title: str, *children: Any) -> Component:
    return html.Section([html.H2(title), *children] if title else list(children))


def plots(*graphs: Component, together: bool = False) -> Component:
    """Plots side by side, below each other on a narrow screen; `together`: over one time, with one zoom and cursor."""
    return html.Div(list(graphs), className="plots together" if together else "plots")


def shown(blocks: Iterable[Block]) -> Component:
    """Blocks as reports show them (assets/gnomon.js puts the HTML in its place); plots have places of their own."""
    return html.Div(**{"data-html": html_of(without(blocks, Plot))})


def cards_and_rest(blocks: Iterable[Block]) -> dict[str, Component]:
    """An answer in two parts, for above the plots and below; its first lines are the page's own."""
    found = [one for one in blocks if not isinstance(one, Line) or one.kind != "plain"]
    is_card = [isinstance(one, Card) for one in found]
    parts = {"cards": compress(found, is_card), "rest": boxed(compress(found, map(not_, is_card)))}
    return {name: shown(part) for name, part in parts.items()}


def commands(texts: Mapping[str, str]) -> Component:
    """Scenarios and commands to copy, by what they are."""
    return shown(Command(name, text) for name, text in texts.items())


def button(id: str, label: str, *, primary: bool = False, disabled: bool = False) -> Component:
    style = "button primary" if primary else "button"
    return html.Button(label, id=id, className=style, disabled=disabled, n_clicks=0, type="button")
