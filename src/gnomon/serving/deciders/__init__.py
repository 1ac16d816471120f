"""Deciders: whether a request is prefilled elsewhere, or where it decodes.

One function `(fleet, request_id) -> bool`, asked at every arrival, after the decode router has chosen the replica that
decodes (`fleet.cluster.requests[request_id].decode_replica`) and before the router chooses the one that prefills among
`fleet.candidates`. It reads its options from `fleet.parameters`.

    @decider("mine", options={"tokens": 512.0})
    def mine(fleet, request_id): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnomon.core.registry import Registry

if TYPE_CHECKING:  # What a run is made of brings Numba along, which `--help` need not wait for.
    from gnomon.serving.engine.context import Fleet

Decide = Callable[["Fleet", int], bool]


@dataclass(frozen=True)
class DeciderSpec:
    """A registered decider with all its traits."""

    name: str
    decide: Decide
    options: Mapping[str, float] = field(default_factory=dict)
    """Its options with their defaults, in the order in which `fleet.parameters` holds them."""
    sees_state: bool = False
    """It looks at the replicas, so that all of them are brought up to date at every arrival."""
    always_elsewhere: bool = False
    """No request is prefilled where it decodes."""


DECIDERS: Registry[DeciderSpec] = Registry(
    "decider",
    DeciderSpec,
    built_in={
        name: f"gnomon.serving.deciders.{name}"
        for name in ("always", "long_prompts", "uncached_prompts", "idle_prefill")
    },
    where="disaggregation.decider",
)


def decider(name: str, **traits: Any) -> Callable[[Decide], Decide]:
    """Register a decider under `name`; `traits` are the fields of its `DeciderSpec`."""
    return DECIDERS.register(name, **traits)


def __getattr__(name: str) -> Any:
    if name == "Fleet":
        from gnomon.serving.engine import context

        return getattr(context, name)
    raise AttributeError(name)


__all__ = ["DECIDERS", "Decide", "DeciderSpec", "Fleet", "decider"]
