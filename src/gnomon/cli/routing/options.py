"""What the commands of `gnomon route` share: configuration, folder, progress, and whether to resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from gnomon.api.routing import Folder, RouteConfig, Watcher, load_config, newest_checkpoint
from gnomon.cli.options import config_options
from gnomon.cli.progress import SAY_EVERY_S, say_if_compiling
from gnomon.core.errors import ConfigError, DataError

F = TypeVar("F", bound=Callable[..., Any])

SHOWN = ("reward/mean", "validation/gain", "policy/kl_reference", "policy/entropy", "loss", "validation_loss",
         "validation_regret", "agreement", "decisions")  # fmt: skip
"""Metrics beside the bar, those of them that there are."""


def stage_options(function: F) -> F:
    """--config, --scenario, --out and a flag for every field; the command receives `overrides`, `config` and `out`."""
    for decorate in (
        _with_scenarios,
        config_options(RouteConfig, skip=("scenarios",)),
        click.option(
            "--scenario",
            "scenarios",
            multiple=True,
            metavar="NAME|FILE",
            help="Train on this fleet and load instead of the built-in domain; may be given several times.",
        ),
        click.option(
            "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder.  [default: runs/route/CONFIG]"
        ),
        click.option("--config", "-c", metavar="NAME|FILE", help="quick, full, or a YAML file.  [default: full]"),
    ):
        function = decorate(function)
    return function


def _with_scenarios(function: F) -> F:
    """Hand the given scenarios over among the overrides; what is compared are they, too."""

    def command(scenarios: tuple[str, ...], overrides: dict[str, Any], **given: Any) -> Any:
        if scenarios:
            overrides = {"compare.scenarios": list(scenarios), **overrides, "scenarios": list(scenarios)}
        return function(overrides=overrides, **given)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return command  # type: ignore[return-value]


def resolved(config: str | None, overrides: dict[str, Any], out: Path | None) -> tuple[RouteConfig, Folder]:
    """The configuration and the folder of a stage."""
    return load_config(config, overrides), Folder(out or Path("runs") / "route" / Path(config or "full").stem)


@contextmanager
def watcher() -> Iterator[Watcher]:
    """A bar with the latest metrics on a terminal; now and then a line elsewhere."""
    say_if_compiling()
    if sys.stderr.isatty():
        yield from _bars()
    else:
        yield _lines()


def _bars() -> Iterator[Watcher]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[beside]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bars:
        tasks: list[Any] = []

        def begin(what: str, total: int) -> None:
            tasks.append(bars.add_task(what, total=total, beside=""))

        def advance(metrics: dict[str, float]) -> None:
            bars.update(tasks[-1], advance=1, beside=_beside(metrics))

        yield Watcher(begin, advance, lambda text: console.print(f"Warning: {text}", style="yellow", markup=False))


def _lines() -> Watcher:
    state: dict[str, Any] = {"what": "", "done": 0, "total": 0, "said": 0.0}

    def begin(what: str, total: int) -> None:
        state.update(what=what, done=0, total=total, said=time.monotonic())
        click.echo(f"{what} ...", err=True)

    def advance(metrics: dict[str, float]) -> None:
        state["done"] += 1
        if time.monotonic() - state["said"] > SAY_EVERY_S or state["done"] == state["total"]:
            state["said"] = time.monotonic()
            click.echo(f"  {state['what']} {state['done']}/{state['total']}  {_beside(metrics)}", err=True)

    return Watcher(begin, advance, lambda text: click.echo(f"Warning: {text}", err=True))


def _beside(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name.split('/')[-1]} {metrics[name]:.4g}" for name in SHOWN if metrics.get(name) is not None)


resume_option = click.option(
    "--resume",
    metavar="auto|never|PATH",
    help="Go on from the newest checkpoint, never, or from this one.  [default: ask on a terminal, else auto]",
)


def checkpoint_to_resume(resume: str | None, folder: Folder, updates: int) -> Path | None:
    """The checkpoint to go on from, or None to start from the clone."""
    if resume not in (None, "auto", "never"):
        path = Path(str(resume))
        if not path.exists():
            raise ConfigError("no such checkpoint.", where=str(path), fix="Use auto, never, or the path of one.")
        return path
    if resume == "never":
        return None
    newest = newest_checkpoint(folder, lambda text: click.echo(f"Warning: {text}", err=True))
    if newest is None or (resume is None and sys.stdin.isatty() and not _wants_to_resume(*newest, updates)):
        return None
    click.echo(f"Going on from {newest[0]}.", err=True)
    return newest[0]


def _wants_to_resume(path: Path, update: int, updates: int) -> bool:
    """Ask; `q` ends the program."""
    answer = click.prompt(
        f"{path} holds update {update} of {updates}. Resume? [y]es, [n]o (start over), [q]uit",
        type=click.Choice(["y", "n", "q"]),
        default="y",
        show_choices=False,
        err=True,
    )
    if answer == "q":
        raise click.exceptions.Exit(0)
    return bool(answer == "y")


def policies_given(given: tuple[str, ...]) -> dict[str, Path | None]:
    """`NAME=PATH` or `PATH` for every --policy; the one that comes with Gnomon if there is none."""
    found: dict[str, Path | None] = {}
    for text in given:
        name, equals, path = text.partition("=")
        file = Path(path if equals else text)
        name = name if equals else file.stem
        if name in found:
            raise ConfigError(f"two policies are called {name!r}.", where="--policy", fix="Write NAME=PATH.")
        if not file.is_file():
            raise DataError("no such policy file.", where=str(file), fix="Train one with `gnomon route all`.")
        found[name] = file
    return found or {"learned": None}
