"""Bounds: the shape that a kernel's time follows.

A roofline is a bound as it stands. It does better as one of several amounts (a constant, tokens, pairs, KV tokens
read, bytes) whose prices are fitted to the measurements: where the device's constants are off, the amounts take over.
"""

from dataclasses import dataclass

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.timing.estimators.interface import Formula
from gnomon.timing.operators import Communication, Decode, Experts, Gemm, Mixed, Prefill, Recurrence, Work


@dataclass(frozen=True)
class Fixed:
    """A formula with nothing to fit."""

    formula: Formula

    def fitted(self, x: Floats, y: Floats) -> Formula:
        """The formula itself."""
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
    Gemm: _linear,
    Prefill: _prefill,
    Decode: _decode,
    Mixed: _mixed,
    Communication: _linear,
    Experts: _linear,
    Recurrence: _linear,
}


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
