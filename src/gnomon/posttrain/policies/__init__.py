"""Policies: who gets which GPUs, decided from a `Snapshot` alone.

A policy is a frozen configuration with one pure method, `decide(snapshot) -> actions`. It holds no state and sees no
simulator, so the same object can drive a live cluster, or recorded snapshots (`gnomon posttrain decide`).

    @scheduling_policy("mine")
    class Mine(Policy):
        keep: int = 2
        def decide(self, snapshot): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal, TypeVar

from gnomon.core.config import Config, build
from gnomon.core.errors import UnknownNameError
from gnomon.core.registry import Registry
from gnomon.posttrain.snapshot import Actions, Snapshot


class Policy(Config):
    """What every policy says of itself, and its one decision."""

    name: ClassVar[str] = ""
    checks: ClassVar[Literal["never", "before_training", "always"]] = "never"
    """Whether it looks between mini-batch boundaries: every check interval, or only while the actor does not train."""
    is_static: ClassVar[bool] = False
    """It never moves running work, so nothing depends on when it is asked."""
    takes_turns: ClassVar[bool] = False
    """Components own the same GPUs one after another: changes cost `switch_s`."""

    def decide(self, snapshot: Snapshot) -> Actions:
        """What to do now; called at the points that `Snapshot` lists. Must not keep anything."""
        raise NotImplementedError


P = TypeVar("P", bound=type[Policy])
POLICIES: Registry[type[Policy]] = Registry("scheduling policy")
BUILT_IN = {
    "colocated": "static",
    "disaggregated": "static",
    "elastic": "elastic",
    "utilization": "utilization",
    "payback": "payback",
    "tail_batching": "leftover",
    "partial_rollout": "leftover",
}


def scheduling_policy(name: str) -> Callable[[P], P]:
    """Register a policy under `name`."""

    def add(policy: P) -> P:
        policy.name = name
        POLICIES.add(name, policy)
        return policy

    return add


@cache
def _load_built_in() -> None:
    for module in dict.fromkeys(BUILT_IN.values()):
        import_module(f"gnomon.posttrain.policies.{module}")


def policy_names() -> list[str]:
    """All registered policies, the built-in ones first."""
    _load_built_in()
    return [*BUILT_IN, *(name for name in POLICIES if name not in BUILT_IN)]


def make_policy(name: str, options: dict[str, Any] | None = None) -> Policy:
    """The policy of that name with its options."""
    if name not in policy_names():
        raise UnknownNameError("scheduling policy", name, policy_names(), where="policy.name")
    return build(POLICIES[name], options or {}, where=f"options of policy {name}")
