"""`gnomon posttrain`: post-training simulated, compared, planned, calibrated; policies on recorded snapshots."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from gnomon.api import posttrain as api
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, answered, config_options, listed
from gnomon.core.config import save
from gnomon.core.errors import ConfigError

config_argument = click.argument("config", type=click.Path(dir_okay=False))


@click.group(cls=NearGroup)
def command() -> None:
    """RL post-training: placements and elastic scheduling of actor, rollout and inference.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml --out runs/elastic
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain plan examples/posttrain/small.yaml --max-lag 1
    """


@command.command(cls=SectionedCommand)
@config_argument
@click.option("--record", "keep_decisions", is_flag=True, help="With --out: also write every snapshot and its actions.")
@answered(out="Write the time line, a trace and the rest.", said="wrote {}")
@config_options(api.Posttrain)
def run(config: str, overrides: dict[str, Any], **given: Any) -> Any:
    """Simulate the steps of CONFIG under its policy, and show where the time goes.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml
      gnomon posttrain run examples/posttrain/elastic.yaml --num-steps 5 --out runs/elastic
      gnomon posttrain run examples/posttrain/elastic.yaml --policy disaggregated
    """
    return api.posttrain(config, **given, **overrides)


@command.command(cls=SectionedCommand)
@config_argument
@listed("posttrain compare")
@answered("comparing", out="Write every policy's time line.", said="wrote {}")
@config_options(api.Posttrain)
def compare(config: str, policies: str | None, overrides: dict[str, Any], **given: Any) -> Any:
    """Policies on the same lengths, with regret against the oracle: step time, throughput, where GPU time goes.

    The oracle knows every length, deals prompts by them, and takes the best of all policies and of a grid of plans.
    Ratio is of tokens/s, over the static placement side by side.

    \b
    Examples:
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain compare examples/posttrain/elastic.yaml --policies elastic,disaggregated --num-steps 3
    """
    names = [name.strip() for name in policies.split(",")] if policies else None
    return api.compare_policies(config, policies=names, **given, **overrides)


@command.command(cls=SectionedCommand)
@config_argument
@listed("posttrain plan")
@answered("planning", out="Write the report, the plans, and the best as config.yaml.", said="wrote {}")
@config_options(api.Posttrain)
def plan(config: str, overrides: dict[str, Any], **given: Any) -> Any:
    """Split, mode, staleness and layouts for a GPU budget; flags for verl and RLinf.

    Modes, splits and layouts of CONFIG's model, algorithm and lengths are simulated on its GPUs; its placement and
    layouts are not used. --max-lag 0 leaves the synchronous modes.

    \b
    Examples:
      gnomon posttrain plan examples/posttrain/small.yaml
      gnomon posttrain plan examples/posttrain/small.yaml --goal dollars --max-lag 2 --cluster.num-nodes 2
    """
    return api.plan_posttrain(config, **given, **overrides)


@command.command(cls=SectionedCommand)
@config_argument
@listed("posttrain calibrate")
@answered("calibrating")
@config_options(api.Posttrain)
def calibrate(config: str, file: Path | None, overrides: dict[str, Any], on_progress: Any, **measured: float) -> Any:
    """Fit the efficiency of each component to its measured seconds, with components taking turns on all GPUs.

    A stage without a measurement keeps its efficiency.

    \b
    Example:
      gnomon posttrain calibrate examples/posttrain/elastic.yaml --rollout-s 340 --inference-s 60 --actor-s 210 \\
        --out calibrated.yaml
    """
    found = api.calibrate(config, **measured, **overrides)
    if file:
        save(found.config, file)
    return found


@command.command()
@click.argument("snapshots", type=click.File("r"), default="-")
@listed("posttrain decide")
def decide(snapshots: Any, policy: str, file: str | None, options: tuple[str, ...], check: bool) -> None:
    """Feed recorded snapshots through a policy, without the simulator; its actions are printed, one line each.

    SNAPSHOTS are JSON lines (standard input if not given). A line is a snapshot, or an object with `snapshot` and the
    recorded `actions`, as `run --record` writes them.

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
