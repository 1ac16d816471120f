"""What a cluster is run with: what routers see, the functions that decide, and all that is outside the replicas."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.engine.calendar import Calendar
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.loop import Policies
from gnomon.serving.engine.state import Cluster
from gnomon.serving.features.adapters import Adapters
from gnomon.serving.features.tiers import Tiers
from gnomon.serving.features.tool_cache import ToolCache
from gnomon.serving.features.transfers import Transfers
from gnomon.timing.iteration import IterationTables


class Fleet(NamedTuple):
    """What a router sees: all replicas, as they are at the moment of the arrival."""

    cluster: Cluster
    tables: IterationTables
    draws: Floats  # [request, 2]: uniform random numbers for each arrival.
    parameters: Floats  # The router's options, in the order of its `parameters`.
    memory: Floats  # The router's own memory, zero at the start.
    predicted_output: Floats  # [request]: output tokens as predicted at arrival; size 0 where nothing is predicted.
    known: (
        Floats  # What a gateway can know (`gnomon.serving.routers.known`); size 0 where the router sees all there is.
    )
    candidates: Ints  # The replicas that may be chosen: those that are up and take requests, in order of their numbers.
    gate: Floats  # The options of admission control.
    gate_memory: Floats  # [class, 2]: what admission control remembers, zero at the start.


def open_to_all(cluster: Cluster) -> tuple[Ints, Floats, Floats]:
    """The last fields of a `Fleet` all of whose replicas take requests, and that turns nobody away."""
    return np.arange(cluster.replicas.size), np.zeros(1), np.zeros((cluster.classes.shape[0], 2))


Router = Callable[[Fleet, int], int]
Admission = Callable[[Fleet, int], int]
Proceed = Callable[[Cluster, IterationTables, Policies, Log, int, float, float], None]


class Engine(NamedTuple):
    """The compiled functions that the loops below call through pointers."""

    proceed: Proceed
    policies: Policies
    router: Router  # Answers with 1 + the replica: a router that failed has answered 0.
    admission: Admission
    """Answers with 2 for a request that is let in, 1 for one that is turned away, 0 where it failed."""
    decode_router: Router
    decider: Router  # Answers with 2 where a request is prefilled elsewhere, 1 where it is not, 0 where it failed.


class RouterInputs(NamedTuple):
    """What another router than that of the `Fleet` gets in its place; see there."""

    draws: Floats
    parameters: Floats
    memory: Floats
    predicted_output: Floats
    known: Floats
    candidates: Ints


class Environment(NamedTuple):
    """All that happens outside the replicas."""

    calendar: Calendar
    think_s: Floats  # [request]: the pause before it is sent in a closed loop; size 0 where there is none.
    front: Floats  # The front end (`gnomon.serving.features.front_end`).
    transfers: Transfers
    decode: RouterInputs  # What the decode router gets.
    decider: Floats  # The options of the decider.
    tiers: Tiers
    dependent_first: Ints
    """[request + 1]: where the requests that wait for its end start among `dependents`; size 0 where nobody waits."""
    dependents: Ints
    parents_left: Ints  # [request]: how many of those that it waits for have not ended.
    adapters: Adapters
    tool_cache: ToolCache


# Runs in which nothing of `serving.features` but the front end is used: of the rest nothing is compiled.


def _plain(bundle: Any) -> Any:
    return type(f"Plain{bundle.__name__}", (bundle,), {"has_no_features": True, "__module__": __name__})


_PLAIN: dict[type, Any] = {one: _plain(one) for one in (Transfers, Tiers, Adapters, ToolCache, Environment)}
globals().update({made.__name__: made for made in _PLAIN.values()})  # Code on disk looks for them by name.


def without_features(env: Environment) -> Environment:
    """What is outside, for a run that uses no feature."""
    parts = [_PLAIN[type(part)](*part) if type(part) in _PLAIN else part for part in env]
    without: Environment = _PLAIN[Environment](*parts)
    return without
