"""What counts as best: one number per configuration, higher is better."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.search.config import Objective
from gnomon.serving.scenario import Scenario

UNITS: dict[Objective, str] = {
    "qps_per_dollar": "requests/s per $/h",
    "cost": "$/h",
    "goodput_per_gpu": "good requests/s per GPU",
}


@dataclass(frozen=True)
class Price:
    """What a configuration takes."""

    num_gpus: int
    per_hour: float
    """US dollars."""


def price(scenario: Scenario) -> Price:
    """GPUs and dollars per hour, from the catalog's prices unless the scenario gives one."""
    gpus, dollars = 0, 0.0
    for pool in scenario.all_pools():
        given = scenario.price_per_gpu_hour
        gpus += pool.num_gpus
        dollars += pool.num_gpus * (given if given is not None else pool.device.price_per_hour)
    return Price(gpus, dollars)


def score(objective: Objective, rate: float, good_share: float, price: Price) -> float:
    """The worth of serving `rate` requests per second, `good_share` of them in time, at this price."""
    if objective == "goodput_per_gpu":
        return rate * good_share / price.num_gpus
    if objective == "cost":
        return -price.per_hour
    return rate / max(price.per_hour, 1e-9)


def rate_for(objective: Objective, worth: float, price: Price) -> float:
    """The load at which a configuration of this price would be worth as much (or more, were all requests good)."""
    assert objective != "cost", "the load is given"
    return worth * (price.num_gpus if objective == "goodput_per_gpu" else max(price.per_hour, 1e-9))


def shown(objective: Objective, worth: float) -> float:
    """The score as people read it."""
    return -worth if objective == "cost" else worth
