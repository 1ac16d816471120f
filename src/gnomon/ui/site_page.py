"""A page: its controls, its body, its callbacks. A module of `gnomon.ui.pages` ends in one constant `PAGE`."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from dash import Dash, Input, Output, dcc, html
from dash import State as DashState
from dash.development.base_component import Component

from gnomon.core.errors import GnomonError
from gnomon.ui.controls import Control, Switch, defaults_of, query_of

F = TypeVar("F", bound=Callable[..., Any])


def callback(app: Dash, *arguments: Any, **named: Any) -> Callable[[F], F]:
    """`@callback(app, output=..., inputs=...)`: the function answers when an input changes."""
    return app.callback(*arguments, **named)


State = dict[str, Any]
HIDDEN, SHOWN = {"display": "none"}, {"display": "block"}
OWN = "page"  # The message slot for mistakes that no control made.


@dataclass(frozen=True)
class Page:
    """One page of the site, at `/name`."""

    name: str
    title: str
    body: Callable[[State], list[Component]]
    register: Callable[[Dash], None]
    controls: tuple[Control, ...] = ()
    head: Callable[[State], list[Component]] = lambda state: []
    """Further components below the controls."""
    without_effect: Callable[[State], Collection[str]] = lambda state: ()
    """Controls that have no effect in this state: they are out of sight from the first moment."""
    is_live: bool = True
    """Its body follows the controls: Back sets them, instead of laying out the page anew."""
    is_stacked: bool = False
    """The controls stand above the body on wide screens too."""

    @property
    def path(self) -> str:
        return f"/{self.name}"

    def id(self, *parts: str) -> str:
        return "-".join((self.name, *parts))

    def link(self, **state: Any) -> str:
        """The address that opens this page in `state`."""
        return self.path + query_of(self.controls, state)

    def inputs(self) -> dict[str, Input]:
        return {one.name: Input(self.id(one.name), "value") for one in self.controls}

    def values(self) -> dict[str, Output]:
        return {one.name: Output(self.id(one.name), "value", allow_duplicate=True) for one in self.controls}

    def slot(self, name: str, style: str = "", **more: Any) -> Component:
        return html.Div(id=self.id(name), className=style or None, **more)

    def copies(self) -> Component:
        """The place for scenarios and commands to copy."""
        return html.Section([html.H2("Copy"), self.slot("copies", "copies")])

    def output(self, name: str, what: str, **more: Any) -> Output:
        return Output(self.id(name), what, **more)

    def input(self, name: str, what: str = "value") -> Input:
        return Input(self.id(name), what)

    def state(self, name: str, what: str = "value") -> DashState:
        return DashState(self.id(name), what)

    def outputs(self, *names: str, **kinds: str) -> dict[str, Output]:
        """Its components' children, and of others what `kinds` says, for a callback's `output`."""
        kinds = dict.fromkeys(names, "children") | kinds
        return {name: Output(self.id(name), kind) for name, kind in kinds.items()}

    def messages(self) -> dict[str, Output]:
        """Every message slot, for a callback's `output`; `explain` fills them."""
        names = [one.name for one in self.controls if not one.is_hidden] + [OWN]
        return {name: Output(self.id(name, "error"), "children", allow_duplicate=True) for name in names}

    def read(self, raw: Mapping[str, Any]) -> State:
        """Typed values by name; ControlError where one cannot be read."""
        return {one.name: one.read(raw[one.name]) for one in self.controls if one.name in raw}

    def explain(self, error: GnomonError | None) -> dict[str, str]:
        """The text of every message slot: the mistake beside the control that caused it, nothing elsewhere."""
        shown = [one for one in self.controls if not one.is_hidden]
        texts = dict.fromkeys([*(one.name for one in shown), OWN], "")
        if error is not None:
            owner = next((one.name for one in shown if one.owns(error)), OWN)
            texts[owner] = " ".join(part for part in (error.what, error.fix) if part) if owner != OWN else str(error)
        return texts

    def layout(self, state: State) -> Component:
        """Controls at the left (above, on a narrow screen), the body beside them."""
        shown = [one for one in self.controls if not one.is_hidden]
        panel = [_group(self, name, list(members), state) for name, members in groupby(shown, lambda one: one.group)]
        hidden = [one.component(self.id(one.name), state[one.name]) for one in self.controls if one.is_hidden]
        extra = self.head(state)
        own = html.Div(id=self.id(OWN, "error"), className="message own", role="alert")
        heading = html.H1(self.title, className="unseen")
        body = html.Div([heading, own, *self.body(state)], className="body")
        # A sheet that slides over the results on a narrow screen; always open beside them on a wide one.
        settings = [html.Summary("Settings"), html.Div([*panel, *extra, *hidden])]
        left = html.Details(settings, className="panel" if panel or extra else "panel empty", open=True)
        style = "page stacked" if self.is_stacked else "page"
        return html.Div([left, body, dcc.Store(id=self.id("query"))], className=style, id=f"page-{self.name}")

    def register_all(self, app: Dash) -> None:
        """The page's callbacks, and the one that keeps the address in step with its controls."""
        self.register(app)
        if not self.controls:
            return
        kinds = {one.name: type(one.from_query("on")).__name__ for one in self.controls}
        about = {"path": self.path, "defaults": defaults_of(self.controls), "kinds": kinds, "isLive": self.is_live}
        spec = json.dumps(about)
        names = json.dumps([one.name for one in self.controls])
        app.clientside_callback(
            f"function(...values) {{ return dash_clientside.gnomon.address({spec}, {names}, values); }}",
            Output(self.id("query"), "data"),
            list(self.inputs().values()),
        )


def _group(page: Page, name: str, members: list[Control], state: State) -> Component:
    hidden = page.without_effect(state)
    boxes = [_labelled(page, one, state[one.name], is_hidden=one.name in hidden) for one in members]
    controls = html.Div(boxes, className="controls")
    return html.Div([html.H3(name), controls], className="group") if name else controls


def _labelled(page: Page, control: Control, raw: Any, *, is_hidden: bool) -> Component:
    id = page.id(control.name)
    words = html.Span(control.label, className="term", tabIndex=0, **{"data-tip": control.tip})
    text = words if control.tip else control.label
    focus = control.focus_id(id)
    named = html.Label(text, htmlFor=focus, id=f"{id}-label") if focus else html.Div(text, className="label")
    label = [] if isinstance(control, Switch) else [named]
    help = [html.Small(control.help)] if control.help else []
    message = html.Div(id=f"{id}-error", className="message", role="alert")
    kind = type(control).__name__.lower()
    shown = HIDDEN if is_hidden else SHOWN
    style = f"control {kind}{' wide' if control.wide else ''}"
    return html.Div([*label, control.component(id, raw), *help, message], className=style, id=f"{id}-box", style=shown)
