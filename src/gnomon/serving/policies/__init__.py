"""Batching policies: what one iteration of a replica runs.

A policy is one function that looks at a `Replica` and places requests into its batch with the verbs of
`gnomon.serving.verbs`. It is called when a batch may be formed (at arrivals and at batch ends) and may place nothing.
Contract: every request that it takes from the waiting queue or from `running` is placed, put back, or pre-empted;
blocks are held before a request computes into them.

A policy that gives every decode its token in the same iterations may say so with `state.steppable = 1` and start with
`place_together`: the engine then keeps those decodes as one, which is much faster (see `gnomon.serving.stepping`).

    @batching_policy("mine")
    def mine(replica): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from gnomon.core.registry import Registry
from gnomon.serving.state import Replica

BatchingPolicy = Callable[[Replica], None]

POLICIES: Registry[BatchingPolicy] = Registry("batching policy")

BUILT_IN = ("vllm_v1", "sglang", "vllm", "sarathi", "orca", "faster_transformer", "lightllm")


def batching_policy(name: str) -> Callable[[BatchingPolicy], BatchingPolicy]:
    """Register a batching policy under `name`."""
    return POLICIES.register(name)


def policy_names() -> list[str]:
    """All registered policies, the built-in ones first."""
    _load_built_in()
    return [*BUILT_IN, *(name for name in POLICIES if name not in BUILT_IN)]


@cache
def _load_built_in() -> None:
    for name in BUILT_IN:
        import_module(f"gnomon.serving.policies.{name}")


def find_policy(name: str) -> BatchingPolicy:
    """The policy of that name, as written."""
    _load_built_in()
    return POLICIES[name]
