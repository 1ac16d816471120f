"""The site and its server: everything from this machine, for this machine unless told otherwise."""

from __future__ import annotations

import logging
from pathlib import Path

from dash import Dash
from flask import Flask, Response, abort, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from gnomon.core.errors import ConfigError
from gnomon.ui.files import ONLY_OURS, register_files
from gnomon.ui.pages import all_pages
from gnomon.ui.shell import INDEX, frame, register_shell

MAX_REQUEST_BYTES = 24 * 2**20
"""Uploads of 16 MiB, which grow by a third on the way, and the rest of the page's state."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def make_app(runs: Path | None = None) -> Dash:
    """The site; `runs` is the folder whose run directories are listed."""
    server = Flask("gnomon.ui")
    server.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES
    server.config["GNOMON_RUNS"] = Path(runs or "runs").resolve()
    server.after_request(_in_no_foreign_frame)
    register_files(server)
    assets = Path(__file__).parent / "assets"
    app = Dash(
        "gnomon.ui", server=server, assets_folder=str(assets), serve_locally=True, title="Gnomon", update_title=None,
        suppress_callback_exceptions=True, prevent_initial_callbacks="initial_duplicate", index_string=INDEX,
        add_log_handler=False, compress=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )  # fmt: skip
    pages = all_pages()
    app.layout = frame(pages)
    register_shell(app, pages)
    for page in pages:
        page.register_all(app)
    return app


def _in_no_foreign_frame(answer: Response) -> Response:
    answer.headers.setdefault("Content-Security-Policy", ONLY_OURS)
    return answer


class _AtOnce(WSGIRequestHandler):
    """Sends each part of an answer when it is there, however small it is."""

    disable_nagle_algorithm = True


def make_site(app: Dash, host: str, port: int) -> BaseWSGIServer:
    """A server that is bound and ready; `serve_forever` runs it, `port` 0 takes a free one."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    if host in LOOPBACK:
        _only_for(app, (*LOOPBACK, "[::1]"))
    try:
        return make_server(host, port, app.server, threaded=True, request_handler=_AtOnce)
    except (OSError, SystemExit, UnicodeError) as error:  # werkzeug turns "address in use" into an exit of its own
        reason = getattr(error, "strerror", None) or "it is taken or not allowed"
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}.", where="--port", fix="Choose another, e.g. --port 0 for any."
        ) from None


def _only_for(app: Dash, hosts: tuple[str, ...]) -> None:
    """Refuse requests for another name: a page elsewhere whose name points to this machine may not ask."""

    def refuse_strangers() -> None:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if name not in hosts:
            abort(403)

    app.server.before_request(refuse_strangers)
