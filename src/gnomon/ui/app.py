"""The site and its server: everything from this machine, for this machine unless told otherwise."""

import logging
from pathlib import Path

from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component
from flask import Flask, Response, abort, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from gnomon import __version__
from gnomon.core.errors import ConfigError
from gnomon.report.page import shared
from gnomon.ui.controls import state_of
from gnomon.ui.pages import all_pages
from gnomon.ui.run_folders import ONLY_OURS, register_files
from gnomon.ui.site_page import Page, callback

# The icon is drawn here, so that no file of Dash's is shown in its place.
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Ccircle cx='16' cy='16' "
    "r='15' fill='%231F2A37'/%3E%3Cpath d='M8 23 L16 7 L16 23 Z' fill='%23E08A2E'/%3E%3Cpath d='M17 23 L26 23' "
    "stroke='white' stroke-width='2'/%3E%3C/svg%3E"
)

# Before anything is drawn: the theme that was chosen last, else the system's.
_THEME = "try{document.documentElement.style.colorScheme=localStorage.getItem('gnomon-theme')||''}catch{}"

INDEX = f"""<!DOCTYPE html>
<html lang="en">
<head>{{%metas%}}<script>{_THEME}</script><style>{shared("look.css")}</style>
<script>{shared("tools.js")}</script>
<title>{{%title%}}</title><link rel="icon" href="{_ICON}">{{%css%}}</head>
<body>{{%app_entry%}}<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer></body>
</html>"""


def frame(pages: list[Page]) -> Component:
    links = [dcc.Link(page.title, href=page.path, id=f"nav-{page.name}", className="nav") for page in pages]
    return html.Div(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            html.A("Skip to the page", href="#content", className="skip"),
            html.Header([html.Div([html.Span("Gnomon", className="brand"), html.Small(__version__)]),
                         html.Nav(links, **{"aria-label": "Pages"}),
                         html.Button("◐", id="theme", className="theme", type="button", title="Light or dark",
                                     **{"aria-label": "Switch between light and dark"})], className="top"),
            html.Main(id="content"),
        ]
    )  # fmt: skip


def register_shell(app: Dash, pages: list[Page]) -> None:
    """Show the page that the address names, in the state that its query says."""
    by_path = {page.path: page for page in pages}

    @callback(
        app, Output("content", "children"), *(Output(f"nav-{page.name}", "className") for page in pages),
        Input("address", "pathname"), Input("address", "search"),
    )  # fmt: skip
    def show(path: str | None, query: str | None) -> tuple[Component, ...]:
        path = (path or "/").rstrip("/")
        chosen = pages[0] if not path else by_path.get(path)
        styles = ["nav here" if page is chosen else "nav" for page in pages]
        if chosen is None:
            links = [html.Li(dcc.Link(page.title, href=page.path)) for page in pages]
            content = [html.H1("No such page"), html.P(f"There is nothing at {path}."), html.Ul(links)]
            return html.Section(content), *styles
        return chosen.layout(state_of(chosen.controls, query or "")), *styles

    titles = {page.path: f"{page.title} · Gnomon" for page in pages}
    app.clientside_callback(
        f"function(path) {{ document.title = {titles!r}[path] || 'Gnomon'; return dash_clientside.no_update; }}",
        Output("content", "title"),
        Input("address", "pathname"),
    )


MAX_REQUEST_BYTES = 24 * 2**20  # Uploads of 16 MiB, which grow by a third on the way, and the rest of the page's state.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def make_app(runs: Path | None = None) -> Dash:
    """The site; `runs` is the folder whose run directories are listed."""
    server = Flask("gnomon.ui")
    server.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES
    server.config["GNOMON_RUNS"] = Path(runs or "runs").resolve()

    @server.after_request
    def in_no_foreign_frame(answer: Response) -> Response:
        answer.headers.setdefault("Content-Security-Policy", ONLY_OURS)
        return answer

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


class _AtOnce(WSGIRequestHandler):
    """Sends each part of an answer when it is there, however small it is."""

    disable_nagle_algorithm = True


def make_site(app: Dash, host: str, port: int) -> BaseWSGIServer:
    """A server that is bound and ready; `serve_forever` runs it, `port` 0 takes a free one."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    if host in LOOPBACK:
        # Refuse requests for another name: a page elsewhere whose name points to this machine may not ask.
        hosts = (*LOOPBACK, "[::1]")

        def refuse_strangers() -> None:
            name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
            if name not in hosts:
                abort(403)

        app.server.before_request(refuse_strangers)
    try:
        return make_server(host, port, app.server, threaded=True, request_handler=_AtOnce)
    except (OSError, SystemExit, UnicodeError) as error:  # werkzeug turns "address in use" into an exit of its own
        reason = getattr(error, "strerror", None) or "it is taken or not allowed"
        fix = "Choose another, e.g. --port 0 for any."
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}.", where="--port", fix=fix) from None
