"""`gnomon pipeline`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "run": "Run one training step and show where its time goes.",
    "sweep": "Run the priority study over all combinations of a configuration.",
    "plot": "Draw the heat maps of a sweep.",
    "all": "Sweep and heat maps in one go.",
    "schedules": "The schedules that are built in.",
    "convert": "Write a schedule as PyTorch CSV, or check one.",
    "search": "The best schedule within a memory limit, and the Pareto front.",
}


class Commands(click.Group):
    """Sub-commands looked up in `COMMANDS`; `gnomon.cli.pipeline_<name>` holds `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the sub-command's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"gnomon.cli.pipeline_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands)
def command() -> None:
    """Pipeline-parallel training: schedules, contention, priorities.

    \b
    Examples:
      gnomon pipeline run                                  the communication-priority study
      gnomon pipeline run --tier grad_prop=a --open        gradients first, and look at it
      gnomon pipeline run --schedule zb-h1 --stages 8 -n 32
      gnomon pipeline all -c examples/pipeline/sweep.json  every configuration, with heat maps
      gnomon pipeline search --stages 8 -n 32 --memory-limit 8
    """
