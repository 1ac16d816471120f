"""The source made of measurements: a bundle, an estimator per operator, and the bound whose shape its time follows.

A roofline is a bound as it stands. It does better as one of several amounts (a constant, tokens, pairs, KV tokens
read, bytes) whose prices are fitted to the measurements: where the device's constants are off, the amounts take over.
"""

from dataclasses import dataclass, replace

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.timing.estimators import ESTIMATORS, Bound, Estimator
from gnomon.timing.estimators.interface import Formula
from gnomon.timing.estimators.validation import a_fifth
from gnomon.timing.host import HostConfig
from gnomon.timing.operators import Communication, Decode, Experts, Gemm, Mixed, Operator, Prefill, Recurrence, Work
from gnomon.timing.sources import ANY, Range
from gnomon.timing.sources.profile.samples import Bundle, Samples
from gnomon.timing.sources.profile.shapes import BETWEEN_ERROR, from_neighbours
from gnomon.timing.sources.profile.skew import skew_table
from gnomon.timing.sources.roofline import Roofline


@dataclass(frozen=True)
class Fixed:
    """A formula with nothing to fit."""

    formula: Formula

    def fitted(self, x: Floats, y: Floats) -> Formula:
        return self.formula


@dataclass(frozen=True)
class Priced:
    """A sum of amounts of work, each at a price that is fitted and not negative."""

    amounts: Formula
    """Points [rows, sizes] -> amounts [rows, amounts]."""

    def fitted(self, x: Floats, y: Floats) -> Formula:
        """Least squares on relative errors."""
        prices = _non_negative(self.amounts(x) / y[:, None])
        amounts = self.amounts
        smallest = 1e-3 * float(y.min())
        return lambda points: np.maximum(amounts(points) @ prices, smallest)


def bound_for(work: Work, roofline: Formula | None = None) -> Fixed | Priced | None:
    """The bound for one operator: its amounts of work and the roofline, priced; the roofline alone where that is best
    (element-wise kernels: a floor and bytes, which it has already)."""
    amounts = _AMOUNTS.get(type(work))
    if amounts is None:
        return Fixed(roofline) if roofline else None
    if roofline is None:
        return Priced(amounts)
    return Priced(lambda x: np.column_stack([amounts(x), roofline(x)]))


def _prefill(x: Floats) -> Floats:
    chunk, kv = x.T
    return np.column_stack([np.ones(len(x)), chunk * (kv + 0.5 * chunk), chunk + kv])


def _decode(x: Floats) -> Floats:
    sequences, kv = x.T
    return np.column_stack([np.ones(len(x)), sequences * kv, sequences])


def _mixed(x: Floats) -> Floats:
    return np.column_stack([_prefill(x[:, :2]), _decode(x[:, 2:])[:, 1:]])


def _linear(x: Floats) -> Floats:
    """A constant and each size: tokens, bytes, or tokens and touched experts."""
    return np.column_stack([np.ones(len(x)), x])


_AMOUNTS: dict[type[Work], Formula] = {
    Gemm: _linear, Prefill: _prefill, Decode: _decode, Mixed: _mixed, Communication: _linear, Experts: _linear,
    Recurrence: _linear,
}  # fmt: skip


def _non_negative(relative: Floats) -> Floats:
    """The prices p >= 0 with `relative @ p` nearest to one; negative ones are struck out until none is left."""
    prices = np.zeros(relative.shape[1])
    scale = np.maximum(np.abs(relative).max(axis=0), 1e-300)
    active = list(range(relative.shape[1]))
    while active:
        found = np.linalg.lstsq(relative[:, active] / scale[active], np.ones(len(relative)), rcond=None)[0]
        if (found >= 0).all():
            prices[active] = found / scale[active]
            return prices
        del active[int(np.argmin(found))]
    prices[0] = 1.0 / float(np.mean(relative[:, 0]))
    return prices


MIN_ROWS = 3  # Fewer measurements than this say nothing about a shape.

FARTHEST_FROM_ROOFLINE = 100.0


class Measured:
    """Seconds of operators between measured points."""

    def __init__(self, name: str, bundle: Bundle, roofline: Roofline, estimator_name: str = "grid") -> None:
        self.name, self.bundle = name, bundle
        self._roofline = roofline
        self._factory = ESTIMATORS[estimator_name]
        self._samples: dict[Operator, Samples | None] = {}
        self._fitted: dict[Operator, Estimator] = {}
        self._errors: dict[Operator, float] = {}

    @property
    def host(self) -> HostConfig | None:
        """Time of the engine's own code, where it was measured."""
        return self.bundle.host

    def samples(self, operator: Operator) -> Samples | None:
        """What was measured of an operator, or of the shapes nearest to it."""
        if operator not in self._samples:
            found = self.bundle.find(operator, self._roofline.node) or from_neighbours(
                self.bundle, operator, self._roofline.seconds
            )
            if found is not None and len(found.seconds) < MIN_ROWS:
                found = None
            if found is not None:
                _refuse_other_units(operator, found, self._roofline)
            self._samples[operator] = found
        return self._samples[operator]

    def measured(self, operator: Operator) -> Range | None:
        """Smallest and largest sizes that were measured."""
        if operator.name in self.bundle.included:
            return (ANY,) * (2 if operator.kind in ("attention_prefill", "attention_decode") else 1)
        samples = self.samples(operator)
        if samples is None:
            return None
        lows, highs = samples.sizes.min(axis=0), samples.sizes.max(axis=0)
        # Experts are measured by the rows of all local ones, and asked by tokens.
        if isinstance(operator.work, Experts) and samples.sizes.shape[1] == 2:
            per_token = _tokens_here(operator.work, np.ones(1))[0]
            return ((float(lows[0] / per_token), float(highs[0] / per_token)),)
        return tuple((float(low), float(high)) for low, high in zip(lows, highs, strict=True))

    def seconds(self, operator: Operator, *sizes: Floats) -> Floats:
        """Seconds of one call between measured points."""
        if operator.name in self.bundle.included:
            return np.zeros_like(sizes[0])
        samples = self.samples(operator)
        assert samples is not None, f"{operator.name} was not measured"
        if operator not in self._fitted:
            self._fitted[operator] = self._make(operator, samples).fit(samples.sizes, samples.seconds)
        points = _points(operator, samples, sizes)
        seconds = self._fitted[operator].predict(points).reshape(np.shape(sizes[0]))
        return seconds * self._slice(operator, samples, sizes[0])

    def uncertainty(self, operator: Operator) -> float:
        """The held-out median error of the estimator on this operator's measurements (a fifth of them left out)."""
        samples = self.samples(operator)
        if samples is None or len(samples.seconds) < 10:
            return 0.0 if operator.name in self.bundle.included else self._roofline.uncertainty(operator)
        if operator not in self._errors:
            error = a_fifth(lambda: self._make(operator, samples), samples.sizes, samples.seconds).median
            self._errors[operator] = error + BETWEEN_ERROR if samples.is_between else error
        return self._errors[operator]

    def notes(self) -> list[str]:
        """The settings of what was trained: one sentence per set of them."""
        alike: dict[str, list[str]] = {}
        for operator, one in self._fitted.items():
            if chosen := getattr(one, "chosen", None):
                words = ", ".join(f"{name} {value}" for name, value in chosen.items())
                alike.setdefault(words, []).append(operator.name)
        return [f"Forests of {', '.join(dict.fromkeys(names))}: {words}." for words, names in alike.items()]

    def skew(self, decodes: Floats) -> Floats | None:
        """How far skewed KV lengths move a decode towards its longest, where that was measured."""
        return None if self.bundle.skew is None else skew_table(self.bundle.skew, decodes)

    def _make(self, operator: Operator, samples: Samples) -> Estimator:
        return self._factory(bound_of(operator, self._roofline, samples))

    def _slice(self, operator: Operator, samples: Samples, tokens: Floats) -> Floats:
        """What part of the measured shape the operator's own is, by the roofline."""
        whole, work = samples.measured_as, operator.work
        if not isinstance(whole, Experts) or not isinstance(work, Experts) or whole.ffn == work.ffn:
            return np.ones_like(tokens)
        local = replace(work, ffn=whole.ffn, load="balanced")
        return self._roofline.experts_s(work, tokens) / self._roofline.experts_s(local, tokens)


def _refuse_other_units(operator: Operator, samples: Samples, roofline: Roofline) -> None:
    """No kernel is this far from its roofline: times in another unit are at least a thousand times off."""
    if samples.sizes.shape[1] != len(roofline.measured(operator) or ()):
        return
    expected = roofline.seconds(replace(operator, is_fused=False), *samples.sizes.T)
    ratio = float(np.median(samples.seconds / expected))
    if not 1.0 / FARTHEST_FROM_ROOFLINE < ratio < FARTHEST_FROM_ROOFLINE:
        what = f"the times of {operator.name} are {ratio:.3g} times what {roofline.device.name} would need."
        fix = "The unit is seconds in Gnomon's format, milliseconds in Vidur's, microseconds in LLMServingSim's."
        raise DataError(what, where=samples.where, fix=fix)


def bound_of(operator: Operator, roofline: Roofline, samples: Samples) -> Bound | None:
    """The shape that an operator's time follows."""
    if isinstance(operator.work, Experts) and samples.sizes.shape[1] == 2:
        return bound_for(operator.work)  # The roofline's experts go by tokens alone.
    # A fused operator that was measured after all has the shape of any other.
    alone = replace(operator, is_fused=False)
    return bound_for(operator.work, lambda x: roofline.seconds(alone, *x.T))


def _points(operator: Operator, samples: Samples, sizes: tuple[Floats, ...]) -> Floats:
    if isinstance(operator.work, Experts) and samples.sizes.shape[1] == 2:
        tokens = np.ravel(sizes[0])
        return np.column_stack([_tokens_here(operator.work, tokens), operator.work.touched(tokens)])
    return np.column_stack([np.ravel(size) for size in sizes])


def _tokens_here(work: Experts, tokens: Floats) -> Floats:
    """Tokens that would give a rank with all experts as many rows as the local experts have."""
    return work.routed(tokens) / work.per_token
