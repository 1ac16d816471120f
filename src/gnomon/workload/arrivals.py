"""When requests arrive: processes of a mean rate, batches, closed loops."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat, field_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config
from gnomon.core.sizes import Count
from gnomon.core.streams import stream
from gnomon.workload.requests import ArrivalShape, Profile


class Process(Config):
    """One kind of arrivals, chosen by `process`."""

    shorthand: ClassVar[str] = "process"


class Poisson(Process):
    """Independent arrivals: exponential gaps."""

    process: Literal["poisson"] = "poisson"
    """How requests arrive: poisson, gamma, fixed_interval, piecewise, diurnal, stages, batch, closed_loop or
    trace."""
    even: bool = False
    """Gaps are scaled so that all requests come within num_requests / rate seconds: what inference-perf calls constant
    load."""


class Gamma(Process):
    """Gamma-distributed gaps: burstier than Poisson for `cv` above 1, more regular below."""

    process: Literal["gamma"] = "gamma"
    cv: PositiveFloat
    """Coefficient of variation of the gaps; 1 is Poisson."""


class FixedInterval(Process):
    """One request every 1 / rate seconds, the first at 0."""

    process: Literal["fixed_interval"] = "fixed_interval"


class Piecewise(Process):
    """Poisson arrivals whose rate follows a repeating step function."""

    process: Literal["piecewise"] = "piecewise"
    pieces: tuple[tuple[PositiveFloat, Annotated[float, Field(ge=0)]], ...]
    """Steps of [seconds, relative rate], repeated; scaled so that the mean over one round is the workload's rate."""

    @field_validator("pieces")
    @classmethod
    def _some_rate(cls, pieces: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if not any(factor for _, factor in pieces):
            raise ValueError("at least one piece needs a rate above 0")
        return pieces


class Diurnal(Process):
    """Poisson arrivals whose rate swings like a cosine, with the peak at time 0 plus `peak_s`."""

    process: Literal["diurnal"] = "diurnal"
    period_s: PositiveFloat = 86400.0
    """Length of one swing in seconds."""
    peak_to_trough: Annotated[float, Field(ge=1)] = 3.0
    """Highest rate over lowest rate."""
    peak_s: float = 43200.0
    """When the rate is highest, in seconds from the start."""
    cv: PositiveFloat = 1.0
    """Coefficient of variation of the gaps before they follow the day: 1 is Poisson, above it comes in bursts."""


class Stages(Process):
    """Stages of load one after another: in each, exponential gaps scaled so that all its requests come within it."""

    process: Literal["stages"] = "stages"
    stages: Annotated[tuple[tuple[PositiveFloat, PositiveFloat], ...], Field(min_length=1)]
    """[requests per second, seconds] of every stage. Figures are given for each, as for a class of users."""
    classes: tuple[str, ...] = ()
    """The class of users that all requests of a stage are of, for every stage; else they are dealt out by shares."""

    @property
    def sizes(self) -> list[int]:
        return [max(1, round(rate * seconds)) for rate, seconds in self.stages]

    @property
    def num_requests(self) -> int:
        return sum(self.sizes)

    @property
    def names(self) -> list[str]:
        return [f"stage {i}: {rate:g}/s" for i, (rate, _) in enumerate(self.stages, start=1)]


class Batch(Process):
    """Every request is there at time 0."""

    process: Literal["batch"] = "batch"


class ClosedLoop(Process):
    """A fixed number of users: the next request is sent when one is answered."""

    process: Literal["closed_loop"] = "closed_loop"
    concurrency: Count
    """Users, each with one request in flight."""
    think_s: Annotated[float, Field(ge=0)] = 0.0
    """Mean pause between an answer and the next request, in seconds."""
    think: Literal["fixed", "exponential"] = "fixed"
    """How the pause varies around its mean."""

    def pauses(self, num_requests: int, seed: int) -> Floats:
        if self.think == "exponential":
            return stream(seed, "think time").exponential(self.think_s, num_requests)
        return np.full(num_requests, self.think_s)


class Recorded(Process):
    """Arrivals as recorded in the workload's trace."""

    process: Literal["trace"] = "trace"


Arrivals = Annotated[
    Poisson | Gamma | FixedInterval | Piecewise | Diurnal | Stages | Batch | ClosedLoop | Recorded,
    Field(discriminator="process"),
]
OpenLoop = Poisson | Gamma | FixedInterval | Piecewise | Diurnal

# A day in minutes: the cosine is followed by steps this fine.
DIURNAL_STEPS = 1440


def unit_shape(arrivals: OpenLoop, num_requests: int, seed: int) -> ArrivalShape:
    """`num_requests` arrivals at a mean rate of one per second."""
    random, profile = stream(seed, "arrivals"), None
    match arrivals:
        case FixedInterval():
            return ArrivalShape(np.arange(num_requests, dtype=np.float64), 1.0)
        case Piecewise():
            profile = Profile(*np.array(arrivals.pieces, dtype=np.float64).T)
        case Diurnal():
            step_s = arrivals.period_s / DIURNAL_STEPS
            middles_s = (np.arange(DIURNAL_STEPS) + 0.5) * step_s
            swing = (arrivals.peak_to_trough - 1) / (arrivals.peak_to_trough + 1)
            factors = 1 + swing * np.cos(2 * np.pi * (middles_s - arrivals.peak_s) / arrivals.period_s)
            profile = Profile(np.full(DIURNAL_STEPS, step_s), factors)
    if isinstance(arrivals, Gamma) or (isinstance(arrivals, Diurnal) and arrivals.cv != 1.0):
        gaps = random.gamma(arrivals.cv**-2, 1 / arrivals.cv**-2, num_requests)
    else:
        gaps = random.standard_exponential(num_requests)
    if isinstance(arrivals, Poisson) and arrivals.even:
        gaps = gaps * (num_requests / gaps.sum())
    return ArrivalShape(np.cumsum(gaps), 1.0, profile)


def stage_times(arrivals: Stages, seed: int) -> Floats:
    """When the requests of all stages arrive."""
    random, begins_s, times = stream(seed, "arrivals"), 0.0, []
    for (_, seconds), size in zip(arrivals.stages, arrivals.sizes, strict=True):
        gaps = random.standard_exponential(size)
        times.append(begins_s + np.cumsum(gaps) * (seconds / gaps.sum()))
        begins_s += seconds
    return np.concatenate(times)
