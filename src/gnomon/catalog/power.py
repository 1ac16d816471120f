"""What a GPU draws, by what it does, and the clock that a power cap leaves it."""

from functools import cache

import numpy as np
from pydantic import Field, PositiveFloat

from gnomon.catalog.library import DATA
from gnomon.core.config import Config, build
from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml


class PowerFacts(Config):
    """One GPU's watts."""

    idle_w: PositiveFloat
    """With a CUDA context, doing nothing."""
    max_w: PositiveFloat
    """The most it draws."""
    source: str
    """Where the two come from."""


class Shares(Config):
    """How far from idle to the maximum each kind of activity takes a GPU."""

    busy: PositiveFloat
    memory: PositiveFloat
    arithmetic: PositiveFloat
    source: str


class ClockCurve(Config):
    """The clock that a power cap leaves."""

    points: tuple[tuple[float, float], ...]
    """[share of the power above idle, share of the clock], increasing."""
    source: str


class PowerData(Config):
    """All of `data/power.yaml`."""

    shares: Shares
    clock: ClockCurve
    devices: dict[str, PowerFacts] = Field(default_factory=dict)


@cache
def power_data() -> PowerData:
    """What is known of power."""
    return build(PowerData, own_yaml(DATA / "power.yaml"), where="power.yaml")


def clock_under_cap(facts: PowerFacts, cap_w: float) -> float:
    """The share of its clock at which a GPU at full activity stays within `cap_w`."""
    if cap_w <= facts.idle_w:
        what = f"a cap of {cap_w:g} W is not above what the GPU draws idle ({facts.idle_w:g} W)."
        raise ConfigError(what, where="power.cap_w")
    share = (cap_w - facts.idle_w) / (facts.max_w - facts.idle_w)
    powers, clocks = zip(*power_data().clock.points, strict=True)
    return float(np.interp(share, powers, clocks))
