"""Routers: which replica gets an arriving request.

A router is one function `(fleet, request_id) -> replica`, asked at every arrival. It may look at everything in
`fleet.cluster.replicas` (queue lengths, free blocks, work left), keep numbers in `fleet.memory`, and use the random
draws `fleet.draws[request_id]`. A router that does not look at the replicas says `sees_state=False` and is faster.
With `compiled=False` it is plain Python: slower, but free to use any object.

What the rest of Gnomon must know of a router stands beside it, as fields of `RouterSpec`:

    @router("mine", options={"weight": 2.0})
    def mine(fleet, request_id): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnomon.core.arrays import Floats
from gnomon.core.registry import Registry

if TYPE_CHECKING:  # What a run is made of brings Numba along, which `--help` need not wait for.
    from gnomon.serving.engine.context import Fleet, Router
    from gnomon.serving.scenario.config import RouterConfig


KNOWN = {"scrape_s": 0.25, "kv_loss": 0.0, "omniscient": 0.0}
"""Options that every router that observes has, behind its own: how often metrics are read, the share of KV events that
never come, and whether it sees tables and exact states instead (`known`)."""


@dataclass(frozen=True)
class RouterSpec:
    """A registered router with all its traits."""

    name: str
    route: Router
    options: Mapping[str, float] = field(default_factory=dict)
    """Its options with their defaults, in the order in which `fleet.parameters` holds them."""
    memory: int = 1
    """Numbers of memory per replica."""
    observes: bool = False
    """It asks `known` about the replicas, and so has the options of what a gateway can know (`KNOWN`)."""
    scratch: int = 0
    """Numbers per replica behind it, to keep what it would work out again. It does without where there are fewer."""
    sees_state: bool = True
    """It looks at the replicas, so that all of them are brought up to date at every arrival."""
    draws: bool = False
    """It chooses by `fleet.draws`, at least in part."""
    compiled: bool = True
    """It is compiled; else plain Python, slower, but free to use any object."""
    predicts: bool = False
    """It looks at `fleet.predicted_output` (`--router.lengths`)."""
    cost_feature: str | None = None
    """The feature (`observation.FEATURES`) of which it takes the least, so that it teaches what every choice costs."""
    numbers: Callable[[RouterConfig], Floats] | None = None
    """What `fleet.parameters` holds behind the options, e.g. a trained network (`--router.checkpoint`)."""


ROUTERS: Registry[RouterSpec] = Registry(
    "router",
    RouterSpec,
    built_in={
        name: f"gnomon.serving.routers.{name}"
        for name in (
            "random", "round_robin", "front_ends", "least_outstanding", "vidur_lor", "power_of_two", "least_kv",
            "least_prefill_tokens", "lmetric", "sticky_session", "sticky_until_full", "prefix_aware",
            "adapter_aware", "predicted_latency", "unselfish", "lookahead", "vllm_dp", "llmd", "llmd_estimated",
            "dynamo_kv", "cache_aware", "hash_spill", "gateway", "learned",
        )
    },
    where="router.name",
)  # fmt: skip


def router(name: str, **traits: Any) -> Callable[[Router], Router]:
    """Register a router under `name`; `traits` are the fields of its `RouterSpec`."""
    if "foretells" in traits:  # Its name in the release before.
        traits["predicts"] = traits.pop("foretells")
    if traits.get("observes"):
        traits["options"] = {**traits.get("options", {}), **KNOWN}
    return ROUTERS.register(name, **traits)


def __getattr__(name: str) -> Any:
    if name in ("Fleet", "Router"):
        from gnomon.serving.engine import context

        return getattr(context, name)
    raise AttributeError(name)


__all__ = ["ROUTERS", "Fleet", "Router", "RouterSpec", "router"]
