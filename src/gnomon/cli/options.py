"""Dotted flags for every field of a configuration, in sections, with short names for the usual ones."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, reduce, wraps
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, get_origin

import click

from gnomon.cli.printing import json_option, print_rows, show
from gnomon.cli.progress import progress
from gnomon.core.config import Config, Field, fields, refuse_said_twice, submodels
from gnomon.core.short_names import short_names
from gnomon.core.text import own_yaml

F = TypeVar("F", bound=Callable[..., Any])


class SectionedCommand(click.Command):
    """A command whose help lists the flags of a configuration by section, and whose suggestions look at every part of a
    flag's name. The flags are made when they are first wanted: a module may hold several such commands."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._own: list[click.Parameter] = []
        self._leaves: dict[str, Field] | None = None
        super().__init__(*arguments, **named)
        if hasattr(self.callback, "config"):
            self._own.append(_help_all_option())

    @property
    def params(self) -> list[click.Parameter]:
        model, skip = getattr(self.callback, "config", (None, ()))
        if model is not None and self._leaves is None:
            leaves = [leaf for leaf in fields(model) if leaf.dotted not in skip]
            self._leaves = {_name(leaf): leaf for leaf in leaves}
            taken = {flag for parameter in self._own for flag in parameter.opts}
            self._own += [_FieldOption(model, leaf, taken) for leaf in leaves]
        return self._own

    @params.setter
    def params(self, given: list[click.Parameter]) -> None:
        self._own = given

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command with `overrides`: the fields that were given, by their dotted names."""
        if self._leaves:
            given = {leaf.dotted: _listed(leaf, ctx.params.pop(name)) for name, leaf in self._leaves.items()}
            overrides = {dotted: value for dotted, value in given.items() if value is not None}
            refuse_said_twice(self.callback.config[0], overrides)  # type: ignore[union-attr]
            ctx.params["overrides"] = overrides
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """First what the command itself takes, then the usual fields; with --help-all all, by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        is_whole, left = ctx.meta.get("help_all"), 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if isinstance(parameter, _FieldOption) and not is_whole and not parameter.is_usual:
                left += 1
                continue
            section = getattr(parameter, "section", "Options")
            sections.setdefault(section if is_whole or section == "Options" else "Usual fields", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if left:
            formatter.write_paragraph()
            formatter.write_text(f"--help-all lists {left} more fields, section by section.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with better suggestions for a flag that there is not."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [flag for parameter in self.params for flag in parameter.opts if flag.startswith("--")]
            near = nearest_flags(error.option_name, flags)
            ctx.fail(f"No such option {error.option_name}." + (f" Did you mean {' or '.join(near)}?" if near else ""))


def _help_all_option() -> click.Option:
    def show(ctx: click.Context, option: click.Parameter, is_given: bool) -> None:
        if is_given:
            ctx.meta["help_all"] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, expose_value=False, is_eager=True, callback=show,
        help="Show every field of the configuration.",
    )  # fmt: skip


def nearest_flags(wrong: str, flags: Iterable[str]) -> list[str]:
    """Flags that end in what was written, then those with such a word in the same section, then those that look like
    it, wholly or in their last part, then those of a section of that name."""
    known = list(dict.fromkeys(flags))
    last = {flag: flag.removeprefix("--").rpartition(".")[2] for flag in known}
    word = wrong.removeprefix("--").replace("_", "-").rpartition(".")[2]
    ending = [flag for flag in known if last[flag] == word]
    near = get_close_matches(wrong, known, n=3, cutoff=0.8)
    close = set(get_close_matches(word, list(last.values()), n=3, cutoff=0.75))
    section = [flag for flag in known if word in flag.removeprefix("--").split(".")]
    before = wrong.rpartition(".")[0]
    within = [flag for flag in known if before and flag.startswith(before) and word in last[flag].split("-")]
    meant = [*ending, *within, *_of_an_engine(word), *near, *(flag for flag in known if last[flag] in close), *section]
    return [flag for flag in dict.fromkeys(meant) if flag in last][:4]


def _of_an_engine(word: str) -> list[str]:
    """The flags for what an engine calls so: `--max-num-seqs` of vLLM is `--batching.max-sequences` here."""
    from gnomon.convert.options import option_map

    options = [option_map(tool).options.get(word.replace("-", "_")) for tool in ("vllm", "sglang", "trtllm")]
    return [f"--{field.replace('_', '-')}" for one in options if one is not None for field in one.targets]


class _FieldOption(click.Option):
    """A flag of a configuration's field, whose help is looked for when it is wanted."""

    help = property(lambda self: _help(self.leaf), lambda self, nothing: None)

    def __init__(self, model: type[Config], leaf: Field, taken: set[str]) -> None:
        self.leaf, self.section = leaf, _section(model, leaf)
        short = [f"--{one.replace('_', '-')}" for one in short_names(leaf.dotted)]
        flags = [leaf.flag, *(one for one in short if one != leaf.flag and one not in taken)]
        self.is_usual = len(flags) > 1 or "." not in leaf.dotted or leaf.dotted.startswith("slo.")
        super().__init__([*flags, _name(leaf)], metavar="VALUE", default=None, show_default=False)


def config_options(model: type[Config], *, skip: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Give a `SectionedCommand` one option per leaf field of `model`; it receives `overrides`, those that were given.

    `overrides` goes to `gnomon.core.config.load`, which reads each value as YAML; lists need no brackets.
    Booleans need a value (`--replica.prefix-cache false`), so that every field is set in the same way.
    """

    def decorate(function: F) -> F:
        function.config = (model, skip)  # type: ignore[attr-defined]
        return function

    return decorate


def scenario_argument(metavar: str = "[SCENARIO]") -> Callable[[F], F]:
    """A file of a configuration, which need not be given."""
    return click.argument("file", metavar=metavar, required=False, type=click.Path())


def answered(
    doing: str = "simulating", *, out: str = "", message: str = "Written to {}.", compiles: bool = True
) -> Callable[[F], F]:
    """A command whose function takes `on_progress` and returns a result: it is printed (`--json`: as JSON) and, where
    `out` says what `--out` is good for, written, which is `said`. Exit code 1 where the result has not `passed`."""

    def decorate(function: F) -> F:
        @wraps(function)
        def run(as_json: bool, out: Path | None = None, **given: Any) -> None:
            with progress(doing, compiles=compiles) as on_progress:
                found = function(on_progress=on_progress, **given)
            show(found, as_json=as_json)
            if out is not None:
                with progress("writing", compiles=False):
                    folder = found.save(out)
                click.echo(message.format(folder), err=as_json)
            if not getattr(found, "passed", True):
                if failures := getattr(found, "failures", ()):
                    click.echo(f"Beyond tolerance: {', '.join(failures)}.", err=True)
                sys.exit(1)

        options = [*([click.option("--out", type=TYPES["folder"], help=out)] if out else []), json_option]
        return together(*options)(run)  # type: ignore[return-value]

    return decorate


jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 4096), metavar="N", help="Local processes.  [default: all cores]"
)
ray_option = click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: auto, local, or head:6379.")


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one, in this order."""
    return lambda function: reduce(lambda done, one: one(done), reversed(options), function)


worker_options = together(jobs_option, ray_option)
"""Where a long command runs: `jobs` local processes, or the cluster at `ray`."""

SHARED = {
    "runs": click.argument("given", metavar="RUN...", nargs=-1, required=True, type=click.Path()),
    "file": click.argument("given", metavar="FILE", type=click.Path(path_type=Path)),
    "files": click.argument("given", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True)),
    "jobs": jobs_option,
    "workers": worker_options,
}
TYPES = {
    "int": int, "float": float, "path": click.Path(), "place": click.Path(path_type=Path),
    "file": click.Path(dir_okay=False, path_type=Path), "folder": click.Path(file_okay=False, path_type=Path),
    "existing": click.Path(exists=True, path_type=Path),
}  # fmt: skip


def option_of(given: dict[str, Any] | str, show: Callable[..., None] | None = None) -> Callable[[Any], Any]:
    """What a data file says of an option; `show` is called for one that shows something and stops."""
    if isinstance(given, str):
        return SHARED[given]
    settings = {"show_default": True} | given
    match settings.get("type"), settings.pop("choice", None):
        case str(kind), _:
            settings["type"] = TYPES[kind]
        case [float(), *_] as limits, _:
            settings["type"] = click.FloatRange(*limits)
        case [*limits], _:
            settings["type"] = click.IntRange(*limits)
        case _, [*names]:
            settings["type"] = click.Choice(names)
    if given["flags"] == "--show":
        settings["callback"] = show
    return click.option(*settings.pop("flags").split(), **settings)


def listed(*names: str) -> Callable[[F], F]:
    """The options that verbs.yaml has under these names."""
    return together(*(option_of(one) for name in names for one in _verbs()[name].get("options", ())))


def verb(name: str, *shared: str) -> Callable[[F], F]:
    """What verbs.yaml says of a command: its help, and its options before those that it shares with others."""

    def decorate(function: F) -> F:
        function.__doc__ = about(name)
        return listed(name, *shared)(function)

    return decorate


def listing(group: click.Group, name: str, rows: Callable[[bool], Sequence[Mapping[str, Any]]]) -> None:
    """A command of a group that shows what is built in: `rows`, which are told whether they become JSON."""

    def show(as_json: bool) -> None:
        print_rows(rows(as_json), as_json=as_json, caption=_verbs()[name].get("caption", ""))

    group.command(name.rpartition(" ")[2], help=about(name))(json_option(show))


def about(name: str) -> str:
    """What people read of a command or a group."""
    return for_click(_verbs()[name]["about"])


def for_click(text: str) -> str:
    """A text as click takes it: examples keep their lines."""
    return re.sub(r"\n\n([^\n]+:\n  )", r"\n\n\b\n\1", text.rstrip())


@cache
def _verbs() -> dict[str, dict[str, Any]]:
    return own_yaml(files("gnomon.cli") / "verbs.yaml")


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
