"""Another tool's command line as a scenario, with an account of every option."""

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnomon.convert.options import Given, Option, OptionMap, option_map, read_command_line, stage_of, value_of
from gnomon.convert.readers import READERS, finish_sglang, finish_trtllm, finish_vidur, finish_vllm, whole_number
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.core.text import parse_yaml, read_text, to_yaml
from gnomon.serving.scenario import Scenario

Finisher = Callable[[dict[str, Any], dict[str, Any]], list[str]]
FINISHERS: dict[str, Finisher] = {
    "vidur": finish_vidur, "vllm": finish_vllm, "sglang": finish_sglang, "trtllm": finish_trtllm,
}  # fmt: skip
"""What follows from several options together: completes the scenario in place, given all options, and returns notes."""


@dataclass
class Conversion:
    """A scenario and what became of every option."""

    tool: str
    values: dict[str, Any]
    """The scenario's keys that follow from the command, nested."""
    mapped: list[tuple[str, str]] = field(default_factory=list)
    """(option as given, scenario keys)"""
    without: list[tuple[str, str]] = field(default_factory=list)
    """(option as given, why it has no counterpart)"""
    notes: list[str] = field(default_factory=list)
    """What the command does not say and the reader should know."""
    training: dict[str, Any] = field(default_factory=dict)
    """Where the router was to be trained: dotted keys of the configuration of `gnomon route`."""
    stage: str = "all"
    """The command of `gnomon route` that does it."""

    @property
    def training_command(self) -> str:
        """How to train the router on the converted scenario; empty where none is to be trained."""
        if not self.training:
            return ""
        flags = (f"--{key.replace('_', '-')} {shlex.quote(_written(value))}" for key, value in self.training.items())
        return " ".join([f"gnomon route {self.stage} --scenario SCENARIO.yaml", *flags])

    @property
    def scenario(self) -> Scenario:
        return build(Scenario, self.values)


def _written(value: Any) -> str:
    """A value of `gnomon route` as its flag takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def convert(tool: str, command: str, *, device: str | None = None) -> Conversion:
    """Turn a command line of `tool` ("vidur", "vllm", "sglang" or "trtllm") into a scenario.

    `device` names the GPU, which engines' command lines do not say.
    """
    known = option_map(tool)
    given = _merged(_opened(_with_files(read_command_line(command, known), known), known), known)
    flat: dict[str, Any] = {**known.scenario, **({"device": device} if device else {})}
    names = {name for _, name, _ in given}
    for name, option in known.all_options().items():  # Those that were not given but stand for something.
        is_meant = name not in names and option.default is not None and option.none is None
        if is_meant and _is_chosen(known, given, name):
            _apply(flat, option, option.default)
    # In the map's order, not the command's: where two options set one key, the later in the map decides.
    order = list(known.all_options())
    reasons = {name: _reason(known, given, name, value) for _, name, value in given}
    counting = sorted((g for g in given if reasons[g[1]] is None), key=lambda g: order.index(g[1]))
    keys = {name: _apply(flat, known.all_options()[name], value) for _, name, value in counting}
    asked = [(known.all_options()[name], value) for _, name, value in counting]
    training = {key: _called_here(option, value) for option, value in asked for key in option.trained}
    along = {key: value for option, _ in asked for key, value in option.along.items() if key not in training}
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        put(nested, dotted, value)
    nested = {key: _listed(value) for key, value in nested.items()}
    build(Scenario, nested)  # A mistake in a value is named before anything is concluded from it.
    notes = FINISHERS[tool](nested, {name: value for _, name, value in counting})
    values = {key: nested[key] for key in Scenario.model_fields if key in nested}
    notes += [
        f"{key} {value} is set too: without it, what the command asks for has no effect."
        for key, value in along.items()
    ]
    result = Conversion(tool, values, notes=notes, training=training | along, stage=stage_of(command, known))
    for spelled, name, value in given:
        is_bare = spelled == value or (isinstance(value, bool) and not spelled.endswith(":"))
        shown = spelled if is_bare else f"{spelled} {value}"
        reason = reasons[name]
        if reason is None:
            result.mapped.append((shown, ", ".join(keys[name]) or "what a scenario does anyway"))
        else:
            result.without.append((shown, reason))
    return result


def as_yaml(conversion: Conversion) -> str:
    """The scenario as YAML, with what became of every option as comments above it."""
    lines = [f"# From a {conversion.tool} command line."]
    if conversion.mapped:
        lines += ["# Mapped:", *(f"#   {given} -> {keys}" for given, keys in conversion.mapped)]
    if conversion.without:
        lines += ["# Without a counterpart:", *(f"#   {given}: {why}" for given, why in conversion.without)]
    lines += [f"# Note: {note}" for note in conversion.notes]
    if conversion.training:
        lines.append(f"# Train the router with: {conversion.training_command}")
    return "\n".join(lines) + "\n" + to_yaml(conversion.values)


def _with_files(given: Given, known: OptionMap) -> Given:
    """The options with those of files that they name. What the command says itself comes later, and counts."""
    options = known.all_options()
    from_files: Given = []
    for _, name, value in given:
        if name in options and options[name].file:
            content = parse_yaml(read_text(str(value)), where=str(value)) or {}
            if not isinstance(content, dict):
                raise ConfigError("must have keys and values.", where=str(value))
            from_files += _flat(content, "", known)
    return [*from_files, *given]


def _flat(content: dict[Any, Any], prefix: str, known: OptionMap) -> Given:
    """The keys of a file as dotted names, down to options that are known; `no-...: true` turns one off."""
    options = known.all_options()
    aliases = {alias.lstrip("-"): name for name, option in options.items() for alias in option.aliases}
    found: Given = []
    for key, value in content.items():
        spelled = f"{prefix}{key}"
        name = aliases.get(spelled, spelled.replace("-", "_"))
        if isinstance(value, dict) and name not in options:
            found += _flat(value, f"{name}.", known)
        elif name.startswith("no_") and name[3:] in options:
            found.append((f"{spelled}:", name[3:], not value))
        else:
            found.append((f"{spelled}:", name, value_of(value) if isinstance(value, str) else value))
    return found


def _opened(given: Given, known: OptionMap) -> Given:
    """The options with those inside an option given as JSON (`--compilation-config '{"mode": 3}'`), where each has a
    meaning of its own."""
    parents = {name.rpartition(".")[0] for name in known.all_options()}
    opened: Given = []
    for spelled, name, value in given:
        opened += (
            _flat(value, f"{name}.", known) if isinstance(value, dict) and name in parents else [(spelled, name, value)]
        )
    return opened


def _merged(given: Given, known: OptionMap) -> Given:
    """Put the dotted parts of one JSON option (`--speculative-config.num_speculative_tokens 3`) together."""
    merged: dict[str, tuple[str, str, Any]] = {}
    for spelled, name, value in given:
        head, _, part = name.partition(".")
        if part and (name in known.all_options() or head not in known.all_options()):
            merged[name] = (spelled, name, value)
        elif part:
            before = merged[head][2] if head in merged and isinstance(merged[head][2], dict) else {}
            merged[head] = (spelled.split(".")[0], head, {**before, part: value})
        else:
            merged[head] = (spelled, head, value)
    return list(merged.values())


def _is_chosen(known: OptionMap, given: Given, name: str) -> bool:
    """Whether the option's group is the one in use (and its selector's group too)."""
    selected = known.selected_by().get(name)
    if selected is None:
        return True
    selector, choice = selected
    return _chosen(known, given, selector) == choice and _is_chosen(known, given, selector)


def _chosen(known: OptionMap, given: Given, selector: str) -> str:
    chosen = next((value for _, name, value in given if name == selector), known.all_options()[selector].default)
    return str(chosen).lower()


def _reason(known: OptionMap, given: Given, name: str, value: Any) -> str | None:
    """Why an option has no counterpart; None if it has one."""
    options = known.all_options()
    option = options.get(name)
    if option is None:
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.8)
        return "not an option that is known here" + (f"; did you mean {near[0]}?" if near else "")
    if option.none is not None:
        return option.none
    if not _is_chosen(known, given, name):
        selector = known.selected_by()[name][0]
        return f"not in use: {selector} is {_chosen(known, given, selector)}"
    if option.only_values and str(value).lower() not in (option.values or {}):
        return option.only_values
    return option.refused.get(str(value).lower())


def _apply(flat: dict[str, Any], option: Option, value: Any) -> list[str]:
    """Put an option's value into the flat scenario; return the keys that were set."""
    value = _called_here(option, value)
    if option.trained:
        return [f"gnomon route: {key}" for key in option.trained]
    if value is None:
        return []
    if option.finishes:
        if not option.flag and option.read is None:
            whole_number(value)
        return list(option.finishes)
    keys = {**dict.fromkeys(option.targets, value), **option.sets}
    flat.update(keys)
    return list(keys)


def _called_here(option: Option, value: Any) -> Any:
    """An option's value by the name that it has here, or as its reader makes it."""
    if option.values is not None:
        return option.values.get(str(value).lower(), str(value).lower())
    return READERS[option.read](value) if option.read is not None else value


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a key at its place in nested mappings, which are made on the way."""
    *sections, last = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [value[key] for key in sorted(value, key=int)]
    return {key: _listed(inner) for key, inner in value.items()}
