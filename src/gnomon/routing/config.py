"""The stages of learned routing as one configuration: demonstrations, cloning, PPO, comparison."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from gnomon.core.config import Config, load
from gnomon.core.errors import UnknownNameError
from gnomon.core.sizes import CountOrNone, Degree, Requests, Seed, Seeds, Sequences, Steps
from gnomon.routing.domain import DomainConfig, RewardConfig
from gnomon.serving.scenario.config import QUEUE_DEPTH, LengthsKnown

Share = Annotated[float, Field(ge=0, le=1)]


class NetworkConfig(Config):
    """The size of the policy and of the critic."""

    hidden: Degree = 32
    """Width of every layer."""
    recurrent: bool = False
    """Whether the policy carries a memory from decision to decision (a GRU). Moving averages of arrivals and ends are
    part of what it observes in any case."""


class DemosConfig(Config):
    """Demonstrations: who acts, who says what would have been best, and how much of it."""

    drivers: tuple[str, ...] = ("round_robin", "least_outstanding", "random", "predicted_latency", "gateway")
    """Routers that act, each in environments of its own, so that good and bad states are seen."""
    teacher: str = "gateway"
    """Who labels the decisions: `rollout` (tries every replica in a copy of the simulation), a router, or `own` (every
    driver labels itself)."""
    sharpness: PositiveFloat = 20.0
    """Teachers that know what a choice costs: a replica that costs x times the least gets x ** -sharpness times the
    probability of the best one."""
    base: str = "gateway"
    """Rollout teacher: who routes the arrivals after the one that is tried."""
    lookahead: Sequences = 64
    """Rollout teacher: how many arrivals it looks ahead."""
    include_imbalanced: bool = True
    """Whether some clusters start out of balance, with most requests on a few replicas."""
    steps_per_driver: Steps = 700
    """Decisions of every environment, per driver."""
    num_environments: Sequences = 16
    """Clusters that every driver acts in."""
    dagger_rounds: CountOrNone = 2
    """Rounds in which the clone acts, as often as all drivers together, and the teacher labels (DAgger)."""
    temperature: PositiveFloat = 1.0
    """How random the clone's own choices are in the first of these rounds ..."""
    min_temperature: PositiveFloat = 0.5
    """... and in the last."""


class CloneConfig(Config):
    """Behaviour cloning: soft targets, cross-entropy, a validation split."""

    epochs: Steps = 30
    """Passes over the demonstrations, at most ..."""
    patience: Steps = 6
    """... and those without improvement after which it stops; the best one is kept."""
    batch: Steps = 256
    """Decisions per gradient step."""
    learning_rate: PositiveFloat = 1e-3
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the clusters (not of the decisions, which resemble their neighbours) kept for validation."""
    softness: PositiveFloat = 0.2
    """A replica that costs this many average choices' worth more than the best gets 1/e of its probability."""
    cross_entropy_weight: NonNegativeFloat = 1.0
    """Weight of following the teacher's probabilities."""
    regret_weight: NonNegativeFloat = 1.0
    """Weight of what the policy's choice costs beyond the best one, where the teacher knows costs."""


class TrainConfig(Config):
    """PPO with a leash to the policy it started from."""

    updates: Steps = 200
    """Rounds of collecting and learning."""
    num_environments: Sequences = 64
    """Clusters that run side by side."""
    trace_group: Steps = 8
    """Clusters that get the same arrivals, so that luck of the draw can be told from merit."""
    steps: Steps = 128
    """Decisions per cluster and update."""
    epochs: Steps = 3
    """Passes over what was collected."""
    minibatch: Steps = 2048
    """Decisions per gradient step."""
    learning_rate: PositiveFloat = 3e-4
    discount: Share = 0.99
    """How much the next decision's future counts (gamma). Not a weight of the reward."""
    trace_decay: Share = 0.95
    """GAE's lambda: between the critic's word (0) and what happened (1)."""
    clip: PositiveFloat = 0.2
    """Probability ratios beyond 1 ± this earn nothing more."""
    value_weight: NonNegativeFloat = 0.5
    """Weight of the critic's error in the loss."""
    kl_start: NonNegativeFloat = 0.6
    """Weight of KL(policy || the policy it started from), at first."""
    kl_end: NonNegativeFloat = 0.1
    """The weight that it falls to and then holds."""
    kl_decay_steps: Steps = 3000
    """Gradient steps from the first to the last weight."""
    entropy_warmup: NonNegativeFloat = 0.0
    """Weight of the policy's entropy during warm-up: 0 leaves a good clone alone."""
    entropy_warmup_steps: CountOrNone = 200
    """Gradient steps of warm-up."""
    entropy_start: NonNegativeFloat = 0.002
    """Weight of the policy's entropy after warm-up."""
    entropy_end: NonNegativeFloat = 0.002
    """The weight that it then moves to, and holds."""
    entropy_decay_steps: Steps = 3000
    """Gradient steps from the first to the last weight."""
    target_kl: PositiveFloat = 0.03
    """The epochs of an update end early where the policy has moved further than this from the one that acted."""
    max_gradient: PositiveFloat = 0.5
    """Longest gradient (Euclidean norm); longer ones are shortened."""
    critic_warmup: CountOrNone = 5
    """First updates, in which only the critic learns: an untrained one would lead a good policy astray."""
    collapse_share: Share = 0.9
    """Share of one replica from which on a growing backlog is taken for a collapse, and training stops."""
    validate_every: Steps = 5
    """Updates between validations: the policy that did best in them is the one that is kept."""
    validation_environments: Sequences = 32
    """Clusters of the validation, with traces that are never trained on."""
    validation_steps: Steps = 256
    """Decisions of each of them."""
    checkpoint_every: Steps = 10
    """Updates between checkpoints."""
    keep: Steps = 3
    """Checkpoints kept."""

    @model_validator(mode="after")
    def _divisible(self) -> TrainConfig:
        if self.num_environments % self.trace_group:
            raise ValueError("num_environments must be a multiple of trace_group")
        return self


class OnlineConfig(Config):
    """Learning while a simulation runs (`gnomon route train --online`)."""

    decisions: Requests = 20_000
    """How many requests are routed; the policy learns after every `train.steps` of them."""
    safe: str = "least_outstanding"
    """The router that it is held against, and that takes over where it does worse."""
    margin: Share = 0.1
    """A block of decisions that is worse than the safe router's by more than this share is the last for a while."""


class CompareConfig(Config):
    """Which routers meet on which scenarios."""

    scenarios: tuple[str, ...] = ()
    """Built-in names or YAML files; all built-in ones if none is given."""
    suite: bool = False
    """Eleven kinds of fleets at loads of 50, 75 and 90 % instead, with what a router must reach on them."""
    routers: tuple[str, ...] = ()
    """Routers beside the policies; all baselines if none is given."""
    num_seeds: Annotated[Seeds, Field(ge=2)] = 5
    """Traces per scenario."""
    first_seed: Seed = 2000
    """The first of their seeds. Training draws its traces from streams of other names; seeds below 2000 were looked at
    while the teacher and the presets were chosen."""
    num_requests: Requests | None = None
    """Requests per trace; as the scenario says if not given."""
    source: str | None = None
    """Where iteration times come from (`timing.source`), instead of what the scenarios say."""


class RouteConfig(Config):
    """Everything that decides what policy comes out."""

    seed: Seed = 0
    """Every random draw follows from it."""
    lengths: LengthsKnown = "none"
    """What is known of a request's output when it arrives: `none` (only averages of what has finished), `noisy` (the
    true length times log-normal noise), `oracle` (the true length)."""
    queue_depth: Sequences = QUEUE_DEPTH
    """How many requests at the head of each queue the policy looks at. It is made for this depth, as for `lengths`."""
    scenarios: tuple[str, ...] = ()
    """What it is trained on: built-in names or YAML files, of any fleet with an open load. None: the domain."""
    domain_share: Share = 0.0
    """With scenarios: share of the clusters that are drawn from the domain beside them."""
    start: str = "clone"
    """Where training starts: `clone`, `nothing` (the rule `gateway`, to which the network adds nothing yet), or the
    path of a policy."""
    network: NetworkConfig = NetworkConfig()
    domain: DomainConfig = DomainConfig()
    reward: RewardConfig = RewardConfig()
    demos: DemosConfig = DemosConfig()
    clone: CloneConfig = CloneConfig()
    train: TrainConfig = TrainConfig()
    online: OnlineConfig = OnlineConfig()
    compare: CompareConfig = CompareConfig()


PRESETS = ("quick", "full")


def load_config(given: str | None, overrides: dict[str, Any]) -> RouteConfig:
    """A preset by its name, a file by its path, or the defaults; with dotted overrides on top."""
    if given is None or given in PRESETS:
        with resources.as_file(resources.files("gnomon.routing").joinpath(f"presets/{given or 'full'}.yaml")) as path:
            return load(RouteConfig, path, overrides)
    if not Path(given).suffix:
        raise UnknownNameError("configuration", given, PRESETS)
    return load(RouteConfig, given, overrides)
