"""Percentiles of many values, plain or weighted, and how sure a mean is."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints

LEVELS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}

NUM_BATCHES = 20
"""Batches of the method of batch means; 20 to 30 is the usual advice (Law, Simulation Modeling and Analysis)."""
_T_975 = 2.093  # Student's t at 97.5 % for 19 degrees of freedom.


@dataclass(frozen=True)
class Percentiles:
    """How a quantity is distributed; None where there is nothing to look at."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    mean_margin: float | None = None
    """Half of the 95 % interval of the mean, by batch means over the requests in order; None below 200 of them."""


STATISTICS = tuple(f.name for f in fields(Percentiles) if f.name != "mean_margin")


def percentiles(values: Floats) -> Percentiles:
    """Percentiles of `values` (linear between neighbours, as NumPy); NaNs are left out."""
    unknown = np.isnan(values)
    known = values[~unknown] if unknown.any() else values
    if not known.size:
        return Percentiles()
    levels = np.percentile(known, list(LEVELS.values())).tolist()
    _, margin = mean_with_margin(known)
    return Percentiles(
        mean=float(known.mean()), max=float(known.max()), mean_margin=margin, **dict(zip(LEVELS, levels, strict=True))
    )


def weighted_percentiles(values: Floats, counts: Ints) -> Percentiles:
    """Percentiles where `values[i]` stands for `counts[i]` equal ones: the smallest value that reaches the share."""
    if not values.size:
        return Percentiles()
    found = weighted_quantiles(values, counts, np.array(list(LEVELS.values())) / 100).tolist()
    mean = float(np.dot(values, counts) / counts.sum())
    return Percentiles(mean=mean, max=float(values.max()), **dict(zip(LEVELS, found, strict=True)))


def weighted_quantiles(values: Floats, counts: Ints, shares: Floats) -> Floats:
    """The smallest values that reach these shares (0 to 1) of all, where `values[i]` stands for `counts[i]` of them."""
    order = np.argsort(values)
    accumulated = np.cumsum(counts[order])
    ranks = np.minimum(np.ceil(shares * accumulated[-1]), accumulated[-1])
    return values[order[np.searchsorted(accumulated, ranks)]]


def mean_with_margin(values: NDArray[np.floating]) -> tuple[float, float | None]:
    """The mean and half of its 95 % interval.

    Neighbours depend on each other (a queue has a memory), so the spread is taken between the means of consecutive
    batches rather than between single values.
    """
    size = values.size // NUM_BATCHES
    if size < 10:
        return float(values.mean()), None
    means = values[: size * NUM_BATCHES].reshape(NUM_BATCHES, size).mean(axis=1)
    return float(values.mean()), float(_T_975 * means.std(ddof=1) / np.sqrt(NUM_BATCHES))
