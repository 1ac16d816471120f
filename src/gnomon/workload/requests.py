"""The requests of one run: plain arrays, one entry per request, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.workload.slo import UserClass

Tokens = NDArray[np.int32]

OverLong = Literal["reject", "truncate", "drop"]

# Requests whose blocks are written at a time: those fit the processor's cache.
CHUNK = 512


@dataclass(frozen=True)
class Profile:
    """A mean rate that changes over time and repeats: `factors[k]` times the mean during `durations_s[k]`.

    The factors are normalised so that their time-weighted mean is one.
    """

    durations_s: Floats
    factors: Floats

    def warp(self, uniform_s: Floats) -> Floats:
        """Move arrivals of a constant rate to where a rate of this profile has accumulated as many."""
        edges_s = np.concatenate(([0.0], np.cumsum(self.durations_s)))
        shares = self.durations_s * self.factors
        accumulated = np.concatenate(([0.0], np.cumsum(shares))) * (edges_s[-1] / shares.sum())
        whole, rest = np.divmod(uniform_s, edges_s[-1])
        return whole * edges_s[-1] + np.interp(rest, accumulated, edges_s)


@dataclass(frozen=True)
class ArrivalShape:
    """Arrivals up to their mean rate: what stays the same when the load changes (common random numbers)."""

    times_s: Floats
    rate: float
    """Mean rate of `times_s`, per second."""
    profile: Profile | None = None

    def at(self, rate: float) -> Floats:
        """These arrivals at another mean rate; at the shape's own rate they are `times_s` exactly."""
        scaled = self.times_s * (self.rate / rate)
        return scaled if self.profile is None else self.profile.warp(scaled)


_NONE: Any = None  # A default that follows from the number of requests.


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests as a structure of arrays; where no conversation, priority or prefix is given, there is none.

    Open loop: `arrival_s` is finite and sorted. Closed loop (`concurrency` > 0): the first `concurrency` requests
    arrive at 0, the others have `arrival_s = inf`; whenever a request finishes at time T, the next request i in
    index order that was not yet released arrives at T + `think_s[i]`. With `num_warmup` > 0 the first so many are
    served that way to the end, and only then the others start, again `concurrency` at once. What a file without
    arrival times holds has an empty `arrival_s`.
    """

    arrival_s: Floats
    prompt_tokens: Tokens
    output_tokens: Tokens
    """At least 1: counts the token that the prefill produces."""
    session: NDArray[np.int32] = _NONE
    """Conversation of the request; -1 for none."""
    priority: NDArray[np.int8] = _NONE
    """0 is the least urgent."""
    prefix_offsets: NDArray[np.int64] = _NONE
    """`prefix_hashes[prefix_offsets[i]:prefix_offsets[i + 1]]` are the block hashes of request i: of its
    prompt, and of its answer where what follows on it is known (conversations)."""
    prefix_hashes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Equal hashes: equal content from the start of the prompt to the end of that block."""
    prefix_block_tokens: int = 16
    """Tokens per hashed block."""
    concurrency: int = 0
    """Requests in flight of a closed loop; 0 for an open loop."""
    num_warmup: int = 0
    """Closed loop: the first so many requests warm the servers up, and count in no figure."""
    think_s: Floats = field(default_factory=lambda: np.empty(0))
    """Closed loop: pause before request i arrives, after the completion that releases it; else empty."""
    parent_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Agents: `parents[parent_offsets[i]:parent_offsets[i + 1]]` are the requests whose end request i waits for; it is
    sent `think_s[i]` later. Those that wait for none come first. Empty where nobody waits."""
    parents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    shape: ArrivalShape | None = None
    """What `with_rate` rescales; None where arrivals have no rate (batch, closed loop)."""
    adapter: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """The LoRA adapter of the request, -1 for none; empty where there are none."""
    user_class: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    """The place of the request's class among `classes`; empty where there are none."""
    classes: tuple[UserClass, ...] = ()
    """Classes of users; empty where all are alike."""
    rate: float | None = None
    """Mean arrivals per second that was asked for or recorded."""
    num_rejected: int = 0
    """Requests that arrived but were refused for their length; they are not in the arrays."""
    notes: tuple[str, ...] = ()
    """What was rejected, truncated or dropped, in sentences for the summary."""

    def __post_init__(self) -> None:
        count = len(self.prompt_tokens)
        none = {"session": np.full(count, -1, np.int32), "priority": np.zeros(count, np.int8),
                "prefix_offsets": np.zeros(count + 1, np.int64)}  # fmt: skip
        found: dict[str, Any] = {name: value for name, value in none.items() if getattr(self, name) is None}
        for name in ("prompt_tokens", "output_tokens"):
            found[name] = np.ascontiguousarray(getattr(self, name), np.int32)
        found["arrival_s"] = np.ascontiguousarray(self.arrival_s, np.float64)
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def num_starts(self) -> int:
        """Requests that wait for no other: they come first."""
        return int(np.count_nonzero(np.diff(self.parent_offsets) == 0)) if len(self.parents) else len(self)

    @property
    def total_tokens(self) -> NDArray[np.int32]:
        return self.prompt_tokens + self.output_tokens

    def prefix(self, index: int) -> NDArray[np.int64]:
        return self.prefix_hashes[self.prefix_offsets[index] : self.prefix_offsets[index + 1]]

    def take(self, index: NDArray[np.int64], *, whole_sessions: bool = False) -> Requests:
        """The requests of these indices, in their order; `whole_sessions`: with all that they wait for."""
        offsets, hashes = gathered(self.prefix_offsets, self.prefix_hashes, index)
        shape = self.shape and replace(self.shape, times_s=self.shape.times_s[index])
        first, parents = self.parent_offsets, self.parents
        if len(self.parents) and whole_sessions:
            place = np.full(len(self), -1)
            place[index] = np.arange(len(index))
            first, parents = gathered(self.parent_offsets, self.parents, index)
            parents = place[parents]
        elif len(self.parents) and len(index) < len(self):
            what = "a call of a session is longer than the model takes, and the rest of its session waits for it."
            fix = "Use fewer calls or shorter lengths, or set workload.over_long to truncate."
            raise ConfigError(what, where="workload.agents", fix=fix)
        columns = ("prompt_tokens", "output_tokens", "session", "priority", "user_class", "adapter", "think_s")
        released = self.arrival_s[index] if len(self.arrival_s) else self.arrival_s
        num_warmup = int(np.count_nonzero(index < self.num_warmup))
        if self.concurrency:  # Those that are left start anew.
            released = first_wave(len(index), self.concurrency, num_warmup)
        return replace(
            self, **{name: values[index] for name in columns if len(values := getattr(self, name))},
            arrival_s=released, prefix_offsets=offsets, prefix_hashes=hashes, parent_offsets=first,
            parents=parents, num_warmup=num_warmup, shape=shape,
        )  # fmt: skip


def with_classes(requests: Requests) -> Requests:
    """Requests with a class of users for each priority, where requests differ in nothing else."""
    if requests.classes or not requests.priority.any():
        return requests
    lowest = int(requests.priority.min())
    if lowest < 0:
        raise ConfigError(f"a priority is below 0: {lowest}.", where="workload", fix="0 is the least urgent.")
    levels = range(int(requests.priority.max()) + 1)
    classes = tuple(UserClass(f"priority {level}", level) for level in levels)
    return replace(requests, user_class=requests.priority, classes=classes)


def first_wave(num_requests: int, concurrency: int, num_warmup: int) -> Floats:
    """Arrivals of a closed loop as they are known at its start."""
    return np.where(np.arange(num_requests) < min(concurrency, num_warmup or num_requests), 0.0, np.inf)


def with_rate(requests: Requests, rate: float) -> Requests:
    """Requests at another mean arrival rate: bit for bit what `generate` gives at that rate."""
    if requests.shape is None:
        fix = "Use an open-loop process (poisson, gamma, fixed_interval, piecewise, diurnal) or a trace."
        raise ConfigError("these requests have no arrival rate to change.", fix=fix)
    if not 0 < rate < np.inf:
        raise ConfigError(f"a rate must be above 0 and finite, not {rate}.", where="rate")
    return replace(requests, arrival_s=requests.shape.at(rate), rate=rate)


def limit_lengths(requests: Requests, max_tokens: int, over_long: OverLong) -> Requests:
    """Apply a limit on prompt + output tokens, and note what it did.

    - `reject`: the request is refused on arrival; it leaves the arrays and is counted in `num_rejected`.
    - `truncate`: the prompt is shortened (to no less than one token), then the output.
    - `drop`: the request is left out as if it had never been sent.
    """
    total = requests.total_tokens
    too_long = total > max_tokens
    count = int(too_long.sum())
    if not count:
        return requests
    text = f"{count:,} of {len(requests):,} requests longer than {max_tokens:,} tokens"
    if over_long == "truncate":
        note = (*requests.notes, f"{text}: truncated.")
        return replace(_truncated(requests, max_tokens), notes=note)
    verb, rejected = ("rejected", count) if over_long == "reject" else ("dropped", 0)
    return replace(
        requests.take(np.flatnonzero(~too_long)),
        num_rejected=requests.num_rejected + rejected,
        notes=(*requests.notes, f"{text}: {verb}."),
    )


def _truncated(requests: Requests, max_tokens: int) -> Requests:
    excess = np.maximum(requests.total_tokens - max_tokens, 0)
    prompt = np.maximum(requests.prompt_tokens - excess, 1)
    output = np.minimum(requests.output_tokens, max_tokens - prompt)
    # A prompt that was cut has another answer; else the hashes of what is left of the answer stay.
    kept_tokens = np.where(prompt < requests.prompt_tokens, prompt, prompt + output)
    kept_blocks = np.maximum(-(-prompt // requests.prefix_block_tokens), kept_tokens // requests.prefix_block_tokens)
    counts = np.minimum(np.diff(requests.prefix_offsets), kept_blocks)
    offsets, hashes = _rows(requests.prefix_hashes, requests.prefix_offsets[:-1], counts)
    return replace(
        requests, prompt_tokens=prompt.astype(np.int32), output_tokens=output.astype(np.int32), prefix_offsets=offsets,
        prefix_hashes=hashes,
    )  # fmt: skip


def gathered(
    offsets: NDArray[np.int64], values: NDArray[np.int64], index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows `index` of lists stored as offsets and values."""
    return _rows(values, offsets[index], np.diff(offsets)[index])


def _rows(
    values: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    rows = np.empty(offsets[-1], np.int64)
    for first in range(0, len(counts), CHUNK):
        some, last = slice(first, first + CHUNK), min(first + CHUNK, len(counts))
        within = np.arange(offsets[first], offsets[last])
        rows[offsets[first] : offsets[last]] = values[within + np.repeat((starts - offsets[:-1])[some], counts[some])]
    return offsets, rows
