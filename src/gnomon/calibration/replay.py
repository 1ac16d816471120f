"""A recorded load, simulated: the same requests at the same moments, or as many at a time; and what a calibration
promises of a load that it was not fitted on, with 90 % intervals.

The middle of a promise is the mean over several seeds (when the host is slow, and who shares an iteration with whom),
the interval that of servers which the calibration holds for as likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gnomon.calibration.logs import Log, Stamps
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.results.intervals import Moved, draws
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Calibration
from gnomon.timing.iteration import IterationTables

STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True)
class Figures:
    """(recorded, simulated) seconds by metric and statistic."""

    values: dict[str, dict[str, tuple[float, float]]]

    def error(self, metric: str, statistic: str = "mean") -> float:
        recorded, simulated = self.values[metric][statistic]
        return simulated / recorded - 1.0 if recorded > 0 else 0.0


Adjust = Callable[[IterationTables], IterationTables]


def matched(scenario: Scenario, log: Log, adjust: Adjust | None = None) -> Run:
    """The simulation of a load, its iterations' seconds adjusted; a DataError where the simulated server cannot serve
    all of it."""
    assert log.stamps is not None
    done = run(scenario, requests=log.stamps.requests, adjust=adjust)
    if len(done.cluster.requests) != len(log.stamps.requests) or (done.cluster.requests.status != FINISHED).any():
        what = "the simulated server cannot serve every recorded request."
        raise DataError(what, where=log.name, fix="Check the scenario's KV blocks, batch cap and longest request.")
    return done


class Latencies(NamedTuple):
    """Seconds of every request; TPOT of those with several tokens."""

    ttft: Floats
    tpot: Floats
    e2e: Floats

    @classmethod
    def of(cls, sent_s: Floats, first_s: Floats, last_s: Floats, outputs: Any) -> Latencies:
        several = outputs > 1
        return cls(first_s - sent_s, (last_s - first_s)[several] / (outputs[several] - 1), last_s - sent_s)


def latencies(stamps: Stamps) -> Latencies:
    """As recorded."""
    q = stamps.requests
    sent = np.zeros(len(q)) if stamps.closed_loop else q.arrival_s
    return Latencies.of(sent, stamps.first_token_s, stamps.last_token_s, q.output_tokens)


def simulated_latencies(done: Run) -> Latencies:
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
    return float(values.mean() if percent is None else np.percentile(values, percent))


SEEDS, DRAWS = 4, 8
QUANTILE = 1.86  # Of Student's t at 95 %, of as many draws.
CHANCE = 0.005
"""By how much the host's time is moved from seed to seed, so that no scheduler's chance is taken for the truth."""


@dataclass(frozen=True)
class Promised:
    """A latency: seconds recorded, predicted, and the ends of the 90 % interval."""

    recorded: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / self.recorded - 1.0 if self.recorded > 0 else 0.0

    @property
    def holds(self) -> bool:
        return self.low <= self.recorded <= self.high


Promises = dict[str, dict[str, Promised]]  # By metric and statistic.


def promises(
    scenario: Scenario, known: Calibration, logs: Sequence[Log], paces: dict[str, Floats] | None = None
) -> Promises:
    """Of a load, its repeats together; `scenario` has the constants of `known`. With `paces` (by log) the host is as
    slow as it was during the recording: what is left is not its drift, and there is no interval."""
    recorded = _pooled([latencies(log.stamps) for log in logs if log.stamps is not None])
    middle = [_simulated(one, logs, seed, paces) for seed, one in enumerate(_seeds(scenario, known))]
    several = [] if paces is not None else draws(scenario, known, known.error, DRAWS)
    moved = [_simulated(one, logs, SEEDS + number) for number, one in enumerate(several)]
    found: Promises = {}
    for metric in Latencies._fields:
        for name, percent in STATISTICS.items() if getattr(recorded, metric).size else ():
            at = [[statistic(getattr(one, metric), percent) for one in some] for some in ([recorded], middle, moved)]
            value = float(np.mean(at[1]))
            half = QUANTILE * float(np.sqrt(np.mean(np.log(np.array(at[2]) / value) ** 2))) if moved else 0.0
            one = Promised(at[0][0], value, value * float(np.exp(-half)), value * float(np.exp(half)))
            found.setdefault(metric, {})[name] = one
    return found


def _seeds(scenario: Scenario, known: Calibration) -> list[Moved]:
    return [Moved(scenario, known, {}, 1.0, 1.0 + CHANCE * (i - 0.5 * (SEEDS - 1))) for i in range(SEEDS)]


def _simulated(moved: Moved, logs: Sequence[Log], seed: int, paces: dict[str, Floats] | None = None) -> Latencies:
    """The latencies of all logs, each with other times at which the host is slow, or with those given."""
    found = []
    for number, log in enumerate(logs):
        pace = None if paces is None else paces[log.name]
        found.append(matched(moved.chosen(100 * seed + number), log, adjust=partial(_paced, moved, pace)))
    return _pooled([simulated_latencies(done) for done in found])


def _paced(moved: Moved, pace: Floats | None, tables: IterationTables) -> IterationTables:
    return moved(tables) if pace is None else moved(tables)._replace(host_pace=pace)


def _pooled(several: Sequence[Latencies]) -> Latencies:
    return Latencies(*(np.concatenate([getattr(one, name) for one in several]) for name in Latencies._fields))
