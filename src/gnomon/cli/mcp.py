"""`gnomon mcp`: questions as tools of an assistant."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon.api.mcp import server


@click.command()
@click.option("--reports", default="gnomon-reports", type=click.Path(path_type=Path), help="Folder for reports.")
def command(reports: Path) -> None:
    """Answer an assistant over the standard input and output (Model Context Protocol).

    \b
    Example (in an assistant's configuration):
      {"mcpServers": {"gnomon": {"command": "gnomon", "args": ["mcp"]}}}
    """
    server(reports).run("stdio")
