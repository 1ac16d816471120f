"""What every estimator can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gnomon.core.arrays import Floats
from gnomon.core.registry import Registry

Formula = Callable[[Floats], Floats]  # Seconds at points [rows, sizes]; positive.


class Bound(Protocol):
    """A formula that has the right shape, so that measured time over it changes slowly."""

    def fitted(self, x: Floats, y: Floats) -> Formula:
        """The formula with its coefficients (if it has any) fitted to the measurements."""


class Estimator(Protocol):
    """Learns seconds from points, and answers at other points."""

    def fit(self, x: Floats, y: Floats) -> Estimator:
        """Learn that point `x[i]` (one column per size) takes `y[i]` seconds, all positive. Returns itself."""

    def predict(self, x: Floats) -> Floats:
        """Seconds at each point of `x`."""


Factory = Callable[[Bound | None], Estimator]
DEFAULT = "grid"
_IN = {"grid": "grid", "forest": "forest", "forest_cv": "forest", "linear": "regression", "polynomial": "regression"}
ESTIMATORS: Registry[Factory] = Registry(
    "estimator",
    built_in={name: f"gnomon.timing.estimators.{module}" for name, module in _IN.items()},
    where="timing.estimator",
)
