"""Labelled inputs. A control knows its name in the address, how to read what was typed, and which mistakes are its."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from dash import dcc, html
from dash.development.base_component import Component

from gnomon.core.errors import ConfigError, GnomonError

Options = Iterable[str] | Mapping[str, str]
TYPING_PAUSE_S = 0.35  # Something typed counts once nothing has been typed for this long, or at once on Enter.


class ControlError(ConfigError):
    """A value that a control cannot read."""

    def __init__(self, control: str, what: str) -> None:
        super().__init__(what)
        self.control = control


@dataclass(frozen=True)
class Control:
    """What all controls have; `component` and `read` tell them apart."""

    name: str
    label: str = ""
    default: Any = ""
    field: str | tuple[str, ...] = ()
    """Dotted keys of a configuration, kinds of names, or classes of errors, whose mistakes are shown here."""
    help: str = ""
    tip: str = ""
    """What the label means, shown on hover and focus."""
    wide: bool = False
    """Takes the panel's whole width."""
    group: str = ""
    """Neighbours of one group stand under this heading."""

    is_hidden = False

    def read(self, raw: Any) -> Any:
        """The typed value of what the browser sent; ControlError where it is not one."""
        return "" if raw is None else str(raw).strip()

    def component(self, id: str, raw: Any) -> Component:
        return dcc.Input(id=id, value=str(raw), type="text", debounce=TYPING_PAUSE_S, className="field")

    def focus_id(self, id: str) -> str:
        """The element that the label belongs to; "" for a group of them."""
        return id

    def to_query(self, raw: Any) -> str:
        """The value as it stands in the address."""
        return "" if raw is None else str(raw)

    def from_query(self, text: str) -> Any:
        """What the address says, as the component wants it; a bad value is shown, with its message."""
        return text

    def owns(self, error: GnomonError) -> bool:
        """Whether this control is where the mistake was made."""
        if isinstance(error, ControlError):
            return error.control == self.name
        keys = (self.field,) if isinstance(self.field, str) else self.field
        return any(_names(error, key) for key in keys)

    def refuse(self, what: str) -> ControlError:
        return ControlError(self.name, what)


def _names(error: GnomonError, key: str) -> bool:
    begins = (f"{key}:", f"{key} ", f"unknown {key} ")
    return key in (error.where, type(error).__name__) or error.what.startswith(begins)


@dataclass(frozen=True)
class Text(Control):
    """A line of text."""


@dataclass(frozen=True)
class Hidden(Control):
    """State without an input, such as a chosen point or a running job, kept in the address."""

    is_hidden = True

    def component(self, id: str, raw: Any) -> Component:
        return dcc.Input(id=id, value=str(raw), type="hidden")


@dataclass(frozen=True)
class Number(Control):
    """A number within limits; an empty one is None where that is allowed."""

    least: float = 0.0
    most: float = 1e12
    whole: bool = False
    optional: bool = False
    unit: str = ""

    def read(self, raw: Any) -> float | int | None:
        text = "" if raw is None else str(raw).strip().replace(",", "")
        if not text and self.optional:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.refuse(f"{text or 'Nothing'} is not a number.") from None
        if not self.least <= value <= self.most:
            raise self.refuse(f"Must be from {self.least:,g} to {self.most:,g}.")
        if not self.whole:
            return value
        if value != int(value):
            raise self.refuse("Must be a whole number.")
        return int(value)

    def to_query(self, raw: Any) -> str:
        return f"{raw:.12g}" if isinstance(raw, float) else super().to_query(raw)

    def component(self, id: str, raw: Any) -> Component:
        """A text input: a number input would hide what was mistyped."""
        field = dcc.Input(
            id=id, value=self.to_query(raw), type="text", inputMode="numeric", debounce=TYPING_PAUSE_S,
            className="field number",
        )  # fmt: skip
        return html.Div([field, html.Span(self.unit, className="unit")], className="with-unit") if self.unit else field


@dataclass(frozen=True)
class Slider(Number):
    """A number with a slider beside it; `log` for what spans powers of ten."""

    step: float = 0.0
    """Positions of the slider; 0 for a thousand of them."""
    log: bool = False

    def component(self, id: str, raw: Any) -> Component:
        """A slider (assets/gnomon.js moves it with the number) and the number."""
        steps = round((self.most - self.least) / self.step) if self.step else 1000
        about = {"data-least": self.least, "data-most": self.most, "data-steps": steps, "data-log": int(self.log),
                 "data-label": self.label}  # fmt: skip
        slider = dcc.Input(id=f"{id}-slider", type="range", min=0, max=steps, step=1, className="range")
        return html.Div([html.Div(slider, className="track", **about), super().component(id, raw)], className="slid")


@dataclass(frozen=True)
class Choice(Control):
    """One of several names."""

    options: Options | Callable[[], Options] = ()
    is_open: bool = False
    """Other names are allowed too: who uses them says whether they exist."""

    def labels(self) -> dict[str, str]:
        """What can be chosen, with the words shown for it."""
        options = self.options() if callable(self.options) else self.options
        return dict(options) if isinstance(options, Mapping) else {name: name for name in options}

    def read(self, raw: Any) -> str:
        """The name; an unknown one (from an address) is refused."""
        if raw not in self.labels() and not (self.is_open and raw):
            raise self.refuse(f"{raw!r} is not one of {', '.join(self.labels())}." if raw else "Choose one.")
        return str(raw)

    def component(self, id: str, raw: Any) -> Component:
        """The browser's own list; assets/gnomon.js carries its value to the input that callbacks read."""
        labels = self.labels()
        labels |= {raw: raw} if raw and raw not in labels else {}
        return html.Div([dcc.Input(id=id, value=raw, type="hidden"),
                         html.Select(select_options(labels), id=f"{id}-select", className="choice")])  # fmt: skip

    def focus_id(self, id: str) -> str:
        return f"{id}-select"


def select_options(labels: Mapping[str, str]) -> list[Component]:
    """The children of a list; a callback that changes them has the output `<id>-select.children`."""
    return [html.Option(label, value=value) for value, label in labels.items()]


@dataclass(frozen=True)
class Choices(Choice):
    """Several of several names."""

    default: Any = ()

    def read(self, raw: Any) -> Any:
        return tuple(super(Choices, self).read(one) for one in raw or ())

    def to_query(self, raw: Any) -> str:
        return ",".join(raw or ())

    def from_query(self, text: str) -> Any:
        return [part for part in text.split(",") if part]

    def component(self, id: str, raw: Any) -> Component:
        """A list with a tick beside each, folded into a line that says how many are chosen."""
        options = [{"value": value, "label": label} for value, label in self.labels().items()]
        ticks = dcc.Checklist(id=id, options=options, value=list(raw), className="ticks")
        return html.Details([html.Summary("", id=f"{id}-chosen"), ticks], className="choices")

    def focus_id(self, id: str) -> str:
        return ""


@dataclass(frozen=True)
class Switch(Control):
    """Yes or no."""

    default: Any = False

    def read(self, raw: Any) -> bool:
        return bool(raw)

    def to_query(self, raw: Any) -> str:
        return "on" if raw else "off"

    def from_query(self, text: str) -> Any:
        return ["on"] if text == "on" else []

    def component(self, id: str, raw: Any) -> Component:
        ticked = ["on"] if raw else []
        return dcc.Checklist(id=id, options=[{"value": "on", "label": self.label}], value=ticked, className="switch")


def state_of(controls: Sequence[Control], query: str) -> dict[str, Any]:
    """Raw values by name: what the address says, else the default. Keys that no control has are left alone."""
    given = parse_qs(query.removeprefix("?"), keep_blank_values=True)
    return {
        one.name: one.from_query(given[one.name][-1]) if one.name in given else one.default for one in controls
    }  # fmt: skip


def query_of(controls: Sequence[Control], state: Mapping[str, Any]) -> str:
    """`?name=value&...` of what differs from the defaults; "" where nothing does."""
    texts = {one.name: one.to_query(state[one.name]) for one in controls if one.name in state}
    usual = defaults_of(controls)
    changed = {name: text for name, text in texts.items() if text != usual[name]}
    return f"?{urlencode(changed)}" if changed else ""


def defaults_of(controls: Sequence[Control]) -> dict[str, str]:
    """The defaults as they would stand in an address."""
    return {one.name: one.to_query(one.default) for one in controls}
