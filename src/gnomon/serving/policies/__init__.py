"""Batching policies: what one iteration of a replica runs.

A policy is one function that looks at a `Replica` and places requests into its batch with the verbs of
`gnomon.serving.verbs`. It is called when a batch may be formed (at arrivals and at batch ends) and may place nothing.
Contract: every request that it takes from the waiting queue or from `running` is placed, put back, or pre-empted;
blocks are held before a request computes into them. A policy that would choose the same decodes again and again until
something arrives, finishes or memory runs short says so with `state.repeatable = 1`; the engine then runs ahead.

    @batching_policy("mine")
    def mine(replica): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from gnomon.core.jit import ENABLED, compiled
from gnomon.core.registry import Registry
from gnomon.serving.state import Replica, replica_view

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


@cache
def _compile(policy: BatchingPolicy) -> Any:
    import numba

    from gnomon.core.borrowed_array import borrowed
    from gnomon.serving.cluster import new_cluster
    from gnomon.serving.state import REPLICA

    example = replica_view.py_func(new_cluster(1, 1, 1, 1, 1, 1), 0)  # type: ignore[attr-defined]
    fields = [numba.from_dtype(REPLICA), *(borrowed(numba.typeof(view)) for view in example[1:])]
    return compiled(numba.types.void(numba.types.NamedTuple(fields, Replica)))(policy)


def callable_policy(name: str) -> Any:
    """The policy of that name, as the engine calls it: compiled for the one signature all policies share."""
    policy = find_policy(name)
    return _compile(policy) if ENABLED else policy
