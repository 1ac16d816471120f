"""`gnomon check-policy`: the contract tests on a user's own policies and routers."""

from __future__ import annotations

import sys

import click

from gnomon.api.serving import check_policy
from gnomon.cli.printing import json_option, print_json


@click.command()
@click.argument("file", type=click.Path())
@json_option
def command(file: str, as_json: bool) -> None:
    """Test the batching policies and routers that FILE (Python) registers against the rules they must keep.

    Small runs under a light load, a long queue, little memory, long prompts and so on. Prints what passed and what
    failed, with the reason; exit code 1 if anything failed.

    \b
    Examples:
      gnomon check-policy examples/own/shortest_first.py
    """
    found = []
    said_by: dict[str, str] = {}
    for finding in check_policy(file):
        found.append(finding)
        if as_json:
            continue
        mark = click.style("passed", fg="green") if finding.passed else click.style("FAILED", fg="red")
        click.echo(f"{mark}  {finding.kind} {finding.name}: {finding.test}")
        if finding.said:
            first = said_by.setdefault(finding.said, finding.test)
            click.echo(f"        {finding.said if first == finding.test else f'The same as for {first}.'}")
    failed = sum(not finding.passed for finding in found)
    if as_json:
        print_json([finding.to_dict() for finding in found])
    else:
        click.echo(f"{len(found) - failed} of {len(found)} tests passed.")
    if failed:
        sys.exit(1)
