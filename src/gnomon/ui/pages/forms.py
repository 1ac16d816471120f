"""The inputs of the pages, which forms.yaml lists."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gnomon import catalog
from gnomon.api.serving import policy_names, router_names
from gnomon.convert.commands import ENGINES
from gnomon.core.text import own_yaml
from gnomon.report.serving.page import TERMS
from gnomon.ui.controls import Choice, Choices, Control, Number, Options, Slider, Switch, Text
from gnomon.workload.presets import preset_names

FORMS: dict[str, dict[str, dict[str, dict[str, Any]]]] = own_yaml(Path(__file__).with_name("forms.yaml"))
LISTS: dict[str, Options | Callable[[], Options]] = {
    "models": catalog.model_names, "devices": catalog.device_names, "presets": preset_names,
    "policies": policy_names, "routers": router_names, "engines": {name: one.name for name, one in ENGINES.items()},
}  # fmt: skip
KINDS: dict[str, Callable[..., Control]] = {
    kind.__name__: kind for kind in (Choice, Choices, Number, Slider, Switch, Text)
} | {"Count": partial(Number, least=1, whole=True)}


def form(page: str, *own: type[Control], **more: Mapping[str, Any]) -> tuple[Control, ...]:
    """The inputs of a page: what forms.yaml says of each, and what the page adds. `own` are its own kinds of inputs."""
    kinds = KINDS | {kind.__name__: kind for kind in own}
    return tuple(
        _control(kinds, name, group, **{**row, **more.get(name, {})})
        for group, rows in FORMS[page].items()
        for name, row in rows.items()
    )


def _control(kinds: Mapping[str, Callable[..., Control]], name: str, group: str, **row: Any) -> Control:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    if isinstance(given.get("options"), str):
        given["options"] = LISTS[given["options"]]
    tip = given.pop("tip", "")
    return kinds[given.pop("kind", "Number")](name, group=group, tip=TERMS.get(tip, tip), **given)


def keys_of(controls: Iterable[Control]) -> dict[str, str]:
    """The field behind each input that has one: the first that it names."""
    return {one.name: one.field if isinstance(one.field, str) else one.field[0] for one in controls if one.field}
