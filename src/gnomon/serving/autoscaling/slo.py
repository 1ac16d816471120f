"""Which of some ended requests met their SLO, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.engine.state import FINISHED
from gnomon.workload import Requests
from gnomon.workload.slo import SloConfig


def slo_check(slo: SloConfig, requests: Requests, records: Any) -> Callable[[Ints], Floats] | None:
    """A function that tells which of some finished requests met their targets; None where there are none to meet."""
    of_class = [one.slo if one.slo is not None and one.slo.is_given else slo for one in requests.classes] or [slo]
    if not any(one.is_given for one in of_class):
        return None
    limits = np.array([
        [np.inf if limit is None else limit for limit in (one.ttft_s, one.tpot_s, one.e2e_s)] for one in of_class
    ])  # fmt: skip

    def met(ids: Ints) -> Floats:
        limit = limits[records.user_class[ids]]
        arrival_s, first_s, end_s = records.arrival_s[ids], records.first_token_s[ids], records.finished_s[ids]
        per_token = (end_s - first_s) / np.maximum(records.output_tokens[ids] - 1, 1)
        good = (first_s - arrival_s <= limit[:, 0]) & (per_token <= limit[:, 1])
        good &= (end_s - arrival_s <= limit[:, 2]) & (records.status[ids] == FINISHED)
        return good.astype(np.float64)

    return met
