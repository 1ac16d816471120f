"""The frame around every page: navigation, and the page that the address names."""

from __future__ import annotations

from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from gnomon import __version__
from gnomon.report.page import look_css, tools_js
from gnomon.ui.address import state_of
from gnomon.ui.callbacks import callback
from gnomon.ui.site_page import Page

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
<head>{{%metas%}}<script>{_THEME}</script><style>{look_css()}</style>
<script>{tools_js()}</script>
<title>{{%title%}}</title><link rel="icon" href="{_ICON}">{{%css%}}</head>
<body>{{%app_entry%}}<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer></body>
</html>"""


def frame(pages: list[Page]) -> Component:
    """What stays when the page changes."""
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
        app,
        Output("content", "children"),
        *(Output(f"nav-{page.name}", "className") for page in pages),
        Input("address", "pathname"),
        Input("address", "search"),
    )
    def show(path: str | None, query: str | None) -> tuple[Component, ...]:
        path = (path or "/").rstrip("/")
        chosen = pages[0] if not path else by_path.get(path)
        styles = ["nav here" if page is chosen else "nav" for page in pages]
        if chosen is None:
            return _missing(path, pages), *styles
        return chosen.layout(state_of(chosen.controls, query or "")), *styles

    titles = {page.path: f"{page.title} · Gnomon" for page in pages}
    app.clientside_callback(
        f"function(path) {{ document.title = {titles!r}[path] || 'Gnomon'; return dash_clientside.no_update; }}",
        Output("content", "title"),
        Input("address", "pathname"),
    )


def _missing(path: str, pages: list[Page]) -> Component:
    links = [html.Li(dcc.Link(page.title, href=page.path)) for page in pages]
    return html.Section([html.H1("No such page"), html.P(f"There is nothing at {path}."), html.Ul(links)])
