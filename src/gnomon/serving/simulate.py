"""From a scenario to what happened: build the cluster, run it, hand over its records."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import catalog, timing
from gnomon.catalog import Device, MemoryPlan, Model
from gnomon.core.errors import ConfigError, GnomonError, UnknownNameError
from gnomon.core.streams import stream
from gnomon.serving.cluster import (
    Engine,
    Fleet,
    advance_all,
    new_cluster,
    serve_closed_loop,
    serve_open_loop,
    serve_plain_router,
)
from gnomon.serving.compilation import MAX_POLICIES, callable_policy, callable_proceed, callable_router
from gnomon.serving.engine import NEVER
from gnomon.serving.log import Log, new_log
from gnomon.serving.policies import policy_names
from gnomon.serving.routers import find_router, router_names
from gnomon.serving.scenario import PoolConfig, Scenario
from gnomon.serving.state import Cluster, Floats, Ints
from gnomon.serving.stepping import NEVER_STEP
from gnomon.timing.tables import IterationTables, stack
from gnomon.workload import Requests, generate, limit_lengths

_CLASSIC = ("orca", "faster_transformer")


@dataclass(frozen=True)
class Kind:
    """One kind of replica with everything resolved."""

    config: PoolConfig
    device: Device
    plan: MemoryPlan | None
    num_kv_blocks: int
    max_request_tokens: int

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas of this kind."""
        assert self.config.replica is not None
        return self.config.num_replicas * self.config.replica.num_gpus


@dataclass(frozen=True, eq=False)
class Run:
    """What happened: the arrays that metrics, tables and pictures are made from."""

    scenario: Scenario
    model: Model
    kinds: list[Kind]
    requests: Requests
    cluster: Cluster
    log: Log
    tables: IterationTables
    notes: list[str] = field(default_factory=list)
    uncertainty: float = 0.0

    @property
    def kind_of_replica(self) -> Ints:
        """The kind of every replica (data-parallel ranks counted as replicas)."""
        counts = [k.config.num_replicas * k.config.replica.data_parallel for k in self.kinds if k.config.replica]
        return np.repeat(np.arange(len(self.kinds)), counts)


@dataclass(frozen=True)
class Recording:
    """Stage times to replay instead of timing tables: those of the n-th batch of each replica."""

    first: Ints
    """[replica + 1]: where each replica's batches start."""
    stage_s: Floats
    """[batch, stage]"""
    num_members: int
    """Requests in all batches: how much to record for the comparison."""


def run(
    scenario: Scenario,
    *,
    requests: Requests | None = None,
    recording: Recording | None = None,
    forced_replicas: Ints | None = None,
    keep_members: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Simulate a scenario. `requests` replaces its workload (paired comparisons, recorded runs), `recording` its
    timing, and `forced_replicas` the choices of its router. `keep_members` > 0 records who was in which batch, up to
    that many entries; decodes are then handled one by one, which is slower.

    `on_progress(done, total)` is called now and then with the number of requests that have arrived.
    """
    model = catalog.model(scenario.model)
    load_user_files(scenario)
    kinds = [_resolve(scenario, model, pool) for pool in scenario.kinds()]
    offered = requests if requests is not None else generate(scenario.workload, scenario.seed)
    offered = limit_lengths(offered, min(kind.max_request_tokens for kind in kinds), scenario.workload.over_long)
    if not len(offered):
        raise ConfigError("there is no request to serve.", where="workload", fix=" ".join(offered.notes) or None)
    tables, baked_notes, uncertainty = _tables(scenario, model, kinds, offered, recording)
    cluster = _cluster(scenario, model, kinds, offered, recording)
    log = new_log(max_members=recording.num_members if recording else keep_members)
    _serve(scenario, kinds, offered, cluster, tables, log, forced_replicas, on_progress)
    notes = [*offered.notes, *baked_notes]
    return Run(scenario, model, kinds, offered, cluster, log, tables, notes, uncertainty)


def load_user_files(scenario: Scenario) -> None:
    """Run the Python files that register the user's own policies and routers."""
    files = [scenario.router.file, scenario.batching.file, *(p.batching.file for p in scenario.pools if p.batching)]
    for file in files:
        if file is not None:
            _load_user_file(str(Path(file).resolve()))


@cache
def _load_user_file(path: str) -> None:
    if not Path(path).is_file():
        raise ConfigError("no such file.", where=path, fix="Give the path of a Python file that registers your own.")
    try:
        runpy.run_path(path)
    except GnomonError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(error).__name__}: {error}.", where=path, fix="Run it with python to see more."
        ) from error


def _resolve(scenario: Scenario, model: Model, pool: PoolConfig) -> Kind:
    """Check one kind of replica, and plan its memory."""
    replica, batching = pool.replica, pool.batching
    assert replica is not None and batching is not None and pool.device is not None
    if batching.policy not in policy_names():
        raise UnknownNameError("batching policy", batching.policy, policy_names())
    if batching.policy == "lightllm" and replica.pipeline_parallel > 1:
        raise ConfigError(
            "lightllm has no pipeline parallelism.", where="replica.pipeline_parallel", fix="Set it to 1."
        )
    if replica.speculative and batching.policy != "vllm_v1":
        raise ConfigError(
            f"speculative decoding is not part of {batching.policy}.", where="replica.speculative", fix="Use vllm_v1."
        )
    device = catalog.device(pool.device)
    longest = replica.max_request_tokens or model.max_context_tokens
    assert batching.max_sequences and batching.max_batch_tokens and batching.block_size
    plan = None
    if replica.num_kv_blocks is None or batching.policy in _CLASSIC:
        plan = catalog.plan_memory(
            model,
            device,
            replica.parallelism,
            planner=replica.planner,
            dtype=pool.timing.dtype if pool.timing else "bf16",
            kv_dtype=pool.timing.kv_dtype if pool.timing else "bf16",
            block_size=batching.block_size,
            memory_utilization=replica.memory_utilization,
            max_tokens=longest,
            max_batched_tokens=batching.max_batch_tokens,
            max_sequences=batching.max_sequences,
        )
    blocks = replica.num_kv_blocks if replica.num_kv_blocks is not None else plan.num_kv_blocks if plan else 0
    return Kind(pool, device, plan, blocks, longest)


def _tables(
    scenario: Scenario, model: Model, kinds: list[Kind], requests: Requests, recording: Recording | None
) -> tuple[IterationTables, list[str], float]:
    """Bake every kind's timing, with maxima that cover whatever its policy may put into one iteration."""
    longest = int(requests.total_tokens.max())
    max_sequences = max(_limits(kind)[1] for kind in kinds)
    max_tokens = max(_max_iteration_tokens(kind, longest, len(requests)) for kind in kinds)
    if recording is not None:
        kinds = kinds[:1]
        max_tokens, max_sequences = 1, 1
    baked = []
    for kind in kinds:
        pool = kind.config
        assert pool.replica is not None
        baked.append(
            _bake(
                scenario.model, pool.device, pool.node, pool.replica.parallelism, pool.timing,
                max_tokens, max_sequences, longest,
            )
        )  # fmt: skip
    notes = list(dict.fromkeys(note for one in baked for note in one.notes)) if recording is None else []
    return stack([one.tables for one in baked]), notes, max(one.uncertainty for one in baked)


@lru_cache(maxsize=64)
def _bake(
    model: str, device: str, node: str | None, parallelism: Any, config: Any, tokens: int, sequences: int, kv: int
) -> timing.Baked:
    """`iteration_tables`, remembered: a search simulates the same replica many times."""
    return timing.iteration_tables(
        catalog.model(model),
        catalog.device(device),
        parallelism,
        node=catalog.node(node) if node else None,
        config=config,
        max_tokens=tokens,
        max_sequences=sequences,
        max_kv_tokens=kv,
    )


def _limits(kind: Kind) -> tuple[int, int]:
    """Requests that may hold blocks at once, and requests in one batch."""
    batching, replica = kind.config.batching, kind.config.replica
    assert batching is not None and batching.max_sequences and replica is not None
    cap = batching.max_sequences
    if batching.policy in _CLASSIC:
        most = min(cap, kind.plan.max_batch) if kind.plan and kind.plan.max_batch else cap
        return cap * replica.pipeline_parallel, most
    if batching.policy in ("vllm_v1", "sglang"):
        return cap, cap
    return cap, max(1, cap // replica.pipeline_parallel)


def _max_iteration_tokens(kind: Kind, longest: int, num_requests: int) -> int:
    """The most tokens that one iteration of this kind can have."""
    batching, replica = kind.config.batching, kind.config.replica
    assert batching is not None and batching.max_batch_tokens is not None and replica is not None
    in_batch = min(_limits(kind)[1], num_requests)
    if batching.policy in _CLASSIC:
        return in_batch * longest
    drafted = replica.speculative.num_tokens if replica.speculative else 0
    return batching.max_batch_tokens + in_batch * (1 + drafted)


def _cluster(
    scenario: Scenario, model: Model, kinds: list[Kind], requests: Requests, recording: Recording | None
) -> Cluster:
    """Arrays for all replicas and requests, with their limits filled in."""
    batchings = [kind.config.batching for kind in kinds if kind.config.batching]
    replicas = [kind.config.replica for kind in kinds if kind.config.replica]
    cached = max((kind.num_kv_blocks for kind, b in zip(kinds, batchings, strict=True) if b.prefix_cache), default=0)
    smallest_block = min(b.block_size or 1 for b in batchings)
    cluster = new_cluster(
        num_replicas=sum(k.config.num_replicas * r.data_parallel for k, r in zip(kinds, replicas, strict=True)),
        num_requests=len(requests),
        max_stages=max(r.pipeline_parallel for r in replicas),
        max_running=max(_limits(kind)[0] for kind in kinds),
        max_in_batch=max(_limits(kind)[1] for kind in kinds),
        block_size=max(b.block_size or 1 for b in batchings),
        cached_blocks=cached,
        blocks_per_request=int(requests.total_tokens.max()) // smallest_block + 2,
        num_parameters=max(8, *(len(b.parameters) for b in batchings)),
        prefix_hashes=np.ascontiguousarray(requests.prefix_hashes, dtype=np.int64),
        recorded=(recording.first, recording.stage_s) if recording else None,
    )
    _fill_requests(cluster, requests, scenario.seed)
    policies = _policies_of(kinds)
    first, row = 0, 0
    for kind in kinds:
        assert kind.config.replica is not None
        count = kind.config.num_replicas * kind.config.replica.data_parallel
        _fill_replicas(cluster, kind, requests, first, count, row, policies)
        first += count
        row += kind.config.replica.pipeline_parallel
    return cluster


def _fill_requests(cluster: Cluster, requests: Requests, seed: int) -> None:
    table, count = cluster.requests, len(requests)
    table.arrival_s = requests.arrival_s
    table.prompt_tokens = requests.prompt_tokens
    table.output_tokens = requests.output_tokens
    table.prefill_tokens = requests.prompt_tokens
    table.total_tokens = requests.total_tokens
    table.session = requests.session
    table.replica = -1
    for stamp in ("scheduled_s", "first_token_s", "last_token_s", "finished_s", "preempted_at_s"):
        table[stamp] = -1.0
    table.prefix_first = requests.prefix_offsets[:-1]
    table.prefix_count = np.diff(requests.prefix_offsets)
    table.draw = stream(seed, "speculation").integers(1, 2**31 - 1, count)


def _fill_replicas(
    cluster: Cluster, kind: Kind, requests: Requests, first: int, count: int, row: int, policies: list[str]
) -> None:
    batching, replica = kind.config.batching, kind.config.replica
    assert batching is not None and replica is not None and batching.block_size and batching.watermark is not None
    table = cluster.replicas[first : first + count]
    table.id = np.arange(first, first + count)
    table.row = row
    table.policy = policies.index(batching.policy)
    table.num_stages = replica.pipeline_parallel
    table.group_first = first + np.arange(count) // replica.data_parallel * replica.data_parallel
    table.group_size = replica.data_parallel
    table.block_size = batching.block_size
    table.num_blocks = table.free_blocks = kind.num_kv_blocks
    table.watermark_blocks = int(batching.watermark * kind.num_kv_blocks)
    table.max_running, table.max_in_batch = _limits(kind)
    table.max_batch_tokens = batching.max_batch_tokens
    table.max_chunk_tokens = batching.max_chunk_tokens or batching.max_batch_tokens
    table.max_request_tokens = kind.max_request_tokens
    table.max_waiting_iterations = batching.max_waiting_iterations
    table.reserve_full_prompt = batching.reserve_full_prompt
    table.prefix_cache = bool(batching.prefix_cache)
    table.blocks_per_hash = max(1, requests.prefix_block_tokens // batching.block_size)
    if replica.speculative:
        table.num_speculative = replica.speculative.num_tokens
        table.acceptance = replica.speculative.acceptance
    table.first_waiting = table.last_waiting = -1
    table.next_end_s = NEVER
    table.next_finish = NEVER_STEP
    cluster.parameters[first : first + count, : len(batching.parameters)] = batching.parameters
    if batching.prefix_cache and requests.prefix_block_tokens % batching.block_size and len(requests.prefix_hashes):
        raise ConfigError(
            f"prefix hashes cover {requests.prefix_block_tokens} tokens, KV blocks hold {batching.block_size}.",
            where="batching.block_size",
            fix="Choose a block size that divides the former.",
        )


def _policies_of(kinds: list[Kind]) -> list[str]:
    names = list(dict.fromkeys(kind.config.batching.policy for kind in kinds if kind.config.batching))
    if len(names) > MAX_POLICIES:
        raise ConfigError(f"a fleet may mix at most {MAX_POLICIES} batching policies, not {len(names)}.", where="pools")
    return names


def _serve(
    scenario: Scenario,
    kinds: list[Kind],
    requests: Requests,
    cluster: Cluster,
    tables: IterationTables,
    log: Log,
    forced_replicas: Ints | None,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Run the cluster, in slices so that progress can be shown."""
    if scenario.router.name not in router_names():
        raise UnknownNameError("router", scenario.router.name, router_names())
    spec = find_router(scenario.router.name)
    unknown = set(scenario.router.options) - set(spec.parameters)
    if unknown:
        raise UnknownNameError(f"option of router {spec.name}", unknown.pop(), spec.parameters)
    options = [scenario.router.options.get(name, default) for name, default in spec.parameters.items()]
    names = _policies_of(kinds)
    policies = tuple(callable_policy(name) for name in (names * MAX_POLICIES)[:MAX_POLICIES])
    total, num_replicas = len(requests), cluster.replicas.size
    fleet = Fleet(
        cluster,
        tables,
        stream(scenario.seed, "router").random((total, 2)),
        np.array(options or [0.0]),
        np.zeros(spec.memory * num_replicas + 8),
    )
    spec_route = spec if spec.is_compiled and forced_replicas is None else find_router("round_robin")
    engine = Engine(callable_proceed(), policies, callable_router(spec_route))
    stop_s = scenario.time_limit_s or NEVER
    if requests.concurrency:
        if not spec.is_compiled:
            raise ConfigError("a plain Python router cannot serve a closed loop.", where="router.name")
        loop = np.array([min(requests.concurrency, total), 0], np.int64)
        think_s = requests.think_s if len(requests.think_s) else np.zeros(total)
        for last in _slices(total, on_progress):
            serve_closed_loop(fleet, engine, log, think_s, loop, stop_s, last)
        return
    arriving = int(np.searchsorted(requests.arrival_s, stop_s, side="left"))
    done = 0
    for last in _slices(arriving, on_progress):
        if forced_replicas is not None:
            done = serve_plain_router(fleet, engine, lambda _, i: forced_replicas[i], log, done, last)
        elif spec.is_compiled:
            done = serve_open_loop(fleet, engine, spec.sees_state, log, done, last)
        else:
            done = serve_plain_router(fleet, engine, spec.route, log, done, last)
    advance_all(fleet, engine, log, stop_s)


def _slices(total: int, on_progress: Callable[[int, int], None] | None) -> Any:
    """Numbers of arrivals after which progress is reported."""
    step = max(1000, total // 100) if on_progress else max(total, 1)
    for last in range(step, total + step, step):
        yield min(last, total)
        if on_progress:
            on_progress(min(last, total), total)
