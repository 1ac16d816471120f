"""The configuration of a post-training run, in the shape that users of such systems have."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from gnomon.core.config import Choice, Config
from gnomon.core.sizes import Degree, Nodes, Seed, Sequences, Steps, Tokens
from gnomon.timing import HostConfig

Share = Annotated[float, Field(gt=0, le=1)]
GpuRange = int | str | tuple[int, ...]


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
        """GPUs of the cluster."""
        return self.num_nodes * self.gpus_per_node


MIN_EFFICIENCY, MAX_EFFICIENCY = 1e-6, 1e6
"""Beyond them it is no efficiency but a mistake in a unit."""


class ComponentConfig(Config):
    """How one copy of the model is spread over GPUs, and how well it runs there."""

    tensor_parallel: Degree = 1
    pipeline_parallel: Degree = 1
    efficiency: Annotated[float, Field(ge=MIN_EFFICIENCY, le=MAX_EFFICIENCY)] = 1.0
    """Share of the operators' speed that is reached end to end (`gnomon posttrain calibrate`)."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one copy."""
        return self.tensor_parallel * self.pipeline_parallel


class RolloutConfig(ComponentConfig):
    """The generation engines."""

    max_running_requests: Sequences = 256
    """Sequences that one instance runs at once."""
    memory_utilization: Share = 0.85
    """Share of each GPU's memory for weights and KV cache."""
    engine: str = "vllm_v1"
    """Batching policy of the serving engine."""
    host: HostConfig = HostConfig()
    """Time of the engine's own code per iteration."""
    migration: Literal["reprefill", "kv_transfer"] = "reprefill"
    """How a moved sequence goes on: prefill its prompt and output again, or take its KV cache along."""


class ActorConfig(ComponentConfig):
    """Training."""

    recompute: NonNegativeFloat = 0.0
    """Share of the forward pass that the backward pass runs again (1: full activation recomputation)."""
    balance: bool = False
    """Deal the groups of a mini-batch to data-parallel ranks by length, longest first, instead of in order."""


class AlgorithmConfig(Config):
    """What one step is made of."""

    rollout_batch_size: Steps = 64
    """Prompts per step."""
    group_size: Sequences = 8
    """Samples per prompt."""
    n_minibatches: Sequences = 4
    """Training updates per step."""
    recompute_logprobs: bool = True
    """Run the inference component over the finished sequences."""

    @property
    def num_sequences(self) -> int:
        """Sequences of one step."""
        return self.rollout_batch_size * self.group_size


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


Pause = Annotated[float, Field(ge=0, le=1e6)]
"""Seconds; beside longer ones everything else is lost in rounding."""


class TransitionConfig(Config):
    """Seconds of everything that is neither generation nor training."""

    sync_bandwidth_bytes_s: PositiveFloat = 20e9
    """Weights from the actor to rollout and inference, per receiving copy."""
    sync_fixed_s: Pause = 1.0
    """Of each of the two weight syncs."""
    reshard_s: Pause | None = None
    """Change of the actor's size. If not given: 0.5 / 1.3 / 2.8 s for 1.5B / 7B / 32B, and on the line between."""
    migration_s: Pause = 4.0
    """From the stop of rollout instances to their sequences' going on elsewhere (published medians: 3.7-5.0 s)."""
    switch_s: Pause = 5.0
    """colocated: off-load one component and load the next."""
    kv_bandwidth_bytes_s: PositiveFloat = 20e9
    """KV transfer between two instances."""
    check_interval_s: PositiveFloat = 1.0
    """How often a policy looks between mini-batches."""


class PolicyConfig(Choice):
    """Who decides which GPU does what."""

    shorthand: ClassVar[str] = "name"

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
    inference: ComponentConfig = ComponentConfig()
    actor: ActorConfig = ActorConfig()
    lengths: LengthsConfig = LengthsConfig()
    transitions: TransitionConfig = TransitionConfig()
    policy: PolicyConfig = PolicyConfig()
    num_steps: Sequences = 1
    seed: Seed = 0
    """Every random draw follows from it."""
