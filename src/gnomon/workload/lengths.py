"""How long prompts and outputs are: distributions that need no data."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.sizes import Tokens as Length
from gnomon.core.streams import stream
from gnomon.workload.requests import Tokens

Range = tuple[Length, Length]
Bell = tuple[PositiveFloat, Annotated[float, Field(ge=0)], Length, Length]
Correlation = Annotated[float, Field(ge=-1, le=1)]

# The standard normal's 90th percentile.
Z90 = 1.2815515655446004


MAX_RANKS = 10_000_000


class Distribution(Config):
    """One kind of lengths, chosen by `distribution`."""

    shorthand: ClassVar[str] = "distribution"


class Fixed(Distribution):
    """Every request alike."""

    distribution: Literal["fixed"] = "fixed"
    """How lengths vary: fixed, uniform, zipf, lognormal, normal, mixture, empirical, preset or trace."""
    prompt: Length
    """Prompt tokens."""
    output: Length
    """Output tokens."""


class Uniform(Distribution):
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
        for low, high in (r for r in (self.prompt, self.output, self.total) if r is not None):
            if low > high:
                raise ValueError(f"the range [{low}, {high}] is empty")
        return self


class Zipf(Distribution):
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
        if self.total[0] > self.total[1]:
            raise ValueError(f"the range [{self.total[0]}, {self.total[1]}] is empty")
        if self.total[1] - self.total[0] > MAX_RANKS:
            raise ValueError(f"the range may hold at most {MAX_RANKS:,} totals: each has a probability of its own")
        return self


class Lognormal(Distribution):
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


class Normal(Distribution):
    """Normal prompts and outputs, cut at bounds: what guidellm and inference-perf draw."""

    distribution: Literal["normal"] = "normal"
    prompt: Bell
    """Prompt tokens: mean, standard deviation, least, most."""
    output: Bell
    """Output tokens: mean, standard deviation, least, most."""

    @model_validator(mode="after")
    def _some_range(self) -> Normal:
        for _, _, low, high in (self.prompt, self.output):
            if low > high:
                raise ValueError(f"the range [{low}, {high}] is empty")
        return self


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


class Mixture(Distribution):
    """Several kinds of requests side by side, such as chat with a tenth of long documents."""

    distribution: Literal["mixture"] = "mixture"
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    """Kinds of request, each with its share and its lengths."""


Lengths = Annotated[
    Fixed | Uniform | Zipf | Lognormal | Normal | Mixture | Empirical | FromPreset | Recorded,
    Field(discriminator="distribution"),
]


def drawn_lengths(
    config: Fixed | Uniform | Zipf | Lognormal | Normal, num_requests: int, seed: int
) -> tuple[Tokens, Tokens]:
    """Draw pairs of one distribution."""
    match config:
        case Fixed():
            return np.full(num_requests, config.prompt, np.int32), np.full(num_requests, config.output, np.int32)
        case Uniform():
            return uniform_lengths(config, num_requests, seed)
        case Zipf():
            return zipf_lengths(config, num_requests, seed)
        case Lognormal():
            return lognormal_lengths(config, num_requests, seed)
        case Normal():
            scores = zip((config.prompt, config.output), normal_scores(num_requests, seed, 0.0), strict=True)
            prompt, output = (tokens(np.clip(mean + std * z, low, high)) for (mean, std, low, high), z in scores)
            return prompt, output


def mixture_lengths(config: Mixture, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    """Draw every request from one of the parts, chosen by their shares."""
    cumulated = np.cumsum([part.share for part in config.parts])
    draws = stream(seed, "mixture").random(num_requests) * cumulated[-1]
    chosen = np.searchsorted(cumulated, draws, side="right")
    pairs = [drawn_lengths(part.lengths, num_requests, seed) for part in config.parts]
    prompts, outputs = (np.stack(side) for side in zip(*pairs, strict=True))
    each = np.arange(num_requests)
    return prompts[chosen, each], outputs[chosen, each]


def normal_scores(num_requests: int, seed: int, correlation: float) -> tuple[Floats, Floats]:
    """Standard normal scores for prompts and outputs, each of its own stream, with the given correlation."""
    prompt = stream(seed, "prompt lengths").standard_normal(num_requests)
    own = stream(seed, "output lengths").standard_normal(num_requests)
    return prompt, correlation * prompt + np.sqrt(1 - correlation**2) * own


def lognormal_lengths(config: Lognormal, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    """Draw log-normal pairs."""
    prompt, output = normal_scores(num_requests, seed, config.rank_correlation)
    return (
        tokens(config.prompt_median * (config.prompt_p90 / config.prompt_median) ** (prompt / Z90)),
        tokens(config.output_median * (config.output_p90 / config.output_median) ** (output / Z90)),
    )


def uniform_lengths(config: Uniform, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    """Draw uniform pairs, or uniform totals split by the ratio."""
    random = stream(seed, "prompt lengths")
    if config.total is not None and config.prompt_to_output is not None:
        return split(random.integers(*config.total, num_requests, endpoint=True), config.prompt_to_output)
    assert config.prompt is not None
    assert config.output is not None
    prompt = random.integers(*config.prompt, num_requests, endpoint=True)
    output = stream(seed, "output lengths").integers(*config.output, num_requests, endpoint=True)
    return tokens(prompt), tokens(output)


def zipf_lengths(config: Zipf, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    """Draw Zipf totals by their cumulated probabilities, and split them."""
    low, high = config.total
    values = np.arange(low, high + 1)
    if config.scramble:
        values = stream(seed, "zipf order").permutation(values)
    cumulated = np.cumsum(np.arange(1, len(values) + 1, dtype=np.float64) ** -config.theta)
    draws = stream(seed, "prompt lengths").random(num_requests) * cumulated[-1]
    return split(values[np.searchsorted(cumulated, draws, side="right")], config.prompt_to_output)


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
