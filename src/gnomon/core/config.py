"""Scenarios: frozen pydantic models, read from YAML or JSON with the line of every mistake.

A model's field doc strings are its help texts; every leaf field is a dotted flag on the command line
(`--replica.tensor-parallel 4`). Unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import ast
import inspect
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from gnomon.core.errors import ConfigError, DataError, GnomonError, nearest
from gnomon.core.files import write_text
from gnomon.core.short_names import short_names
from gnomon.core.text import parse_yaml, parse_yaml_with_nodes, read_text, to_yaml
from gnomon.core.units import duration


def field_doc(cls: type, name: str) -> str:
    """The doc string under the field `name` of a class, or of the base that has it; empty where there is none."""
    for one in cls.__mro__:
        if name in inspect.get_annotations(one):
            return _with_names(_docs_in(one.__module__).get((one.__qualname__, name), ""))
    return ""


def _with_names(text: str) -> str:
    """The text with every `{gnomon.module.REGISTRY}`, or function that lists names, in it replaced by those names."""

    def names(found: re.Match[str]) -> str:
        known = getattr(import_module(found[1]), found[2])
        return ", ".join(known() if callable(known) else known.names())

    return re.sub(r"\{(gnomon[\w.]*)\.(\w+)\}", names, text)


@cache
def _docs_in(module: str) -> dict[tuple[str, str], str]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # A session without a file, or a program without its sources.
        return {}
    return {
        (qualified, field.target.id): inspect.cleandoc(text.value.value)
        for qualified, cls in _classes(tree)
        for field, text in pairwise(cls.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _classes(tree: ast.AST, prefix: str = "") -> list[tuple[str, ast.ClassDef]]:
    found: list[tuple[str, ast.ClassDef]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found += [(prefix + node.name, node), *_classes(node, f"{prefix}{node.name}.")]
        elif isinstance(node, ast.FunctionDef):
            found += _classes(node, f"{prefix}{node.name}.<locals>.")
    return found


class Config(BaseModel):
    """Base of every configuration: frozen, unknown keys refused, doc strings under fields as help."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, defer_build=True)

    shorthand: ClassVar[str | None] = None
    """The field that a bare string sets: with "name", `router: random` means `router: {name: random}`."""

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, data: Any) -> Any:
        if cls.shorthand and isinstance(data, str):
            return {cls.shorthand: data}
        if not isinstance(data, dict):
            return data
        return {key: _in_seconds(key, value) for key, value in data.items()}

    @classmethod
    def reopened(cls, data: dict[str, Any], changed: Iterable[str]) -> dict[str, Any]:
        """Values from a file without those that only follow from fields that are to be `changed`."""
        return data


def _in_seconds(key: Any, value: Any) -> Any:
    """Durations with their units (`500ms`) as the seconds that a key in `_s` counts; everything else as it is."""
    if not str(key).endswith("_s"):
        return value
    if isinstance(value, dict):
        return {name: _in_seconds(key, one) for name, one in value.items()}
    seconds = duration(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


class Choice(Config):
    """One of several things by its name (`shorthand` says in which field), or the user's own from a Python `file`."""

    shorthand: ClassVar[str | None] = "name"

    @model_validator(mode="after")
    def _own_is_named(self) -> Choice:
        file = getattr(self, "file", None)
        if file is not None and self.shorthand not in self.model_fields_set:
            raise ValueError(f"{file} registers names, but {self.shorthand} does not say which of them is meant")
        return self


C = TypeVar("C", bound=Config)
Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Field:
    """One leaf of a configuration, as the command line sees it."""

    dotted: str
    annotation: Any
    default: Any
    describe: Callable[[], str]
    """Finds what it means; called only where help is printed."""

    @property
    def flag(self) -> str:
        """The command-line flag, e.g. `--replica.tensor-parallel`."""
        return "--" + self.dotted.replace("_", "-")


def load(model: type[C], path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> C:
    """Read `path` (YAML or JSON) into `model`, with dotted `overrides` on top.

    `overrides` maps dotted keys to values; strings are read as YAML, so `"4"` is a number and `"[1, 2]"` a list, except
    for fields that are texts: those take a string as it is.
    """
    data: dict[str, Any] = {}
    places: dict[Path_, str] = {}
    if path is not None:
        data, places = _read(Path(path))
        data = _beside(data, Path(path).parent)
        for short in list(data):
            (name,) = spelled_out(model, {short: None})
            if name != short:
                _override(model, data, name, data.pop(short))
        data = model.reopened(data, overrides or ())
    for dotted, value in sorted((overrides or {}).items(), key=lambda item: item[0].count(".")):
        keys = _override(model, data, dotted, value)
        if path is not None:
            places = {key: place for key, place in places.items() if key[: len(keys)] != keys}
            places[keys] = f"--{dotted.replace('_', '-')}"
    return build(model, data, where=str(path) if path is not None else None, places=places)


def refuse_said_twice(model: type[BaseModel], overrides: Collection[str]) -> None:
    """A section's own name and the field that it is short for, both given: `router` and `router.name`."""
    for dotted in overrides:
        section, _, name = dotted.rpartition(".")
        if section in overrides and name == _shorthand(_models_at(model, tuple(section.split(".")))):
            both = f"--{section} and --{dotted}".replace("_", "-")
            raise ConfigError(f"{both} say the same.", fix="Give one of them.")


def _beside(data: Any, folder: Path) -> Any:
    """Python files and calibrations that a file names, beside that file; where it is not there, as it is given."""
    if isinstance(data, list):
        return [_beside(one, folder) for one in data]
    if not isinstance(data, dict):
        return data
    found = {}
    for key, value in data.items():
        is_path = key in ("file", "calibration") and isinstance(value, str) and (folder / value).is_file()
        found[key] = str(folder / value) if is_path else _beside(value, folder)
    return found


def build(
    model: type[C], data: Mapping[str, Any], *, where: str | None = None, places: Mapping[Path_, str] | None = None,
) -> C:  # fmt: skip
    """Validate `data` into `model`; the error names the key and the place where it was given: a line or a flag."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _explain(model, error, where, places or {}) from None


def dump(config: Config) -> str:
    """The configuration as YAML that `load` reads back to an equal one."""
    return to_yaml(config.model_dump(mode="json"))


def save(config: Config, path: str | Path) -> Path:
    """Write the fully resolved configuration, so that the run can be repeated."""
    return write_text(path, dump(config))


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[Field]:
    """Every leaf field of `model` with its dotted name; sub-models are walked into, unions of models too."""
    seen: set[str] = set()
    for name, info in model.model_fields.items():
        dotted = f"{prefix}{name}"
        inner = submodels(info.annotation)
        if not inner:
            default = info.get_default(call_default_factory=True)
            yield Field(dotted, info.annotation, default, partial(field_doc, model, name))
            continue
        short = _shorthand(inner)
        if short:
            owner = next(one for one in inner if short in one.model_fields)
            yield Field(
                dotted, str, None, partial(_of_shorthand, owner, short, f"--{dotted}.{short}".replace("_", "-"))
            )
        for one in inner:
            for leaf in fields(one, f"{dotted}."):
                if leaf.dotted not in seen:
                    seen.add(leaf.dotted)
                    yield leaf


def _of_shorthand(owner: type[BaseModel], name: str, flag: str) -> str:
    """What a field means that its section's own name sets, and its flag."""
    return f"{field_doc(owner, name)} Short for {flag}.".strip()


def _shorthand(models: list[type[BaseModel]]) -> str | None:
    """The field that a bare string sets in one of these models."""
    return next((m.shorthand for m in models if issubclass(m, Config) and m.shorthand), None)


def submodels(annotation: Any) -> list[type[BaseModel]]:
    """The models inside an annotation such as `Model`, `Model | None` or a discriminated union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return submodels(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [m for arg in get_args(annotation) for m in submodels(arg)]
    return []


def _read(path: Path) -> tuple[dict[str, Any], dict[Path_, str]]:
    """Parse a YAML (or JSON, its subset) file; also return the place of every key."""
    try:
        data, root = parse_yaml_with_nodes(read_text(path), str(path))
    except DataError as error:
        raise ConfigError(error.what, where=error.where, fix=error.fix) from None
    if data is None:
        fix = "Give it a key, such as `model: llama-3-8b`; without a file, the defaults are taken."
        raise ConfigError("the file holds nothing.", where=str(path), fix=fix)
    if not isinstance(data, dict):
        raise ConfigError("the file must hold a mapping of keys to values.", where=str(path))
    lines: dict[Path_, int] = {}
    for key, line in key_lines(root):
        if key in lines:
            name = ".".join(map(str, key))
            raise ConfigError(f"{name!r} is given twice, first in line {lines[key]}.", where=f"{path}:{line}")
        lines[key] = line
    return data, {key: f"{path}:{line}" for key, line in lines.items()}


def key_lines(node: yaml.Node | None, path: Path_ = ()) -> Iterator[tuple[Path_, int]]:
    """The line of every key of a YAML text, and of every entry of a list."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from key_lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            yield here, value.start_mark.line + 1
            yield from key_lines(value, here)


def _override(model: type[BaseModel], data: dict[str, Any], dotted: str, value: Any) -> Path_:
    """Put `value` at `dotted` in `data`, making the mappings on the way; returns the keys that lead there."""
    keys = dotted.replace("-", "_").split(".")
    _check_dotted(model, keys, dotted)
    at, models = data, [model]
    for key in keys[:-1]:
        models = [m for one in models if key in one.model_fields for m in submodels(one.model_fields[key].annotation)]
        inner = at.get(key)
        if not isinstance(inner, dict):
            # A section written in short (`router: random`) is spelled out, so that one field of it can change.
            short = _shorthand(models)
            inner = {short: inner} if short and isinstance(inner, str) else {}
            at[key] = inner
        at = inner
    if isinstance(value, str):
        annotations = [one.model_fields[keys[-1]].annotation for one in models if keys[-1] in one.model_fields]
        value = _as_given(value, annotations, f"--{dotted}")
    at[keys[-1]] = value
    return tuple(keys)


def _as_given(text: str, annotations: list[Any], where: str) -> Any:
    """What the text of a flag means to a field of these types: a text field takes it as it is."""
    kinds = {kind for one in annotations for kind in _members(one)}
    is_text = str in kinds and kinds <= {str, type(None)}
    # A section in short, such as the path of a trace: only a mapping in braces is more than its text.
    is_short = any(_shorthand(submodels(one)) for one in annotations) and not text.lstrip().startswith("{")
    if is_text or is_short:
        return None if text in ("null", "~") and type(None) in kinds else text
    try:
        return parse_yaml(text, where)
    except DataError as error:
        raise ConfigError(f"cannot read the value {_brief(text)}: {error.what}", where=where, fix=error.fix) from None


def _members(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation itself."""
    if get_origin(annotation) is typing.Annotated:
        return _members(get_args(annotation)[0])
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return [m for one in get_args(annotation) for m in _members(one)] if is_union else [annotation]


def _check_dotted(model: type[BaseModel], keys: list[str], dotted: str) -> None:
    """Refuse an override whose key no model on the way has."""
    models = [model]
    for depth, key in enumerate(keys):
        known = {name: info for m in models for name, info in m.model_fields.items()}
        if key not in known:
            if any(m.model_config.get("extra") == "allow" for m in models):
                return
            prefix = "".join(f"{k}." for k in keys[:depth])
            near = _of_that_name(model, keys[-1]) or [prefix + one for one in nearest(key, known)]
            meant = " or ".join(f"--{one.replace('_', '-')}" for one in near[:3])
            fix = f"Did you mean {meant}?" if near else f"Known: {', '.join(known)}."
            raise ConfigError(f"there is no option --{dotted}.", fix=fix)
        annotation = known[key].annotation
        models = submodels(annotation)
        if not models and depth < len(keys) - 1:
            if get_origin(annotation) is dict or annotation is dict or annotation is Any:
                return
            raise ConfigError(f"there is no option --{dotted}.", fix=f"--{'.'.join(keys[: depth + 1])} takes a value.")


def _of_that_name(model: type[BaseModel], name: str) -> list[str]:
    """Fields with this very name in whatever section, by their dotted names, the nearest to the root first."""
    found = [leaf.dotted for leaf in fields(model) if leaf.dotted.rpartition(".")[2] == name]
    return sorted(found, key=lambda dotted: dotted.count("."))


def _explain(
    model: type[BaseModel], error: ValidationError, where: str | None, places: Mapping[Path_, str]
) -> GnomonError:
    """The first mistake of a validation error, in one paragraph. A mistyped key comes before the one it leaves out."""
    mistakes = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    first = mistakes[0]
    cause = first.get("ctx", {}).get("error")
    path = _as_written(model, first["loc"])
    key = ".".join(str(part) for part in path)
    place = _place(where, path, places)
    if isinstance(cause, GnomonError):
        return type(cause)(cause.what, where=place, fix=cause.fix) if type(cause) is ConfigError else cause
    if first["type"] == "extra_forbidden":
        known = [name for m in _models_at(model, path[:-1]) for name in m.model_fields]
        near = _of_that_name(model, str(path[-1])) or nearest(str(path[-1]), known)
        fix = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}."
        return ConfigError(f"unknown key {key!r}.", where=place, fix=fix)
    # The members of a union each complain about the same key: the first one will do.
    texts = {_as_written(model, one["loc"]): _mistake(one) for one in reversed(mistakes)}
    texts.pop(path)
    also = "; ".join(f"{'.'.join(map(str, other))}: {text}" for other, text in reversed(texts.items()))
    return ConfigError(f"{f'{key}: ' if key else ''}{_mistake(first)}.{f' Also: {also}.' if also else ''}", where=place)


def _mistake(mistake: ErrorDetails) -> str:
    """Pydantic's sentence without its decoration, and what was given."""
    message = mistake["msg"].removeprefix("Value error, ").rstrip(".")
    given = mistake["input"]
    if mistake["type"] == "less_than_equal" and mistake["ctx"]["le"] == 1 and 1 < float(given) <= 100:
        message += f": {float(given):g} % is {float(given) / 100:g}"
    return message if mistake["type"] == "missing" else f"{message} (given: {_brief(mistake['input'])})"


def _brief(value: Any) -> str:
    """What was given, however large it is: YAML aliases make gigabytes of a few lines."""
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 2, 200, 200
    return brief.repr(value)


def _as_written(model: type[BaseModel], location: Path_) -> Path_:
    """The location without what pydantic adds to it: names and tags of union members, which users never wrote."""
    path: Path_ = ()
    for depth, part in enumerate(location):
        known = {name for m in _models_at(model, path) for name in m.model_fields}
        is_last = depth == len(location) - 1
        if isinstance(part, int) or part in known or (is_last and not _is_type_name(part)):
            path = (*path, part)
    return path


def _is_type_name(part: str) -> bool:
    return part[:1].isupper() or "[" in part or part.removeprefix("constrained-") in {"int", "float", "str", "bool"}


def _place(where: str | None, path: Path_, places: Mapping[Path_, str]) -> str | None:
    if where is None:
        return None
    return next((places[path[:length]] for length in range(len(path), 0, -1) if path[:length] in places), where)


def _models_at(model: type[BaseModel], path: Path_) -> list[type[BaseModel]]:
    """The models that a mapping at `path` may be, within lists too."""
    models: list[type[BaseModel]] = [model]
    for part in path:
        if not isinstance(part, int):
            annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
            models = [inner for annotation in annotations for inner in _models_within(annotation)]
    return models or [model]


def _models_within(annotation: Any) -> list[type[BaseModel]]:
    """The models of an annotation, and those that its lists hold."""
    if get_origin(annotation) in (list, tuple):
        return [m for one in get_args(annotation) for m in _models_within(one)]
    members = _members(annotation)
    return submodels(annotation) if members == [annotation] else [m for one in members for m in _models_within(one)]


@cache
def _fields_by_short_name(model: type[BaseModel]) -> dict[str, str]:
    found: dict[str, str] = {}
    for leaf in fields(model):
        for short in short_names(leaf.dotted):
            if short not in model.model_fields:
                found.setdefault(short, leaf.dotted)
    return found


def spelled_out(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the fields' own names."""
    long = _fields_by_short_name(model)
    return {long.get(name, name): value for name, value in given.items()}
