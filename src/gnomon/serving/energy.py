"""Energy of a run: watts by what the GPUs do, kilowatt-hours, and what they cost and emit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat

from gnomon.catalog.power import PowerFacts, power_data, power_of
from gnomon.core.arrays import Floats
from gnomon.core.config import Config


class PowerConfig(Config):
    """Power and energy: what is counted beside the GPUs' own draw. Without the section energy is counted all the same
    where the GPU is known."""

    model_config = ConfigDict(allow_inf_nan=False)

    cap_w: PositiveFloat | None = None
    """Most watts of one GPU: its clock is lowered so that it stays within, and what is bound by arithmetic takes longer
    (sets timing.clock where that is not given)."""
    idle_w: PositiveFloat | None = None
    """Watts of one idle GPU; the catalog's if not given (`data/power.yaml`)."""
    max_w: PositiveFloat | None = None
    """Watts of one GPU at full activity; the catalog's if not given."""
    server_w: NonNegativeFloat = 0.0
    """Watts of the rest of the server (CPUs, fans, network) for each GPU."""
    pue: float = Field(1.0, ge=1)
    """Power usage effectiveness of the building: what is drawn at the meter over what the servers draw."""
    price_per_kwh: NonNegativeFloat | None = None
    """US dollars per kilowatt-hour."""
    carbon_g_per_kwh: NonNegativeFloat | None = None
    """Grams of CO2 equivalent per kilowatt-hour."""

    def facts(self, device: str) -> PowerFacts | None:
        """The watts of a device under these settings; None where they are not known."""
        if self.idle_w is not None and self.max_w is not None:
            return PowerFacts(idle_w=self.idle_w, max_w=self.max_w, source="the scenario")
        if device not in power_data().devices:
            return None
        known = power_of(device)
        given = {"idle_w": self.idle_w or known.idle_w, "max_w": self.max_w or known.max_w}
        return known.model_copy(update=given)


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
    per_gpu = (facts.idle_w + config.server_w) * on_s + span * np.minimum(active_s, on_s)
    if config.cap_w is not None:
        per_gpu = np.minimum(per_gpu, (config.cap_w + config.server_w) * on_s)
    return np.asarray(per_gpu * gpus * config.pue, dtype=np.float64)


def energy_of(total_j: float, config: PowerConfig, duration_s: float, output_tokens: float, requests: int) -> Energy:
    """The figures of a run that drew so many joules."""
    kwh = total_j / 3.6e6
    return Energy(
        kwh=kwh,
        mean_kw=total_j / max(duration_s, 1e-12) / 1e3,
        joules_per_output_token=total_j / output_tokens if output_tokens else None,
        joules_per_request=total_j / requests if requests else None,
        price=kwh * config.price_per_kwh if config.price_per_kwh is not None else None,
        carbon_kg=kwh * config.carbon_g_per_kwh / 1e3 if config.carbon_g_per_kwh is not None else None,
    )
