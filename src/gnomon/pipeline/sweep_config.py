"""What a sweep of the communication-priority study runs over."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from pydantic import model_validator

from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.pipeline.costs import Priority
from gnomon.pipeline.study import Study

KEYS = ("n", "sync_freq", "fwd_len", "bwd_len", "prop_len", "sync_base_len", "fwd_impact", "bwd_impact")
"""The swept parameters, in the order of the CSV's columns."""


MAX_VALUES = 100_000
"""Of one range, and of the grid of priorities."""
MAX_CONFIGURATIONS = 10_000_000
SECONDS_PER_PASS = 4e-6
"""Of a run, for each micro-batch on each stage; measured on one core."""


class Range(Config):
    """start, start + step, ..., stop; both ends included."""

    start: float
    """The first value."""
    stop: float
    """The last value."""
    step: float
    """The distance between two."""

    @model_validator(mode="after")
    def _sensible(self) -> Range:
        if not (self.step > 0 and self.stop >= self.start):
            raise ConfigError("a range needs step > 0 and stop >= start.")
        steps = (self.stop - self.start) / self.step
        if steps + 1 > MAX_VALUES:
            count = f"{steps + 1:,.0f}" if steps < 1e15 else f"{steps:.3g}"
            raise ConfigError(f"a range of {count} values; at most {MAX_VALUES:,}.", fix="Use a larger step.")
        if abs(steps - round(steps)) > 1e-6:
            raise ConfigError(
                f"stop {self.stop:g} is not reached from {self.start:g} in steps of {self.step:g}.",
                fix="Both ends belong to a range: choose a step that divides it.",
            )
        return self

    def values(self) -> list[float]:
        """Every value, free of rounding noise."""
        count = round((self.stop - self.start) / self.step)
        return [round(self.start + k * self.step, 10) for k in range(count + 1)]


Numbers = float | tuple[float, ...] | Range
Integers = int | tuple[int, ...] | Range


class SweepConfig(Config):
    """Every key is one value, a list, or {start, stop, step}; the sweep takes all combinations."""

    n: Integers = 8
    """Micro-batches."""
    sync_freq: Integers = 1
    """Synchronise gradients after every this many micro-batches; combinations beyond n are left out."""
    fwd_len: Numbers = 1.0
    """Time of a forward."""
    bwd_len: Numbers = 2.0
    """Time of a backward."""
    prop_len: Numbers = 1.0
    """Time to send activations, or their gradients, over an idle link."""
    sync_base_len: Numbers = 2.0
    """Time to synchronise one micro-batch's gradients over an idle link."""
    fwd_impact: Numbers = 0.2
    """Share of its rate that a forward loses while grad_sync has the whole link."""
    bwd_impact: Numbers = 0.2
    """Share of its rate that a backward loses while grad_sync has the whole link."""
    stages: int = 4
    """Pipeline stages, one GPU each; the same for the whole sweep."""

    @model_validator(mode="after")
    def _sensible(self) -> SweepConfig:
        for name in KEYS:
            if not _values(getattr(self, name)):
                raise ConfigError(f"{name} is an empty list.")
        for name in ("n", "sync_freq"):
            if any(value != int(value) for value in _values(getattr(self, name))):
                raise ConfigError(f"{name} must be whole numbers (given: {_values(getattr(self, name))}).")
        for name in KEYS:  # Every value alone: a mistake is found before the sweep has begun.
            for value in _values(getattr(self, name)):
                Study(**{"n": max(int(value), 1), name: int(value)} if name in ("n", "sync_freq") else {name: value})
        Study(stages=self.stages)
        if self.num_configurations > MAX_CONFIGURATIONS:
            raise ConfigError(
                f"{self.num_configurations:,} configurations; at most {MAX_CONFIGURATIONS:,}.",
                fix="Give fewer values, or larger steps.",
            )
        if self.num_configurations == 0:
            raise ConfigError(
                "there is nothing to run: sync_freq is more than n in every combination.",
                fix="Choose a sync_freq of at most n.",
            )
        return self

    @property
    def num_configurations(self) -> int:
        """How many configurations there are."""
        rest = math.prod(len(_values(getattr(self, name))) for name in KEYS[2:])
        pairs = itertools.product(_values(self.n), _values(self.sync_freq))
        return rest * sum(sync_freq <= n for n, sync_freq in pairs)

    @property
    def seconds_each(self) -> float:
        """About how long one run takes."""
        return SECONDS_PER_PASS * max(_values(self.n)) * self.stages

    def studies(self) -> list[Study]:
        """Every configuration, the last key changing fastest; those with sync_freq > n are left out."""
        return [Study(**given) for given in self._combinations()]

    def _combinations(self) -> list[dict[str, Any]]:
        axes = [_values(getattr(self, name)) for name in KEYS]
        rows = (dict(zip(KEYS, values, strict=True)) for values in itertools.product(*axes))
        return [
            row | {"n": int(row["n"]), "sync_freq": int(row["sync_freq"]), "stages": self.stages}
            for row in rows
            if row["sync_freq"] <= row["n"]
        ]


class Priorities(NamedTuple):
    """One cell of a heat map: weights, or 'a' for the exclusive tier."""

    fwd_prop: Priority
    grad_prop: Priority
    grad_sync: Priority


def priority_grid(step: float) -> list[Priorities]:
    """All shared; fwd_prop exclusive; grad_prop exclusive; the other weights in steps that sum to 1."""
    count = round(1.0 / step) if step > 1 / MAX_VALUES else 0
    if count < 1 or abs(count * step - 1.0) > 1e-9:
        raise ConfigError(f"a priority step of {step:g} does not divide 1.", fix="Use 0.1, 0.2, 0.25 or 0.5, say.")
    if count**2 > MAX_VALUES:
        raise ConfigError(
            f"a priority step of {step:g} makes more than {MAX_VALUES:,} priorities.", fix="Use 0.01, say."
        )
    weight = [round(k / count, 10) for k in range(count + 1)]
    shared = [
        Priorities(weight[f], weight[g], weight[count - f - g]) for f in range(count + 1) for g in range(count + 1 - f)
    ]
    forward_first = [Priorities("a", weight[g], weight[count - g]) for g in range(count + 1)]
    gradient_first = [Priorities(weight[f], "a", weight[count - f]) for f in range(count + 1)]
    return shared + forward_first + gradient_first


def _values(given: Any) -> list[float]:
    if isinstance(given, Range):
        return given.values()
    values = list(given) if isinstance(given, tuple) else [given]
    if any(not math.isfinite(value) for value in values):
        raise ConfigError(f"{given} is not a list of finite numbers.")
    return values
