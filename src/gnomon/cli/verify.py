"""`gnomon verify`: a table of checks, each imported only when it is called."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

CHECKS = {
    "timing": "Operator times: held-out error of the estimators, and the roofline against measured kernels.",
    "vidur": "Scheduling semantics: recorded Vidur runs, batch by batch.",
    "vllm": "Latencies: real vLLM servers, request by request.",
    "pipeline": "Training pipelines: published schedules and bubbles.",
    "posttrain": "RL post-training: published results.",
    "h200": "The reference engine on an H200: simulated and measured.",
}


class Checks(click.Group):
    """Sub-commands looked up in `CHECKS`; `gnomon.cli.verify_<name>` holds `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The checks whose module is there, in the order of the table."""
        return [name for name in CHECKS if find_spec(f"gnomon.cli.verify_{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the check's module."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"gnomon.cli.verify_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the checks without importing them."""
        with formatter.section("Checks"):
            formatter.write_dl([(name, CHECKS[name]) for name in self.list_commands(ctx)])


@click.group(cls=Checks)
def command() -> None:
    """Hold the simulator against recorded and published results.

    Exit code 0 when a check passes, 1 when it does not, 2 when its data cannot be read.

    \b
    Example:
      gnomon verify timing --data reference/
    """
