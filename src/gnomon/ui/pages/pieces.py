"""Pieces that several pages share: answers at every change, plots as high as their figure, controls
out of sight."""

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update
from dash.development.base_component import Component

from gnomon.core.errors import GnomonError
from gnomon.report.blocks import legend
from gnomon.ui.blocks import WITH_TOOLS, blank, shown
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback
from gnomon.ui.turns import Question, Stale

ABOVE_PX = 10  # Above a plot whose legend stands over it.


def draw_live(
    app: Dash, page: Page, outputs: Mapping[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]],
    inputs: Mapping[str, Input] | None = None,
) -> None:  # fmt: skip
    """Fill `outputs` with what `answer` makes of the controls, at every change of them (or of `inputs`). Only the
    newest question of a view is answered; a mistake stands beside its control, and leaves the rest as it is."""
    kept = {
        name: dict.fromkeys(one, no_update) if isinstance(one, dict) else no_update for name, one in outputs.items()
    }

    @callback(
        app, output={**outputs, "messages": page.messages()}, inputs={"raw": inputs or page.inputs()},
        state={"view": page.state("opened", "data")}, prevent_initial_call="initial_duplicate",
    )  # fmt: skip
    def draw(raw: dict[str, Any], view: str) -> dict[str, Any]:
        try:
            with Question(view).turn():
                return answer(page.read(raw)) | {"messages": page.explain(None)}
        except Stale:
            return kept | {"messages": dict.fromkeys(page.messages(), no_update)}
        except GnomonError as error:
            return kept | {"messages": page.explain(error)}


def tall_graph(id: str, height: int, label: str, *, is_legend_below: bool = False) -> Component:
    """A plot in a frame whose height follows the figure, with a legend that wraps as text does; `tall` fills all."""
    plot = dcc.Graph(id=id, figure=blank(height), config=WITH_TOOLS, style={"height": "100%"}, responsive=True)
    frame = html.Div(plot, id=f"{id}-frame", className="plot", style={"height": f"{height}px"}, role="group",
                     **{"aria-label": label})  # fmt: skip
    names = html.Div(id=f"{id}-legend", className="legend-space")
    return html.Div([frame, names] if is_legend_below else [names, frame])


def tall_outputs(id: str) -> dict[str, Output]:
    return {
        "figure": Output(id, "figure"),
        "style": Output(f"{id}-frame", "style"),
        "legend": Output(f"{id}-legend", "children"),
    }


def tall(figure: Mapping[str, Any]) -> dict[str, Any]:
    """The figure without its legend, the height that it wants, and the legend."""
    named = [one for one in figure["data"] if one.get("name") and one.get("showlegend", True)]
    layout, above = figure["layout"], figure["layout"]["margin"]["t"]
    spared = 0 if "title" in layout else above - ABOVE_PX
    height = layout["height"] - spared
    layout = layout | {"showlegend": False, "margin": layout["margin"] | {"t": above - spared}, "height": height}
    return {
        "figure": {"data": figure["data"], "layout": layout},
        "style": {"height": f"{height}px"},
        "legend": shown([legend({one["name"]: _colour(one) for one in named})]),
    }


def not_tall() -> dict[str, Any]:
    """What `tall` gives where nothing changes."""
    return dict.fromkeys(("figure", "style", "legend"), no_update)


def _colour(trace: Mapping[str, Any]) -> str:
    drawn = trace["line"] if trace["type"] != "bar" and "line" in trace else trace["marker"]
    return str(trace.get("fillcolor") or drawn["color"])


def view_of(page: Page) -> Component:
    """A name for one opened page, so that `turn` can tell two of them apart; a callback's state reads it."""
    return dcc.Store(id=page.id("opened"), data=secrets.token_hex(6))


def register_boxes(app: Dash, page: Page, deciding: Collection[str], boxes: Collection[str]) -> None:
    """Show or hide `boxes` by the page's `without_effect`, which looks at the controls `deciding` only."""

    @callback(
        app, output={name: page.output(f"{name}-box", "style") for name in boxes},
        inputs={"state": {name: page.input(name) for name in deciding}}, prevent_initial_call=True,
    )  # fmt: skip
    def hide(state: dict[str, Any]) -> dict[str, Any]:
        hidden = page.without_effect(state)
        return {name: HIDDEN if name in hidden else SHOWN for name in boxes}
