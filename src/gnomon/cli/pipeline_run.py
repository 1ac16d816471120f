"""`gnomon pipeline run`: one training step."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option, print_json
from gnomon.core.errors import ConfigError


@click.command()
@click.option("-n", "--num-groups", "--num_groups", "n", type=int, default=8, show_default=True, help="Micro-batches.")
@click.option("--stages", type=int, default=4, show_default=True, help="Pipeline stages, one GPU each.")
@click.option("--sync-freq", "--sync_freq", type=int, default=1, show_default=True)
@click.option("--priority", "priorities", multiple=True, metavar="TYPE=WEIGHT", help="E.g. fwd_prop=0.5.")
@click.option("--tier", "tiers", multiple=True, metavar="TYPE=LETTER", help="Exclusive tier, e.g. grad_prop=a.")
@json_option
def command(
    n: int, stages: int, sync_freq: int, priorities: tuple[str, ...], tiers: tuple[str, ...], as_json: bool
) -> None:
    """Run one training step."""
    from gnomon.core.config import build
    from gnomon.pipeline.study import Study, simulate

    given = dict(pair(text, "--priority") for text in priorities) | dict(pair(t, "--tier") for t in tiers)
    result = simulate(build(Study, {"n": n, "stages": stages, "sync_freq": sync_freq, **given}))
    if as_json:
        print_json({"total_time": result.total_time, "throttled": result.throttled})
    else:
        click.echo(f"total_time {result.total_time:.6f}")


def pair(text: str, option: str) -> tuple[str, str]:
    """Split TYPE=VALUE."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"{text!r} is not TYPE=VALUE.", where=option, fix="For example: fwd_prop=0.5")
    return name, value
