"""From a scenario's fleet section to the manager of its replicas."""

from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling.capacity import Measure, measured_rates, slo_check
from gnomon.serving.autoscaling.controllers import CONTROLLERS
from gnomon.serving.autoscaling.manager import Manager
from gnomon.serving.autoscaling.observation import PoolView
from gnomon.serving.autoscaling.replicas import FleetRecord, replicas_of
from gnomon.serving.autoscaling.traffic import Traffic
from gnomon.serving.engine.context import Environment, Fleet
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.workload import Requests

LONGEST_START_S = 86_400.0  # A replica that takes longer is never ready.


def new_manager(
    scenario: Scenario, pools: list[Pool], requests: Requests, fleet: Fleet, env: Environment, measure: Measure
) -> Manager:
    """The manager of a scenario's fleet, with everything planned that is known at the start."""
    config = scenario.fleet
    assert config is not None
    spec = CONTROLLERS.chosen(config.controller)
    if spec.shares:
        _check_shares(scenario, spec.name)
    if scenario.has_roles and config.min_replicas < 1:
        raise ConfigError("every pool with a role needs a replica.", where="fleet.min_replicas", fix="Set it to 1.")
    if config.failures.stores_kv and scenario.kv_tiers.remote is None:
        what = "there is no shared store that KV could be written to."
        raise ConfigError(what, where="fleet.failures.stores_kv", fix="Give kv_tiers.remote.")
    up = [pool.num_replicas for pool in scenario.all_pools()]
    least, most = config.min_replicas, max(pool.num_replicas for pool in pools)
    if spec.shares:  # What one pool does not have, the other has.
        least, most = max(least, sum(up) - most), min(most, sum(up) - least)
        if least > most:
            raise ConfigError(
                f"{sum(up)} replicas are not {config.min_replicas} for each of two pools.",
                where="fleet.min_replicas",
                fix=f"Set it to {sum(up) // 2} or less.",
            )
    views = [
        PoolView(
            min_replicas=least,
            max_replicas=min(most, pool.num_replicas),
            desired=min(count, pool.num_replicas),
            cold_start_s=sum(config.cold_start.parts(pool.weight_bytes).values()),
            rates=measured_rates(scenario, number, pool.num_replicas, measure) if spec.profiles else {},
        )
        for number, (pool, count) in enumerate(zip(pools, up, strict=True))
    ]
    slowest_s = max(view.cold_start_s for view in views)
    if slowest_s > LONGEST_START_S:
        raise ConfigError(
            f"a cold start takes {slowest_s:,.0f} s: a replica that takes longer than a day is never ready.",
            where="fleet.cold_start",
            fix="Shorten its parts, or raise weights_bytes_per_s.",
        )
    replicas = replicas_of(pools, up)
    return Manager(
        config=config, spec=spec, replicas=replicas, pools=views,
        traffic=Traffic(config.failures, fleet, env, replicas, migrates=config.migration is not None),
        met_slo=slo_check(scenario.slo, requests, fleet.cluster.requests), slo=scenario.slo,
        seed=scenario.seed,
        stop_s=float(env.calendar.book[0].stop_s),
    )  # fmt: skip


def _check_shares(scenario: Scenario, name: str) -> None:
    """Refuse a controller that moves replicas between prefill and decode where there is nothing to move between."""
    assert scenario.fleet is not None
    if [pool.role for pool in scenario.pools] != ["prefill", "decode"]:
        what = f"{name} moves replicas between a pool that prefills and one that decodes."
        fix = "Give two pools, the first with role: prefill, the second with role: decode."
        raise ConfigError(what, where="fleet.controller.name", fix=fix)
    if scenario.fleet.switch_s is None:
        raise ConfigError(
            f"{name} moves replicas between pools, but each pool has its own.",
            where="fleet.switch_s",
            fix="Say how many seconds a replica takes from one role to the other: 0 where engines do both.",
        )


def record_of(manager: Manager, pools: list[Pool]) -> FleetRecord:
    """What is kept of a fleet after the run."""
    warnings = manager.flaps()
    if manager.gave_up:
        warnings.append(
            "The run was given up: requests waited for a replica, but the controller started none for "
            "a thousand decisions."
        )
    return FleetRecord(
        controller=manager.spec.name, members=manager.replicas.members, changes=manager.replicas.changes,
        decisions=[pool.decisions for pool in manager.pools],
        cold_start=[manager.config.cold_start.parts(pool.weight_bytes) for pool in pools],
        rates=[pool.rates for pool in manager.pools],
        failures=manager.lifecycle.failures, switches=manager.lifecycle.switches,
        lost=manager.traffic.lost, moved=manager.mover.moved if manager.mover else [],
        samples=manager.observer.sampled(), sees_future=manager.spec.sees_future,
        warnings=warnings, gave_up=manager.gave_up,
    )  # fmt: skip
