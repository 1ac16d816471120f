"""`gnomon ui`: explore in a web page."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon.core.errors import MissingExtraError


@click.command()
@click.option("--port", default=8300, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; this machine only unless given."
)
@click.option(
    "--runs",
    default="runs",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder whose run directories are listed.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(port: int, host: str, runs: Path, no_browser: bool) -> None:
    """Explore in a web page: move a slider, look at the plots.

    \b
    Examples:
      gnomon ui
      gnomon ui --port 8400 --runs results --no-browser
    """
    try:
        import dash  # noqa: F401
    except ImportError:
        raise MissingExtraError("the web page", "ui") from None
    import threading
    import webbrowser

    from gnomon.cli.progress import say_if_compiling
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
