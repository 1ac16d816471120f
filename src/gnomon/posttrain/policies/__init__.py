"""Policies: who gets which GPUs, decided from a `Snapshot` alone.

A policy is a frozen configuration with one pure method, `decide(snapshot) -> actions`. It holds no state and sees no
simulator, so the same object can drive a live cluster, or recorded snapshots (`gnomon posttrain decide`). What the
rest of Gnomon must know of it stands beside it, as fields of `SchedulingSpec`:

    @scheduling_policy("mine", checks="always")
    class Mine(Policy):
        keep: int = 2
        def decide(self, snapshot): ...
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from gnomon.core.config import Config, build
from gnomon.core.errors import GnomonError
from gnomon.core.registry import Registry
from gnomon.posttrain.policies.snapshot import Actions, Snapshot

Share = Annotated[float, Field(ge=0, le=1)]


class Policy(Config):
    """The options of a policy, and its one decision."""

    spec: ClassVar[SchedulingSpec]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def lent(self) -> tuple[str, ...]:
        """Components on whose GPUs rollout starts too, in whole instances."""
        return ()

    @abstractmethod
    def decide(self, snapshot: Snapshot) -> Actions:
        """What to do now; called at the points that `Snapshot` lists. Must not keep anything."""


P = TypeVar("P", bound=type[Policy])


@dataclass(frozen=True)
class SchedulingSpec:
    """A registered policy with all its traits."""

    name: str
    policy: type[Policy]
    checks: Literal["never", "before_training", "always"] = "never"
    """Whether it looks between mini-batch boundaries: every check interval, or only while the actor does not train."""
    is_static: bool = False
    """It never moves running work, so nothing depends on when it is asked."""
    takes_turns: bool = False
    """Components own the same GPUs one after another: changes cost `switch_s`."""
    needs_order: bool = False
    """It moves GPUs between neighbours: actor, rollout, inference, contiguous from GPU 0."""
    cluster_flags: tuple[str, ...] = ()
    """Options that `cluster` may set."""


_IN = {
    "colocated": "static",
    "disaggregated": "static",
    "elastic": "elastic",
    "utilization": "payback",
    "payback": "payback",
    "switching": "switching",
    "tail_batching": "leftover",
    "partial_rollout": "leftover",
}
POLICIES: Registry[SchedulingSpec] = Registry(
    "scheduling policy",
    SchedulingSpec,
    built_in={name: f"gnomon.posttrain.policies.{module}" for name, module in _IN.items()},
    where="policy.name",
    of=type,
)
COMPARED = ("colocated", "disaggregated", "elastic", "utilization", "payback", "tail_batching", "partial_rollout")
"""Those of a comparison unless others are named."""


def scheduling_policy(name: str, **traits: Any) -> Callable[[P], P]:
    """Register a policy under `name`; `traits` are the fields of its `SchedulingSpec`."""

    def add(policy: P) -> P:
        if missing := ", ".join(sorted(policy.__abstractmethods__)):
            raise GnomonError(f"policy {name} has no {missing}.", where=policy.__name__, fix="Write that method.")
        POLICIES.register(name, **traits)(policy)
        policy.spec = POLICIES[name]
        return policy

    return add


def make_policy(name: str, options: dict[str, Any] | None = None) -> Policy:
    return build(POLICIES[name].policy, options or {}, where=f"options of policy {name}")
