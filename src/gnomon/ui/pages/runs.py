"""Run directories on disk."""

from __future__ import annotations

from typing import Any

from dash import Dash, html
from dash.development.base_component import Component

from gnomon.ui.page import Page


def body(state: dict[str, Any]) -> list[Component]:
    """Every run directory."""
    return [html.Section("Runs")]


def register(app: Dash) -> None:
    """Nothing to answer yet."""


PAGE = Page(name="runs", title="Runs", body=body, register=register)
