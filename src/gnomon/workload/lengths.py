"""How long prompts and outputs are: distributions that need no data."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.sizes import Tokens as Length
from gnomon.core.streams import stream
from gnomon.workload.requests import Tokens


def _ordered(given: Any) -> Any:
    """Bounds are the last two of what is given."""
    low, high = given[-2:]
    if low > high:
        raise ValueError(f"the range [{low}, {high}] is empty")
    return given


Range = Annotated[tuple[Length, Length], AfterValidator(_ordered)]
Bell = Annotated[tuple[PositiveFloat, NonNegativeFloat, Length, Length], AfterValidator(_ordered)]
Correlation = Annotated[float, Field(ge=-1, le=1)]

# The standard normal's 90th percentile.
Z90 = 1.2815515655446004

MAX_RANKS = 10_000_000


class Distribution(Config):
    """One kind of lengths, chosen by `distribution`."""

    shorthand: ClassVar[str] = "distribution"


class Drawable(Distribution):
    """Lengths that need no data."""

    @abstractmethod
    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        """Prompt and output tokens of every request."""


class Fixed(Drawable):
    """Every request alike."""

    distribution: Literal["fixed"] = "fixed"
    """How lengths vary: fixed, uniform, zipf, lognormal, normal, mixture, empirical, preset or trace."""
    prompt: Length
    """Prompt tokens."""
    output: Length
    """Output tokens."""

    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        return np.full(num_requests, self.prompt, np.int32), np.full(num_requests, self.output, np.int32)


class Uniform(Drawable):
    """Uniform between two bounds (both included): prompt and output each, or their total split by a ratio."""

    distribution: Literal["uniform"] = "uniform"
    prompt: Range | None = None
    """Least and most prompt tokens."""
    output: Range | None = None
    """Least and most output tokens."""
    total: Range | None = None
    """Least and most prompt + output tokens, instead of `prompt` and `output`."""
    prompt_to_output: PositiveFloat | None = None
    """Prompt tokens per output token (P:D ratio) that splits `total`."""

    @model_validator(mode="after")
    def _one_way(self) -> Uniform:
        each = self.prompt is not None and self.output is not None
        split = self.total is not None and self.prompt_to_output is not None
        given = [v for v in (self.prompt, self.output, self.total, self.prompt_to_output) if v is not None]
        if each == split or len(given) != 2:
            raise ValueError("give either prompt and output, or total and prompt_to_output")
        return self

    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        random = stream(seed, "prompt lengths")
        if self.total is not None and self.prompt_to_output is not None:
            return split(random.integers(*self.total, num_requests, endpoint=True), self.prompt_to_output)
        assert self.prompt is not None
        assert self.output is not None
        prompt = random.integers(*self.prompt, num_requests, endpoint=True)
        output = stream(seed, "output lengths").integers(*self.output, num_requests, endpoint=True)
        return tokens(prompt), tokens(output)


class Zipf(Drawable):
    """Zipf-distributed totals (rank r of the range has probability r^-theta), split by a ratio."""

    distribution: Literal["zipf"] = "zipf"
    total: Range
    theta: Annotated[float, Field(ge=0)] = 0.6
    """Skew: 0 is uniform."""
    scramble: bool = False
    """Scatter the popular totals over the range instead of putting them at its short end."""
    prompt_to_output: PositiveFloat = 20.0

    @model_validator(mode="after")
    def _some_range(self) -> Zipf:
        if self.total[1] - self.total[0] > MAX_RANKS:
            raise ValueError(f"the range may hold at most {MAX_RANKS:,} totals: each has a probability of its own")
        return self

    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        low, high = self.total
        values = np.arange(low, high + 1)
        if self.scramble:
            values = stream(seed, "zipf order").permutation(values)
        cumulated = np.cumsum(np.arange(1, len(values) + 1, dtype=np.float64) ** -self.theta)
        draws = stream(seed, "prompt lengths").random(num_requests) * cumulated[-1]
        return split(values[np.searchsorted(cumulated, draws, side="right")], self.prompt_to_output)


class Lognormal(Drawable):
    """Log-normal prompts and outputs, given by what people know of their traffic: median and 90th percentile."""

    distribution: Literal["lognormal"] = "lognormal"
    prompt_median: PositiveFloat
    """Median prompt tokens."""
    prompt_p90: PositiveFloat
    """90th percentile of prompt tokens."""
    output_median: PositiveFloat
    """Median output tokens."""
    output_p90: PositiveFloat
    """90th percentile of output tokens."""
    rank_correlation: Correlation = 0.0
    """Correlation of prompt and output, of their normal scores."""

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if self.prompt_p90 < self.prompt_median or self.output_p90 < self.output_median:
            raise ValueError("the 90th percentile cannot be below the median")
        return self

    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        prompt, output = normal_scores(num_requests, seed, self.rank_correlation)
        return (
            tokens(self.prompt_median * (self.prompt_p90 / self.prompt_median) ** (prompt / Z90)),
            tokens(self.output_median * (self.output_p90 / self.output_median) ** (output / Z90)),
        )


class Normal(Drawable):
    """Normal prompts and outputs, cut at bounds: what guidellm and inference-perf draw."""

    distribution: Literal["normal"] = "normal"
    prompt: Bell
    """Prompt tokens: mean, standard deviation, least, most."""
    output: Bell
    """Output tokens: mean, standard deviation, least, most."""

    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        scores = zip((self.prompt, self.output), normal_scores(num_requests, seed, 0.0), strict=True)
        prompt, output = (tokens(np.clip(mean + std * z, low, high)) for (mean, std, low, high), z in scores)
        return prompt, output


class Empirical(Distribution):
    """Pairs of lengths drawn again and again from a file of requests, whatever their recorded arrivals."""

    distribution: Literal["empirical"] = "empirical"
    file: str
    """A trace or a CSV of prompt and output lengths."""
    format: str = "auto"
    """Format of the file; see `gnomon workload formats`."""


class FromPreset(Distribution):
    """Lengths of the workload's preset."""

    distribution: Literal["preset"] = "preset"


class Recorded(Distribution):
    """Lengths as recorded in the workload's trace, in its order."""

    distribution: Literal["trace"] = "trace"


Drawn = Annotated[Fixed | Uniform | Zipf | Lognormal | Normal, Field(discriminator="distribution")]


class Part(Config):
    """One kind of request in a mixture."""

    share: PositiveFloat
    """Its share of the requests, relative to the other parts."""
    lengths: Drawn
    """How long these are."""


class Mixture(Drawable):
    """Several kinds of requests side by side, such as chat with a tenth of long documents."""

    distribution: Literal["mixture"] = "mixture"
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    """Kinds of request, each with its share and its lengths."""

    def draw(self, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
        cumulated = np.cumsum([part.share for part in self.parts])
        draws = stream(seed, "mixture").random(num_requests) * cumulated[-1]
        chosen = np.searchsorted(cumulated, draws, side="right")
        pairs = [part.lengths.draw(num_requests, seed) for part in self.parts]
        prompts, outputs = (np.stack(side) for side in zip(*pairs, strict=True))
        each = np.arange(num_requests)
        return prompts[chosen, each], outputs[chosen, each]


Lengths = Annotated[
    Fixed | Uniform | Zipf | Lognormal | Normal | Mixture | Empirical | FromPreset | Recorded,
    Field(discriminator="distribution"),
]


def normal_scores(num_requests: int, seed: int, correlation: float) -> tuple[Floats, Floats]:
    """Standard normal scores for prompts and outputs, each of its own stream, with the given correlation."""
    prompt = stream(seed, "prompt lengths").standard_normal(num_requests)
    own = stream(seed, "output lengths").standard_normal(num_requests)
    return prompt, correlation * prompt + np.sqrt(1 - correlation**2) * own


def split(total: np.ndarray, prompt_to_output: float) -> tuple[Tokens, Tokens]:
    """Split totals by the P:D ratio, at least one token each."""
    output = tokens(total / (1 + prompt_to_output))
    return np.maximum(total - output, 1).astype(np.int32), output


def tokens(values: np.ndarray) -> Tokens:
    """Whole numbers of tokens, at least one."""
    return np.maximum(np.rint(np.minimum(values, 2**30)), 1).astype(np.int32)


class SamplingConfig(Config):
    """How tokens are to be chosen. What is not given is as the engine does it for the model: its generation_config."""

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
