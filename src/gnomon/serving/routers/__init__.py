"""Routers: which replica gets an arriving request.

A router is one function `(fleet, request_id) -> replica`, asked at every arrival. It may look at everything in
`fleet.cluster.replicas` (queue lengths, free blocks, work left), keep numbers in `fleet.memory`, and use the random
draws `fleet.draws[request_id]`. A router that does not look at the replicas says `sees_state=False` and is faster.
With `compiled=False` it is plain Python: slower, but free to use any object.

    @router("mine")
    def mine(fleet, request_id): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from gnomon.core.arrays import Floats
from gnomon.core.registry import Registry
from gnomon.serving.cluster import Fleet, Router
from gnomon.serving.scenario import RouterConfig

BUILT_IN = (
    "random",
    "round_robin",
    "least_outstanding",
    "vidur_lor",
    "power_of_two",
    "least_kv",
    "least_prefill_tokens",
    "lmetric",
    "sticky_session",
    "prefix_aware",
    "predicted_latency",
    "lookahead",
    "vllm_dp",
    "learned",
)


@dataclass(frozen=True)
class RouterSpec:
    """A registered router and how to call it."""

    name: str
    route: Router
    sees_state: bool
    is_compiled: bool
    memory: int
    """Numbers of memory per replica."""
    parameters: dict[str, float]
    """Options with their defaults, in the order in which `fleet.parameters` holds them."""
    foretells: bool = False
    """Whether it looks at `fleet.predicted_output` (`--router.lengths`)."""
    numbers: Callable[[RouterConfig], Floats] | None = None
    """What `fleet.parameters` holds behind the options, e.g. a trained network (`--router.checkpoint`)."""


ROUTERS: Registry[RouterSpec] = Registry("router")


def router(
    name: str,
    *,
    sees_state: bool = True,
    compiled: bool = True,
    memory: int = 1,
    foretells: bool = False,
    numbers: Callable[[RouterConfig], Floats] | None = None,
    **parameters: float,
) -> Callable[[Router], Router]:
    """Register a router under `name`; other keyword arguments are its options with their defaults."""

    def register(route: Router) -> Router:
        ROUTERS.add(name, RouterSpec(name, route, sees_state, compiled, memory, parameters, foretells, numbers))
        return route

    return register


@cache
def _load_built_in() -> None:
    for name in BUILT_IN:
        import_module(f"gnomon.serving.routers.{name}")


def router_names() -> list[str]:
    """All registered routers, the built-in ones first."""
    _load_built_in()
    return [*BUILT_IN, *(name for name in ROUTERS if name not in BUILT_IN)]


def find_router(name: str) -> RouterSpec:
    """The router of that name."""
    _load_built_in()
    return ROUTERS[name]


__all__ = ["ROUTERS", "Fleet", "Router", "RouterSpec", "find_router", "router", "router_names"]
