"""Who waits for whose end, turned round: from each request to those that it lets go."""

from __future__ import annotations

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.workload import Requests


def followers_of(requests: Requests) -> tuple[Ints, Ints, Ints]:
    """Where each request's followers start, the followers, and how many each of them waits for; empty for nobody."""
    if not len(requests.parents):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    waiting = np.diff(requests.parent_offsets)
    children = np.repeat(np.arange(len(requests)), waiting)
    order = np.argsort(requests.parents, kind="stable")
    counts = np.bincount(requests.parents, minlength=len(requests))
    return np.concatenate(([0], np.cumsum(counts))), children[order], waiting.astype(np.int64)
