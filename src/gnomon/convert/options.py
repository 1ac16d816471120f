"""Option maps as data (what every option of another tool means in a scenario), and command lines read by them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import product, takewhile
from typing import Any

from pydantic import Field, model_validator

from gnomon.core.config import Config, build
from gnomon.core.errors import ConfigError, DataError, UnknownNameError
from gnomon.core.text import own_yaml, parse_yaml

DATA = files("gnomon.convert") / "data"
TOOLS = ("vidur", "vllm", "sglang", "trtllm")


class Option(Config):
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
        return (self.to,) if isinstance(self.to, str) else self.to

    @property
    def trained(self) -> tuple[str, ...]:
        return (self.trains,) if isinstance(self.trains, str) else self.trains


class Group(Config):
    """Options that only count while a selector has one of the choices; `{}` in the prefix is the choice."""

    prefix: str
    selector: str
    choices: tuple[str, ...]
    options: dict[str, Option]


class OptionMap(Config):
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
    unsaid: dict[str, Any] = Field(default_factory=dict)
    """The tool's own defaults, which need no word where a command is written."""
    options: dict[str, Option]
    groups: tuple[Group, ...] = ()

    def _grouped(self) -> Iterator[tuple[str, Option, tuple[str, str]]]:
        """Options of groups by name, with the selector and the choice for which each counts."""
        for group in self.groups:
            for choice, (name, option) in product(group.choices, group.options.items()):
                yield group.prefix.format(choice) + name, option, (group.selector, choice)

    def selected_by(self) -> dict[str, tuple[str, str]]:
        """For every option of a group: the selector and the choice for which it counts."""
        return {name: selected for name, _, selected in self._grouped()}

    def all_options(self) -> dict[str, Option]:
        """Every option by its name: without dashes in front, and with _ for -."""
        return self.options | {name: option for name, option, _ in self._grouped()}


@cache
def option_map(tool: str) -> OptionMap:
    if tool not in TOOLS:
        raise UnknownNameError("tool", tool, TOOLS)
    return build(OptionMap, own_yaml(DATA / f"{tool}.yaml"), where=f"{tool}.yaml")


Given = list[tuple[str, str, Any]]  # (as written, name, value) of every option, in order.

_SHELL = re.compile(r"\d*>.*|[&*]>.*|<.*|[|&;]+")
"""Words with which a command ends and the shell's own business begins: `> server.log 2>&1 &`."""
_GOES_ON = re.compile(r"[\\`^][ \t]*(#[^\n]*)?\r?\n")
"""A line that goes on in the next, as sh, PowerShell (`) and cmd (^) write it, with a remark behind the mark."""


def read_command_line(command: str, known: OptionMap) -> Given:
    """Every option of `command` with its value: True or False for flags, a list where several values follow."""
    words = _after_entry(words_of(command), known)
    names = {alias: name for name, option in known.all_options().items() for alias in option.aliases}
    given: Given = []
    while words:
        word = words.pop(0)
        if not _is_option(word):
            if known.positional is None or any(name == known.positional for _, name, _ in given):
                raise ConfigError(f"{word!r} belongs to no option.", where="the command", fix="Check the quotes.")
            given.append((word, known.positional, word))
            continue
        spelled, has_value, value = word.partition("=")
        name, is_off = _name(spelled, names)
        option = known.all_options().get(name.split(".")[0])
        if is_off or (option is not None and option.flag and not has_value):
            given.append((spelled, name, not is_off))
        elif has_value:
            given.append((spelled, name, value_of(value)))
        else:
            given.append((spelled, name, _values(words, option, spelled)))
    return given


def words_of(command: str) -> list[str]:
    """A command's words, as a shell sees them."""
    try:
        return shlex.split(_GOES_ON.sub(" ", command), comments=True)
    except ValueError as error:
        raise ConfigError(f"cannot be read as a command line: {error}.", where="the command") from None


def stage_of(command: str, known: OptionMap) -> str:
    """The stage of `gnomon route` that the command does alone; all of them, if it is another command."""
    return next((known.stages[word] for word in reversed(words_of(command)) if word in known.stages), "all")


def _after_entry(words: list[str], known: OptionMap) -> list[str]:
    """What follows the words that start the tool (`python -m vidur.main`, `vllm serve`)."""
    for at, word in reversed(list(enumerate(words))):
        if word in known.entries or word in known.stages:
            return list(takewhile(lambda one: not _SHELL.fullmatch(one), words[at + 1 :]))
    if words and _is_option(words[0]):
        return words
    what = "the command does not start the tool."
    raise ConfigError(what, where="the command", fix=f"Expected one of: {', '.join(known.entries)}.")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-?\.?\d.*|-", word)


def _name(spelled: str, aliases: dict[str, str]) -> tuple[str, bool]:
    """The option's name, and whether `--no-` turned it off."""
    head, dot, part = spelled.partition(".")
    if head in aliases:
        return aliases[head] + dot + part, False
    name = spelled.lstrip("-").replace("-", "_")
    if spelled.startswith("--no-"):
        return name.removeprefix("no_"), True
    return name, False


def _values(words: list[str], option: Option | None, spelled: str) -> Any:
    """The values that follow: one for a known option unless more follow, as many as there are for a list."""
    found = []
    while words and not _is_option(words[0]):
        found.append(value_of(words.pop(0)))
        if option is not None and not option.many:
            break
    if not found:
        if option is not None and option.none is None and not isinstance(option.default, bool):
            raise ConfigError(f"{spelled} needs a value.", where="the command")
        return True
    return found[0] if len(found) == 1 else found


def value_of(text: str) -> Any:
    """Numbers, booleans and JSON as such; everything else as text."""
    try:
        value = parse_yaml(text)
    except DataError:
        return text
    return value if isinstance(value, int | float | bool | dict | list) else text
