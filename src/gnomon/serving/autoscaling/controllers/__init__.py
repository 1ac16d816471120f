"""Controllers: how many replicas a pool should have.

A controller is one function `(view) -> replicas`, asked every `interval_s` seconds for each pool by itself. It is plain
Python. It sees one `View`: what a metrics server would tell it, and a dictionary in which it may remember things.
What it answers is cut to the fleet's limits; an answer that is no count ends the run with a statement.

    @controller("mine", options={"target": 0.7})
    def mine(view): ...

One that `shares` is asked once for two pools that share their replicas, and answers how many of them prefill.

    @controller("mine", shares=True)
    def mine(prefill, decode): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.core.registry import Registry
from gnomon.workload.slo import SloConfig


@dataclass(frozen=True)
class View:
    """What a controller knows of its pool at the moment it is asked."""

    now_s: float
    interval_s: float
    """Seconds since it was asked last."""
    ready: int
    """Replicas that take requests."""
    starting: int
    draining: int
    desired: int
    """What it answered last; at the start, the replicas that were up."""
    min_replicas: int
    max_replicas: int
    arrival_rate: float
    """Requests that arrived per second since it was asked last."""
    waiting: int
    """Requests in the queues of the pool, and those that no replica could take."""
    running: int
    """Requests in batches."""
    output_rate: float
    """Tokens that its replicas gave per second since it was asked last."""
    utilization: float
    """Share of its time in which a ready replica computed, since it was asked last."""
    kv_use: float
    """Share of the ready replicas' KV blocks in use now."""
    slo_met: float | None
    """Share of the requests that ended since it was asked last which met their SLO; None where none ended, or no SLO is
    given."""
    slo: SloConfig
    cold_start_s: float
    """From the decision to start a replica to its first request."""
    mtbf_s: float | None
    """Mean time between failures of a replica, as its operator knows it (`fleet.failures`)."""
    pool_rates: Mapping[int, float]
    """Requests per second that 1, 4, 16 replicas serve within the SLO together, measured beforehand: several even out
    what overloads one alone. Empty unless the controller `profiles`."""
    options: Mapping[str, float]
    steps: tuple[tuple[float, int], ...]
    """The schedule of the scenario."""
    memory: dict[str, Any]
    """Whatever it wants to remember; its own."""

    @property
    def replica_rate(self) -> float:
        """Requests per second that one replica alone serves within the SLO; 0 unless the controller `profiles`."""
        return self.pool_rates.get(1, 0.0)

    def replicas_for(self, rate: float) -> int:
        """The fewest replicas that serve `rate` requests per second within the SLO, by `pool_rates`: what one of a pool
        serves lies on a line over the logarithm of its size, and stays as it is beyond the largest pool measured."""
        sizes = np.array(list(self.pool_rates))
        each = np.array(list(self.pool_rates.values())) / sizes
        counts = np.arange(1, self.max_replicas + 1)
        served = counts * np.interp(np.log(counts), np.log(sizes), each)
        return min(int(np.searchsorted(np.maximum.accumulate(served), rate)) + (rate > 0), self.max_replicas)


Controller = Callable[..., float]


@dataclass(frozen=True)
class ControllerSpec:
    """A registered controller with all its traits."""

    name: str
    decide: Controller
    options: Mapping[str, float] = field(default_factory=dict)
    """Its options with their defaults."""
    profiles: bool = False
    """It is told how much replicas can serve within the SLO (`view.pool_rates`, `view.replicas_for`)."""
    sees_future: bool = False
    """Where the scenario has no steps, it is given those of the best schedule by hindsight."""
    needs_steps: bool = False
    """It follows the schedule of the scenario (`view.steps`), and does nothing without one."""
    shares: bool = False
    """It sees two pools that share their replicas, the one that prefills first, and answers how many of all prefill."""


_NAMES = ("fixed", "schedule", "target_utilization", "queue_driven", "slo_planner", "oracle", "arrow", "load_planner")
CONTROLLERS: Registry[ControllerSpec] = Registry(
    "controller",
    ControllerSpec,
    built_in={name: f"gnomon.serving.autoscaling.controllers.{name}" for name in _NAMES},
    where="fleet.controller.name",
)


def controller(name: str, **traits: Any) -> Callable[[Controller], Controller]:
    """Register a controller under `name`; `traits` are the fields of its `ControllerSpec`."""
    return CONTROLLERS.register(name, **traits)


__all__ = ["CONTROLLERS", "Controller", "ControllerSpec", "View", "controller"]
