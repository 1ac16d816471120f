"""Reading another tool's command line into options and values."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from typing import Any

from gnomon.convert.options import Option, OptionMap
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import parse_yaml

Given = list[tuple[str, str, Any]]
"""(as written, name, value) of every option, in order."""

_SHELL = re.compile(r"\d*>.*|[&*]>.*|<.*|[|&;]+")
"""Words with which a command ends and the shell's own business begins: `> server.log 2>&1 &`."""
_GOES_ON = re.compile(r"[\\`^][ \t]*(#[^\n]*)?\r?\n")
"""A line that goes on in the next, as sh, PowerShell (`) and cmd (^) write it, with a remark behind the mark."""


def read_command_line(command: str, known: OptionMap) -> Given:
    """Every option of `command` with its value: True or False for flags, a list where several values follow."""
    words = _after_entry(_split(command), known)
    names = _spellings(known)
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


def _split(command: str) -> list[str]:
    try:
        return shlex.split(_GOES_ON.sub(" ", command), comments=True)
    except ValueError as error:
        raise ConfigError(f"cannot be read as a command line: {error}.", where="the command") from None


def stage_of(command: str, known: OptionMap) -> str:
    """The stage of `gnomon route` that the command does alone; all of them, if it is another command."""
    return next((known.stages[word] for word in reversed(_split(command)) if word in known.stages), "all")


def _after_entry(words: list[str], known: OptionMap) -> list[str]:
    """What follows the words that start the tool (`python -m vidur.main`, `vllm serve`)."""
    for at, word in reversed(list(enumerate(words))):
        if word in known.entries or word in known.stages:
            return list(takewhile(lambda one: not _SHELL.fullmatch(one), words[at + 1 :]))
    if words and _is_option(words[0]):
        return words
    raise ConfigError(
        "the command does not start the tool.", where="the command", fix=f"Expected one of: {', '.join(known.entries)}."
    )


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-?\.?\d.*|-", word)


def _spellings(known: OptionMap) -> dict[str, str]:
    """Short spellings by what they stand for."""
    return {alias: name for name, option in known.all_options().items() for alias in option.aliases}


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
