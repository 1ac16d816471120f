"""Small commands: other tools' command lines, assistants, the web page, shells."""

import sys
import threading
import webbrowser
from pathlib import Path

import click

from gnomon.cli.options import about, verb
from gnomon.cli.printing import json_option, print_json
from gnomon.cli.progress import say_if_compiling
from gnomon.core.errors import MissingExtraError

TOOLS = ("vidur", "vllm", "sglang", "trtllm", "megatron", "verl", "rlinf", "inference-perf", "guidellm")
JOBS = {"megatron": "train step", "verl": "posttrain run", "rlinf": "posttrain run"}
"""Tools whose commands are jobs of training, and what runs them here."""


@click.command(help=about("convert").replace("{tools}", ", ".join(TOOLS)))
@click.argument("tool", metavar="TOOL", type=click.Choice(TOOLS))
@click.argument("command_line", metavar="COMMAND")
@verb("convert")
@json_option
def convert(
    tool: str, command_line: str, device: str | None, model: str | None, gpus: int | None, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    from gnomon import convert as converting
    from gnomon.core.files import write_text

    if command_line == "-" and sys.stdin.isatty():
        click.echo("Paste the command; Ctrl-D ends it.", err=True)
    given = sys.stdin.read() if command_line == "-" else command_line
    if tool in JOBS:
        from gnomon.convert.rl_commands import as_posttrain_yaml
        from gnomon.convert.training_commands import as_train_yaml

        gpu = device or "h100"
        if tool == "megatron":
            text = as_train_yaml(given, model=model, device=gpu, gpus=gpus)
        else:
            text = as_posttrain_yaml(tool, given, model=model, device=gpu)
        if out is not None:
            write_text(out, text)
        message = f"Wrote {out}: run it with `gnomon {JOBS[tool]} {out}`."
        click.echo(text if out is None else message, nl=out is not None)
        return
    if tool in ("inference-perf", "guidellm"):
        from gnomon.convert.load_definitions import convert_load

        conversion = convert_load(tool, given)
        conversion.values |= {key: value for key, value in (("model", model), ("device", device)) if value}
    else:
        conversion = converting.convert(tool, given, device=device)
    if out is not None:
        write_text(out, converting.as_yaml(conversion))
    if as_json:
        accounts = {"mapped": (conversion.mapped, "keys"), "without_counterpart": (conversion.without, "why")}
        options = {name: [{"option": one, key: why} for one, why in some] for name, (some, key) in accounts.items()}
        print_json({"scenario": conversion.values} | options | {"notes": conversion.notes})
    elif out is None:
        click.echo(converting.as_yaml(conversion), nl=False)
    else:
        counts = f"{len(conversion.mapped)} options mapped, {len(conversion.without)} without counterpart"
        click.echo(f"Wrote {out}: {counts}.")


@click.command()
@verb("mcp")
def mcp(reports: Path) -> None:
    from gnomon.api.mcp import server

    if sys.stdin.isatty():
        click.echo("Waiting for an assistant on the standard input; Ctrl-C ends it.", err=True)
    server(reports).run("stdio")


@click.command()
@verb("ui")
def ui(port: int, host: str, runs: Path, no_browser: bool) -> None:
    try:
        import dash  # noqa: F401
    except ImportError:
        raise MissingExtraError("the web page", "ui") from None
    from gnomon.ui import jobs
    from gnomon.ui.app import LOOPBACK, make_app, make_site
    from gnomon.ui.serving import warm_up

    site = make_site(make_app(runs), host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{site.server_port}/"
    click.echo(f"Gnomon is at {address} (Ctrl-C ends it).")
    say_if_compiling(" The first plots wait for it.")
    threading.Thread(target=warm_up, daemon=True).start()
    if host not in LOOPBACK:
        click.echo("Everyone who can reach this address can use it: there is no password.", err=True)
    if not no_browser:
        webbrowser.open(address)
    try:
        site.serve_forever()
    finally:
        jobs.cancel_all()
        site.server_close()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verb("completion")
def completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    from gnomon.cli.main import gnomon

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(gnomon, {}, "gnomon", "_GNOMON_COMPLETE").source())
