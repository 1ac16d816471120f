"""Dash's `app.callback` with types: what it decorates stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dash import Dash

F = TypeVar("F", bound=Callable[..., Any])


def callback(app: Dash, *arguments: Any, **named: Any) -> Callable[[F], F]:
    """`@callback(app, output=..., inputs=...)`: the function answers when an input changes."""
    decorate: Callable[[F], F] = app.callback(*arguments, **named)
    return decorate
