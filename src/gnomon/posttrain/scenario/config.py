"""The configuration of a post-training run, in the shape that users of such systems have."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from gnomon.core.config import Choice, Config
from gnomon.core.sizes import CountOrNone, Degree, Nodes, Seed, Sequences, Steps, Tokens
from gnomon.serving.scenario.config import SpeculativeConfig
from gnomon.timing import HostPhase

Share = Annotated[float, Field(gt=0, le=1)]
GpuRange = int | str | tuple[int, ...]

Pause = Annotated[float, Field(ge=0, le=1e6)]  # Seconds; beside longer ones everything else is lost in rounding.


class PlacementConfig(Config):
    """Which GPUs each component starts on: `0-3`, `5`, `0-3,8-9`, a list, or `all`."""

    actor: GpuRange = "all"
    """Training."""
    rollout: GpuRange = "all"
    """Generation."""
    inference: GpuRange | None = None
    """Log-probabilities; leave out where they are not recomputed."""


class ClusterConfig(Config):
    """The GPUs and who starts where."""

    num_nodes: Nodes = 1
    gpus_per_node: Degree = 8
    auto_scheduler: bool = False
    """Move GPUs between components during a step: policy payback, or elastic where one of the flags below is given,
    unless `policy` says otherwise."""
    use_pre_process_policy: bool = True
    """elastic: rollout also starts on the actor's GPUs, and leaves them when at most half of the sequences run."""
    use_wait_before_last_iter_policy: bool = False
    """elastic: before the last mini-batch, wait until rollout and inference are done, and train on all GPUs."""
    lend_inference: bool = False
    """elastic: rollout also starts on the inference GPUs."""
    component_placement: PlacementConfig = PlacementConfig()

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


MIN_EFFICIENCY, MAX_EFFICIENCY = 1e-6, 1e6  # Beyond them it is no efficiency but a mistake in a unit.


class ComponentConfig(Config):
    """How one copy of the model is spread over GPUs."""

    tensor_parallel: Degree = 1
    pipeline_parallel: Degree = 1
    efficiency: Annotated[float, Field(ge=MIN_EFFICIENCY, le=MAX_EFFICIENCY)] = 1.0
    """Speed over what is computed (`gnomon posttrain calibrate`); 1 is the speed of `gnomon train step` and of the
    serving engine, whose constants are measured."""

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


class RolloutConfig(ComponentConfig):
    """The generation engines."""

    data_parallel: Degree = 1
    """Ranks of an instance that share the experts of a mixture-of-experts model and step together."""
    expert_parallel: bool = False
    """Whole experts on each GPU of an instance instead of slices of all."""
    max_running_requests: Sequences = 256
    """Sequences that one instance, or each of its data-parallel ranks, runs at once."""
    memory_utilization: Share = 0.85
    """Share of each GPU's memory for weights and KV cache."""
    engine: str = "vllm_v1"
    """Batching policy of the serving engine."""
    preset: str | None = None
    """{gnomon.serving.scenario.engine_presets.engine_names}: host time and kernels as measured on that
    engine's servers; `host` alone if not given."""
    dtype: str = "auto"
    """Number format of the weights, e.g. fp8: the actor's are quantised where they arrive."""
    kv_dtype: Literal["auto", "bf16", "fp8"] = "auto"
    prefix_cache: bool = False
    """Samples of a group share their prompt's KV cache: it is prefilled once on an instance (not with tools)."""
    speculative: SpeculativeConfig | None = None
    """Speculative decoding."""
    host: HostPhase = HostPhase()
    """Time of the engine's own code per iteration; what is not given is the preset's."""
    deal: Literal["groups", "sequences"] = "groups"
    """What goes to the least loaded instance: whole groups, or sequences one by one."""
    migration: Literal["reprefill", "kv_transfer"] = "reprefill"
    """How a moved sequence goes on: prefill its prompt and output again, or take its KV cache along."""

    @property
    def num_gpus(self) -> int:
        return super().num_gpus * self.data_parallel

    @property
    def max_running(self) -> int:
        return self.max_running_requests * self.data_parallel


class TrainingConfig(ComponentConfig):
    """A layout of training, or of its forward pass alone."""

    context_parallel: Degree = 1
    """GPUs that share every sequence."""
    expert_parallel: Degree = 1
    """GPUs over which whole experts are spread; they may belong to several copies."""
    framework: Literal["megatron", "fsdp"] = "megatron"
    """fsdp: parameters are sharded over `shard_gpus`, and sequences over context_parallel GPUs by heads (Ulysses)."""
    shard_gpus: Degree | None = None
    """fsdp: GPUs over which parameters are divided; all of them unless given."""
    max_tokens: Tokens | None = None
    """Tokens that pass a copy at once: sequences are packed up to this; one sequence at a time unless given."""
    precision: Literal["bf16", "fp8"] = "bf16"
    release: str = ""
    """megatron: its release, e.g. 26.02; the newest known unless given."""
    compile: bool = False
    """fsdp: layers go through torch.compile (prime-rl; verl's do not)."""

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


class ActorConfig(TrainingConfig):
    """Training."""

    recompute: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the forward pass that the backward pass runs again (1: full activation recomputation). Unless given,
    none if that fits into the memory, else all."""
    pass_tokens: Tokens | None = None
    """Tokens that pass a copy at once in forward passes alone (`algorithm.actor_passes`); as in training unless
    given."""
    offload: bool = False
    """The optimizer's states wait in the host's memory while others use the GPU."""
    balance: bool = False
    """Deal the groups of a mini-batch to data-parallel ranks by length, longest first, instead of in order."""
    deal: Literal["groups", "sequences"] = "groups"
    """What is dealt to data-parallel ranks: whole groups, or sequences one by one."""


class AlgorithmConfig(Config):
    """What one step is made of, and how far generation may run ahead of training."""

    rollout_batch_size: Steps = 64
    """Prompts per step."""
    group_size: Sequences = 8
    """Samples per prompt."""
    n_minibatches: Sequences = 4
    """Training updates per step."""
    fetch_minibatches: CountOrNone = 0
    """Mini-batches that the actor takes at once, when all their groups are there (verl: require_batches); 0: it starts
    each with its first group."""
    recompute_logprobs: bool = True
    """Run the inference component over the finished sequences."""
    actor_passes: CountOrNone = 0
    """Forward passes that the actor itself runs over the sequences before it trains: old log-probabilities, those of a
    reference model."""
    critic: bool = False
    """The actor's GPUs also train a critic of the same size."""
    mode: Literal["sync", "one_step_off", "async"] | None = None
    """sync: every step trains on what its own weights generated. one_step_off: a step trains on what was generated
    during the step before. async: generation goes on beside training. Unless given, async where `staleness` is above
    0."""
    staleness: NonNegativeFloat = 0.0
    """async: prompts that may be in flight or wait to be trained beyond those of one period between weight syncs, as a
    share of these (verl: staleness_threshold)."""
    max_lag: CountOrNone | None = None
    """async: most weight updates between a group's first token and its training."""
    stale: Literal["wait", "drop"] = "wait"
    """What happens to a group that would become older: the step waits for it, or it is dropped for a new prompt."""
    in_flight: Sequences | None = None
    """Prompts that are generated at once; as many as instances have room for unless given."""
    interrupt: bool = True
    """async: sequences stop for a weight sync and go on with the new weights (verl: partial_rollout); else a sync waits
    until all that run are complete."""
    keep_kv: bool = False
    """async: interrupted sequences keep their KV cache (weights are updated in flight); else they are prefilled
    again."""
    sync_every: Sequences = 1
    """Steps between two syncs of the weights."""

    @model_validator(mode="after")
    def _consistent(self) -> AlgorithmConfig:
        if self.staleness and self.mode not in (None, "async"):
            raise ValueError(f"staleness is not used: the mode is {self.mode}, not async")
        if self.fetch_minibatches and self.n_minibatches % self.fetch_minibatches:
            raise ValueError(f"{self.n_minibatches} mini-batches cannot be taken {self.fetch_minibatches} at a time")
        if self.sync_every > 1 and not self.is_async:
            raise ValueError("sync_every is for the mode async: a synchronous step begins with a sync")
        return self

    @property
    def is_async(self) -> bool:
        """Whether generation goes on while its weights are outdated."""
        return self.mode == "async" or (self.mode is None and self.staleness > 0)

    @property
    def carries(self) -> bool:
        """Whether work goes from step to step."""
        return self.is_async or self.mode == "one_step_off"

    @property
    def num_fetches(self) -> int:
        """How often the actor takes groups in a step."""
        return self.n_minibatches // max(1, self.fetch_minibatches)

    def allowed(self, step: int) -> int:
        """Prompts that may be in flight or wait to be trained when a step begins."""
        n, k = self.rollout_batch_size, self.sync_every
        if self.mode == "one_step_off":
            return 2 * n
        if not self.is_async:
            return n
        ahead = math.ceil((1.0 + self.staleness) * k * n) - step % k * n
        if self.max_lag is not None and self.stale == "wait":
            ahead = min(ahead, (1 + self.max_lag) * n)
        return max(n, ahead)

    @property
    def num_sequences(self) -> int:
        return self.rollout_batch_size * self.group_size


class EnvironmentConfig(Config):
    """Turns of a rollout: the model calls a tool or an environment, and goes on with what comes back."""

    turns: Sequences = 1
    """Turns of a response, equally long."""
    tool_s: Pause = 1.0
    """Mean seconds of a call."""
    tool_shape: Annotated[float, Field(ge=0.01, le=1e6)] = 1.0
    """k of the gamma distribution of a call's seconds; 1 is exponential."""
    tool_tokens: CountOrNone = 0
    """Tokens that a call adds to the sequence."""
    concurrency: Sequences | None = None
    """Calls that run at once; all unless given."""
    failure: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of calls that fail, and are repeated after `timeout_s`."""
    timeout_s: Pause = 30.0
    keep_kv: bool = True
    """The KV cache is found again after a call; else the whole sequence is prefilled again."""
    reward_s: Pause = 0.0
    """Mean seconds from a response's last token to its reward: a judge elsewhere, or tests that are run."""
    reward_model: str | None = None
    """A reward model that reads every sequence, on GPUs of its own beside the cluster's."""
    reward_gpus: Degree = 1
    """GPUs that it has, of the cluster's kind."""
    reward_tensor_parallel: Degree = 1
    """GPUs of one copy of it."""


class LengthsConfig(Config):
    """How long prompts and responses are."""

    distribution: Literal["gamma", "lognormal", "fixed", "empirical"] = "gamma"
    mean: PositiveFloat = 4000.0
    """Mean response tokens after truncation."""
    shape: Annotated[float, Field(ge=0.01, le=1e6)] = 3.1
    """gamma: its k. lognormal: sigma is chosen for the same spread, 1/sqrt(k)."""
    file: str | None = None
    """empirical: response lengths, one number per line; scaled to `mean`."""
    group_correlation: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Correlation of the lengths inside a group."""
    max_response: Tokens = 27_648
    """Longer responses are cut off."""
    prompt_mean: Tokens = 256
    max_prompt: Tokens = 1024
    drift: Annotated[float, Field(gt=-1)] = 0.0
    """Growth of the mean per step, e.g. 0.02."""

    @model_validator(mode="after")
    def _used(self) -> LengthsConfig:
        if self.file is not None and self.distribution != "empirical":
            raise ValueError(f"file is not used: the distribution is {self.distribution}, not empirical")
        return self


class TransitionConfig(Config):
    """Seconds of everything that is neither generation nor training."""

    sync: Literal["nccl", "checkpoint_engine", "broadcast", "rdma", "shared_memory", "disk"] = "nccl"
    """How weights go from the actor to rollout and inference: tensor by tensor, in buckets, in large buffers from one
    rank, written straight into the receivers' memory, handed over inside a GPU or a node, or as a file."""
    sync_bandwidth_bytes_s: PositiveFloat | None = None
    """Of that path; by `sync` and the links between the GPUs unless given."""
    sync_fixed_s: Pause = 0.0
    """Of each weight sync, on top: stopping and waking the engines."""
    reshard_s: Pause | None = None
    """Change of the actor's size. If not given: 0.5 / 1.3 / 2.8 s for 1.5B / 7B / 32B, and on the line between."""
    migration_s: Pause = 4.0
    """From the stop of rollout instances to their sequences' going on elsewhere (published medians: 3.7-5.0 s)."""
    switch_s: Pause | None = None
    """colocated: off-load one component and load the next. If not given: what moves, over the host's link."""
    host_bandwidth_bytes_s: PositiveFloat = 20e9
    """Between a GPU's memory and the host's, all GPUs at once."""
    kv_bandwidth_bytes_s: PositiveFloat = 20e9
    """KV transfer between two instances."""
    dispatch_s: Pause = 0.0
    """Handing a step's batch from one stage to the next through the framework's controller; in parts where the actor
    takes mini-batches as they come (`fetch_minibatches`)."""
    check_interval_s: PositiveFloat = 1.0
    """How often a policy looks between mini-batches."""


class PolicyConfig(Choice):
    """Who decides which GPU does what."""

    name: str | None = None
    """{gnomon.posttrain.policies.POLICIES}, or your own; by `auto_scheduler` and the placement if not given."""
    file: str | None = None
    """Python file that registers your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the policy."""


class Posttrain(Config):
    """A model in RL post-training on a cluster."""

    cluster: ClusterConfig = ClusterConfig()
    model: str = "qwen2.5-7b"
    """Built-in model (`gnomon catalog models`), or the path of a Hugging Face config.json."""
    device: str = "h100"
    node: str | None = None
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rollout: RolloutConfig = RolloutConfig()
    inference: TrainingConfig = TrainingConfig()
    actor: ActorConfig = ActorConfig()
    lengths: LengthsConfig = LengthsConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    transitions: TransitionConfig = TransitionConfig()
    policy: PolicyConfig = PolicyConfig()
    price_per_gpu_hour: NonNegativeFloat | None = None
    """US dollars; the catalog's price if not given."""
    num_steps: Sequences = 1
    seed: Seed = 0
    """Every random draw follows from it."""
