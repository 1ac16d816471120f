"""The winner as a scenario that `gnomon simulate` runs."""

from __future__ import annotations

from gnomon.search.config import SearchConfig
from gnomon.search.evaluate import Record
from gnomon.search.space import scenario_of
from gnomon.serving.scenario import Scenario
from gnomon.workload.slo import SloConfig


def winning_scenario(search: SearchConfig, record: Record) -> Scenario:
    """The configuration at its capacity, on the very requests on which it was measured."""
    scenario = scenario_of(search, record.candidate)
    load = {"rate": record.capacity_per_s}
    if search.workload.trace is None:
        load["num_requests"] = record.num_requests
    return scenario.model_copy(
        update={"workload": scenario.workload.model_copy(update=load), "slo": _per_request(search)}
    )


def _per_request(search: SearchConfig) -> SloConfig:
    """The limits that a single request can meet or miss, so that the run counts who does."""
    good = search.slo.goodput
    limits = {}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        given = getattr(good, name) if good is not None else next(iter(getattr(search.slo, name).values()), None)
        limits[name] = given
    return SloConfig(**limits)
