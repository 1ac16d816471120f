"""The signatures through which compiled parts call each other.

A policy, a router and the engine are each compiled alone, for one fixed signature, and passed on as pointers. So a
user's policy compiles by itself, the engine compiles once, and all of it is cached on disk.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from gnomon.core.cache_folder import compiled_code_folder
from gnomon.core.user_files import is_own, plain
from gnomon.jit import ENABLED, borrowed_type, compiled, inlined, own_jit
from gnomon.jit.typing_errors import cannot_be_compiled
from gnomon.serving.admission import ADMISSIONS, Admit
from gnomon.serving.deciders import DeciderSpec
from gnomon.serving.engine.allocation import new_cluster
from gnomon.serving.engine.context import Engine, Fleet
from gnomon.serving.engine.log import new_log
from gnomon.serving.engine.loop import proceed
from gnomon.serving.engine.state import REPLICA, Replica, replica_view
from gnomon.serving.policies import POLICIES, BatchingPolicy
from gnomon.serving.routers import Router, RouterSpec
from gnomon.serving.scenario.pools import MAX_POLICIES
from gnomon.timing.iteration import blank


def engine_of(
    policies: list[str], router: RouterSpec, admission: str = "everyone", decode_router: RouterSpec | None = None,
    decider: DeciderSpec | None = None, beside: BackgroundCompilation | None = None,
) -> Engine:  # fmt: skip
    """The compiled engine with these batching policies, which replicas refer to by their place in the list. Only fleets
    with roles ask the `decode_router` and the `decider`. While the loop of a replica is compiled `beside`, something of
    its kind is in its place."""
    functions = [POLICIES[name].form_batch for name in policies]
    functions += functions[:1] * (MAX_POLICIES - len(functions))
    run = (_stand_in() if beside and beside.is_compiling else _compiled_proceed()) if ENABLED else proceed
    route = callable_router(router)
    # Admission control as the loop over arrivals calls it: it answers with 2 (in) or 1 (turned away).
    return Engine(
        run, tuple(_policy_entry(one) for one in functions), route, _admission_entry(ADMISSIONS[admission].admit),
        callable_router(decode_router) if decode_router else route,
        _router_entry(decider.decide, True) if decider else route,
    )  # fmt: skip


def callable_router(spec: RouterSpec) -> Any:
    """The router as the loop over arrivals calls it: it answers with 1 + the replica."""
    return _router_entry(spec.route, spec.compiled)


_POLICY_ENTRY = """
def enter_{name}(replica):
    call({lend}(replica))
    replica.state.answered = 1
"""
_ROUTER_ENTRY = """
def enter_{name}(fleet, request_id):
    return 1 + (call({lend}(fleet), request_id) | 0)
"""
_ADMISSION_ENTRY = """
def enter_{name}(fleet, request_id):
    return 2 if call({lend}(fleet), request_id) else 1
"""


@cache
def _policy_entry(policy: BatchingPolicy) -> Any:
    return _called(policy, _POLICY_ENTRY, ENABLED, _policy_signature)


@cache
def _router_entry(route: Router, is_compiled: bool) -> Any:
    return _called(route, _ROUTER_ENTRY, ENABLED and is_compiled, _choice_signature)


@cache
def _admission_entry(admit: Admit) -> Any:
    return _called(admit, _ADMISSION_ENTRY, ENABLED, _choice_signature)


def _called(function: Any, source: str, is_compiled: bool, signature: Callable[[], Any]) -> Any:
    entry = _entry(function, source, is_compiled)
    if not is_compiled:
        return entry
    with _explained(function):
        return compiled(signature())(entry)


def _entry(function: Any, source: str, is_compiled: bool) -> Any:
    """The function through which the engine calls `function`, with checked arrays if it is a user's.

    It is made as part of the file of `function`, so that Numba caches it with that file.
    """
    function = plain(function)
    path, line = function.__code__.co_filename, function.__code__.co_firstlineno
    name, lend, names = re.sub(r"\W", "_", function.__name__), "", {"__name__": function.__module__}
    part = own_jit if is_own(function) else inlined
    names["call"] = part(function) if is_compiled else function
    if is_compiled and is_own(function):
        from gnomon.jit.borrowed_array import checked

        lend, names["checked"] = "checked", checked
    text = "\n" * (line - 1) + source.strip("\n").format(name=name, lend=lend)
    exec(compile(text, path, "exec"), names)
    return names[f"enter_{name}"]


@contextmanager
def _explained(function: Any) -> Iterator[None]:
    """Say in one paragraph why a user's function cannot be compiled."""
    try:
        yield
    except Exception as error:  # Numba has many ways of failing.
        if not is_own(function):
            raise
        raise cannot_be_compiled(error, function) from None


class BackgroundCompilation:
    """On the first run ever, the loop of a replica is compiled by another process while this one compiles the rest."""

    def __init__(self) -> None:
        self._process: Any = None
        folder = compiled_code_folder() if ENABLED and (os.cpu_count() or 1) > 1 else None
        is_there = _compiled_proceed.cache_info().currsize or (folder and any(folder.rglob("loop.proceed-*.nbi")))
        if folder and not is_there:
            words = [sys.executable, "-c", f"from {__name__} import _compiled_proceed as run; run()"]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            with suppress(OSError):
                environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
                self._process = subprocess.Popen(words, env=environment, **quiet)  # type: ignore[call-overload]

    @property
    def is_compiling(self) -> bool:
        """Whether there is such a process, and its code not here yet."""
        return self._process is not None and not _compiled_proceed.cache_info().currsize

    def proceed(self) -> Any:
        """The compiled loop, once it is there. Where the other process has failed, this one compiles it."""
        self._process.wait()
        return _compiled_proceed()


compile_beside = cache(BackgroundCompilation)  # Called as early as possible; there is one in a process.


@cache
def _compiled_proceed() -> Any:
    return compiled(_proceed_signature())(proceed)


@cache
def _stand_in() -> Any:
    def never_called(cluster: Any, tables: Any, policies: Any, log: Any, group: int, until: float, now: float) -> None:
        return

    return compiled(_proceed_signature())(never_called)


@cache
def _proceed_signature() -> Any:
    from numba import float64, int64, types

    example = _example()
    cluster, tables, log = (borrowed_type(one) for one in (example.cluster, example.tables, new_log(64, 64)))
    policies = types.UniTuple(types.FunctionType(_policy_signature()), MAX_POLICIES)
    return types.void(cluster, tables, policies, log, int64, float64, float64)


def _choice_signature() -> Any:
    from numba import int64

    return int64(borrowed_type(_example()), int64)


@cache
def _policy_signature() -> Any:
    from numba import from_dtype, types

    from gnomon.jit.borrowed_array import Bundle

    view = getattr(replica_view, "py_func", replica_view)(_example().cluster, 0)
    return types.void(Bundle([from_dtype(REPLICA), *(borrowed_type(array) for array in view[1:])], Replica))


@cache
def _example() -> Fleet:
    """The smallest fleet there is: only the types of its arrays matter."""
    return Fleet(
        new_cluster(1, 1, 1, 1, 1, 1), blank(1), np.zeros((1, 2)), *(np.zeros(1),) * 4, np.zeros(1, np.int64),
        np.zeros(1), np.zeros((1, 2)),
    )  # fmt: skip
