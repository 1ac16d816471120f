"""Dotted flags for every field of a configuration, in sections, with short names for the usual ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import reduce
from typing import Any, TypeVar, get_origin

import click

from gnomon.core.config import Config, Field, fields, submodels
from gnomon.core.short_names import short_names

F = TypeVar("F", bound=Callable[..., Any])


class SectionedCommand(click.Command):
    """A command whose help lists the flags of a configuration by section, and whose suggestions look at every part of a
    flag's name."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """First what the command itself takes, then the configuration, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with better suggestions for a flag that there is not."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [flag for parameter in self.params for flag in parameter.opts if flag.startswith("--")]
            raise click.NoSuchOption(
                error.option_name, possibilities=nearest_flags(error.option_name, flags), ctx=ctx
            ) from None


def nearest_flags(wrong: str, flags: Iterable[str]) -> list[str]:
    """Flags that end in what was written, else those that look like it, wholly or in their last part."""
    known = list(dict.fromkeys(flags))
    last = {flag: flag.removeprefix("--").rpartition(".")[2] for flag in known}
    word = wrong.removeprefix("--").replace("_", "-").rpartition(".")[2]
    ending = [flag for flag in known if last[flag] == word]
    near = get_close_matches(wrong, known, n=3, cutoff=0.8)
    close = set(get_close_matches(word, list(last.values()), n=3, cutoff=0.75))
    return list(dict.fromkeys([*ending, *near, *(flag for flag in known if last[flag] in close)]))[:4]


class _FieldOption(click.Option):
    """A flag of a configuration's field, whose help is looked for when it is wanted."""

    section = "Options"
    leaf: Field
    help = property(lambda self: _help(self.leaf), lambda self, nothing: None)


def config_options(model: type[Config], *, skip: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Add one option per leaf field of `model`; the command receives `overrides`, those that were given.

    `overrides` goes to `gnomon.core.config.load`, which reads each value as YAML; lists need no brackets.
    Booleans need a value (`--replica.prefix-cache false`), so that every field is set in the same way.
    """
    leaves = [leaf for leaf in fields(model) if leaf.dotted not in skip]

    def decorate(function: F) -> F:
        def collect(**given: Any) -> Any:
            overrides = {leaf.dotted: _listed(leaf, given.pop(_name(leaf))) for leaf in leaves}
            return function(overrides={k: v for k, v in overrides.items() if v is not None}, **given)

        collect.__name__ = function.__name__
        collect.__doc__ = function.__doc__
        taken = list(getattr(function, "__click_params__", []))
        collect.__click_params__ = taken  # type: ignore[attr-defined]
        names = {flag for parameter in taken for flag in parameter.opts}
        for leaf in reversed(leaves):
            short = [f"--{one.replace('_', '-')}" for one in short_names(leaf.dotted)]
            flags = [leaf.flag, *(one for one in short if one != leaf.flag and one not in names)]
            collect = click.option(
                *flags, _name(leaf), cls=_FieldOption, metavar="VALUE", default=None, show_default=False
            )(collect)
            option: _FieldOption = collect.__click_params__[-1]  # type: ignore[attr-defined]
            option.section, option.leaf = _section(model, leaf), leaf
        return collect  # type: ignore[return-value]

    return decorate


jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 4096), metavar="N", help="Local processes.  [default: all cores]"
)
ray_option = click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, local, or head:6379.")


intervals_option = click.option(
    "--intervals/--no-intervals",
    default=None,
    help="90 % intervals by eight more runs.  [default: up to 20,000 requests]",
)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one, in this order."""
    return lambda function: reduce(lambda done, one: one(done), reversed(options), function)


worker_options = together(jobs_option, ray_option)
"""Where a long command runs: `jobs` local processes, or the cluster at `ray`."""


def _listed(leaf: Field, value: str | None) -> str | None:
    """`a,b` as `[a,b]` where a list is asked for."""
    is_bare = value is not None and get_origin(leaf.annotation) is tuple and not value.lstrip().startswith("[")
    return f"[{value}]" if is_bare else value


def _name(leaf: Field) -> str:
    return leaf.dotted.replace(".", "__")


def _help(leaf: Field) -> str:
    default = "" if leaf.default in (None, "") or "Undefined" in repr(leaf.default) else f"  [default: {leaf.default}]"
    return f"{' '.join(leaf.describe().split())}{default}".strip()


def _section(model: type[Config], leaf: Field) -> str:
    """The first part of a field's name, with the first sentence about it."""
    first, dot, _ = leaf.dotted.partition(".")
    inner = submodels(model.model_fields[first].annotation)
    if not dot and not inner:
        return "Scenario" if model.__name__ == "Scenario" else "Configuration"
    text = " ".join((inner[0].__doc__ or "").split()) if len(inner) == 1 else ""
    about = text.partition(". ")[0].rstrip(".")
    return f"--{first.replace('_', '-')}.*{f' ({about})' if about else ''}"
