"""A group of commands whose modules are imported only when they are called, so that help stays fast."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from gnomon.core.errors import nearest


class NearGroup(click.Group):
    """Commands in the order in which they are written; a wrong name is answered with the nearest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with the first sentence about it, whole."""
        shown = [(name, one) for name, one in self.commands.items() if not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(limit=120)) for name, one in shown])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; a wrong name is answered with the nearest."""
        near = nearest(args[0], self.list_commands(ctx)) if args and not args[0].startswith("-") else []
        if near and args[0] not in self.list_commands(ctx):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)


class LazyGroup(NearGroup):
    """Commands from a table of names and help lines; `places` says where in the package each is, as `module` (which
    holds `command`) or `module:name`, unless it is the module of its own name."""

    def __init__(
        self, *arguments: Any, table: Mapping[str, str], package: str, places: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*arguments, **options)
        self.table, self.package, self.places = table, package, places or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, name = self.places.get(cmd_name, cmd_name).partition(":")
        return getattr(import_module(f"{self.package}.{module}"), name or "command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))
