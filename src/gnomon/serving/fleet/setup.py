"""From a scenario's fleet section to the manager of its replicas."""

from __future__ import annotations

from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.user_files import load_user_file
from gnomon.serving.cluster import Fleet, Outside
from gnomon.serving.fleet.capacity import Measure, measured_rate
from gnomon.serving.fleet.config import FleetConfig
from gnomon.serving.fleet.controllers import CONTROLLERS, ControllerSpec
from gnomon.serving.fleet.manager import Manager, Pool
from gnomon.serving.fleet.record import FleetRecord
from gnomon.serving.fleet.replicas import replicas_of
from gnomon.serving.fleet.slo import slo_check
from gnomon.serving.kinds import Kind
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests


def find_controller(config: FleetConfig) -> ControllerSpec:
    """The configured controller; options that it does not have are refused."""
    if config.controller.file is not None:
        load_user_file(config.controller.file)
    spec = CONTROLLERS[config.controller.name]
    unknown = set(config.controller.options) - set(spec.options)
    if unknown:
        where = "fleet.controller.options"
        raise UnknownNameError(f"option of controller {spec.name}", unknown.pop(), spec.options, where=where)
    return spec


def new_manager(
    scenario: Scenario, kinds: list[Kind], requests: Requests, fleet: Fleet, outside: Outside, measure: Measure
) -> Manager:
    """The manager of a scenario's fleet, with everything planned that is known at the start."""
    config = scenario.fleet
    assert config is not None
    spec = find_controller(config)
    if scenario.has_roles:
        _check_roles(config)
    if scenario.kv_tiers.is_used and _fails(config):
        raise ConfigError(
            "replicas with KV tiers cannot fail: what their tiers would give back is not simulated.",
            where="fleet.failures",
            fix="Leave failures or kv_tiers out.",
        )
    up = [pool.num_replicas for pool in scenario.kinds()]
    pools = [
        Pool(
            min_replicas=config.min_replicas,
            max_replicas=kind.num_replicas,
            desired=min(count, kind.num_replicas),
            cold_start_s=sum(config.cold_start.parts(kind.weight_bytes).values()),
            replica_rate=measured_rate(scenario, measure) if spec.profiles else 0.0,
        )
        for kind, count in zip(kinds, up, strict=True)
    ]
    return Manager(
        config=config,
        spec=spec,
        fleet=fleet,
        replicas=replicas_of(kinds, up),
        pools=pools,
        outside=outside,
        met_slo=slo_check(scenario.slo, requests, fleet.cluster.requests),
        seed=scenario.seed,
        stop_s=float(outside.calendar.book[0].stop_s),
    )


def _fails(config: FleetConfig) -> bool:
    return config.failures.mtbf_s is not None or any(one.what == "fail" for one in config.events)


def _check_roles(config: FleetConfig) -> None:
    """Pools with roles grow and shrink, each by itself; that they fail is not simulated."""
    if _fails(config):
        raise ConfigError(
            "replicas of pools with roles cannot fail: what becomes of KV on its way is not simulated.",
            where="fleet.failures",
            fix="Leave failures out; drains, starts, stragglers and controllers work.",
        )
    if config.min_replicas < 1:
        raise ConfigError("every pool with a role needs a replica.", where="fleet.min_replicas", fix="Set it to 1.")


def record_of(manager: Manager, kinds: list[Kind]) -> FleetRecord:
    """What is kept of a fleet after the run."""
    warnings = manager.flaps()
    if manager.gave_up:
        warnings.append(
            "The run was given up: requests waited for a replica, but the controller started none for "
            "a thousand decisions."
        )
    return FleetRecord(
        controller=manager.spec.name,
        members=manager.replicas.members,
        changes=manager.replicas.changes,
        decisions=[pool.decisions for pool in manager.pools],
        cold_start=[manager.config.cold_start.parts(kind.weight_bytes) for kind in kinds],
        replica_rate=[pool.replica_rate for pool in manager.pools],
        failures=manager.failures,
        retries=manager.retries,
        samples=manager.sampled(),
        warnings=warnings,
    )
