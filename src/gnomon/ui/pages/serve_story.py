"""The story of the request behind a point of a latency's curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from gnomon.report.blocks import Table
from gnomon.ui import blocks
from gnomon.ui.scenarios import to_scenario
from gnomon.ui.serving import simulated
from gnomon.ui.site_page import Page
from gnomon.ui.turns import Question

HINT = "Click a point of a latency distribution to see why that request took so long."


def story(page: Page, raw: Mapping[str, Any], view: str, metric: Any, share: float) -> list[Component]:
    """What the request did that a share of all requests did not exceed in a latency: sentences, parts, neighbours."""
    scenario = to_scenario(page.read(raw))
    with Question(f"{view} story").turn():
        simulation = simulated(scenario).explained()
        found = simulation.explain(advice=False, metric=metric)
        values = found.accounts.values_s(metric)
        order = np.argsort(values, kind="stable")
        order = order[~np.isnan(values[order])]
        rank = min(max(int(np.ceil(share * order.size)) - 1, 0), order.size - 1)
        request = int(found.accounts.ids[order[rank]])
        told = simulation.explain(advice=False, metric=metric, request=request)
        drawn = told.drawings["neighbours"]
    shown: list[Component] = [html.P(" ".join(told.sentences), className="story")]
    graph = dcc.Graph(figure=drawn, config=blocks.QUIET, style={"height": f"{drawn['layout']['height']}px"})
    shown.append(html.Div(graph, className="plot"))
    for block in told.text():
        if isinstance(block, Table):
            left = tuple(column for column in block.columns if block.is_left(column))
            shown += [html.H3(block.title), blocks.table(list(block.rows), left=left)]
    return shown
