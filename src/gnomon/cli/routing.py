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
from gnomon.cli.options import SectionedCommand, answered, config_options, listed, together, worker_options
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


@click.group(cls=NearGroup)
def command() -> None:
    """Train a router inside the simulator and compare it with the heuristics.

    \b
    Examples:
      gnomon route compare                                 the policy that comes with Gnomon against all heuristics
      gnomon route all --config quick                      train one in two minutes, and compare it
      gnomon route all --config full --out runs/route/mine
      gnomon route tune my_cluster.yaml                    no network: a rule with weights for this fleet
      gnomon route all --config quick --scenario my_cluster.yaml     train on your own fleet and load
      gnomon simulate --num-replicas 4 --router learned --router.checkpoint runs/route/quick/policy.npz
    """


@command.command(cls=SectionedCommand)
@stage_options
@worker_options
@click.option("--dump-state", type=click.Path(path_type=Path), help="Also write what was observed, as CSV or Parquet.")
def demos(made: RouteConfig, folder: Folder, dump_state: Path | None, **workers: Any) -> None:
    """Let several routers act in simulated clusters while a teacher says what would have been best.

    Writes demos.npz: observations, the teacher's probabilities and costs, and a description of both as JSON.

    \b
    Examples:
      gnomon route demos --config quick
      gnomon route demos --demos.teacher own --demos.steps-per-driver 700     every router labels what it did itself
      gnomon route demos --config quick --dump-state state.csv                look at what the policy will see
    """
    with _watcher() as watch:
        count = api.collect_demos(made, folder, watch, **workers)
    click.echo(f"Wrote {count:,} decisions to {folder.demos}.")
    if dump_state is not None:
        api.dump_state(made, folder, dump_state)
        click.echo(f"Wrote the observed state to {dump_state}.")


@command.command(cls=SectionedCommand)
@stage_options
@worker_options
def clone(made: RouteConfig, folder: Folder, **workers: Any) -> None:
    """Clone the teacher from the folder's demonstrations; then let the clone act and the teacher correct it (DAgger).

    Writes clone.npz (weights, normaliser and feature schema together: a policy file like any other) and clone.csv.

    \b
    Examples:
      gnomon route clone --config quick
      gnomon route clone --config quick --demos.dagger-rounds 0 --clone.epochs 30
    """
    with _watcher() as watch:
        last = api.clone_teacher(made, folder, watch, **workers)[-1]
    text = f"Wrote {folder.clone}: it agrees with the teacher in {last['agreement']:.1%} of the validation."
    if last["indifferent"] > 0.0:
        text += f" In {last['indifferent']:.1%} the teacher prefers no replica to another: any choice agrees there."
    click.echo(text)


@command.command(cls=SectionedCommand)
@stage_options
@listed("route resume")
@click.option("--online", is_flag=True, help="Learn while one long simulation runs, beside a safe router.")
def train(made: RouteConfig, folder: Folder, resume: str | None, online: bool) -> None:
    """Improve the folder's clone with PPO, on a leash to it.

    --start PATH takes another policy instead of the clone, --start nothing one at random. --online lets it learn from
    one long simulation as it runs; a safe router takes over where it does worse.

    Writes policy.npz, metrics.csv and metrics.parquet, TensorBoard scalars and checkpoints. A run that is resumed ends
    with the same policy, to the bit, as one that never stopped.

    \b
    Examples:
      gnomon route train --config quick
      gnomon route train --config quick --resume never --train.kl-start 0.6 --train.kl-end 0.1
      gnomon route train --start runs/route/full/policy.npz --scenario my_cluster.yaml --out runs/route/mine
      gnomon route train --online --start nothing --scenario mixed_bursty --out runs/route/online
      tensorboard --logdir runs/route
    """
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
@worker_options
@answered("tuning", out="Folder for the report and the scenarios.", said="Wrote {}/report.html.")
@config_options(api.TuneConfig)
def tune(scenarios: tuple[str, ...], overrides: dict[str, Any], **given: Any) -> Any:
    """Fit the weights of the router `unselfish` to SCENARIOS, and compare it on traces that it was not tuned on.

    SCENARIOS are built-in names or YAML files with an open load; several share one set of weights. Of a trace, windows
    of the first 70 % are for tuning, windows of the rest for comparing. No PyTorch needed.

    \b
    Examples:
      gnomon route tune examples/routing/my_cluster.yaml --out runs/tuned
      gnomon simulate runs/tuned/tuned/my_cluster.yaml
      gnomon route tune unequal --tail-weight 3 --generations 20
    """
    return api.tune(scenarios, load(api.TuneConfig, None, overrides), **given)


@command.command(cls=SectionedCommand)
@click.argument("scenarios", nargs=-1)
@listed("route compare")
@json_option
@click.option("--suite", is_flag=True, help="Eleven kinds of fleets at loads of 50, 75 and 90 %, and goals over them.")
@config_options(api.CompareConfig, skip=("scenarios", "suite"))
def compare(
    scenarios: tuple[str, ...], suite: bool, policies: tuple[str, ...], overrides: dict[str, Any], out: Path | None,
    check: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Run routers on the same held-out traces: latencies, throughput, imbalance, paired differences.

    SCENARIOS are built-in names or YAML files; all built-in ones if none is given. Without --policy, the one that comes
    with Gnomon runs; it needs no PyTorch.

    \b
    Examples:
      gnomon route compare
      gnomon route compare mixed_bursty unequal --num-seeds 10 --out runs/compared
      gnomon route compare chat --routers least_outstanding,unselfish
      gnomon route compare --suite --out runs/suite        eleven kinds of fleets at three loads, every router
      gnomon route compare my.yaml --policy runs/route/quick/policy.npz --policy clone=runs/route/quick/clone.npz
    """
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
@worker_options
@listed("route resume")
def everything(made: RouteConfig, folder: Folder, resume: str | None, **workers: Any) -> None:
    """Demonstrations, clone, PPO, comparison.

    Where training was interrupted, it goes on from the newest checkpoint, and the stages before it are skipped; so are
    they with another --start than the clone.

    \b
    Examples:
      gnomon route all --config quick
      gnomon route all --config full --lengths oracle --out runs/route/oracle
      gnomon route all --config quick --scenario examples/routing/my_cluster.yaml --domain-share 0.3
    """
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
