"""`gnomon route`: train a router inside the simulator, tune one, compare all."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from gnomon.api import routing as api
from gnomon.api.routing import Folder, RouteConfig, Watcher
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, about, answered, config_options, listed, together, verb
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.config import load
from gnomon.core.errors import ConfigError, DataError

F = TypeVar("F", bound=Callable[..., Any])

SHOWN = ("reward/mean", "validation/gain", "policy/kl_reference", "policy/entropy", "loss", "validation_loss",
         "validation_regret", "agreement", "decisions")  # fmt: skip
"""Metrics beside the bar, those of them that there are."""


def stage_options(function: F) -> F:
    """--config, --scenario, --out and a flag for every field; the command receives what they come to: `made`, `folder`.
    What is trained on is compared on, too."""

    def command(
        config: str | None, scenarios: tuple[str, ...], overrides: dict[str, Any], out: Path | None, **given: Any
    ) -> Any:
        if scenarios:
            overrides = {"compare.scenarios": list(scenarios), **overrides, "scenarios": list(scenarios)}
        folder = Folder(out or Path("runs") / "route" / Path(config or "full").stem)
        return function(made=api.load_config(config, overrides), folder=folder, **given)

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    options = together(listed("route"), config_options(RouteConfig, skip=("scenarios",)))
    return options(command)  # type: ignore[return-value]


@contextmanager
def _watcher() -> Iterator[Watcher]:
    """A bar with the latest metrics for every stage, and a line when it is over."""
    what, done, total, beside = "starting", 0, 0, ""
    with ExitStack() as stage:
        report = stage.enter_context(progress(what))

        def end() -> None:
            stage.close()
            if done:
                click.echo(f"{what} {done}/{total}  {beside}", err=True)

        def begin(next_one: str, count: int) -> None:
            nonlocal what, done, total, report
            end()
            what, done, total = next_one, 0, count
            report = stage.enter_context(progress(what))

        def advance(metrics: dict[str, float]) -> None:
            nonlocal done, beside
            done += 1
            known = {name: metrics[name] for name in SHOWN if metrics.get(name) is not None}
            beside = "  ".join(f"{name.split('/')[-1]} {value:.4g}" for name, value in known.items())
            report(done, total, beside)

        yield Watcher(begin, advance, lambda text: click.echo(f"Warning: {text}", err=True))
        end()


def checkpoint_to_resume(resume: str | None, folder: Folder, updates: int) -> Path | None:
    """The checkpoint to go on from, or None to start from the clone."""
    if resume not in (None, "auto", "never"):
        path = Path(str(resume))
        if not path.exists():
            raise ConfigError("no such checkpoint.", where=str(path), fix="Use auto, never, or the path of one.")
        return path
    if resume == "never":
        return None
    newest = api.newest_checkpoint(folder, lambda text: click.echo(f"Warning: {text}", err=True))
    if newest is None or (resume is None and sys.stdin.isatty() and not _wants_to_resume(*newest, updates)):
        return None
    click.echo(f"Going on from {newest[0]}.", err=True)
    return newest[0]


def _wants_to_resume(path: Path, update: int, updates: int) -> bool:
    """Ask; `q` ends the program."""
    question = f"{path} holds update {update} of {updates}. Resume? [y]es, [n]o (start over), [q]uit"
    answers = click.Choice(["y", "n", "q"])
    answer = click.prompt(question, type=answers, default="y", show_choices=False, err=True)
    if answer == "q":
        raise click.exceptions.Exit(0)
    return bool(answer == "y")


def _policies_given(given: tuple[str, ...]) -> dict[str, Path | None]:
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


command = NearGroup("route", help=about("route"))


@command.command(cls=SectionedCommand)
@stage_options
@verb("route demos")
def demos(made: RouteConfig, folder: Folder, dump_state: Path | None, **workers: Any) -> None:
    with _watcher() as watch:
        count = api.collect_demos(made, folder, watch, **workers)
    click.echo(f"Wrote {count:,} decisions to {folder.demos}.")
    if dump_state is not None:
        api.dump_state(made, folder, dump_state)
        click.echo(f"Wrote the observed state to {dump_state}.")


@command.command(cls=SectionedCommand)
@stage_options
@verb("route clone")
def clone(made: RouteConfig, folder: Folder, **workers: Any) -> None:
    with _watcher() as watch:
        last = api.clone_teacher(made, folder, watch, **workers)[-1]
    text = f"Wrote {folder.clone}: it agrees with the teacher in {last['agreement']:.1%} of the validation."
    if last["indifferent"] > 0.0:
        text += f" In {last['indifferent']:.1%} the teacher prefers no replica to another: any choice agrees there."
    click.echo(text)


@command.command(cls=SectionedCommand)
@stage_options
@verb("route train")
def train(made: RouteConfig, folder: Folder, resume: str | None, online: bool) -> None:
    if online:
        with _watcher() as watch:
            policy = api.train_online(made, folder, watch)
        click.echo(f"Wrote {policy}; its regret over time is in {folder.root / 'report.html'}.")
        return
    checkpoint = checkpoint_to_resume(resume, folder, made.train.updates)
    with _watcher() as watch:
        policy = api.train(made, folder, watch, checkpoint)
    click.echo(f"Wrote {policy}. Use it with: gnomon simulate --router learned --router.checkpoint {policy}")


@command.command(cls=SectionedCommand)
@click.argument("scenarios", nargs=-1, required=True)
@verb("route tune")
@answered("tuning", out="Folder for the report and the scenarios.", message="Wrote {}/report.html.")
@config_options(api.TuneConfig)
def tune(scenarios: tuple[str, ...], overrides: dict[str, Any], **given: Any) -> Any:
    return api.tune(scenarios, load(api.TuneConfig, None, overrides), **given)


@command.command(cls=SectionedCommand)
@click.argument("scenarios", nargs=-1)
@verb("route compare")
@json_option
@click.option("--suite", is_flag=True, help="Eleven kinds of fleets at loads of 50, 75 and 90 %, and goals over them.")
@config_options(api.CompareConfig, skip=("scenarios", "suite"))
def compare(
    scenarios: tuple[str, ...], suite: bool, policies: tuple[str, ...], overrides: dict[str, Any], out: Path | None,
    check: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    given_scenarios = {"scenarios": list(scenarios)} if scenarios else {}
    config = load(api.CompareConfig, None, {**overrides, **given_scenarios, "suite": suite})
    with progress("comparing") as on_progress:
        found = api.route(config, policies=_policies_given(policies), on_progress=on_progress, **given)
    show(found, as_json=as_json)
    if out is not None:
        click.echo(f"Wrote {found.save(out) / 'report.html'}.", err=as_json)
    if check and not found.goals_met:
        sys.exit(1)


@command.command("all", cls=SectionedCommand)
@stage_options
@verb("route all")
def everything(made: RouteConfig, folder: Folder, resume: str | None, **workers: Any) -> None:
    checkpoint = checkpoint_to_resume(resume, folder, made.train.updates)
    with _watcher() as watch:
        if checkpoint is None and made.start == "clone":
            api.collect_demos(made, folder, watch, **workers)
            api.clone_teacher(made, folder, watch, **workers)
        api.train(made, folder, watch, checkpoint)
    policies: dict[str, Path | None] = {"learned": folder.policy}
    if folder.clone.exists():
        policies["clone"] = folder.clone
    with progress("comparing") as on_progress:
        found = api.route(made.compare, policies=policies, lengths=made.lengths, on_progress=on_progress, **workers)
    show(found, as_json=False)
    click.echo(f"Wrote {found.save(folder.root / 'comparison') / 'report.html'}.")
