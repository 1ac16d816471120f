"""`gnomon posttrain`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "run": "Simulate the steps of one policy and show where the time goes.",
    "compare": "Policies on the same lengths, with regret against a clairvoyant.",
    "place": "The best static placement, and whether elastic scheduling pays.",
    "sweep": "Policies over cluster sizes.",
    "calibrate": "Fit efficiencies to measured stage times.",
    "decide": "Feed recorded snapshots through a policy, without the simulator.",
}


class Commands(click.Group):
    """Sub-commands looked up in `COMMANDS`; `gnomon.cli.posttrain_<name>` holds `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the sub-command's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"gnomon.cli.posttrain_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands)
def command() -> None:
    """RL post-training: placements and elastic scheduling of actor, rollout and inference.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml --out runs/elastic
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain place examples/posttrain/elastic.yaml
    """
