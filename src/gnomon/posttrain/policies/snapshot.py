"""What a policy sees and what it answers: plain data that goes through JSON, for simulated and live clusters alike."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from gnomon.core.config import Config

Point = Literal["start", "check", "boundary", "waited", "stalled"]
ComponentName = Literal["actor", "rollout", "inference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One rollout engine. There are many at every look, so they are made without being checked."""

    id: int
    gpus: tuple[int, ...]
    unfinished: int
    """Sequences it runs or has waiting."""
    kv_use: float
    """Share of its KV blocks in use."""
    kv_recent: tuple[float, ...] = ()
    """Share of its KV blocks in use at the last checks, newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the stages do and what is left, as far as a live system can know: from averages, not from the future."""

    rollout_groups_s: float
    """Groups finished per second since the start of the step."""
    inference_groups_s: float
    """Groups per second through inference while it was busy; 0 where nothing is known."""
    train_groups_s_per_gpu: float
    """Groups per second and GPU of the actor, over this step's mini-batches; 0 before the first."""


class Snapshot(Config):
    """A moment at which a policy may act.

    `point` says why it is asked: `start` (weights are synced), `check` (every check interval), `boundary` (the actor
    has trained mini-batch `minibatch`), `waited` (what it waited for has come), `stalled` (nothing goes on by itself).
    """

    point: Point
    time_s: float
    step: int
    minibatch: int
    """The mini-batch trained last in this step; -1 before the first."""
    num_minibatches: int
    group_size: int
    num_gpus: int
    rollout_gpus: int
    """GPUs of one rollout instance."""
    inference_gpus: int
    """GPUs of one copy of the inference component; 0 where log-probabilities are not recomputed."""
    max_running: int
    valid_actor_sizes: tuple[int, ...]
    initial: dict[ComponentName, tuple[int, ...]]
    """The placement in the configuration."""
    actor: tuple[int, ...]
    """GPUs that each component owns now."""
    inference: tuple[int, ...]
    free: tuple[int, ...]
    instances: tuple[Instance, ...]
    groups_needed: int
    """Prompts whose groups the step trains on."""
    groups_submitted: int
    groups_generated: int
    groups_ready: int
    """Also through inference."""
    sequences_unfinished: int
    sequences_waiting: int = 0
    """Of the unfinished ones, those that no instance has yet."""
    groups_complete: int = 0
    """Groups that came complete from earlier steps."""
    carried: int
    """Prompts left over from earlier steps, not submitted yet."""
    stalest: int
    """Most weight updates since the start of a group that is not generated yet; -1 where there is none."""
    rates: Rates
    actor_waited_s: tuple[float, ...] = ()
    """Seconds for which the actor had GPUs and no groups in each step before, newest last."""
    reshard_s: float
    migration_s: float

    def largest_actor(self, gpus: int) -> int:
        """The largest valid actor of at most so many GPUs; 0 where none is."""
        return max((size for size in self.valid_actor_sizes if size <= gpus), default=0)

    @property
    def inference_pending(self) -> bool:
        """Whether groups are still to go through inference."""
        return self.inference_gpus > 0 and self.groups_ready < max(self.groups_needed, self.groups_submitted)


class Submit(Config):
    """At the start: generate these. Prompts carried over come first; without this action, all that are needed."""

    kind: Literal["submit"] = "submit"
    groups: int
    """Prompts to submit, carried ones included; more than needed leaves the last ones over."""
    max_age: int | None = None
    """Carried prompts that are this many weight updates old are trained in this step, whatever else is ready."""
    balance: bool = False
    """Deal by true lengths (only a clairvoyant can)."""


class Migrate(Config):
    """These rollout instances stop at their next batch boundary, hand their sequences to the others, and are freed."""

    kind: Literal["migrate"] = "migrate"
    leave: tuple[int, ...]


class Finish(Config):
    """The component is done for this step and frees its GPUs. Unfinished sequences are left over for later steps."""

    kind: Literal["finish"] = "finish"
    component: ComponentName
    keep_tokens: bool = False
    """Sequences left over go on from their tokens (stale) instead of from their prompts."""


class Scale(Config):
    """The component takes these GPUs, which are free or its own. Rollout starts instances; the actor reshards."""

    kind: Literal["scale"] = "scale"
    component: ComponentName
    gpus: tuple[int, ...]


class Wait(Config):
    """Nothing else until this component has no work left; then the policy is asked again."""

    kind: Literal["wait"] = "wait"
    component: Literal["rollout", "inference"]


class Report(Config):
    """Say something; changes nothing."""

    kind: Literal["report"] = "report"
    text: str


Action = Annotated[Submit | Migrate | Finish | Scale | Wait | Report, Field(discriminator="kind")]
Actions = list[Submit | Migrate | Finish | Scale | Wait | Report]
ACTIONS: TypeAdapter[Actions] = TypeAdapter(list[Action])


def write_actions(actions: Actions) -> list[dict[str, Any]]:
    return [action.model_dump(mode="json") for action in actions]
