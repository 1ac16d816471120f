"""What a controller sees of its pool, and what is kept of it: views and samples."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.autoscaling.controllers import ControllerSpec, View
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, SAMPLES, STARTING, UP, Replicas
from gnomon.serving.autoscaling.traffic import Traffic
from gnomon.serving.engine.state import NUM_SHED
from gnomon.serving.scenario.autoscaling import ControllerConfig
from gnomon.workload.slo import SloConfig


@dataclass
class PoolView:
    """What is known of one pool between two decisions."""

    min_replicas: int
    max_replicas: int
    desired: int
    cold_start_s: float
    rates: dict[int, float]
    """What so many replicas serve within the SLO, if measured."""
    memory: dict[str, Any] = field(default_factory=dict)
    busy_s: float = 0.0
    taken: int = 0
    produced: int = 0
    decisions: list[tuple[float, int]] = field(default_factory=list)
    """(time, answer) of every decision that changed something."""


@dataclass
class Observer:
    """Looks at the pools whenever the controller is asked."""

    config: ControllerConfig
    spec: ControllerSpec
    replicas: Replicas
    traffic: Traffic
    pools: list[PoolView]
    met_slo: Callable[[Ints], Floats] | None
    """Of some ended requests, which met their SLO; None without one."""
    slo: SloConfig = field(default_factory=SloConfig)
    last_s: float = 0.0
    """When the controller was asked last."""
    samples: list[list[list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        members = self.replicas.members
        ranks = [[r for one in members if one.pool == number for r in one.ranks] for number in range(len(self.pools))]
        self.ranks = [np.array(one, np.int64) for one in ranks]
        """[pool]: its ranks."""

    def view(self, number: int, now_s: float, ended: Ints) -> View:
        """What the controller sees of a pool; `ended` are the requests that ended since it was asked last."""
        pool, replicas = self.pools[number], self.traffic.cluster.replicas
        ready = self.replicas.of(number, UP)
        ranks = np.array([r for i in ready for r in self.replicas.members[i].ranks], np.int64)
        mine = self.ranks[number]
        span_s = max(now_s - self.last_s, 1e-9)
        # The iterations under way have been booked whole: what lies beyond now belongs to the next interval.
        beyond_s = np.maximum(self.traffic.cluster.stage_free_s[mine, 0] - now_s, 0.0)
        busy_s = float((replicas.busy_s[mine] - np.where(np.isfinite(beyond_s), beyond_s, 0.0)).sum())
        parked = self._parked(number)
        turned_away = int(self.traffic.cluster.control[NUM_SHED]) if number == 0 else 0
        taken = int(replicas.num_taken[mine].sum()) + parked + turned_away
        produced = int(replicas.num_produced[mine].sum())
        arrived, used_s, given = taken - pool.taken, busy_s - pool.busy_s, produced - pool.produced
        pool.taken, pool.busy_s, pool.produced = taken, busy_s, produced
        waiting = int(replicas.num_waiting[mine].sum())
        return View(
            now_s=now_s, interval_s=span_s, ready=len(ready), starting=len(self.replicas.of(number, STARTING)),
            draining=len(self.replicas.of(number, DRAINING)), desired=pool.desired, min_replicas=pool.min_replicas,
            max_replicas=pool.max_replicas, arrival_rate=max(arrived, 0) / span_s, waiting=waiting + parked,
            running=int(replicas.num_outstanding[mine].sum()) - waiting,
            output_rate=max(given, 0) / span_s, utilization=min(max(used_s / (span_s * max(len(ranks), 1)), 0.0), 1.0),
            kv_use=1.0 - float(replicas.free_blocks[ranks].sum() / replicas.num_blocks[ranks].sum()) if ready else 0.0,
            slo_met=float(self.met_slo(ended).mean()) if self.met_slo is not None and ended.size else None,
            slo=self.slo, cold_start_s=pool.cold_start_s, mtbf_s=self.traffic.failures.mtbf_s, pool_rates=pool.rates,
            options={**self.spec.options, **self.config.options}, steps=self.config.steps, memory=pool.memory,
        )  # fmt: skip

    def take_samples(self, now_s: float) -> None:
        """A row of `record.SAMPLES` for every pool; what is seen next is counted from here on."""
        self.samples.append([self._sample(number, now_s) for number in range(len(self.pools))])
        self.last_s = now_s

    def sampled(self) -> Floats:
        """[sample, pool, column]"""
        return np.array(self.samples).reshape(len(self.samples), len(self.pools), len(SAMPLES))

    def _sample(self, number: int, now_s: float) -> list[float]:
        a = self.traffic.cluster.replicas[self.ranks[number]]
        counts = [len(self.replicas.of(number, state)) for state in (UP, STARTING, DRAINING, DOWN)]
        waiting, outstanding = int(a.num_waiting.sum()), int(a.num_outstanding.sum())
        sums = [float(a[name].sum()) for name in ("num_finished", "num_produced", "busy_s", "flops", "bytes")]
        queue = [waiting + self._parked(number), outstanding - waiting]
        return [now_s, *counts, self.pools[number].desired, *queue, *sums]

    def _parked(self, number: int) -> int:
        return self.traffic.num_parked if number == 0 else 0
