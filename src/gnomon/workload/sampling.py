"""What requests ask of the sampler: a property of clients and users, not of the engine."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from gnomon.core.config import Config


class SamplingConfig(Config):
    """How tokens are to be chosen. What is not given is as the engine does it for the model: its generation_config."""

    model_config = ConfigDict(allow_inf_nan=False)

    temperature: NonNegativeFloat | None = None
    """0: the likeliest token (greedy); above: by probability."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Only the k likeliest tokens; 0 or -1: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Only the fewest tokens that have this probability together; 1: all."""
    repetition_penalty: PositiveFloat | None = None
    """Words of prompt and answer become less likely; 1: none."""
    presence_penalty: float | None = None
    """Words of the answer become less likely; 0: none."""
    frequency_penalty: float | None = None
    """Words of the answer become less likely each time that they are said; 0: none."""
    logprobs: NonNegativeInt | None = None
    """Log-probabilities of so many of the likeliest tokens are asked for; 0: none."""

    def over(self, other: SamplingConfig) -> SamplingConfig:
        """These settings, with what is not given taken from others."""
        return SamplingConfig(**{**other.model_dump(exclude_none=True), **self.model_dump(exclude_none=True)})

    @property
    def is_random(self) -> bool:
        """Whether tokens are drawn; without a temperature they are, at 1."""
        return self.temperature != 0.0

    @property
    def has_top_k(self) -> bool:
        """Whether some are left out by their rank."""
        return self.is_random and (self.top_k or 0) > 0

    @property
    def has_top_p(self) -> bool:
        """Whether some are left out by their share."""
        return self.is_random and (self.top_p or 1.0) < 1.0

    @property
    def has_penalties(self) -> bool:
        """Whether what was said before counts."""
        return (self.repetition_penalty or 1.0) != 1.0 or bool(self.presence_penalty or self.frequency_penalty)
