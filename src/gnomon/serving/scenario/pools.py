"""The pools of a scenario, checked, with memory planned and times baked."""

from dataclasses import dataclass, replace
from functools import lru_cache

from gnomon import catalog, timing
from gnomon.catalog import Parallelism
from gnomon.catalog.power import clock_under_cap
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import check_memory
from gnomon.serving.policies import POLICIES
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.lora import adapter_bytes
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.power import PowerConfig
from gnomon.serving.scenario.sampling import asked_for, era_of, sampler
from gnomon.timing.iteration import IterationTables, blank, draft_head, stack, with_draft
from gnomon.timing.operators.sampling import SamplerConfig
from gnomon.workload import Requests, limit_lengths

MAX_POLICIES = 4  # Different batching policies in one fleet: a fixed number, so that the engine is compiled once.

PER_REQUEST = 700
"""Bytes: drawn lengths and arrivals, the request's state, its share of the log. Measured with a million requests."""
PER_RANK = 4_000  # Bytes of a replica's (or data-parallel rank's) state and queues; measured with 10,000 replicas.
PER_BLOCK = 80  # Bytes of a KV block that can be found again by its content, where prompts share prefixes.


def check_size(scenario: Scenario, num_requests: int = 0) -> None:
    """Refuse a scenario that this machine's memory cannot hold."""
    total = PER_REQUEST * float(num_requests or scenario.workload.num_requests or 0)
    shares_prefixes = scenario.workload.sessions is not None or scenario.workload.trace is not None
    for pool in scenario.all_pools():
        ranks = pool.num_replicas * (pool.replica.data_parallel if pool.replica else 1)
        blocks = (pool.replica.num_kv_blocks if pool.replica else None) or 0
        total += ranks * (PER_RANK + (PER_BLOCK * blocks if shares_prefixes else 0))
    check_memory(total, "the simulation", where="scenario", fix="Use fewer requests or replicas.")


def resolve(scenario: Scenario, requests: Requests | None = None) -> list[Pool]:
    """The pools of a scenario, checked and with memory planned; for models with windows or states, by the mean length
    of `requests`."""
    typical = round(requests.total_tokens.mean()) if requests is not None and len(requests) else None
    adapters = requests is not None and len(requests.adapter) > 0
    lora = scenario.lora
    slots = lora.max_loaded * adapter_bytes(catalog.model(scenario.model), max(lora.ranks)) if adapters else 0.0
    pools = [_sampling(_capped(pool, scenario.power), scenario, requests) for pool in scenario.all_pools()]
    pools = [replace(pool, typical_tokens=typical, adapter_bytes=slots) for pool in pools]
    for pool in pools:
        _check(pool)
    fleet = scenario.fleet
    if fleet is not None and fleet.switch_s is not None:
        _check_sharing(pools)
    if fleet is not None and (places := fleet.places([pool.num_replicas for pool in pools])) is not None:
        pools = [_with_places(pool, places) for pool in pools]
    count = len(policies_of(pools))
    if count > MAX_POLICIES:
        raise ConfigError(f"a fleet may mix at most {MAX_POLICIES} batching policies, not {count}.", where="pools")
    return pools


def _capped(pool: Pool, power: PowerConfig) -> Pool:
    """A pool whose GPUs keep to the power cap by a lower clock, unless the scenario says at which one they run."""
    facts = power.facts(pool.device.name)
    if power.cap_w is None or pool.timing.clock != 1.0:
        return pool
    if facts is None:
        fix = "Give power.idle_w and power.max_w."
        raise ConfigError(f"the power of {pool.device_name} is not known.", where="power.cap_w", fix=fix)
    clock = clock_under_cap(facts, power.cap_w)
    return replace(pool, timing=pool.timing.model_copy(update={"clock": clock}))


def _sampling(pool: Pool, scenario: Scenario, requests: Requests | None) -> Pool:
    """A pool whose timing knows how its engine chooses the tokens that requests ask for, unless the scenario says."""
    if "sampling" in pool.timing.free:
        return replace(pool, timing=pool.timing.model_copy(update={"sampler": SamplerConfig()}))
    if pool.timing.sampler != SamplerConfig():
        return pool
    eras = engine(scenario.engine.name).sampling if scenario.engine else ()
    era = era_of(eras, pool.timing.engine_version) if eras else None
    chosen = sampler(asked_for(scenario, era), era, requests)
    return replace(pool, timing=pool.timing.model_copy(update={"sampler": chosen}))


def _with_places(pool: Pool, places: int) -> Pool:
    """A pool of a fleet that may grow: as many places as it may have replicas at once."""
    if pool.num_replicas > places:
        what = f"{pool.num_replicas} replicas are more than fleet.max_replicas ({places})."
        raise ConfigError(what, where="fleet.max_replicas", fix=f"Begin with {places} or fewer: num_replicas.")
    return replace(pool, num_replicas=places)


def _check_sharing(pools: list[Pool]) -> None:
    """Refuse pools whose replicas cannot take each other's GPUs."""
    if len({(pool.device_name, pool.node, pool.replica.num_gpus) for pool in pools}) > 1 or len(pools) < 2:
        what = "only pools whose replicas have as many GPUs of one kind can share them."
        fix = "Give two pools, each with the same device, node and number of GPUs a replica, or leave it out."
        raise ConfigError(what, where="fleet.switch_s", fix=fix)


def policies_of(pools: list[Pool]) -> list[str]:
    """The different policies of a fleet, in the order in which replicas refer to them."""
    return list(dict.fromkeys(pool.batching.policy for pool in pools))


def accepted(scenario: Scenario, pools: list[Pool], requests: Requests) -> Requests:
    """The requests with those treated that are too long for one of the pools."""
    return limit_lengths(requests, min(pool.max_request_tokens for pool in pools), scenario.workload.over_long)


def _check(pool: Pool) -> None:
    """Refuse what does not fit, and what the policy would leave unread."""
    policy, replica, batching = pool.policy, pool.replica, pool.batching
    if replica.pipeline_parallel > 1 and not policy.has_stages:
        fix = "Set it to 1."
        raise ConfigError(f"{policy.name} has no pipeline stages.", where="replica.pipeline_parallel", fix=fix)
    if replica.speculative and not policy.speculates:
        fix = f"Use {' or '.join(name for name in POLICIES.names() if POLICIES[name].speculates)}."
        raise ConfigError(f"speculative decoding is not part of {policy.name}.", where="replica.speculative", fix=fix)
    policy.numbers(batching.options)
    has = {
        "prefix_cache": policy.has_prefix_cache, "max_chunk_tokens": policy.has_chunk_cap, "overlap": policy.overlaps,
    }  # fmt: skip
    for setting, is_read in has.items():
        if getattr(batching, setting) and not is_read:
            raise ConfigError(f"{policy.name} has no {setting}.", where=f"batching.{setting}", fix="Leave it out.")
    assert pool.num_kv_blocks >= 0 and pool.weight_bytes > 0.0, "planned here, so that what does not fit is said first"


@dataclass(frozen=True)
class Times:
    """The iteration tables of all pools, one below the other, and what is to be said about them."""

    tables: IterationTables
    notes: list[str]
    baked: tuple[timing.Baked, ...] = ()
    timers: tuple[timing.Timer | None, ...] = ()
    """Of every pool, where its iterations are from; None where they were given."""

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
        device = catalog.device(self.device)
        node = catalog.node(self.node) if self.node else catalog.default_node(device)
        return timing.Context(catalog.model(self.model), device, node, self.parallelism, self.config)


def _place_of(model: str, pool: Pool) -> _Place:
    return _Place(model, pool.device_name, pool.node, pool.replica.parallelism, pool.timing)


def bake(model: str, pools: list[Pool], requests: Requests) -> Times:
    """Bake every pool's timing, with maxima that cover whatever its policy may put into one iteration."""
    longest = int(requests.total_tokens.max())
    max_sequences = max(pool.max_in_batch * pool.tokens_per_decode for pool in pools)
    max_tokens = max(pool.max_iteration_tokens(requests) for pool in pools)
    limits = (max_tokens, max_sequences, longest)
    baked, tables, timers = [], [], []
    for pool in pools:
        place = _place_of(model, pool)
        target = _bake(place, *limits, pool.tokens_per_decode)
        baked.append(target)
        timers.append(target.timer)
        tables.append(target.tables)
        speculative = pool.replica.speculative
        if speculative and (speculative.draft_model or speculative.draft_layers):
            name = speculative.draft_model
            if name:
                place = replace(place, model=name, parallelism=place.parallelism.suited_to(catalog.model(name)))
                baked.append(_bake(place, *limits, 1))
                draft = baked[-1].tables
            else:
                share = speculative.draft_layers / catalog.model(model).num_layers
                draft = draft_head(_bake(place, *limits, 1).tables, share)
            each_s = pool.timing.host.draft_sequence_s if pool.timing.host else 0.0
            groups = pool.replica.data_parallel
            tables[-1] = with_draft(target.tables, draft, speculative.num_tokens, num_groups=groups, sequence_s=each_s)
    notes = list(dict.fromkeys(note for one in baked for note in one.notes))
    return Times(stack(tables), notes, tuple(baked), tuple(timers))


def other_timer(model: str, pool: Pool, source: str) -> timing.Timer:
    """A pool's iterations from another source."""
    config = pool.timing.model_copy(update={"source": source, "path": None})
    place = replace(_place_of(model, pool), config=config)
    return timing.Timer(place.context, source=_source(place))


def no_times(pools: list[Pool]) -> Times:
    """Nothing takes time: for runs whose stage times are replayed."""
    return Times(blank(sum(pool.replica.pipeline_parallel for pool in pools)), [])


@lru_cache(maxsize=32)
def _source(place: _Place) -> timing.Source:
    """What the times are from, with all that it has read and fitted: the same for all limits of an iteration."""
    place.parallelism.check(catalog.model(place.model))
    return timing.make_source(place.context)


@lru_cache(maxsize=32)
def _known(place: _Place) -> timing.Known:
    """What is known of a place: replicas that differ in their limits share it."""
    return timing.Known()


@lru_cache(maxsize=128)
def _bake(place: _Place, max_tokens: int, max_sequences: int, max_kv_tokens: int, each: int) -> timing.Baked:
    """`iteration_tables`, remembered: a search simulates the same replica many times."""
    is_given = timing.SOURCES[place.config.source].gives_iterations
    return timing.iteration_tables(
        catalog.model(place.model), catalog.device(place.device), place.parallelism,
        node=catalog.node(place.node) if place.node else None, config=place.config, max_tokens=max_tokens,
        max_sequences=max_sequences, max_kv_tokens=max_kv_tokens, tokens_per_decode=each,
        source=None if is_given else _source(place), known=_known(place),
    )  # fmt: skip
