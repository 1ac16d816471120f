"""Admission control: whether an arriving request is let in at all.

One function `(fleet, request_id) -> bool`, asked once for every request before the router is. It may look at all
replicas that take requests (`fleet.candidates`), read its options from `fleet.gate`, and remember two numbers for each
class of users in `fleet.gate_memory`. A request that is turned away counts as shed, and as having missed its SLO.

    @admission("mine", options={"limit": 10.0})
    def mine(fleet, request_id): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnomon.core.registry import Registry

if TYPE_CHECKING:  # What a run is made of brings Numba along, which `--help` need not wait for.
    from gnomon.serving.engine.context import Fleet

Admit = Callable[["Fleet", int], bool]


@dataclass(frozen=True)
class AdmissionSpec:
    """Registered admission control with all its traits."""

    name: str
    admit: Admit
    options: Mapping[str, float] = field(default_factory=dict)
    """Its options with their defaults, in the order in which `fleet.gate` holds them."""
    sees_state: bool = True
    """It looks at the replicas, so that all of them are brought up to date at every arrival."""


ADMISSIONS: Registry[AdmissionSpec] = Registry(
    "admission control",
    AdmissionSpec,
    built_in={
        name: f"gnomon.serving.admission.{name}"
        for name in ("everyone", "queue_limit", "shed_by_class", "token_bucket")
    },
    where="admission.name",
)


def admission(name: str, **traits: Any) -> Callable[[Admit], Admit]:
    """Register admission control under `name`; `traits` are the fields of its `AdmissionSpec`."""
    return ADMISSIONS.register(name, **traits)


def __getattr__(name: str) -> Any:
    if name == "Fleet":
        from gnomon.serving.engine import context

        return getattr(context, name)
    raise AttributeError(name)


__all__ = ["ADMISSIONS", "AdmissionSpec", "Admit", "Fleet", "admission"]
