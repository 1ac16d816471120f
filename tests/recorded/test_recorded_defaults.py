"""What counts where a user says nothing, and what may be said, as recorded: a default that changes is a result that
changes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import annotated_types
import pytest
from pydantic.fields import FieldInfo

import gnomon
from gnomon.core.config import Config
from gnomon.serving.policies import POLICIES
from gnomon.serving.routers import ROUTERS
from recorded_kit import check_recorded
from serving_kit import POLICIES as BUILT_IN_POLICIES
from serving_kit import ROUTERS as BUILT_IN_ROUTERS

WINGS = ("catalog", "timing", "workload", "serving", "search", "pipeline", "posttrain")


def _below(cls: type[Config]) -> Iterator[type[Config]]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)


def _configurations() -> dict[str, type[Config]]:
    """Every class of settings, by module and name."""
    (sources,) = gnomon.__path__
    for wing in WINGS:
        for found in walk_packages([str(Path(sources) / wing)], f"gnomon.{wing}."):
            with suppress(ImportError):  # Extras that are not installed.
                import_module(found.name)
    every = {f"{one.__module__}.{one.__name__}".removeprefix("gnomon."): one for one in _below(Config)}
    return {name: one for name, one in sorted(every.items()) if name.split(".")[0] in WINGS}


@pytest.mark.parametrize("name", _configurations())
def test_defaults_of_settings(name: str) -> None:
    fields = _configurations()[name].model_fields.items()
    check_recorded("defaults", name, {field: told for field, one in fields if (told := _told(one))})


def _told(field: FieldInfo) -> str:
    """Its default and its bounds, whatever they are made of; nothing where it has neither."""
    bounds = [str(one) for one in field.metadata if isinstance(one, annotated_types.BaseMetadata)]
    if field.is_required():
        return ", ".join(bounds)
    value: Any = field.get_default(call_default_factory=True)
    return ", ".join([str(value.model_dump() if isinstance(value, Config) else value), *bounds])


@pytest.mark.parametrize("name", BUILT_IN_POLICIES)
def test_defaults_of_policies(name: str) -> None:
    spec = POLICIES[name]
    check_recorded("defaults", f"policy {name}", {"settings": str(spec.defaults), "options": str(spec.options)})


@pytest.mark.parametrize("name", BUILT_IN_ROUTERS)
def test_defaults_of_routers(name: str) -> None:
    check_recorded("defaults", f"router {name}", {"options": str(dict(ROUTERS[name].options))})


@cache
def _tables() -> dict[str, dict[str, str]]:
    """What modules state in fractions, or in a table of numbers: measured, fitted or chosen."""
    found = {}
    for wing in ("catalog", "timing", "serving"):
        for one in walk_packages([str(Path(gnomon.__path__[0]) / wing)], f"gnomon.{wing}."):
            try:
                module = import_module(one.name)
            except ImportError:  # Extras that are not installed.
                continue
            tree = ast.parse(inspect.getsource(module))
            named = {
                word.id for line in tree.body for word in ast.walk(line) if isinstance(word, ast.Name) and _sets(word)
            }
            values = {name: vars(module)[name] for name in sorted(named) if name.lstrip("_").isupper()}
            if told := {name: repr(value) for name, value in values.items() if _is_table(value)}:
                found[one.name.removeprefix("gnomon.")] = told
    return found


def _sets(word: ast.Name) -> bool:
    return isinstance(word.ctx, ast.Store)


def _is_table(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(isinstance(one, str) and isinstance(it, int | float) for one, it in value.items())
    return isinstance(value, float) or (isinstance(value, tuple) and any(isinstance(one, float) for one in value))


@pytest.mark.parametrize("module", _tables())
def test_tables_of_modules(module: str) -> None:
    check_recorded("defaults", f"tables {module}", _tables()[module])
