"""Dotted flags for every field of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gnomon.core.config import Config, Field, fields

F = TypeVar("F", bound=Callable[..., Any])


def config_options(model: type[Config], *, skip: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Add one option per leaf field of `model`; the command receives `overrides`, those that were given.

    `overrides` goes to `gnomon.core.config.load`, which reads each value as YAML. Booleans need a value
    (`--replica.prefix-cache false`), so that every field is set in the same way.
    """
    leaves = [leaf for leaf in fields(model) if leaf.dotted not in skip]

    def decorate(function: F) -> F:
        def collect(**given: Any) -> Any:
            overrides = {leaf.dotted: given.pop(_name(leaf)) for leaf in leaves}
            return function(overrides={k: v for k, v in overrides.items() if v is not None}, **given)

        collect.__name__ = function.__name__
        collect.__doc__ = function.__doc__
        collect.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
        for leaf in reversed(leaves):
            collect = click.option(
                leaf.flag, _name(leaf), metavar="VALUE", default=None, help=_help(leaf), show_default=False
            )(collect)
        return collect  # type: ignore[return-value]

    return decorate


def _name(leaf: Field) -> str:
    return leaf.dotted.replace(".", "__")


def _help(leaf: Field) -> str:
    default = "" if leaf.default is None or "Undefined" in repr(leaf.default) else f"  [default: {leaf.default}]"
    return f"{' '.join(leaf.help.split())}{default}"
