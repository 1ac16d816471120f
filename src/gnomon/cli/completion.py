"""`gnomon completion`: the script that makes a shell complete verbs and flags."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Example:
      gnomon completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from gnomon.cli.main import gnomon

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(gnomon, {}, "gnomon", "_GNOMON_COMPLETE").source())
