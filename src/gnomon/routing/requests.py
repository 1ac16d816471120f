"""The requests that a router is trained on, and those that it is compared on.

Drawn workloads differ by their seed. A trace is one course of events: windows of its first part are for training,
windows of the rest for comparing, and the seed says where a window starts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from gnomon.core.streams import stream
from gnomon.workload import Requests, generate
from gnomon.workload.config import WorkloadConfig

TRAINING_SHARE = 0.7
"""Of a trace, by requests."""


def training_requests(workload: WorkloadConfig, count: int, seed: int) -> Requests:
    """`count` requests to train on."""
    if not _is_recorded(workload):
        return generate(workload.model_copy(update={"num_requests": count}), seed)
    whole = _recorded(workload)
    return _window(whole, 0, max(1, int(TRAINING_SHARE * len(whole))), count, seed)


def held_out_requests(workload: WorkloadConfig, seed: int) -> Requests:
    """The requests of a comparison. Of a trace, `num_requests` of its last part; all of that part unless given."""
    if not _is_recorded(workload):
        return generate(workload, seed)
    whole = _recorded(workload)
    first = min(len(whole) - 1, int(TRAINING_SHARE * len(whole)))
    return _window(whole, first, len(whole) - first, workload.num_requests or len(whole) - first, seed)


def _is_recorded(workload: WorkloadConfig) -> bool:
    return "trace" in (workload.arrivals.process, workload.lengths.distribution)


@lru_cache(maxsize=8)
def _recorded(workload: WorkloadConfig) -> Requests:
    return generate(workload.model_copy(update={"num_requests": None}), 0)


def _window(whole: Requests, first: int, length: int, count: int, seed: int) -> Requests:
    """`count` requests of the part [first, first + length), from a place that the seed chooses; where the part is too
    short it begins anew, after a mean gap."""
    start = int(stream(seed, "window of a trace").integers(length))
    places = start + np.arange(count)
    index, rounds = first + places % length, places // length
    times = whole.arrival_s[first : first + length]
    span_s = float(times[-1] - times[0]) * length / max(1, length - 1)
    found = replace(whole, shape=None, num_rejected=0, notes=()).take(index)
    arrival_s = times[places % length] + rounds * span_s
    return replace(found, arrival_s=arrival_s - arrival_s[0])
