"""Kinds of replica: what a scenario says of them, checked, with memory planned and times baked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gnomon import catalog, timing
from gnomon.catalog import Device, MemoryPlan, Model, Parallelism
from gnomon.catalog.power import clock_under_cap
from gnomon.core.errors import ConfigError
from gnomon.core.user_files import is_own, load_user_file
from gnomon.serving.policies import POLICIES, UNBOUNDED, PolicySpec
from gnomon.serving.scenario import KindConfig, Role, Scenario
from gnomon.serving.scenario.config import ReplicaConfig, ResolvedBatching
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.lora import slots_bytes
from gnomon.serving.scenario.power import PowerConfig
from gnomon.serving.scenario.sampling import asked_for, era_of, sampler
from gnomon.timing.iteration import IterationTables, blank, stack
from gnomon.timing.speculative import draft_head, with_draft
from gnomon.workload import Requests, limit_lengths

MAX_POLICIES = 4
"""Different batching policies in one fleet: a fixed number, so that the engine is compiled once."""


MOST_RUNNING = 1 << 16
"""Requests of a replica that there are places for where no cap is given."""


@dataclass(frozen=True)
class Kind:
    """One kind of replica with everything resolved."""

    num_replicas: int
    device_name: str
    """As the scenario says: a built-in name or the path of a file."""
    device: Device
    node: str | None
    replica: ReplicaConfig
    batching: ResolvedBatching
    timing: timing.TimingConfig
    plan: MemoryPlan | None
    num_kv_blocks: int
    max_request_tokens: int
    role: Role = "both"
    weight_bytes: float = 0.0
    """Bytes of one replica's weights."""

    @property
    def policy(self) -> PolicySpec:
        """What its batching policy is like."""
        return POLICIES[self.batching.policy]

    @property
    def parameters(self) -> tuple[float, ...]:
        """The numbers that its batching policy reads: its options, then those of the user."""
        return (*self.policy.numbers(self.batching.options), *self.batching.parameters)

    @property
    def num_ranks(self) -> int:
        """Schedulers of this kind: replicas, or their data-parallel ranks."""
        return self.num_replicas * self.replica.data_parallel

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas of this kind."""
        return self.num_replicas * self.replica.num_gpus

    @property
    def max_running(self) -> int:
        """Requests that may hold blocks at once: where a policy of one's own caps batches only, as many as have one."""
        if self.policy.max_sequences_of == "batch" and is_own(self.policy.form_batch):
            return max(self.batching.max_sequences, min(self.num_kv_blocks, MOST_RUNNING))
        batches = self.replica.pipeline_parallel if self.policy.max_sequences_of == "batch" else 1
        return self.batching.max_sequences * batches

    @property
    def max_in_batch(self) -> int:
        """Requests in one batch."""
        cap = self.batching.max_sequences
        if self.policy.max_sequences_of == "stages":
            return max(1, cap // self.replica.pipeline_parallel)
        if self.policy.reserves == "longest" and self.plan and self.plan.max_batch:
            return min(cap, self.plan.max_batch)
        return cap

    @property
    def token_budget(self) -> int:
        """Prompt tokens for which a batch has room; no bound where the policy does not read `max_batch_tokens`."""
        return UNBOUNDED if self.policy.max_batch_tokens_of == "nothing" else self.batching.max_batch_tokens

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decode computes: its own, and those drafted."""
        return 1 + (self.replica.speculative.num_tokens if self.replica.speculative else 0)

    def max_iteration_tokens(self, requests: Requests) -> int:
        """The most tokens that one iteration can have."""
        in_batch = min(self.max_in_batch, len(requests))
        decodes, given = in_batch * self.tokens_per_decode, self.batching.max_batch_tokens
        if is_own(self.policy.form_batch):  # It may place a whole prompt, however long.
            given = max(given, int(requests.total_tokens.max()))
        match self.policy.max_batch_tokens_of:
            case "iteration" | "prefill":
                return max(given, decodes)
            case "chunks":
                return given + decodes
            case "nothing":
                largest = np.partition(requests.total_tokens, len(requests) - in_batch)[-in_batch:]
                # What is computed lies in the KV cache; a reservation may be rounded down by less than a block.
                held = (self.num_kv_blocks + in_batch) * self.batching.block_size
                return int(largest.sum() if is_own(self.policy.form_batch) else min(largest.sum(), held))


def resolve(scenario: Scenario, requests: Requests | None = None) -> list[Kind]:
    """Check every kind of replica of a scenario, and plan its memory; for models with windows or states, by the mean
    length of `requests`."""
    model = catalog.model(scenario.model)
    typical = round(requests.total_tokens.mean()) if requests is not None and len(requests) else None
    pools = [_sampling(_capped(pool, scenario.power), scenario, requests) for pool in scenario.kinds()]
    kinds = [_resolve_one(model, pool, typical) for pool in pools]
    if requests is not None and len(requests.adapter):
        kinds = [_with_adapters(kind, slots_bytes(scenario.lora, model)) for kind in kinds]
    if scenario.fleet is not None and scenario.fleet.max_replicas is not None:
        kinds = [_with_places(kind, scenario.fleet.max_replicas) for kind in kinds]
    count = len(policies_of(kinds))
    if count > MAX_POLICIES:
        raise ConfigError(f"a fleet may mix at most {MAX_POLICIES} batching policies, not {count}.", where="pools")
    return kinds


def _capped(pool: KindConfig, power: PowerConfig) -> KindConfig:
    """A pool whose GPUs keep to the power cap by a lower clock, unless the scenario says at which one they run."""
    facts = power.facts(catalog.device(pool.device).name)
    if power.cap_w is None or "clock" in pool.timing.model_fields_set:
        return pool
    if facts is None:
        raise ConfigError(
            f"the power of {pool.device} is not known.", where="power.cap_w", fix="Give power.idle_w and power.max_w."
        )
    clock = clock_under_cap(facts, power.cap_w)
    return pool.model_copy(update={"timing": pool.timing.model_copy(update={"clock": clock})})


def _sampling(pool: KindConfig, scenario: Scenario, requests: Requests | None) -> KindConfig:
    """A pool whose timing knows how its engine chooses the tokens that requests ask for, unless the scenario says."""
    if "sampler" in pool.timing.model_fields_set:
        return pool
    eras = engine(scenario.engine.name).sampling if scenario.engine else ()
    era = era_of(eras, pool.timing.engine_version) if eras else None
    chosen = sampler(asked_for(scenario, era), era, requests)
    return pool.model_copy(update={"timing": pool.timing.model_copy(update={"sampler": chosen})})


def _with_adapters(kind: Kind, slots: float) -> Kind:
    """A kind whose replicas keep room for LoRA adapters, where their KV blocks were planned."""
    if kind.plan is None or kind.replica.num_kv_blocks is not None:
        return kind
    blocks = kind.num_kv_blocks - math.ceil(slots / kind.replica.num_gpus / kind.plan.block_bytes)
    if blocks < 1:
        raise ConfigError("there is no memory left for KV beside the adapters.", where="lora.max_loaded")
    return replace(kind, num_kv_blocks=blocks)


def _with_places(kind: Kind, places: int) -> Kind:
    """A kind of a fleet that may grow: as many places as it may have replicas at once."""
    if kind.num_replicas > places:
        raise ConfigError(
            f"{kind.num_replicas} replicas are more than fleet.max_replicas ({places}).", where="fleet.max_replicas"
        )
    return replace(kind, num_replicas=places)


def policies_of(kinds: list[Kind]) -> list[str]:
    """The different policies of a fleet, in the order in which replicas refer to them."""
    return list(dict.fromkeys(kind.batching.policy for kind in kinds))


def accepted(scenario: Scenario, kinds: list[Kind], requests: Requests) -> Requests:
    """The requests with those treated that are too long for one of the kinds."""
    return limit_lengths(requests, min(kind.max_request_tokens for kind in kinds), scenario.workload.over_long)


def _resolve_one(model: Model, pool: KindConfig, typical: int | None) -> Kind:
    replica = pool.replica
    if pool.batching.file is not None:
        load_user_file(pool.batching.file)
    batching = pool.batching.resolved()
    _check_traits(POLICIES[batching.policy], replica, batching)
    device = catalog.device(pool.device)
    longest = replica.max_request_tokens or model.max_context_tokens
    blocks, plan = replica.num_kv_blocks, None
    if blocks is None or POLICIES[batching.policy].reserves == "longest":
        plan = catalog.plan_memory(
            model,
            device,
            replica.parallelism,
            planner=replica.planner,
            dtype=pool.timing.dtype,
            kv_dtype=pool.timing.kv_dtype,
            block_size=batching.block_size,
            memory_utilization=replica.memory_utilization,
            max_tokens=longest,
            max_batched_tokens=batching.max_batch_tokens,
            max_sequences=batching.max_sequences,
            sequence_tokens=typical,
            draft=catalog.model(replica.draft_model) if replica.draft_model else None,
            draft_layers=replica.speculative.draft_layers if replica.speculative else 0,
        )
        blocks = plan.num_kv_blocks if blocks is None else blocks
    weights = model.weight_bytes_per_rank(replica.parallelism, pool.timing.dtype) * replica.num_gpus
    return Kind(
        pool.num_replicas,
        pool.device,
        device,
        pool.node,
        replica,
        batching,
        pool.timing,
        plan,
        blocks,
        longest,
        pool.role,
        weights,
    )


def _check_traits(policy: PolicySpec, replica: ReplicaConfig, batching: ResolvedBatching) -> None:
    """Refuse what the policy would leave unread."""
    if replica.pipeline_parallel > 1 and not policy.has_stages:
        raise ConfigError(
            f"{policy.name} has no pipeline stages.", where="replica.pipeline_parallel", fix="Set it to 1."
        )
    if replica.speculative and not policy.speculates:
        raise ConfigError(
            f"speculative decoding is not part of {policy.name}.",
            where="replica.speculative",
            fix=f"Use {' or '.join(name for name in POLICIES.names() if POLICIES[name].speculates)}.",
        )
    policy.numbers(batching.options)
    has = {
        "prefix_cache": policy.has_prefix_cache,
        "max_chunk_tokens": policy.has_chunk_cap,
        "overlap": policy.overlaps,
    }
    for setting, is_read in has.items():
        if getattr(batching, setting) and not is_read:
            raise ConfigError(f"{policy.name} has no {setting}.", where=f"batching.{setting}", fix="Leave it out.")


@dataclass(frozen=True)
class Times:
    """The iteration tables of all kinds, one below the other, and what is to be said about them."""

    tables: IterationTables
    notes: list[str]
    baked: tuple[timing.Baked, ...] = ()
    timers: tuple[timing.Timer | None, ...] = ()
    """Of every kind, where its iterations are from; None where they were given."""

    @property
    def spread(self) -> float:
        """Standard deviation to expect of a real server's iterations around the simulated ones."""
        return max((one.spread for one in self.baked), default=0.0)

    @property
    def first_token_spread(self) -> float:
        """Standard deviation to expect of a server's times to the first token, beside its iterations'."""
        return max((one.first_token_spread for one in self.baked), default=0.0)


@dataclass(frozen=True)
class _Place:
    """What operator times depend on."""

    model: str
    device: str
    node: str | None
    parallelism: Parallelism
    config: timing.TimingConfig

    @property
    def context(self) -> timing.Context:
        """The facts behind the names."""
        device = catalog.device(self.device)
        node = catalog.node(self.node) if self.node else catalog.default_node(device)
        return timing.Context(catalog.model(self.model), device, node, self.parallelism, self.config)


def _place_of(model: str, kind: Kind) -> _Place:
    return _Place(model, kind.device_name, kind.node, kind.replica.parallelism, kind.timing)


def bake(model: str, kinds: list[Kind], requests: Requests) -> Times:
    """Bake every kind's timing, with maxima that cover whatever its policy may put into one iteration."""
    longest = int(requests.total_tokens.max())
    max_sequences = max(kind.max_in_batch * kind.tokens_per_decode for kind in kinds)
    max_tokens = max(kind.max_iteration_tokens(requests) for kind in kinds)
    limits = (max_tokens, max_sequences, longest)
    baked, tables, timers = [], [], []
    for kind in kinds:
        place = _place_of(model, kind)
        target = _bake(place, *limits, kind.tokens_per_decode)
        baked.append(target)
        timers.append(target.timer)
        tables.append(target.tables)
        speculative = kind.replica.speculative
        if speculative and (speculative.draft_model or speculative.draft_layers):
            name = speculative.draft_model
            if name:
                place = replace(place, model=name, parallelism=place.parallelism.suited_to(catalog.model(name)))
                baked.append(_bake(place, *limits, 1))
                draft = baked[-1].tables
            else:
                share = speculative.draft_layers / catalog.model(model).num_layers
                draft = draft_head(_bake(place, *limits, 1).tables, share)
            each_s = kind.timing.host.draft_sequence_s if kind.timing.host else 0.0
            groups = kind.replica.data_parallel
            tables[-1] = with_draft(target.tables, draft, speculative.num_tokens, num_groups=groups, sequence_s=each_s)
    notes = list(dict.fromkeys(note for one in baked for note in one.notes))
    return Times(stack(tables), notes, tuple(baked), tuple(timers))


def other_timer(model: str, kind: Kind, source: str) -> timing.Timer:
    """A kind's iterations from another source."""
    config = kind.timing.model_copy(update={"source": source, "path": None})
    place = replace(_place_of(model, kind), config=config)
    return timing.Timer(place.context, source=_source(place))


def no_times(kinds: list[Kind]) -> Times:
    """Nothing takes time: for runs whose stage times are replayed."""
    return Times(blank(sum(kind.replica.pipeline_parallel for kind in kinds)), [])


@lru_cache(maxsize=16)
def _source(place: _Place) -> timing.Source:
    """What the times are from, with all that it has read and fitted: the same for all limits of an iteration."""
    place.parallelism.check(catalog.model(place.model))
    return timing.make_source(place.context)


@lru_cache(maxsize=32)
def _known(place: _Place) -> timing.Known:
    """What the operators of a place are known to take: replicas that differ in their limits share it."""
    return {}


@lru_cache(maxsize=128)
def _bake(place: _Place, max_tokens: int, max_sequences: int, max_kv_tokens: int, each: int) -> timing.Baked:
    """`iteration_tables`, remembered: a search simulates the same replica many times."""
    is_given = timing.SOURCES[place.config.source].gives_iterations
    return timing.iteration_tables(
        catalog.model(place.model),
        catalog.device(place.device),
        place.parallelism,
        node=catalog.node(place.node) if place.node else None,
        config=place.config,
        max_tokens=max_tokens,
        max_sequences=max_sequences,
        max_kv_tokens=max_kv_tokens,
        tokens_per_decode=each,
        source=None if is_given else _source(place),
        known=_known(place),
    )
