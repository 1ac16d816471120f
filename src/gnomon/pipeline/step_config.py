"""One training step as it is asked for: a schedule, and costs as lengths or per stage."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from gnomon.core.errors import ConfigError
from gnomon.pipeline.costs import MAX_LENGTH, StepCosts
from gnomon.pipeline.study import Study
from gnomon.pipeline.zoo import SCHEDULES

LENGTHS = ("fwd_len", "bwd_len", "prop_len", "grad_prop_len", "sync_base_len")
OF_A_SCHEDULE = (
    "stragglers", "link_speed", "jitter", "latency", "overlap_len", "weight_grad_len", "memory_limit",
)  # fmt: skip
"""Fields that mean something only where a schedule has an order of its own."""


class StepConfig(Study):
    """A training step. Without a schedule and costs it is the communication-priority study: 1F1B whose ranks
    take whatever is ready. With a schedule the same lengths apply, in its strict order."""

    schedule: str | None = None
    """A name of `gnomon pipeline schedules`, or a PyTorch CSV file; 1f1b for costs unless given."""
    costs: StepCosts | None = None
    """Costs per stage, instead of lengths."""
    chunks: PositiveInt = 2
    """Stages per rank, for interleaved."""
    weight_grad_len: float | None = None
    """Part of a backward that can be put off; half unless given."""
    overlap_len: float | None = None
    """A forward and a backward together; their sum unless given."""
    latency: float = 0.0
    """Added to every transfer."""
    stragglers: dict[int, float] = Field(default_factory=dict)
    """Ranks whose passes take this many times as long."""
    link_speed: dict[str, float] = Field(default_factory=dict)
    """Relative speed of single links, such as `1-2: 0.5` for what rank 1 sends to rank 2."""
    jitter: float = 0.0
    """Spread of the passes' times, e.g. 0.05."""
    draws: PositiveInt = 200
    """Steps to draw when there is jitter."""
    seed: NonNegativeInt = 0
    """Of the jitter."""
    memory_limit: float | None = None
    """Activations a rank may hold, in micro-batches."""
    what_if: PositiveFloat | None = None
    """Also say what each link would bring if it were so many times as fast."""

    @property
    def is_study(self) -> bool:
        """Whether ranks take whatever is ready, instead of following a schedule."""
        return self.schedule is None and self.costs is None

    def is_given(self, name: str) -> bool:
        """Whether a field was set, be it to its default."""
        return name in self.model_fields_set

    def check(self) -> StepConfig:
        """Refuse what makes no sense, and fields that would have no effect, rather than ignore them."""
        for name in ("overlap_len", "weight_grad_len"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= MAX_LENGTH:
                raise ConfigError(f"{name} must be from 0 to {MAX_LENGTH:g} (given: {value}).")
        if self.is_study:
            for name in OF_A_SCHEDULE:
                if getattr(self, name):
                    raise ConfigError(f"{name} needs a schedule.", fix="Add the schedule 1f1b, for example.")
            self._refuse("the study", ("chunks", "draws"))
            return self._checked_lengths()
        if self.schedule is not None and self.schedule in SCHEDULES and not SCHEDULES[self.schedule].takes_chunks:
            self._refuse(f"the schedule {self.schedule}", ("chunks",))
        if not self.jitter and not (self.costs and self.costs.jitter):
            self._refuse("passes without jitter", ("draws",))
        if self.is_given("dispatch") and self.dispatch == "greedy":
            raise ConfigError(
                "greedy dispatch is the study's: a schedule has an order of its own.", fix="Leave out the schedule."
            )
        if self.costs is not None:
            self._refuse("costs per stage", (*LENGTHS, "weight_grad_len", "sync_freq"))
        if self.is_from_file:
            self._refuse("a schedule from a file", ("n", "stages", "chunks"))
        return self if self.costs else self._checked_lengths()

    @property
    def is_from_file(self) -> bool:
        """Whether the schedule is a CSV file, which says its size itself."""
        return (self.schedule or "").lower().endswith(".csv")

    def _checked_lengths(self) -> StepConfig:
        if self.sync_freq > self.n:  # Possible, but nobody's wish.
            what = f"sync_freq {self.sync_freq} is more than the {self.n} micro-batches."
            raise ConfigError(what, fix="Choose sync_freq between 1 and n.")
        return self

    def _refuse(self, reason: str, names: tuple[str, ...]) -> None:
        for name in names:
            if self.is_given(name) and getattr(self, name) is not None:
                raise ConfigError(f"{name} has no effect with {reason}.", fix="Leave it out.")
