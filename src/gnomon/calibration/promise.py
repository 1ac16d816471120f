"""What a calibration promises: latencies of a load that it was not fitted on, with 90 % intervals, by simulating it.

The middle is the mean over several seeds (when the host is slow, and who shares an iteration with whom), the interval
that of servers which the calibration holds for as likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnomon.calibration.logs import Log
from gnomon.calibration.replay import STATISTICS, Latencies, latencies, matched, simulated_latencies, statistic
from gnomon.core.arrays import Floats
from gnomon.serving.results.intervals import Moved, draws
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Calibration
from gnomon.timing.iteration import IterationTables

SEEDS, DRAWS = 4, 8
QUANTILE = 1.86
"""Of Student's t at 95 %, of as many draws."""
CHANCE = 0.005
"""By how much the host's time is moved from seed to seed, so that no scheduler's chance is taken for the truth."""


@dataclass(frozen=True)
class Promised:
    """A latency: seconds recorded, foretold, and the ends of the 90 % interval."""

    recorded: float
    foretold: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Foretold over recorded, less one."""
        return self.foretold / self.recorded - 1.0 if self.recorded > 0 else 0.0

    @property
    def holds(self) -> bool:
        """Whether the recorded one lies inside."""
        return self.low <= self.recorded <= self.high


Promises = dict[str, dict[str, Promised]]
"""By metric and statistic."""


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
