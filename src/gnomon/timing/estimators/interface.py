"""What every estimator can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Bound = Callable[[Floats], Floats]
"""Seconds of a formula at points [rows, sizes]; positive. Estimators that use it learn the ratio to it."""


class Estimator(Protocol):
    """Learns seconds from points, and answers at other points."""

    def fit(self, x: Floats, y: Floats) -> Estimator:
        """Learn that point `x[i]` (one column per size) takes `y[i]` seconds, all positive. Returns itself."""

    def predict(self, x: Floats) -> Floats:
        """Seconds at each point of `x`."""


Factory = Callable[[Bound | None], Estimator]
