"""How wrong an estimator is on points it has not seen."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.timing.estimators.interface import Estimator

SHUFFLED_FOLDS = 5
UNSHUFFLED_FOLDS = 10


@dataclass(frozen=True)
class HeldOut:
    """Absolute relative error on held-out points."""

    median: float
    mean: float


def held_out_errors(
    make: Callable[[], Estimator], x: Floats, y: Floats, *, num_folds: int, shuffle: bool, seed: int = 0
) -> Floats:
    """|prediction - seconds| / seconds of each point, predicted by an estimator fitted on the other folds.

    Without shuffling the folds are consecutive rows: whole ranges of sizes are missing, at the ends too.
    """
    order = np.random.default_rng(seed).permutation(len(y)) if shuffle else np.arange(len(y))
    predicted = np.empty(len(y))
    for held_out in np.array_split(order, min(num_folds, len(y))):
        kept = np.ones(len(y), dtype=bool)
        kept[held_out] = False
        predicted[held_out] = make().fit(x[kept], y[kept]).predict(x[held_out])
    return np.abs(predicted - y) / y


def a_fifth(make: Callable[[], Estimator], x: Floats, y: Floats) -> HeldOut:
    """One of the five shuffled folds: a fair estimate in a fifth of the time."""
    order = np.random.default_rng(0).permutation(len(y))
    held_out, kept = np.array_split(order, [len(y) // SHUFFLED_FOLDS])
    predicted = make().fit(x[kept], y[kept]).predict(x[held_out])
    return summary(np.abs(predicted - y[held_out]) / y[held_out])


def shuffled(make: Callable[[], Estimator], x: Floats, y: Floats) -> HeldOut:
    """Five folds at random: the error between measured points."""
    return summary(held_out_errors(make, x, y, num_folds=SHUFFLED_FOLDS, shuffle=True))


def unshuffled(make: Callable[[], Estimator], x: Floats, y: Floats) -> HeldOut:
    """Ten folds of consecutive rows: the error across gaps and beyond the ends."""
    return summary(held_out_errors(make, x, y, num_folds=UNSHUFFLED_FOLDS, shuffle=False))


def summary(errors: Floats) -> HeldOut:
    return HeldOut(float(np.median(errors)), float(np.mean(errors)))
