"""The signatures through which compiled parts call each other.

A policy, a router and the engine are each compiled alone, for one fixed signature, and passed on as pointers. So a
user's policy compiles by itself, the engine compiles once, and all of it is cached on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from gnomon.core.borrow import borrowed_type
from gnomon.core.errors import ConfigError
from gnomon.core.jit import ENABLED, compiled
from gnomon.serving.cluster import Engine, Fleet, new_cluster
from gnomon.serving.kinds import MAX_POLICIES
from gnomon.serving.log import new_log
from gnomon.serving.loop import proceed
from gnomon.serving.policies import POLICIES, BatchingPolicy
from gnomon.serving.routers import Router, RouterSpec
from gnomon.serving.state import REPLICA, Replica, replica_view
from gnomon.timing.iteration import blank


def engine_of(policies: list[str], router: RouterSpec) -> Engine:
    """The compiled engine with these batching policies, which replicas refer to by their place in the list."""
    functions = [POLICIES[name].form_batch for name in policies]
    functions += functions[:1] * (MAX_POLICIES - len(functions))
    if not ENABLED:
        return Engine(proceed, tuple(functions), router.route)
    route = _compiled_router(router.route) if router.compiled else router.route
    return Engine(_compiled_proceed(), tuple(_compiled_policy(one) for one in functions), route)


@cache
def _compiled_policy(policy: BatchingPolicy) -> Any:
    with _explained(policy):
        return compiled(_policy_signature())(policy)


@cache
def _compiled_router(route: Router) -> Any:
    from numba import int64

    with _explained(route):
        return compiled(int64(borrowed_type(_example()), int64))(route)


@contextmanager
def _explained(function: Any) -> Iterator[None]:
    """Say in one paragraph why a user's function cannot be compiled."""
    from numba.core.errors import NumbaError

    try:
        yield
    except (NumbaError, NotImplementedError, NameError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "Error: " in line), lines[-1] if lines else type(error).__name__)
        code = function.__code__
        raise ConfigError(
            f"{function.__name__} cannot be compiled: {reason.rstrip('.')}.",
            where=f"{code.co_filename}:{code.co_firstlineno}",
            fix="Compiled functions know numbers, arrays and other compiled functions; GNOMON_JIT=0 runs plain Python.",
        ) from None


@cache
def _compiled_proceed() -> Any:
    from numba import float64, int64, types

    example = _example()
    cluster, tables, log = (borrowed_type(one) for one in (example.cluster, example.tables, new_log(64, 64)))
    policies = types.UniTuple(types.FunctionType(_policy_signature()), MAX_POLICIES)
    return compiled(types.void(cluster, tables, policies, log, int64, float64, float64))(proceed)


@cache
def _policy_signature() -> Any:
    from numba import from_dtype, types

    view = getattr(replica_view, "py_func", replica_view)(_example().cluster, 0)
    fields = [from_dtype(REPLICA), *(borrowed_type(array) for array in view[1:])]
    return types.void(types.NamedTuple(fields, Replica))


@cache
def _example() -> Fleet:
    """The smallest fleet there is: only the types of its arrays matter."""
    return Fleet(new_cluster(1, 1, 1, 1, 1, 1), blank(1), np.zeros((1, 2)), *(np.zeros(1),) * 3)
