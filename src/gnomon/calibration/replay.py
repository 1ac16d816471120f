"""A recorded load, simulated: the same requests at the same moments, or as many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.calibration.logs import Log, Stamps
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.serving.scenario import Scenario
from gnomon.serving.simulate import Run, run
from gnomon.serving.state import FINISHED

STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True)
class Figures:
    """(recorded, simulated) seconds by metric and statistic."""

    values: dict[str, dict[str, tuple[float, float]]]

    def error(self, metric: str, statistic: str = "mean") -> float:
        """Simulated over recorded, less one."""
        recorded, simulated = self.values[metric][statistic]
        return simulated / recorded - 1.0 if recorded > 0 else 0.0


def matched(scenario: Scenario, log: Log, keep_members: int = 0) -> Run:
    """The simulation of a load; a DataError where the simulated server cannot serve all of it."""
    assert log.stamps is not None
    done = run(scenario, requests=log.stamps.requests, keep_members=keep_members)
    if len(done.cluster.requests) != len(log.stamps.requests) or (done.cluster.requests.status != FINISHED).any():
        raise DataError(
            "the simulated server cannot serve every recorded request.",
            where=log.name,
            fix="Check the scenario's KV blocks, batch cap and longest request.",
        )
    return done


def latencies(stamps: Stamps) -> dict[str, Floats]:
    """Seconds of every request as recorded; TPOT of those with several tokens."""
    q = stamps.requests
    sent = np.zeros(len(q)) if stamps.closed_loop else q.arrival_s
    return _latencies(sent, stamps.first_token_s, stamps.last_token_s, q.output_tokens)


def simulated_latencies(done: Run) -> dict[str, Floats]:
    """The same of a simulation."""
    q = done.cluster.requests
    return _latencies(q.arrival_s, q.first_token_s, q.last_token_s, q.output_tokens)


def _latencies(sent: Floats, first: Floats, last: Floats, output: Any) -> dict[str, Floats]:
    several = output > 1
    tpot = (last - first)[several] / (output[several] - 1)
    return {"ttft": first - sent, "tpot": tpot, "e2e": last - sent}


def figures(pairs: Sequence[tuple[Stamps, Run]]) -> Figures:
    """Recorded and simulated side by side, the repeats of a load together."""
    recorded, ours = [latencies(stamps) for stamps, _ in pairs], [simulated_latencies(done) for _, done in pairs]
    values = {}
    for metric in recorded[0]:
        both = [np.concatenate([one[metric] for one in side]) for side in (recorded, ours)]
        if both[0].size:
            values[metric] = {name: (_at(both[0], q), _at(both[1], q)) for name, q in STATISTICS.items()}
    return Figures(values)


def _at(values: Floats, percent: float | None) -> float:
    return float(values.mean() if percent is None else np.percentile(values, percent))
