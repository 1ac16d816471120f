"""The sections of a serving scenario."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from gnomon.catalog import Parallelism
from gnomon.catalog.memory import Planner
from gnomon.core.config import Choice, Config
from gnomon.core.errors import ConfigError
from gnomon.core.sizes import BatchTokens, Blocks, Count, CountOrNone, DraftTokens, Sequences, Tokens
from gnomon.serving.policies import COMMON_DEFAULTS, POLICIES
from gnomon.serving.scenario.acceptance import Acceptance, chances

Share = Annotated[float, Field(gt=0, le=1)]
LengthsKnown = Literal["none", "noisy", "oracle"]
QUEUE_DEPTH = 8
"""Requests at the head of each queue that a learned router looks at, unless it was made for another number."""


class SpeculativeConfig(Config):
    """Speculative decoding: a cheap draft, checked by the model several tokens at a time."""

    num_tokens: DraftTokens
    """Tokens drafted per iteration."""
    acceptance: Acceptance = 0.7
    """Chance that a drafted token is accepted, given that those before it were: one number, a list by position (the
    last goes on), or a measured curve by its name, e.g. deepseek-v4-mtp or kimi-k2.5-eagle3 (docs/engines.md)."""
    draft_model: str | None = None
    """Model that drafts, one token at a time."""
    draft_layers: CountOrNone = 0
    """Layers of a head that drafts instead (multi-token prediction, EAGLE: 1): each drafted token takes so many of the
    model's own layers, and its output head. With 0 and no draft model, drafting is free."""

    @model_validator(mode="after")
    def _known_acceptance(self) -> SpeculativeConfig:
        chances(self.acceptance, self.num_tokens)
        if self.draft_model is not None and self.draft_layers:
            raise ConfigError("draft_model and draft_layers both say what drafts.", where="replica.speculative")
        return self


class ReplicaConfig(Parallelism):
    """One copy of the model: how it is spread over GPUs, and its memory."""

    memory_utilization: Share = 0.9
    """Share of each GPU's memory that may be used: for all (vLLM), for weights and KV cache (planner sglang); or share
    of what weights and activations leave free that the KV cache takes (planner trtllm)."""
    num_kv_blocks: Blocks | None = None
    """KV blocks, if known; else planned from what weights and activations leave free."""
    planner: Planner = "gnomon"
    """How KV blocks are planned: as vLLM finds them (gnomon), as SGLang or TensorRT-LLM do, or by Vidur's formula."""
    max_request_tokens: Tokens | None = None
    """Longest prompt + output that is accepted; the model's context if not given."""
    speculative: SpeculativeConfig | None = None
    """Speculative decoding; a batching policy that does not know it is refused."""

    @property
    def draft_model(self) -> str | None:
        return self.speculative.draft_model if self.speculative else None

    @property
    def parallelism(self) -> Parallelism:
        """The degrees of parallelism alone."""
        return Parallelism(**{name: getattr(self, name) for name in Parallelism.model_fields})


_WERE_SETTINGS = {"max_waiting_iterations": 10, "reserve_full_prompt": True}
"""What is an option of some policies now, and what it was where nobody said anything."""


class BatchingConfig(Choice):
    """What one iteration of a replica runs. What is not given follows the policy's own defaults."""

    shorthand: ClassVar[str] = "policy"

    policy: str = "vllm_v1"
    """{gnomon.serving.policies.POLICIES}, or your own."""
    file: str | None = None
    """Python file that registers your own policy."""
    max_sequences: Sequences | None = None
    """Requests that may run at once (batch cap)."""
    max_batch_tokens: BatchTokens | None = None
    """Tokens of one iteration: the budget of engines that mix, the chunk of sarathi, the most of a prefill batch where
    prefills run alone."""
    max_chunk_tokens: BatchTokens | None = None
    """Most tokens of one prompt in one iteration (vllm_v1: long_prefill_token_threshold)."""
    block_size: Tokens | None = None
    """Tokens per KV block."""
    watermark: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the blocks that admission leaves free."""
    prefix_cache: bool | None = None
    """Find KV blocks again by what they hold."""
    overlap: bool = False
    """Form every batch while the one before it runs, from what is known then: a request that comes meanwhile is first
    computed in the batch after. Not with pipeline stages, which have batches of their own in flight."""
    surplus_token: bool = False
    """With `overlap`, a request is in one batch more after its last token: always where a stop token ends it, and in
    engines that do not look ahead for its length either."""
    options: dict[str, float] = Field(default_factory=dict)
    """Options of the policy, e.g. {wait_iterations: 20} for trtllm (docs/engines.md)."""
    parameters: tuple[float, ...] = ()
    """Numbers for your own policy; they follow its options."""

    @model_validator(mode="before")
    @classmethod
    def _options_of_before(cls, data: Any) -> Any:
        """Read what was a setting of all policies and is an option of one, as saved scenarios have it."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for name in [one for one in _WERE_SETTINGS if one in data]:
            value, policies = data.pop(name), [one for one in POLICIES if name in POLICIES[one].options]
            if data.get("policy", "vllm_v1") in policies:
                data["options"] = {name: float(value), **(data.get("options") or {})}
            elif value != _WERE_SETTINGS[name]:
                fix = f"Leave it out, or choose {policies[0]} and write options: {{{name}: {float(value):g}}}."
                raise ConfigError(f"{name} is an option of {', '.join(policies)}.", where=f"batching.{name}", fix=fix)
        return data

    def resolved(self) -> ResolvedBatching:
        """This section with the policy's defaults filled in."""
        given = self.model_dump(exclude_unset=True, exclude_none=True)
        return ResolvedBatching(**{**COMMON_DEFAULTS, **POLICIES[self.policy].defaults, **given})


class ResolvedBatching(BatchingConfig):
    """Batching with nothing left open."""

    max_sequences: Sequences
    max_batch_tokens: BatchTokens
    block_size: Tokens
    watermark: float
    prefix_cache: bool


class RouterConfig(Choice):
    """Which replica gets an arriving request."""

    name: str = "round_robin"
    """{gnomon.serving.routers.ROUTERS}, or your own."""
    file: str | None = None
    """Python file that registers your own router."""
    options: dict[str, float] = Field(default_factory=dict)
    """Options of the router, e.g. {load_weight: 2}."""
    lengths: LengthsKnown = "none"
    """What routers that predict latencies know of output lengths: none (they go by what was produced so far), noisy
    (the truth times a log-normal error), oracle (the truth)."""
    length_noise: NonNegativeFloat = 0.5
    """Standard deviation of the logarithm of the error of noisy lengths."""
    checkpoint: str | None = None
    """Policy file of learned; the one that comes with Gnomon if not given."""


class AdmissionConfig(Choice):
    """Whether an arriving request is let in at all."""

    name: str = "everyone"
    """{gnomon.serving.admission.ADMISSIONS}, or your own."""
    file: str | None = None
    """Python file that registers your own."""
    options: dict[str, float] = Field(default_factory=dict)
    """Its options, e.g. {max_waiting: 20}."""


class FrontEndConfig(Config):
    """What lies between the scheduler and the client: latencies are those that the client sees."""

    per_request_s: NonNegativeFloat = 0.0
    """Seconds to take in a request (HTTP, parsing), one after another."""
    per_prompt_token_s: NonNegativeFloat = 0.0
    """Seconds to tokenise one token of a prompt, one request after another."""
    workers: Sequences = 1
    """Requests of one replica that are taken in at the same time."""
    per_replica: bool = False
    """Each replica is a server with a front end of its own, behind the router; otherwise one front end takes requests
    in before the router looks."""
    reply_s: NonNegativeFloat = 0.0
    """Seconds from a token to the client: detokenising, and the way back."""
    per_message_s: NonNegativeFloat = 0.0
    """Seconds to write one message of a stream; a replica writes one after another."""
    stream_interval: Count = 1
    """Tokens per message of a stream; the first token is always sent alone."""

    @property
    def takes_no_time(self) -> bool:
        """Whether the client sees what the scheduler sees."""
        return not (self.per_request_s or self.per_prompt_token_s or self.reply_s or self.per_message_s)


class DeciderConfig(Choice):
    """Whether a request is prefilled elsewhere, or where it decodes."""

    name: str = "always"
    """{gnomon.serving.deciders.DECIDERS}, or your own."""
    file: str | None = None
    """Python file that registers your own decider."""
    options: dict[str, float] = Field(default_factory=dict)
    """Options of the decider, e.g. {tokens: 2048}."""


class DisaggregationConfig(Config):
    """How requests get from the pool that prefills them to the pool that decodes them. `router` chooses among prefill
    replicas."""

    decode_router: RouterConfig = RouterConfig(name="least_outstanding")
    """Which replica decodes a request; it is asked first."""
    decider: DeciderConfig = DeciderConfig()
    """Whether it is prefilled elsewhere."""
    link: Literal["network", "nvlink"] = "network"
    """What the KV moves over: the network between nodes, or NVLink inside one."""
    bandwidth_gb_s: PositiveFloat | None = None
    """GB/s of each GPU in one direction; those of the node's link if not given."""
    latency_s: NonNegativeFloat = 0.001
    """Seconds of a transfer beside its bytes: setting up, completion."""
    hop_s: NonNegativeFloat = 0.0
    """Seconds from the end of a prefill until the decode replica learns of it."""
    moves: Literal["whole", "by_layer"] = "whole"
    """KV moves when the whole prompt is computed, or layer by layer while it is."""
    first_token: Literal["auto", "decode", "transfer", "prefill"] = "auto"
    """Who gives the first token: the decode replica, which computes the last prompt token once more (vLLM), or the
    prefill replica, with the KV (SGLang, TensorRT-LLM) or at once. [decode where the batching policy computes it again,
    else transfer]"""
    timeout_s: PositiveFloat = 480.0
    """Seconds that a prefilled request waits for KV blocks; then its KV is dropped, and it is prefilled where it
    decodes (vLLM's NIXL connector: 480)."""
    down_s: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """From when to when nothing moves between pools: requests that arrive meanwhile are prefilled where they decode."""


class TierConfig(Config):
    """A place for KV beyond the GPU."""

    size_gb: PositiveFloat
    """GB for KV: of each replica, or of the shared store."""
    bandwidth_gb_s: PositiveFloat
    """GB/s at which KV is loaded: of each replica, or of the shared store."""
    latency_s: NonNegativeFloat = 0.0
    """Seconds of a load beside its bytes."""
    eviction: Literal["lru", "fifo"] = "lru"
    """What goes first when it is full: what was not used for longest, or what was written first."""
    write: Literal["through", "back"] = "through"
    """It gets what is written to the tier above at once, or what that one evicts. The first tier gets what a request
    computed when it ends."""
    down_s: tuple[NonNegativeFloat, NonNegativeFloat] | None = None
    """From when to when it cannot be reached: what it holds is computed meanwhile."""


class PeersConfig(Config):
    """Other replicas' GPUs as a source of KV."""

    bandwidth_gb_s: PositiveFloat
    """GB/s at which a replica gives its KV to others."""
    latency_s: NonNegativeFloat = 0.001
    """Seconds of a load beside its bytes."""


class KvTiersConfig(Config):
    """Where prefixes are kept beyond the GPU, and from where they are loaded; docs/kv-tiers.md."""

    host: TierConfig | None = None
    """Host memory of each replica."""
    ssd: TierConfig | None = None
    """SSDs of each replica."""
    remote: TierConfig | None = None
    """A store that all replicas share."""
    peers: PeersConfig | None = None
    """Pull from the GPUs of other replicas."""
    load: Literal["sooner", "always"] = "sooner"
    """Load what is found only where that is sooner than computing it, or always."""

    @property
    def is_used(self) -> bool:
        return any((self.host, self.ssd, self.remote, self.peers))


class ToolCacheConfig(Config):
    """What becomes of the KV of a call while the tool runs that its session (`workload.agents`, a trace) waits for."""

    keep_s: PositiveFloat | None = None
    """Seconds for which it is held at most, so that nothing else takes its place, until the next call has arrived;
    without it, it gives way to whatever needs the memory."""
    expire_s: PositiveFloat | None = None
    """Seconds without a request that uses it after which KV is not found any more; without it, never."""

    @model_validator(mode="after")
    def _in_order(self) -> ToolCacheConfig:
        if self.keep_s is not None and self.expire_s is not None and self.expire_s < self.keep_s:
            raise ValueError("expire_s must be at least keep_s: what is held cannot expire")
        return self

    @property
    def is_used(self) -> bool:
        return self != ToolCacheConfig()
