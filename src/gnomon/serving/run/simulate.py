"""From a scenario to what happened: build the cluster, run it, hand over its records."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.catalog import Model
from gnomon.core.arrays import Floats, Ints
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.core.user_files import is_own
from gnomon.jit import bound, function_arguments
from gnomon.serving.admission import ADMISSIONS, AdmissionSpec
from gnomon.serving.autoscaling.replicas import FleetRecord
from gnomon.serving.autoscaling.setup import new_manager, record_of
from gnomon.serving.deciders import DECIDERS, DeciderSpec
from gnomon.serving.engine.calendar import NEVER, new_calendar, report_ends
from gnomon.serving.engine.cluster import serve
from gnomon.serving.engine.context import Environment, Fleet, RouterInputs, without_features
from gnomon.serving.engine.guard import Guard
from gnomon.serving.engine.log import Log, new_log
from gnomon.serving.engine.state import NO_LIMIT, NOT_ARRIVED, TTFT_S, Cluster
from gnomon.serving.features.adapters import Adapters
from gnomon.serving.features.dependent_calls import dependents_of, send_first
from gnomon.serving.features.front_end import as_client_sees, open_front_end
from gnomon.serving.features.tiers import Tiers
from gnomon.serving.features.tool_cache import open_tool_cache
from gnomon.serving.features.transfers import Transfers
from gnomon.serving.policies import POLICIES
from gnomon.serving.routers import KNOWN, ROUTERS, RouterSpec
from gnomon.serving.routers.known import at_first
from gnomon.serving.run.build import Recording, build_cluster, open_adapters, with_breakdown
from gnomon.serving.run.compilation import callable_router, compile_beside, engine_of
from gnomon.serving.run.driving import OpenCluster
from gnomon.serving.run.hindsight import needs_hindsight, with_best_steps
from gnomon.serving.run.kv_links import max_events, open_pools, open_tiers, replicas_that
from gnomon.serving.run.patience import Patience, with_tries
from gnomon.serving.run.warmup import begin_measuring, without_warmup
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import foreign
from gnomon.serving.scenario.config import AdmissionConfig, DeciderConfig, RouterConfig
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import Times, accepted, bake, check_size, no_times, policies_of, resolve
from gnomon.timing.iteration import IterationTables
from gnomon.workload import Requests, WorkloadConfig, generate
from gnomon.workload.requests import with_classes


@dataclass(frozen=True, eq=False)
class Run:
    """What happened: the arrays that metrics, tables and pictures are made from."""

    scenario: Scenario
    model: Model
    pools: list[Pool]
    requests: Requests
    cluster: Cluster
    log: Log
    tables: IterationTables
    notes: list[str] = field(default_factory=list)
    times: Times | None = None
    """Where the tables are from."""
    transfers: Transfers | None = None
    """KV that moved between pools; None where no pool has a role."""
    fleet: FleetRecord | None = None
    """What became of the replicas, where they changed."""
    tiers: Tiers | None = None
    """KV beyond the GPUs; None where no tier is given."""
    adapters: Adapters | None = None
    """What became of LoRA adapters; None where no request asks for one."""

    @property
    def spread(self) -> float:
        """Standard deviation to expect of a real server's iterations around the simulated ones."""
        return self.times.spread if self.times else 0.0

    @property
    def first_token_spread(self) -> float:
        """Standard deviation to expect of a server's times to the first token, beside its iterations'."""
        return self.times.first_token_spread if self.times else 0.0

    @property
    def pool_of_replica(self) -> Ints:
        """The pool of every replica (data-parallel ranks counted as replicas)."""
        return np.repeat(np.arange(len(self.pools)), [pool.num_ranks for pool in self.pools])


def run(
    scenario: Scenario, *, requests: Requests | None = None, recording: Recording | None = None,
    forced_replicas: Ints | None = None, keep_members: int = 0, keep_chunks: int = 0, explained: bool = False,
    adjust: Callable[[IterationTables], IterationTables] | None = None,
    on_progress: Callable[[int, int], None] | None = None, look: Callable[[Cluster], None] | None = None,
) -> Run:  # fmt: skip
    """Simulate a scenario. `requests` replaces its workload (paired comparisons, recorded runs), `recording` its
    timing, and `forced_replicas` the choices of its router. `keep_members` > 0 records who was in which batch, up to
    that many entries; decodes are then handled one by one, which is slower. `keep_chunks` > 0 records the parts that
    prompts are computed in, up to that many. `adjust` changes the seconds of iterations. `explained` books where every
    request's time goes (`gnomon.serving.features.breakdown`).

    `on_progress(done, total)` is called now and then with the number of requests that have arrived, `look` in its place
    with the cluster: whoever raises an error there ends the run.
    """
    compile_beside()
    _find_router(scenario.router)
    check_size(scenario, 0 if requests is None else len(requests))
    offered = requests if requests is not None else generate(scenario.workload, scenario.seed)
    if needs_hindsight(scenario):
        scenario = with_best_steps(scenario, offered, run, on_progress)
    pools = resolve(scenario, offered)
    offered = with_classes(accepted(scenario, pools, offered))
    if not len(offered):
        fix = "Shorter lengths, a model with a longer context, or --workload.over-long truncate would serve some."
        raise ConfigError(f"there is no request to serve. {' '.join(offered.notes)}", where="workload", fix=fix)
    count, patience = len(offered), scenario.workload.patience
    if patience is not None:
        if scenario.fleet is not None or len(offered.parents):
            who = "fleet" if scenario.fleet is not None else "trace"
            raise ConfigError(f"clients that give up are not simulated with a {who}.", where="workload.patience",
                              fix=f"Leave patience out, or the {who}.")  # fmt: skip
        offered = with_tries(offered, patience)
    times = no_times(pools) if recording else bake(scenario.model, pools, offered)
    times = paced(times, scenario)
    if adjust is not None:
        times = replace(times, tables=adjust(times.tables))
    cluster = build_cluster(pools, offered, scenario.seed, recording, scenario.lora.max_loaded)
    if explained:
        cluster = with_breakdown(cluster, pools, times.tables)
    if look is not None:
        on_progress = lambda done, total: look(cluster)  # noqa: E731
    log = new_log(max_members=recording.num_members if recording else keep_members, max_chunks=keep_chunks)
    with function_arguments():
        opened = open_cluster(scenario, pools, offered, cluster, times.tables, log, forced_replicas, on_progress)
        if patience is not None:
            opened = replace(opened, patience=Patience(patience, cluster, opened.env, count))
        before = _serve(opened, scenario, offered, on_progress)
    env, manager = opened.env, opened.manager
    if opened.patience is not None:
        cluster, offered = opened.patience.reported(cluster, log, offered)
    _check_clock(cluster, offered)
    as_client_sees(cluster)
    if before is not None:
        cluster, offered = without_warmup(cluster, log, offered, before)
    notes = [*offered.notes, *times.notes, *foreign(scenario.calibration, scenario.model, scenario.device)]
    model, fleet = catalog.model(scenario.model), record_of(manager, pools) if manager else None
    made = (scenario, model, pools, offered, cluster, log, times.tables, notes, times)
    return Run(
        *made, transfers=env.transfers if scenario.has_roles else None, fleet=fleet,
        tiers=env.tiers if scenario.kv_tiers.is_used else None,
        adapters=env.adapters if env.adapters.load_s.size else None,
    )  # fmt: skip


def paced(times: Times, scenario: Scenario) -> Times:
    """Times with the spells of a slow host in them."""
    if scenario.timing.host is None:
        return times
    return replace(times, tables=times.tables._replace(host_pace=scenario.timing.host.paces(scenario.seed)))


def _serve(
    opened: OpenCluster, scenario: Scenario, requests: Requests, on_progress: Callable[[int, int], None] | None
) -> dict[str, Any] | None:
    """Run the cluster, in slices so that progress can be shown. Returns the accounts at the end of a warm-up."""
    cluster, env, total = opened.fleet.cluster, opened.env, len(requests)
    calendar, before = env.calendar, None
    if requests.concurrency:
        report_ends(calendar, cluster)
        if requests.num_warmup:
            calendar.book.pause_after = requests.num_warmup
            send_first(cluster, env, 0, requests.concurrency, requests.num_warmup)
            opened.drive(total)
            calendar.book.pause_after = NO_LIMIT
            before = begin_measuring(cluster, opened.log, requests)
        send_first(cluster, env, requests.num_warmup, requests.concurrency, total)
    else:
        calendar.book.end_open = int(np.count_nonzero(np.isfinite(cluster.requests.arrival_s)))
        if len(requests.parents) or env.adapters.load_s.size:
            report_ends(calendar, cluster)
    for last in _slices(total, on_progress):
        opened.drive(last)
    opened.advance(scenario.time_limit_s or NEVER)
    if scenario.time_limit_s is None and not (opened.manager and opened.manager.gave_up):
        opened.guard.audit(requests)
    return before


def open_cluster(
    scenario: Scenario, pools: list[Pool], requests: Requests, cluster: Cluster, tables: IterationTables, log: Log,
    forced_replicas: Ints | None = None, on_progress: Callable[[int, int], None] | None = None,
) -> OpenCluster:  # fmt: skip
    """A cluster with all that is outside its replicas, at its start."""
    spec, total, num_replicas = _find_router(scenario.router), len(requests), cluster.replicas.size
    gate = ADMISSIONS.chosen(scenario.admission)
    decode, decide = scenario.disaggregation.decode_router, DECIDERS.chosen(scenario.disaggregation.decider)
    others = (gate.admit, decide.decide)
    takers = replicas_that(pools, "prefill")
    inputs = _router_inputs(scenario, scenario.router, spec, requests, cluster, takers, *others)
    slos = [one.slo if one.slo and one.slo.is_given else scenario.slo for one in requests.classes] or [scenario.slo]
    cluster.classes[:, TTFT_S:] = [(slo.ttft_s or np.inf, slo.tpot_s or np.inf) for slo in slos]
    gate_memory = np.zeros((cluster.classes.shape[0], 2))
    fleet = Fleet(cluster, tables, *inputs, option_values(scenario.admission, gate), gate_memory)
    decode_spec = _find_router(decode)
    compiled = spec if spec.compiled else ROUTERS["round_robin"]
    beside = compile_beside()
    to_decode, to_decide = (decode_spec, decide) if scenario.has_roles else (None, None)
    engine = engine_of(policies_of(pools), compiled, gate.name, to_decode, to_decide, beside)
    policies = tuple(POLICIES[name].form_batch for name in policies_of(pools))
    front = open_front_end(scenario.front_end, cluster, sum(pool.num_replicas for pool in pools))
    events = max_events(scenario, requests, num_replicas)
    calendar = new_calendar(num_replicas, events, scenario.time_limit_s or NEVER)
    tell = None if on_progress is None else (lambda: on_progress(int(calendar.book[0].num_sent), total))
    guard = Guard(cluster, policies, spec.route, gate.admit, decide.decide, tell)
    model = catalog.model(scenario.model)
    transfers = open_pools(scenario, model, pools, cluster, calendar, total)
    decode_inputs = inputs
    if scenario.has_roles:
        decode_takers = replicas_that(pools, "decode")
        decode_inputs = _router_inputs(scenario, decode, decode_spec, requests, cluster, decode_takers)
    env = Environment(
        calendar, requests.think_s, front, transfers, decode_inputs,
        option_values(scenario.disaggregation.decider, decide),
        open_tiers(scenario, model, pools, cluster, calendar, transfers, requests), *dependents_of(requests),
        open_adapters(scenario.lora, model, requests, num_replicas),
        open_tool_cache(scenario.tool_cache, requests, cluster),
    )  # fmt: skip
    if not (scenario.has_features or len(requests.parents) or env.adapters.load_s.size):
        env = without_features(env)
    if (scenario.has_roles or scenario.migrates) and env.adapters.load_s.size:
        what = "LoRA adapters are not simulated where prefill and decode are apart, or requests move while they decode."
        raise ConfigError(what, where="workload.adapters", fix="Leave adapters out, or roles and fleet.migration.")
    if scenario.has_roles and not (spec.compiled and decode_spec.compiled):
        raise ConfigError("a plain Python router cannot choose for pools with roles.", where="router.name")
    if forced_replicas is not None:
        cluster.requests.replica = forced_replicas
    looks = (spec, decode_spec, decide) if scenario.has_roles else (spec,)
    sees_state = any(one.sees_state for one in looks) and forced_replicas is None
    calendar.book.sees_state = sees_state or gate.sees_state
    calendar.book.is_plain = not spec.compiled
    manager = None
    if scenario.fleet is not None:
        progress = (lambda *_: on_progress(0, total)) if on_progress else None
        manager = new_manager(scenario, pools, requests, fleet, env, partial(_measured, progress))
    route = None if spec.compiled else callable_router(spec)
    if beside.is_compiling:  # The loops need only know how the engine is called.
        bound(serve, fleet, engine, env, log, 0)
        engine = engine._replace(proceed=beside.proceed())
    return OpenCluster(fleet, engine, env, log, guard, manager, None, route)


def _router_inputs(
    scenario: Scenario, config: RouterConfig, spec: RouterSpec, requests: Requests, cluster: Cluster,
    candidates: Ints, *others: Callable[..., Any],
) -> RouterInputs:  # fmt: skip
    """What a router gets beside the replicas: its draws, options and memory, and the replicas it may choose. There are
    no draws where neither it nor `others`, which see the same, can look at them."""
    numbers = spec.numbers(config) if spec.numbers else np.zeros(0)
    seen = [config.options.get(name, default) for name, default in KNOWN.items()]
    draws = spec.draws or spec.numbers is not None or spec.name in ROUTERS.own or any(map(is_own, others))
    return RouterInputs(
        stream(scenario.seed, "router").random((len(requests), 2)) if draws else np.zeros((1, 2)),
        np.concatenate([option_values(config, spec), numbers]) if numbers.size else option_values(config, spec),
        np.zeros((spec.memory + spec.scratch) * cluster.replicas.size + 8),
        predicted_outputs(config, requests, scenario.seed),
        at_first(cluster.replicas.num_blocks, *seen) if spec.observes else np.zeros(0),
        candidates,
    )


def option_values(
    config: RouterConfig | AdmissionConfig | DeciderConfig, spec: RouterSpec | AdmissionSpec | DeciderSpec
) -> Floats:
    """The values of the options of something that is asked, in their order."""
    return np.array([config.options.get(name, default) for name, default in spec.options.items()] or [0.0])


def _measured(
    on_progress: Callable[[int, int], None] | None,
    scenario: Scenario, pool: int, size: int, others: int, rate: float, num_requests: int,
) -> tuple[Requests, Any]:  # fmt: skip
    """So many replicas of a pool alone, under a steady load; where pools have roles, beside `others` of each other."""
    pools = [one.model_copy(update={"num_replicas": size}) for one in scenario.pools[pool : pool + 1]]
    if scenario.has_roles:
        counts = [size if number == pool else others for number in range(len(scenario.pools))]
        pools = [one.model_copy(update={"num_replicas": n}) for one, n in zip(scenario.pools, counts, strict=True)]
    plain = {
        "fleet": None, "num_replicas": size, "pools": tuple(pools), "time_limit_s": None,
        "admission": AdmissionConfig(),
    }  # fmt: skip
    left_out = {"trace", "arrivals", "rate", "num_requests", "warmup_requests"}
    given = scenario.workload.model_dump(exclude=left_out, exclude_none=True)
    trace = scenario.workload.trace
    if trace is not None and given["lengths"]["distribution"] == "trace":  # Of its requests again and again.
        given["lengths"] = {"distribution": "empirical", "file": trace.file, "format": trace.format}
    steady = {"arrivals": {"process": "poisson"}, "rate": rate, "num_requests": num_requests}
    workload = build(WorkloadConfig, given | steady)
    done = run(scenario.model_copy(update={**plain, "workload": workload}), on_progress=on_progress)
    return done.requests, done.cluster.requests


LATEST_S = 1e12  # Some thirty thousand years: beyond, differences of times mean nothing.


def _check_clock(cluster: Cluster, requests: Requests) -> None:
    """Refuse a run whose times have grown beyond what can be told apart: nothing ends after the last batch. Requests
    that would be sent when others end have no time where those did not."""
    arrival_s = cluster.requests.arrival_s
    if len(requests.parents) or requests.concurrency:
        follows = np.diff(requests.parent_offsets) > 0 if len(requests.parents) else True
        arrival_s = arrival_s[~(follows & (cluster.requests.status == NOT_ARRIVED))]
    times = (arrival_s, cluster.stage_free_s, cluster.replicas.busy_s)
    if not all(np.all(one < LATEST_S) for one in times):
        what = "an iteration or a gap between arrivals takes longer than can be simulated."
        fix = "Check the workload's rate, and the scale and the seconds of its timing."
        raise ConfigError(what, where="scenario", fix=fix)


def _find_router(config: RouterConfig) -> RouterSpec:
    """The configured router; what it would leave unread is refused."""
    spec = ROUTERS.chosen(config)
    if config.lengths != "none" and not spec.predicts:
        raise ConfigError(f"{spec.name} does not look at output lengths.", where="router.lengths", fix="Leave it out.")
    if config.checkpoint is not None and spec.numbers is None:
        raise ConfigError(f"{spec.name} has no policy file.", where="router.checkpoint", fix="Use --router learned.")
    return spec


def predicted_outputs(config: RouterConfig, requests: Requests, seed: int) -> Floats:
    """Output tokens as a router is told them at arrival; nothing for `lengths: none`."""
    if config.lengths == "none":
        return np.zeros(0)
    truth = requests.output_tokens.astype(np.float64)
    if config.lengths == "oracle":
        return truth
    errors = stream(seed, "length predictions").standard_normal(len(requests))
    return np.maximum(1.0, truth * np.exp(config.length_noise * errors))


def _slices(total: int, on_progress: Callable[[int, int], None] | None) -> Any:
    """Numbers of arrivals after which progress is reported."""
    step = max(1000, total // 100) if on_progress else 100_000  # Ctrl-C is noticed between two slices.
    for last in range(step, total + step, step):
        yield min(last, total)
        if on_progress:
            on_progress(min(last, total), total)
