"""Serving a simulated deployment over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnomon.api.serving import ScenarioLike, scenario
from gnomon.core.errors import ConfigError


def serve(
    given: ScenarioLike = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    port_per_replica: bool = False,
    speed: float = 1.0,
    model_name: str | None = None,
    tokenizer: str | Path | None = None,
    token: str | None = None,
    drain_s: int = 60,
    on_start: Callable[[list[str], str], None] = lambda urls, model: None,
    **overrides: Any,
) -> None:
    """Answer OpenAI's requests as the scenario's servers would, until the process is told to stop.

    Tokens come when the simulated engine produces them, `speed` times faster than in reality. Addresses other than this
    machine's own need a `token`. `port_per_replica`: every replica has a port of its own, from `port` on, instead of
    the scenario's router. `on_start` gets the URLs and the model's name once requests are answered.
    """
    try:
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"serving needs the package {error.name}.", where="serve", fix="pip install 'gnomon-sim[serve]'"
        ) from None
    from gnomon.live.app import App, check_host, open_sockets, serve_forever
    from gnomon.live.cluster import LiveCluster
    from gnomon.live.text import FromFile, Pieces

    chosen = scenario(given, **overrides)
    check_host(host, token)
    if port_per_replica and chosen.has_roles:
        raise ConfigError(
            "where prefill and decode are apart, requests move between replicas.",
            where="--port-per-replica",
            fix="Leave it out: the scenario's routers choose.",
        )
    words = FromFile(tokenizer) if tokenizer is not None else Pieces()
    live = LiveCluster(chosen)
    groups = sorted({int(first) for first in live.cluster.replicas.group_first}) if port_per_replica else [0]
    sockets = open_sockets(host, port, len(groups))
    ports = [int(one.getsockname()[1]) for one in sockets]
    name = model_name or chosen.model
    app = App(
        live,
        words,
        model_name=name,
        speed=speed,
        token=token,
        replica_of_port=dict(zip(ports, groups, strict=True)) if port_per_replica else None,
    )
    shown = f"[{host}]" if ":" in host else host
    serve_forever(app, sockets, drain_s, lambda: on_start([f"http://{shown}:{one}" for one in ports], name))
