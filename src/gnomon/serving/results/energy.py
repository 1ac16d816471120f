"""Energy of a run: watts by what the GPUs do, kilowatt-hours, and what they cost and emit."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.catalog.power import PowerFacts, power_data
from gnomon.core.arrays import Floats
from gnomon.serving.scenario.power import PowerConfig


@dataclass(frozen=True)
class Energy:
    """What the run drew, at the meter."""

    kwh: float
    mean_kw: float
    joules_per_output_token: float | None
    joules_per_request: float | None
    """Over finished requests."""
    price: float | None
    """US dollars for electricity."""
    carbon_kg: float | None


def joules(
    config: PowerConfig, facts: PowerFacts, gpus: Any, on_s: Any, busy_s: Any, memory_s: Any, arithmetic_s: Any
) -> Floats:
    """Energy at the meter of replicas that were on for `on_s` seconds: the last three are the seconds for which they
    computed, would have read memory at full bandwidth, and would have computed at their peak."""
    shares = power_data().shares
    span = facts.max_w - facts.idle_w
    active_s = shares.busy * busy_s + shares.memory * memory_s + shares.arithmetic * arithmetic_s
    per_gpu = facts.idle_w * on_s + span * np.minimum(active_s, on_s)
    if config.cap_w is not None:
        per_gpu = np.minimum(per_gpu, config.cap_w * on_s)
    return np.asarray(per_gpu * gpus * config.pue, dtype=np.float64)
