"""A simulated server in a thread, for clients in the same process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gnomon.api.serving import scenario
from gnomon.live.app import App, open_sockets, server_of
from gnomon.live.cluster import LiveCluster
from gnomon.live.protocol import Pieces, Tokenizer

SMALL = {"model": "llama-3-8b", "device": "h100", "workload": {"rate": 5, "num_requests": 100}}


def small_cluster(**overrides: Any) -> LiveCluster:
    return LiveCluster(scenario(SMALL, **overrides), slots=4096, room=1 << 20)


@contextmanager
def served(
    live: LiveCluster,
    *,
    num_ports: int = 1,
    speed: float = 1.0,
    token: str | None = None,
    tokenizer: Tokenizer | None = None,
    model_name: str = "sim",
) -> Iterator[tuple[App, list[str]]]:
    sockets = open_sockets("127.0.0.1", 0, num_ports)
    ports = [one.getsockname()[1] for one in sockets]
    replicas = {port: number for number, port in enumerate(ports)} if num_ports > 1 else None
    app = App(live, tokenizer or Pieces(), model_name=model_name, speed=speed, token=token, replica_of_port=replicas)
    server = server_of(app, 5)
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets}, daemon=True)
    thread.start()
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error")]
    for one in loggers:
        one.addHandler(handler)
    try:
        for _ in range(500):
            if server.started:
                break
            time.sleep(0.01)
        yield app, [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        server.should_exit = True
        thread.join(30)
        for one in loggers:
            one.removeHandler(handler)
    assert not errors


def is_empty(live: LiveCluster) -> bool:
    """Whether nothing is held for anybody."""
    replicas = live.cluster.replicas
    books = ("num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding",
             "num_held", "num_coming", "prefill_left", "decode_left", "waiting_tokens")  # fmt: skip
    no_books = not any(replicas[name].any() for name in books)
    return live.num_live == 0 and no_books and bool((replicas.free_blocks == replicas.num_blocks).all())
