"""How sure a capacity is as a statement about a real server, not only about the simulated one."""

from __future__ import annotations

import math

from gnomon.search.evaluate import Record
from gnomon.search.study import Found
from gnomon.search.winner import winning_scenario
from gnomon.serving.results.intervals import Interval
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario.calibration import read_calibration

_NORMAL_95, _NORMAL_975 = 1.645, 1.960
_FEW = 20


def capacity_interval(found: Found, record: Record) -> Interval | None:
    """90 % interval of a capacity: the timing source's error (or a calibration's) and other sequences of requests.

    A server whose iterations all take so much longer carries as much less.
    """
    if not record.capacity_per_s or found.search.objective == "cost":
        return None
    scenario = winning_scenario(found.search, record)
    if scenario.calibration is not None:
        spread = read_calibration(scenario.calibration).error
    else:
        load = scenario.workload.model_copy(update={"num_requests": _FEW})
        few = scenario if scenario.workload.trace is not None else scenario.model_copy(update={"workload": load})
        spread = run(few).spread
    margin = found.margins.get(record.label, 0.0) / record.capacity_per_s
    half = math.hypot(_NORMAL_95 * spread, margin * _NORMAL_95 / _NORMAL_975)
    value = record.capacity_per_s
    return Interval(value, value * math.exp(-half), value * math.exp(half))
