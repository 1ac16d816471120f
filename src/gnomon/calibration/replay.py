"""A recorded load, simulated: the same requests at the same moments, or as many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gnomon.calibration.logs import Log, Stamps
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.timing.iteration import IterationTables

STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True)
class Figures:
    """(recorded, simulated) seconds by metric and statistic."""

    values: dict[str, dict[str, tuple[float, float]]]

    def error(self, metric: str, statistic: str = "mean") -> float:
        """Simulated over recorded, less one."""
        recorded, simulated = self.values[metric][statistic]
        return simulated / recorded - 1.0 if recorded > 0 else 0.0


Adjust = Callable[[IterationTables], IterationTables]


def matched(scenario: Scenario, log: Log, adjust: Adjust | None = None) -> Run:
    """The simulation of a load, its iterations' seconds adjusted; a DataError where the simulated server cannot serve
    all of it."""
    assert log.stamps is not None
    done = run(scenario, requests=log.stamps.requests, adjust=adjust)
    if len(done.cluster.requests) != len(log.stamps.requests) or (done.cluster.requests.status != FINISHED).any():
        raise DataError(
            "the simulated server cannot serve every recorded request.",
            where=log.name,
            fix="Check the scenario's KV blocks, batch cap and longest request.",
        )
    return done


class Latencies(NamedTuple):
    """Seconds of every request; TPOT of those with several tokens."""

    ttft: Floats
    tpot: Floats
    e2e: Floats

    @classmethod
    def of(cls, sent_s: Floats, first_s: Floats, last_s: Floats, outputs: Any) -> Latencies:
        """From stamps."""
        several = outputs > 1
        return cls(first_s - sent_s, (last_s - first_s)[several] / (outputs[several] - 1), last_s - sent_s)


def latencies(stamps: Stamps) -> Latencies:
    """As recorded."""
    q = stamps.requests
    sent = np.zeros(len(q)) if stamps.closed_loop else q.arrival_s
    return Latencies.of(sent, stamps.first_token_s, stamps.last_token_s, q.output_tokens)


def simulated_latencies(done: Run) -> Latencies:
    """The latencies of a simulation."""
    q = done.cluster.requests
    return Latencies.of(q.arrival_s, q.first_token_s, q.last_token_s, q.output_tokens)


def figures(pairs: Sequence[tuple[Stamps, Run]]) -> Figures:
    """Recorded and simulated side by side, the repeats of a load together."""
    recorded, ours = [latencies(stamps) for stamps, _ in pairs], [simulated_latencies(done) for _, done in pairs]
    values = {}
    for metric in Latencies._fields:
        both = [np.concatenate([getattr(one, metric) for one in side]) for side in (recorded, ours)]
        if both[0].size:
            values[metric] = {name: (statistic(both[0], q), statistic(both[1], q)) for name, q in STATISTICS.items()}
    return Figures(values)


def statistic(values: Floats, percent: float | None) -> float:
    """A percentile, or the mean."""
    return float(values.mean() if percent is None else np.percentile(values, percent))
