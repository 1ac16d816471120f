"""Sockets and signals: the application behind uvicorn."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from gnomon.core.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn

    from gnomon.live.app import App


def check_host(host: str, token: str | None) -> None:
    """Refuse to answer others than this machine without a token."""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not token:
        raise ConfigError(
            f"{host} can be reached from other machines.",
            where="--host",
            fix="Give a token with --token or $GNOMON_SERVE_TOKEN, or stay with 127.0.0.1.",
        )


def open_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets from `port` on; 0 takes any that are free."""
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            one = socket.socket(family, socket.SOCK_STREAM)
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port + number if port else 0))
    except OSError as error:
        for one in opened:
            one.close()
        raise ConfigError(
            f"port {port + len(opened) - 1} of {host} cannot be opened: {error.strerror}.", where="--port"
        ) from None
    return opened


def server_of(app: App, drain_s: int, on_start: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """uvicorn with the application, which may write to its connections itself: a task that wakes for every token of
    every client would make most of them late."""
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from gnomon.live.app import CONNECTION

    class Protocol(HttpToolsProtocol):
        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start()

    config = uvicorn.Config(
        app,
        http=Protocol,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=drain_s,
    )
    return Server(config)


def serve_forever(app: App, sockets: list[socket.socket], drain_s: int, on_start: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; then requests that are there get their answers, for at most `drain_s`."""
    gc.collect()
    gc.freeze()  # What is there stays: looking through it would take a tenth of a second now and then.
    server_of(app, drain_s, on_start).run(sockets)
