"""Least squares on relative errors: straight lines and second-degree polynomials of the sizes.

Both extrapolate and smooth noise, but know nothing of tiles and waves; they are here to compare with.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.timing.estimators.interface import ESTIMATORS, Bound


@ESTIMATORS.register("linear")
class Linear:
    """constant + slope x size + ...; the bound is not used."""

    degree = 1

    def __init__(self, bound: Bound | None = None) -> None:
        self._scale: Floats = np.ones(1)
        self._coefficients: Floats = np.empty(0)
        self._smallest = 0.0

    def fit(self, x: Floats, y: Floats) -> Linear:
        """Minimise the squared relative error."""
        self._scale = np.array([max(column.max(), 1.0) for column in x.T])
        features = self._features(x) / y[:, None]
        solution = np.linalg.lstsq(features, np.ones(len(y)), rcond=None)[0]
        self._coefficients = solution.astype(np.float64)
        self._smallest = float(y.min())
        return self

    def predict(self, x: Floats) -> Floats:
        """Seconds at each point, never below half of the smallest time seen."""
        return np.maximum(self._features(x) @ self._coefficients, 0.5 * self._smallest)

    def _features(self, sizes: Floats) -> Floats:
        scaled = sizes / self._scale
        columns = [np.ones(len(scaled))]
        for degree in range(1, self.degree + 1):
            for which in combinations_with_replacement(range(scaled.shape[1]), degree):
                columns.append(np.prod(scaled[:, which], axis=1))
        return np.stack(columns, axis=1)


@ESTIMATORS.register("polynomial")
class Polynomial(Linear):
    """All products of up to two sizes."""

    degree = 2
