"""Bounds: the shape that a kernel's time follows.

A roofline is a bound as it stands. For attention and communication the amounts of work alone (pairs, KV tokens read,
bytes, a constant) do better once their prices are fitted to the measurements: no device constant is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnomon.timing.estimators.interface import Floats, Formula
from gnomon.timing.operators import Communication, Decode, Experts, Mixed, Prefill, Work


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


def priced_work(work: Work) -> Priced | None:
    """The amounts of work of one operator, or None where a price per amount says too little (tiled GEMMs)."""
    match work:
        case Prefill():
            return Priced(_prefill)
        case Decode():
            return Priced(_decode)
        case Mixed():
            return Priced(lambda x: np.column_stack([_prefill(x[:, :2]), _decode(x[:, 2:])[:, 1:]]))
        case Communication():
            return Priced(lambda x: np.column_stack([np.ones(len(x)), x[:, 0]]))
        case Experts():  # Points are (tokens, touched experts).
            return Priced(lambda x: np.column_stack([np.ones(len(x)), x[:, 0], x[:, 1]]))
        case _:
            return None


def _prefill(x: Floats) -> Floats:
    chunk, kv = x.T
    return np.column_stack([np.ones(len(x)), chunk * (kv + 0.5 * chunk), chunk + kv])


def _decode(x: Floats) -> Floats:
    sequences, kv = x.T
    return np.column_stack([np.ones(len(x)), sequences * kv, sequences])


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
