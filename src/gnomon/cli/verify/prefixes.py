"""`gnomon verify prefixes`."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Published effects of routing by prefixes and of KV in host memory, beside their simulation.

    Qwen3-32B on 16 H100s, as llm-d published it: four settings of its endpoint picker, and KV offloaded to host memory.
    Nothing is fitted. Exit code 1 where a ratio of throughputs is more than 15 % off; see docs/kv-tiers.md.

    \b
    Example:
      gnomon verify prefixes --json
    """
    check("prefixes", doing="simulating", as_json=as_json)
