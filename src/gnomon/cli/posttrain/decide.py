"""`gnomon posttrain decide`: a policy on recorded snapshots, without the simulator."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from gnomon.api.posttrain import decide
from gnomon.core.errors import ConfigError


@click.command("decide")
@click.argument("snapshots", type=click.File("r"), default="-")
@click.option("--policy", required=True, help="Name of the policy.")
@click.option("--file", default=None, help="Python file that registers your own policy.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the policy; repeatable.")
@click.option("--check", is_flag=True, help="Exit code 1 where an answer differs from the recorded one.")
def command(snapshots: Any, policy: str, file: str | None, options: tuple[str, ...], check: bool) -> None:
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
    for answer in decide(snapshots, policy, given, file=file, where=snapshots.name):
        click.echo(json.dumps(answer.to_list()))
        if not answer.agrees:
            differing.append(answer.line)
    if check and differing:
        click.echo(f"{len(differing)} answers differ from the recorded ones, first in line {differing[0]}.", err=True)
        sys.exit(1)
