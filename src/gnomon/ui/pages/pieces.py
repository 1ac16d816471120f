"""Pieces that several pages share: plots as high as their figure, bars of where time goes, controls out of sight."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dash import Output, dcc, html
from dash.development.base_component import Component

from gnomon.report.splits import Causes, SplitRow
from gnomon.ui.blocks import WITH_TOOLS, blank
from gnomon.ui.page import Page

HIDDEN, SHOWN = {"display": "none"}, {"display": "block"}


def tall_graph(id: str, height: int, label: str, words: str = "") -> Component:
    """A plot in a frame whose height follows the figure; `tall` sets both."""
    plot = dcc.Graph(id=id, figure=blank(height, words), config=WITH_TOOLS, style={"height": "100%"}, responsive=True)
    frame = {"height": f"{height}px"}
    return html.Div(plot, id=f"{id}-frame", className="plot", style=frame, role="img", **{"aria-label": label})


def tall_outputs(id: str) -> dict[str, Output]:
    """What a callback fills with `tall`."""
    return {"figure": Output(id, "figure"), "style": Output(f"{id}-frame", "style")}


def tall(figure: Mapping[str, Any]) -> dict[str, Any]:
    """The figure, and the height that it wants."""
    return {"figure": figure, "style": {"height": f"{figure['layout']['height']}px"}}


def split_bars(causes: Causes, rows: list[SplitRow]) -> Component:
    """Where the time goes: the legend, and one bar per row."""
    legend = [html.Li([html.I(style={"background": colour}), name]) for name, colour in causes.values()]
    lines = [
        html.Div(
            [
                html.Span(row.name, className="split-name"),
                html.Div(
                    [
                        html.I(style={"width": f"{row.share(cause):.3f}%", "background": colour},
                               title=row.title(cause, label))
                        for cause, (label, colour) in causes.items()
                    ],
                    className="split",
                ),
                html.Span(row.words, className="split-words"),
            ],
            className="split-row",
        )
        for row in rows
    ]  # fmt: skip
    return html.Div([html.Ul(legend, className="split-legend"), *lines])


def box_outputs(page: Page, names: Collection[str]) -> dict[str, Output]:
    """The boxes of controls that `boxes` shows or hides."""
    return {name: Output(page.id(name, "box"), "style") for name in names}


def boxes(names: Collection[str], hidden: Collection[str]) -> dict[str, dict[str, str]]:
    """Hide the controls that have no effect now."""
    return {name: HIDDEN if name in hidden else SHOWN for name in names}
