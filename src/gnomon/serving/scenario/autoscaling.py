"""What a scenario says of a fleet that changes: its limits, its controller, cold starts, failures, retries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from gnomon.core.config import Choice, Config
from gnomon.core.sizes import Replicas

AT_MOST_REPLICAS = 65_536


class ControllerConfig(Choice):
    """Who decides how many replicas there are, and how often."""

    name: str = "fixed"
    """{gnomon.serving.autoscaling.controllers.CONTROLLERS}, or your own. target_utilization is as Kubernetes' HPA,
    queue_driven as KEDA, slo_planner as Dynamo's planner; oracle knows the trace; arrow and load_planner move replicas
    between prefill and decode."""
    file: str | None = None
    """Python file that registers your own controller."""
    options: dict[str, float] = Field(default_factory=dict)
    """Options of the controller, e.g. {target: 0.7}."""
    steps: tuple[tuple[NonNegativeFloat, Annotated[int, Field(ge=0)]], ...] = ()
    """schedule: [seconds of the day, replicas], in order of time; repeats every day."""
    interval_s: Annotated[float, Field(gt=0)] = 30.0
    """Seconds between two decisions."""

    @model_validator(mode="after")
    def _in_order(self) -> ControllerConfig:
        times = [at_s for at_s, _ in self.steps]
        if times != sorted(set(times)):
            raise ValueError("the steps of a schedule must be in order of time, each time once")
        return self


class ColdStartConfig(Config):
    """What happens between the decision to start a replica and its first request, one part after the other."""

    node_s: NonNegativeFloat = 0.0
    """Getting the machine; 0 where it is kept at hand."""
    image_s: NonNegativeFloat = 0.0
    """Pulling and starting the container."""
    weights_bytes_per_s: PositiveFloat = 2e9
    """How fast the weights of one replica are read: 2 GB/s is what 495 s for the weights of a 1T-parameter FP8 model
    come to."""
    weights_s: NonNegativeFloat | None = None
    """Seconds for the weights, where they are known; else their size over `weights_bytes_per_s`."""
    compile_s: NonNegativeFloat = 20.0
    """Compiling kernels, capturing CUDA graphs."""
    warmup_s: NonNegativeFloat = 12.0
    """First requests that nobody waits for."""

    def parts(self, weight_bytes: float) -> dict[str, float]:
        """Seconds of each part for a replica whose weights take so many bytes."""
        weights_s = weight_bytes / self.weights_bytes_per_s if self.weights_s is None else self.weights_s
        return {
            "node": self.node_s, "image": self.image_s, "weights": weights_s, "compile": self.compile_s,
            "warm-up": self.warmup_s,
        }  # fmt: skip


Seconds = Annotated[float, Field(ge=1.0)]
"""Mean seconds between events of one replica; with fewer a run would consist of them."""


class FailureConfig(Config):
    """Replicas that die at random, and come back."""

    mtbf_s: Seconds | None = None
    """Mean time between failures of one replica while it is up, exponential; without it none fails."""
    mttr_s: NonNegativeFloat = 600.0
    """Mean time to repair, exponential: until then its place cannot be used; then it starts cold."""
    detect_s: NonNegativeFloat = 5.0
    """Until the failure is noticed: requests go on being sent there, and nothing comes back."""
    keeps_tokens: bool = True
    """A retried request goes on from the tokens that its client has (they are prefilled again); else it starts over."""
    stores_kv: bool = False
    """KV is written to the shared store (`kv_tiers.remote`) as it is computed: a retried request loads from there what
    the replica that died had computed of its hashed prompt. Else only what ended before is there."""


class StragglerConfig(Config):
    """Replicas that become slow for a while."""

    mean_s: Seconds | None = None
    """Mean time between slow spells of one replica, exponential; without it there are none."""
    duration_s: Seconds = 300.0
    """Mean length of a spell, exponential."""
    factor: Annotated[float, Field(ge=1)] = 1.5
    """How many times longer an iteration takes."""


class EventConfig(Config):
    """One thing that happens to one replica at a given time."""

    at_s: NonNegativeFloat
    """When."""
    what: Literal["start", "drain", "fail", "repair", "slow"]
    """start (cold), drain (finishes what it has, then leaves), fail (dies at once), repair (its place can be used
    again), slow (iterations take `factor` times as long from now on; 1: as usual again)."""
    replica: Annotated[int, Field(ge=0)]
    """Which replica, from 0."""
    factor: PositiveFloat = 1.0
    """slow: how many times longer an iteration takes."""


class MigrationConfig(Choice):
    """Requests that go to another replica of their pool while they decode."""

    name: str = "llumnix"
    """{gnomon.serving.autoscaling.migrations.MIGRATIONS}, or your own."""
    file: str | None = None
    """Python file that registers your own migration policy."""
    options: dict[str, float] = Field(default_factory=dict)
    """Options of the policy, e.g. {least: 3}."""
    interval_s: Annotated[float, Field(ge=0.01)] = 0.5
    """Seconds between two looks; each takes the simulator about a millisecond."""
    moves: Literal["kv", "nothing"] = "kv"
    """kv: copied over the network (`disaggregation.link`, `bandwidth_gb_s`, `latency_s`) while the request goes on,
    what came meanwhile after it has left. nothing: all its tokens are prefilled again."""


class FleetConfig(Config):
    """A fleet that changes during the run. `num_replicas` (of each pool) are up at the start."""

    controller: ControllerConfig = ControllerConfig()
    min_replicas: Annotated[int, Field(ge=0, le=AT_MOST_REPLICAS)] = 1
    """Fewest replicas of a pool that a controller may ask for."""
    max_replicas: Replicas | None = None
    """Most replicas of a pool; as many as at the start if not given."""
    switch_s: NonNegativeFloat | None = None
    """Pools share their replicas: one that has drained in a pool serves in another after so many seconds (0 where
    engines do both); all pools together have as many as at the start. Without it each pool has its own."""
    cold_start: ColdStartConfig = ColdStartConfig()
    failures: FailureConfig = FailureConfig()
    stragglers: StragglerConfig = StragglerConfig()
    migration: MigrationConfig | None = None
    """Requests that move while they decode; without it each stays where it is."""
    events: tuple[EventConfig, ...] = ()
    """What happens at given times."""

    def places(self, counts: list[int]) -> int | None:
        """For replicas of each pool; None where it has as many as at the start (`counts`)."""
        if self.max_replicas is not None or self.switch_s is None:
            return self.max_replicas
        return max(*counts, sum(counts) - self.min_replicas * (len(counts) - 1))

    @model_validator(mode="after")
    def _limits(self) -> FleetConfig:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must be at least min_replicas")
        if self.switch_s is not None and any(one.what == "start" for one in self.events):
            raise ValueError("where pools share their replicas (switch_s), one starts when another has drained")
        return self
