"""`gnomon posttrain`: post-training simulated, compared, planned, calibrated; policies on recorded snapshots."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from gnomon.api import posttrain as api
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, about, answered, config_options, verb
from gnomon.core.config import save
from gnomon.core.errors import ConfigError

config_argument = click.argument("config", type=click.Path(dir_okay=False))

command = NearGroup("posttrain", help=about("posttrain"))


@command.command(cls=SectionedCommand)
@config_argument
@verb("posttrain run")
@answered(out="Write the time line, a trace and the rest.", message="wrote {}")
@config_options(api.Posttrain)
def run(config: str, overrides: dict[str, Any], **given: Any) -> Any:
    if given["keep_decisions"] and click.get_current_context().params["out"] is None:
        raise ConfigError("there is no folder for it.", where="--record", fix="Give one with --out DIR.")
    return api.posttrain(config, **given, **overrides)


@command.command(cls=SectionedCommand)
@config_argument
@verb("posttrain compare")
@answered("comparing", out="Write every policy's time line.", message="wrote {}")
@config_options(api.Posttrain)
def compare(config: str, policies: str | None, overrides: dict[str, Any], **given: Any) -> Any:
    names = [name.strip() for name in policies.split(",")] if policies else None
    return api.compare_policies(config, policies=names, **given, **overrides)


@command.command(cls=SectionedCommand)
@config_argument
@verb("posttrain plan")
@answered("planning", out="Write the report, the plans, and the best as config.yaml.", message="wrote {}")
@config_options(api.Posttrain)
def plan(config: str, overrides: dict[str, Any], **given: Any) -> Any:
    return api.plan_posttrain(config, **given, **overrides)


@command.command(cls=SectionedCommand)
@config_argument
@verb("posttrain calibrate")
@answered("calibrating")
@config_options(api.Posttrain)
def calibrate(config: str, file: Path | None, overrides: dict[str, Any], on_progress: Any, **measured: float) -> Any:
    found = api.calibrate(config, **measured, **overrides)
    if file:
        save(found.config, file)
    return found


@command.command()
@click.argument("snapshots", type=click.File("r"), default="-")
@verb("posttrain decide")
def decide(snapshots: Any, policy: str, file: str | None, options: tuple[str, ...], check: bool) -> None:
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
