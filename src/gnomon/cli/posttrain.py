"""`gnomon posttrain`: policies of RL post-training, one by one and side by side, plans, and cluster sizes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from gnomon.api import posttrain as api
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, answered, config_options, together
from gnomon.cli.printing import json_option, print_json, show
from gnomon.cli.progress import progress
from gnomon.core.config import save
from gnomon.core.errors import ConfigError

option = click.option


@click.group(cls=NearGroup)
def command() -> None:
    """RL post-training: placements and elastic scheduling of actor, rollout and inference.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml --out runs/elastic
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain plan examples/posttrain/small.yaml --max-lag 1
    """


def _configured(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A command on CONFIG, whose fields are flags, too."""
    config = click.argument("config", type=click.Path(dir_okay=False))
    return together(command.command(cls=SectionedCommand), config, *options, config_options(api.Posttrain))


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text else None


@_configured(
    option("--out", type=click.Path(file_okay=False), help="Write the time line, a trace and the rest."),
    option("--record", "keep", is_flag=True, help="With --out: also write every snapshot and its actions."),
    json_option,
)
def run(config: str, out: str | None, keep: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Simulate the steps of CONFIG under its policy, and show where the time goes.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml
      gnomon posttrain run examples/posttrain/elastic.yaml --num-steps 5 --out runs/elastic
      gnomon posttrain run examples/posttrain/elastic.yaml --policy disaggregated
    """
    with progress() as on_progress:
        result = api.posttrain(config, keep_decisions=keep and out is not None, on_progress=on_progress, **overrides)
    files = sorted(result.save(out).iterdir()) if out else []
    if as_json:
        print_json(result.to_dict() | {"files": list(map(str, files))})
        return
    show(result, as_json=False)
    for file in files:
        click.echo(f"wrote {file}")


@_configured(
    option("--policies", metavar="NAMES", help="Comma-separated; all built-in ones if not given."),
    option("--no-oracle", is_flag=True, help="Leave out the oracle (about forty runs)."),
    answered("comparing"),
)
def compare(config: str, policies: str | None, no_oracle: bool, overrides: dict[str, Any], on_progress: Any) -> Any:
    """Run policies on the same lengths: step time, throughput, where GPU time goes, regret against the oracle.

    The oracle knows every length, deals prompts by them, and takes the best of all policies and of a grid of plans.
    Ratio is of tokens/s, over the static placement side by side.

    \b
    Examples:
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain compare examples/posttrain/elastic.yaml --policies elastic,disaggregated --num-steps 3
    """
    asked = {"policies": _names(policies), "with_oracle": not no_oracle, "on_progress": on_progress}
    return api.compare_policies(config, **asked, **overrides)


@_configured(
    option("--goal", type=click.Choice(["samples", "dollars"]), default="samples", show_default=True),
    option("--max-lag", default=1, show_default=True, help="Most weight updates from a first token to its training."),
    option("--top", default=10, show_default=True, help="Plans to show."),
    answered("planning"),
)
def plan(config: str, overrides: dict[str, Any], **given: Any) -> Any:
    """Simulate modes, splits and layouts of CONFIG's model, algorithm and lengths on its GPUs, and name the best.

    Its placement and layouts are not used. --max-lag 0 leaves the synchronous modes.

    \b
    Examples:
      gnomon posttrain plan examples/posttrain/small.yaml
      gnomon posttrain plan examples/posttrain/small.yaml --goal dollars --max-lag 2 --cluster.num-nodes 2
    """
    return api.plan_posttrain(config, **given, **overrides)


@_configured(
    option("--nodes", required=True, metavar="LIST", help="Numbers of nodes, e.g. 4,8,16."),
    option("--policies", default="colocated,disaggregated,elastic", show_default=True, metavar="NAMES"),
    answered("sweeping"),
)
def sweep(config: str, nodes: str, policies: str, overrides: dict[str, Any], on_progress: Any) -> Any:
    """Run policies on clusters of several sizes; the placement of CONFIG is scaled to each.

    \b
    Example:
      gnomon posttrain sweep examples/posttrain/elastic.yaml --nodes 4,8,16
    """
    try:
        sizes = [int(part) for part in nodes.split(",")]
    except ValueError:
        raise ConfigError(f"cannot read {nodes!r}.", where="--nodes", fix="Give numbers: 4,8,16.") from None
    return api.sweep_sizes(config, nodes=sizes, policies=_names(policies) or (), on_progress=on_progress, **overrides)


@_configured(
    option("--rollout-s", "rollout", type=float, default=0.0, help="Measured seconds of generation."),
    option("--inference-s", "inference", type=float, default=0.0, help="Measured seconds of log-probabilities."),
    option("--actor-s", "actor", type=float, default=0.0, help="Measured seconds of training."),
    option("--out", type=click.Path(dir_okay=False), help="Write the calibrated configuration."),
    json_option,
)
def calibrate(config: str, out: str | None, as_json: bool, overrides: dict[str, Any], **measured: float) -> None:
    """Fit the efficiency of each component to its measured seconds, with components taking turns on all GPUs.

    A stage without a measurement keeps its efficiency.

    \b
    Example:
      gnomon posttrain calibrate examples/posttrain/elastic.yaml --rollout-s 340 --inference-s 60 --actor-s 210 \\
        --out calibrated.yaml
    """
    with progress("calibrating"):
        found = api.calibrate(config, measured=api.stage_costs(**measured), **overrides)
    if out:
        save(found.config, out)
    show(found, as_json=as_json)
    if out and not as_json:
        click.echo(f"wrote {out}")


@command.command()
@click.argument("snapshots", type=click.File("r"), default="-")
@option("--policy", required=True, help="Name of the policy.")
@option("--file", help="Python file that registers your own policy.")
@option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the policy; repeatable.")
@option("--check", is_flag=True, help="Exit code 1 where an answer differs from the recorded one.")
def decide(snapshots: Any, policy: str, file: str | None, options: tuple[str, ...], check: bool) -> None:
    """Feed SNAPSHOTS (JSON lines, standard input if not given) to a policy and print its actions, one line each.

    A line is a snapshot, or an object with `snapshot` and the recorded `actions`, as `run --record` writes them.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/small.yaml --out runs/small --record
      gnomon posttrain decide --policy elastic --check runs/small/decisions.jsonl
      cat snapshots.jsonl | gnomon posttrain decide --policy payback --option gamma=0.3
    """
    from gnomon.core.text import parse_yaml

    given = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {text!r}.", where="--option", fix="Write KEY=VALUE.")
        given[key] = parse_yaml(value, f"--option {key}")
    differing = []
    for answer in api.decide(snapshots, policy, given, file=file, where=snapshots.name):
        click.echo(json.dumps(answer.to_list()))
        if not answer.agrees:
            differing.append(answer.line)
    if check and differing:
        click.echo(f"{len(differing)} answers differ from the recorded ones, first in line {differing[0]}.", err=True)
        sys.exit(1)
