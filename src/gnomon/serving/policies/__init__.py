"""Batching policies: what one iteration of a replica runs.

A policy is one function that looks at a `Replica` and places requests into its batch with what stands in
`engine.batch_operations`. It is called when a batch may be formed (at arrivals and batch ends) and may place nothing.
Contract: every request that it takes from the waiting queue or from `running` is placed, put back, or pre-empted;
blocks are held before a request computes into them.

A policy that gives every decode its token in the same iterations may say so with `state.steppable = 1` and start with
`place_together`: the engine then keeps those decodes as one, which is much faster (see `engine.decode_group`). With
`state.steppable = 2` it also says that it does nothing else while nothing waits, and is then not asked at every step.

What the rest of Gnomon must know of a policy stands beside it, as fields of `PolicySpec`:

    @batching_policy("mine", defaults={"max_sequences": 64}, mixes=False)
    def mine(replica): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gnomon.core.errors import UnknownNameError
from gnomon.core.registry import Registry

if TYPE_CHECKING:  # The state brings Numba along, which `--help` need not wait for.
    from gnomon.serving.engine.state import Replica

BatchingPolicy = Callable[["Replica"], None]

COMMON_DEFAULTS: dict[str, Any] = {
    "max_sequences": 128, "max_batch_tokens": 4096, "block_size": 16, "watermark": 0.01, "prefix_cache": False,
}  # fmt: skip
"""Settings of `batching` where neither the scenario nor the policy gives them."""

UNBOUNDED = 1 << 40  # `max_batch_tokens` where the policy does not read it: tokens that no batch has.


@dataclass(frozen=True)
class PolicySpec:
    """A registered batching policy with all its traits. The defaults are the safe ones for a policy of one's own."""

    name: str
    form_batch: BatchingPolicy
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Its own settings of `batching` where the scenario gives none, over `COMMON_DEFAULTS`."""
    max_sequences_of: Literal["replica", "stages", "batch"] = "replica"
    """What `max_sequences` counts: the running requests of the replica, all of which may be in one batch (replica);
    the same, but a batch has at most its pipeline stage's share of them (stages); or the requests of each batch, one
    of which every pipeline stage has (batch)."""
    max_batch_tokens_of: Literal["iteration", "prefill", "chunks", "nothing"] = "chunks"
    """What `max_batch_tokens` bounds: all tokens of an iteration, but for decodes, which run in any case (iteration);
    those of a batch that only prefills (prefill); those of the prompts, to which decodes come on top (chunks); or it
    is not read, so that a batch is as large as its prompts (nothing)."""
    chunks_prompts: bool = True
    """A prompt may be computed in several iterations. If not, one that exceeds `max_batch_tokens` is never admitted."""
    chunks_if: str = ""
    """The option that says whether it does, where it has one."""
    mixes: bool = True
    """One iteration may both prefill and decode."""
    reserves: Literal["prompt", "request", "longest"] = "prompt"
    """The tokens whose blocks must be there for an admission: those of the prompt, of the whole request, or of the
    longest request that is accepted (`replica.max_request_tokens`)."""
    has_prefix_cache: bool = True
    """It can find KV blocks again (`batching.prefix_cache`)."""
    has_chunk_cap: bool = True
    """It reads `batching.max_chunk_tokens`."""
    engine: str = ""
    """The engine that schedules like this today and can be started with the same settings, e.g. vllm."""
    speculates: bool = False
    """Its decodes compute `state.num_speculative` more tokens (`replica.speculative`)."""
    recomputes_last_token: bool = False
    """A request whose KV comes from elsewhere computes its last prompt token once more, for the first token."""
    overlaps: bool = True
    """It can form a batch before the results of the one before are known (`batching.overlap`)."""
    launches_first: bool = False
    """Where it does, it launches the batch before it takes in those results."""
    has_stages: bool = True
    """It works with pipeline parallelism."""
    holds_back: str = ""
    """Why it may leave a request waiting although there are places, tokens and memory for it; its name goes before."""
    options: Mapping[str, float] = field(default_factory=dict)
    """What `batching.options` may set, with defaults; the policy reads them from `replica.parameters` in this order."""
    memory: int = 0
    """Numbers of memory per replica, which it keeps in `replica.memory` from one batch to the next."""

    def __post_init__(self) -> None:
        for setting in self.defaults:
            if setting not in COMMON_DEFAULTS:
                raise UnknownNameError("default of a batching policy", setting, COMMON_DEFAULTS, where=self.name)

    def numbers(self, options: Mapping[str, float]) -> list[float]:
        """The options' values in their order."""
        for name in options:
            if name not in self.options:
                raise UnknownNameError(f"option of {self.name}", name, self.options, where="batching.options")
        return [float(options.get(name, default)) for name, default in self.options.items()]


POLICIES: Registry[PolicySpec] = Registry(
    "batching policy",
    PolicySpec,
    built_in={
        name: f"gnomon.serving.policies.{name}"
        for name in (
            "vllm_v1", "sglang", "trtllm", "vllm", "sarathi", "orca", "faster_transformer", "lightllm", "priority",
            "vtc", "drr", "dlpm",
        )
    },
    where="batching.policy",
)  # fmt: skip


def batching_policy(name: str, **traits: Any) -> Callable[[BatchingPolicy], BatchingPolicy]:
    """Register a batching policy under `name`; `traits` are the fields of its `PolicySpec`."""
    return POLICIES.register(name, **traits)
