"""The pieces that pages are built from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from dash import dcc, html
from dash.development.base_component import Component

from gnomon.report.blocks import cell

QUIET = {"displaylogo": False, "displayModeBar": False, "responsive": True, "showTips": False}
WITH_TOOLS = {"displaylogo": False, "displayModeBar": "hover", "responsive": True, "showTips": False,
              "modeBarButtonsToRemove": ["select2d", "lasso2d", "sendDataToCloud", "sendChartToCloud"]}  # fmt: skip


def graph(id: str, height: int = 300, *, label: str = "", tools: bool = False, figure: Any = None) -> Component:
    """A plot of fixed height, so that nothing moves when it is drawn; `label` is read out by screen readers."""
    drawn = figure if figure is not None else blank(height)
    config = WITH_TOOLS if tools else QUIET
    plot = dcc.Graph(id=id, figure=drawn, config=config, style={"height": f"{height}px"}, responsive=True)
    role = "group" if tools else "img"  # An image has nothing in it that could be pressed.
    return html.Div(plot, className="plot", style={"height": f"{height}px"}, role=role, **{"aria-label": label or id})


def blank(height: int = 300, words: str = "") -> dict[str, Any]:
    """A figure with nothing in it, or with a few words, on the grey of its place."""
    note = {"text": words, "showarrow": False, "font": {"size": 13, "color": "#8A94A3"},
            "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}  # fmt: skip
    hidden = {"visible": False}
    layout = {"height": height, "xaxis": hidden, "yaxis": hidden, "paper_bgcolor": "rgba(0,0,0,0)",
              "plot_bgcolor": "rgba(0,0,0,0)", "annotations": [note] if words else []}  # fmt: skip
    return {"data": [], "layout": layout}


def section(title: str, *children: Any, id: str | None = None) -> Component:
    """A white box with a heading."""
    named = {"id": id} if id else {}
    return html.Section([html.H2(title), *children] if title else list(children), **named)


def plots(*graphs: Component, together: bool = False) -> Component:
    """Plots side by side, below each other on a narrow screen; `together`: over one time, with one zoom and cursor."""
    return html.Div(list(graphs), className="plots together" if together else "plots")


def cards(shown: Iterable[tuple[str, str, str]]) -> Component:
    """Key figures: name, value, what stands beside it."""
    return html.Div(
        [html.Div([html.Span(name), html.B(value), html.Small(beside)], className="card")
         for name, value, beside in shown],
        className="cards",
    )  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], left: tuple[str, ...] = (), id: str | None = None) -> Component:
    """Rows as a table; columns named in `left` hold words, the others figures. A cell may be a component."""
    if not rows:
        return html.P("Nothing to show.", className="more")
    side = {name: "l" if name in left else "" for name in rows[0]}
    head = html.Tr([html.Th(name, className=side[name]) for name in rows[0]])
    body = [
        html.Tr([html.Td(_shown(value), className=side.get(name, "")) for name, value in row.items()]) for row in rows
    ]
    named = {"id": id} if id else {}
    return html.Div(html.Table([html.Thead(head), html.Tbody(body)], **named), className="scroll", tabIndex=0)


def _shown(value: Any) -> Any:
    return value if isinstance(value, Component) else cell(value)


def copy_box(id: str, label: str, text: str) -> Component:
    """Text with a button that copies it, as reports have it."""
    named = {"data-copy": id, "aria-label": f"Copy {label}"}
    button = html.Button("Copy", className="button copy", type="button", **named)
    head = html.Div([html.Span(label), button], className="copy-head")
    return html.Div([head, html.Pre(text, id=id, tabIndex=0)], className="copy-box")


def notice(text: str, kind: Literal["note", "warning", "error"] = "note") -> Component:
    """A line that wants to be read."""
    return html.P(text, className=kind)


def button(id: str, label: str, *, primary: bool = False, disabled: bool = False) -> Component:
    """A button."""
    style = "button primary" if primary else "button"
    return html.Button(label, id=id, className=style, disabled=disabled, n_clicks=0, type="button")
