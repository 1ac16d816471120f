"""Option maps as data: what every option of another tool means in a scenario, or why it means nothing."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import Field, model_validator

from gnomon.core.config import Config, build
from gnomon.core.errors import UnknownNameError

DATA = files("gnomon.convert") / "data"
TOOLS = ("vidur", "vllm", "sglang", "trtllm")


class Option(Config):
    """One option of another tool."""

    to: str | tuple[str, ...] = ()
    """Dotted keys of the scenario that get its value; a last part that is a number is a place in a list."""
    sets: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that get a fixed value whenever the option applies."""
    finishes: tuple[str, ...] = ()
    """Dotted keys that follow from it together with other options (`FINISHERS` in conversion.py)."""
    trains: str | tuple[str, ...] = ()
    """Dotted keys of the configuration of `gnomon route` that get its value."""
    along: dict[str, Any] = Field(default_factory=dict)
    """Keys of `gnomon route` without which it would have no effect, set where the command does not say otherwise."""
    file: bool = False
    """Names a YAML file of further options, whose keys are dotted names."""
    none: str | None = None
    """Why there is no counterpart."""
    default: Any = None
    """What the tool does if the option is not given; written into the scenario, where it may differ from ours."""
    values: dict[str, Any] | None = None
    """What the tool's values are called here, in lower case; null for what a scenario does anyway."""
    only_values: str = ""
    """Where `values` are all there are: why others have no counterpart."""
    refused: dict[str, str] = Field(default_factory=dict)
    """Values that have no counterpart, and why."""
    read: str | None = None
    """A function that makes the value, by name (see `readers.py`)."""
    flag: bool = False
    """Takes no value; `--no-...` turns it off."""
    many: bool = False
    """Takes as many values as follow."""
    aliases: tuple[str, ...] = ()
    """Other spellings, such as -tp."""

    @model_validator(mode="after")
    def _means_something(self) -> Option:
        if bool(self.targets or self.sets or self.finishes or self.file or self.trained) == (self.none is not None):
            raise ValueError("an option has either a counterpart (to, sets) or a reason for having none")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """Keys that get the value."""
        return (self.to,) if isinstance(self.to, str) else self.to

    @property
    def trained(self) -> tuple[str, ...]:
        """Keys of `gnomon route` that get the value."""
        return (self.trains,) if isinstance(self.trains, str) else self.trains


class Group(Config):
    """Options that only count while a selector has one of the choices; `{}` in the prefix is the choice."""

    prefix: str
    selector: str
    choices: tuple[str, ...]
    options: dict[str, Option]


class OptionMap(Config):
    """All options of one tool."""

    source: str
    """Which version of the tool the options were read from."""
    entries: tuple[str, ...]
    """Words that start the tool; everything before the last of them is not an option."""
    stages: dict[str, str] = Field(default_factory=dict)
    """Entries that do one stage of `gnomon route` alone, and which."""
    positional: str | None = None
    """The option that a bare word sets."""
    scenario: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that are always set: what the tool does without being asked."""
    options: dict[str, Option]
    groups: tuple[Group, ...] = ()

    def selected_by(self) -> dict[str, tuple[str, str]]:
        """For every option of a group: the selector and the choice for which it counts."""
        return {
            group.prefix.format(choice) + name: (group.selector, choice)
            for group in self.groups
            for choice in group.choices
            for name in group.options
        }

    def all_options(self) -> dict[str, Option]:
        """Every option by its name: without dashes in front, and with _ for -."""
        grouped = {
            group.prefix.format(choice) + name: option
            for group in self.groups
            for choice in group.choices
            for name, option in group.options.items()
        }
        return {**self.options, **grouped}


@cache
def option_map(tool: str) -> OptionMap:
    """The options of one tool."""
    if tool not in TOOLS:
        raise UnknownNameError("tool", tool, TOOLS)
    text = (DATA / f"{tool}.yaml").read_text(encoding="utf-8")
    return build(OptionMap, yaml.safe_load(text), where=f"{tool}.yaml")
