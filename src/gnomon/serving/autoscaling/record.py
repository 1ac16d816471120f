"""What a fleet did during a run: changes of replicas, decisions, and samples taken at every decision."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.autoscaling.replicas import Replica

SAMPLES = (
    "time_s", "ready", "starting", "draining", "down", "desired", "waiting", "running", "finished", "output_tokens",
    "busy_s", "flops", "bytes",
)  # fmt: skip
"""Columns of a sample of one pool; the last five add up from the start of the run."""


@dataclass(frozen=True, eq=False)
class FleetRecord:
    """The record of a fleet that changed."""

    controller: str
    members: list[Replica]
    changes: list[tuple[float, int, int]]
    """(time, replica, new state)."""
    decisions: list[list[tuple[float, int]]]
    """Of each pool: (time, replicas wanted) whenever that changed."""
    cold_start: list[dict[str, float]]
    """Of each pool: the seconds of each part of a cold start."""
    replica_rate: list[float]
    """Of each pool: what one replica serves within the SLO, as measured beforehand; 0 where nobody asked."""
    failures: int
    retries: int
    """Requests that were sent again after a failure."""
    samples: Floats
    """[sample, pool, column of `SAMPLES`]."""
    sees_future: bool = False
    """The controller knew the arrivals to come."""
    warnings: list[str] = field(default_factory=list)
    gave_up: bool = False
    """Requests waited for a replica that nobody started."""

    def column(self, name: str) -> Floats:
        """[sample, pool]: one column of the samples."""
        return self.samples[:, :, SAMPLES.index(name)] if self.samples.size else np.zeros((0, 1))
