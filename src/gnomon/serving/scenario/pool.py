"""A pool: equal replicas, with what follows from their settings."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

import numpy as np

from gnomon import catalog
from gnomon.catalog import Device, MemoryPlan
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import Replicas
from gnomon.core.user_files import is_own, load_user_file
from gnomon.serving.policies import POLICIES, UNBOUNDED, PolicySpec
from gnomon.serving.scenario.config import BatchingConfig, ReplicaConfig, ResolvedBatching
from gnomon.timing import TimingConfig
from gnomon.workload import Requests

Role = Literal["both", "prefill", "decode"]

MOST_RUNNING = 1 << 16  # Requests of a replica that there are places for where no cap is given.


class PoolConfig(Config):
    """Equal replicas in a fleet that has others, too. What is not given is as in the scenario, key by key within its
    sections too; but a pool with another batching policy starts from that policy's defaults."""

    num_replicas: Replicas = 1
    role: Role = "both"
    """prefill and decode: requests move from one to the other (docs/disaggregation.md); both: they stay."""
    device: str | None = None
    node: str | None = None
    replica: ReplicaConfig | None = None
    batching: BatchingConfig | None = None
    timing: TimingConfig | None = None


@dataclass(frozen=True)
class Pool:
    """Equal replicas with every section. What costs something to know (the policy, the memory plan) is found when it is
    first asked for."""

    model: str
    num_replicas: int
    role: Role
    device_name: str
    """As the scenario says: a built-in name or the path of a file."""
    node: str | None
    replica: ReplicaConfig
    given_batching: BatchingConfig
    timing: TimingConfig
    typical_tokens: int | None = None
    """Mean length of the requests, which models with windows or states plan memory by."""
    adapter_bytes: float = 0.0
    """Memory of a replica that LoRA adapters take."""

    @property
    def as_written(self) -> PoolConfig:
        return PoolConfig(
            num_replicas=self.num_replicas, role=self.role, device=self.device_name, node=self.node,
            replica=self.replica, batching=self.given_batching, timing=self.timing,
        )  # fmt: skip

    @cached_property
    def device(self) -> Device:
        return catalog.device(self.device_name)

    @cached_property
    def batching(self) -> ResolvedBatching:
        """Batching with the policy's defaults."""
        if self.given_batching.file is not None:
            load_user_file(self.given_batching.file)
        return self.given_batching.resolved()

    @property
    def policy(self) -> PolicySpec:
        return POLICIES[self.batching.policy]

    @property
    def parameters(self) -> tuple[float, ...]:
        """The numbers that its batching policy reads: its options, then those of the user."""
        return (*self.policy.numbers(self.batching.options), *self.batching.parameters)

    @property
    def num_ranks(self) -> int:
        """Schedulers: replicas, or their data-parallel ranks."""
        return self.num_replicas * self.replica.data_parallel

    @property
    def num_gpus(self) -> int:
        return self.num_replicas * self.replica.num_gpus

    @cached_property
    def weight_bytes(self) -> float:
        per_gpu = catalog.model(self.model).weight_bytes_per_rank(self.replica.parallelism, self.timing.dtype)
        return per_gpu * self.replica.num_gpus

    @cached_property
    def max_request_tokens(self) -> int:
        """The longest request that is accepted."""
        return self.replica.max_request_tokens or catalog.model(self.model).max_context_tokens

    @cached_property
    def plan(self) -> MemoryPlan | None:
        """A replica's memory; None where the scenario gives its KV blocks."""
        replica, batching = self.replica, self.batching
        if replica.num_kv_blocks is not None and self.policy.reserves != "longest":
            return None
        return catalog.plan_memory(
            catalog.model(self.model), self.device, replica.parallelism, planner=replica.planner,
            dtype=self.timing.dtype, kv_dtype=self.timing.kv_dtype, block_size=batching.block_size,
            memory_utilization=replica.memory_utilization, max_tokens=self.max_request_tokens,
            max_batched_tokens=batching.max_batch_tokens, max_sequences=batching.max_sequences,
            sequence_tokens=self.typical_tokens,
            draft=catalog.model(replica.draft_model) if replica.draft_model else None,
            draft_layers=replica.speculative.draft_layers if replica.speculative else 0,
        )  # fmt: skip

    @cached_property
    def num_kv_blocks(self) -> int:
        """KV blocks of a replica: as given, or as planned beside LoRA adapters."""
        if self.replica.num_kv_blocks is not None:
            return self.replica.num_kv_blocks
        assert self.plan is not None
        if not self.adapter_bytes:
            return self.plan.num_kv_blocks
        blocks = self.plan.num_kv_blocks - ceil(self.adapter_bytes / self.replica.num_gpus / self.plan.block_bytes)
        if blocks < 1:
            raise ConfigError("there is no memory left for KV beside the adapters.", where="lora.max_loaded")
        return blocks

    @property
    def max_running(self) -> int:
        """Requests that may hold blocks at once: where a policy of one's own caps batches only, as many as have one."""
        if self.policy.max_sequences_of == "batch" and is_own(self.policy.form_batch):
            return max(self.batching.max_sequences, min(self.num_kv_blocks, MOST_RUNNING))
        batches = self.replica.pipeline_parallel if self.policy.max_sequences_of == "batch" else 1
        return self.batching.max_sequences * batches

    @property
    def max_in_batch(self) -> int:
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
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that a replica can compute; no bound where it does so in several iterations."""
        switch = self.batching.options.get(self.policy.chunks_if, self.policy.options.get(self.policy.chunks_if, 1.0))
        return UNBOUNDED if self.policy.chunks_prompts and switch else self.token_budget

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a decode computes: its own, and those drafted."""
        return 1 + (self.replica.speculative.num_tokens if self.replica.speculative else 0)

    def max_iteration_tokens(self, requests: Requests) -> int:
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
