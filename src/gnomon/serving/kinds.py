"""Kinds of replica: what a scenario says of them, checked, with memory planned and times baked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gnomon import catalog, timing
from gnomon.catalog import Device, MemoryPlan, Model
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.serving.policies import policy_names
from gnomon.serving.scenario import BatchingConfig, PoolConfig, ReplicaConfig, Scenario
from gnomon.timing.iteration import IterationTables, blank, stack
from gnomon.timing.speculative import with_draft
from gnomon.workload import Requests

_RESERVING = ("orca", "faster_transformer")
"""Policies that hold memory for the longest possible request."""
_WITHOUT_CACHE = ("vllm", "sarathi", "orca", "faster_transformer", "lightllm")


@dataclass(frozen=True)
class Kind:
    """One kind of replica with everything resolved."""

    num_replicas: int
    device_name: str
    """As the scenario says: a built-in name or the path of a file."""
    device: Device
    node: str | None
    replica: ReplicaConfig
    batching: BatchingConfig
    timing: timing.TimingConfig
    plan: MemoryPlan | None
    num_kv_blocks: int
    max_request_tokens: int

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
        """Requests that may hold blocks at once."""
        cap = _given(self.batching.max_sequences)
        return cap * self.replica.pipeline_parallel if self.batching.policy in _RESERVING else cap

    @property
    def max_in_batch(self) -> int:
        """Requests in one batch."""
        cap = _given(self.batching.max_sequences)
        if self.batching.policy in _RESERVING:
            return min(cap, self.plan.max_batch) if self.plan and self.plan.max_batch else cap
        if self.batching.policy in ("vllm", "sarathi", "lightllm"):
            return max(1, cap // self.replica.pipeline_parallel)
        return cap

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decode computes: its own, and those drafted."""
        return 1 + (self.replica.speculative.num_tokens if self.replica.speculative else 0)

    def max_iteration_tokens(self, requests: Requests) -> int:
        """The most tokens that one iteration can have."""
        in_batch = min(self.max_in_batch, len(requests))
        if self.batching.policy in _RESERVING:
            return in_batch * int(requests.total_tokens.max())
        decodes = in_batch * self.tokens_per_decode
        if self.batching.policy in ("vllm_v1", "sglang"):
            return max(_given(self.batching.max_batch_tokens), decodes)
        return _given(self.batching.max_batch_tokens) + decodes


def _given(value: int | None) -> int:
    assert value is not None, "resolved() fills it in"
    return value


def resolve(scenario: Scenario, model: Model) -> list[Kind]:
    """Check every kind of replica of a scenario, and plan its memory."""
    return [_resolve_one(model, pool) for pool in scenario.kinds()]


def _resolve_one(model: Model, pool: PoolConfig) -> Kind:
    replica, batching = pool.replica, pool.batching
    assert replica is not None and batching is not None and pool.device is not None and pool.timing is not None
    if batching.policy not in policy_names():
        raise UnknownNameError("batching policy", batching.policy, policy_names())
    if batching.policy == "lightllm" and replica.pipeline_parallel > 1:
        raise ConfigError("lightllm has no pipeline stages.", where="replica.pipeline_parallel", fix="Set it to 1.")
    if replica.speculative and batching.policy != "vllm_v1":
        raise ConfigError(
            f"speculative decoding is not part of {batching.policy}.", where="replica.speculative", fix="Use vllm_v1."
        )
    unused = [key for key in ("prefix_cache", "max_chunk_tokens") if getattr(batching, key)]
    if unused and batching.policy in _WITHOUT_CACHE:
        raise ConfigError(f"{batching.policy} has no {unused[0]}.", where=f"batching.{unused[0]}", fix="Leave it out.")
    device = catalog.device(pool.device)
    longest = replica.max_request_tokens or model.max_context_tokens
    plan = None
    if replica.num_kv_blocks is None or batching.policy in _RESERVING:
        plan = catalog.plan_memory(
            model,
            device,
            replica.parallelism,
            planner=replica.planner,
            dtype=pool.timing.dtype,
            kv_dtype=pool.timing.kv_dtype,
            block_size=_given(batching.block_size),
            memory_utilization=replica.memory_utilization,
            max_tokens=longest,
            max_batched_tokens=_given(batching.max_batch_tokens),
            max_sequences=_given(batching.max_sequences),
        )
    blocks = replica.num_kv_blocks
    if blocks is None:
        assert plan is not None
        blocks = plan.num_kv_blocks
    return Kind(
        pool.num_replicas, pool.device, device, pool.node, replica, batching, pool.timing, plan, blocks, longest
    )


@dataclass(frozen=True)
class Times:
    """The iteration tables of all kinds, one below the other, and what is to be said about them."""

    tables: IterationTables
    notes: list[str]
    uncertainty: float


def bake(model: str, kinds: list[Kind], requests: Requests) -> Times:
    """Bake every kind's timing, with maxima that cover whatever its policy may put into one iteration."""
    longest = int(requests.total_tokens.max())
    max_sequences = max(kind.max_in_batch * kind.tokens_per_decode for kind in kinds)
    max_tokens = max(kind.max_iteration_tokens(requests) for kind in kinds)
    baked, tables = [], []
    for kind in kinds:
        place = (kind.device_name, kind.node, kind.replica.parallelism, kind.timing, max_tokens, max_sequences, longest)
        target = _bake(model, *place)
        baked.append(target)
        tables.append(target.tables)
        if kind.replica.speculative and kind.replica.speculative.draft_model:
            draft = _bake(kind.replica.speculative.draft_model, *place)
            baked.append(draft)
            tables[-1] = with_draft(target.tables, draft.tables, kind.tokens_per_decode - 1)
    notes = list(dict.fromkeys(note for one in baked for note in one.notes))
    return Times(stack(tables), notes, max(one.uncertainty for one in baked))


def no_times(kinds: list[Kind]) -> Times:
    """Nothing takes time: for runs whose stage times are replayed."""
    return Times(blank(sum(kind.replica.pipeline_parallel for kind in kinds)), [], 0.0)


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
