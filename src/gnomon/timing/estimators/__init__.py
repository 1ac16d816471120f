"""Estimators: from measured points to seconds at any point in between.

Each is made with a bound (a formula that has the right shape, such as the roofline), then `fit` once and asked with
`predict`. See docs/estimators.md for what each is good at.
"""

from __future__ import annotations

from importlib import import_module

from gnomon.core.arrays import Floats
from gnomon.core.errors import UnknownNameError
from gnomon.timing.estimators.interface import Bound, Estimator, Factory, Formula

__all__ = ["DEFAULT", "Bound", "Estimator", "Factory", "Floats", "Formula", "estimator", "estimator_names"]

DEFAULT = "grid"

_WHERE = {
    "grid": "gnomon.timing.estimators.grid:Grid",
    "forest": "gnomon.timing.estimators.forest:Forest",
    "forest_cv": "gnomon.timing.estimators.forest:ForestCV",
    "linear": "gnomon.timing.estimators.regression:Linear",
    "polynomial": "gnomon.timing.estimators.regression:Polynomial",
}


def estimator_names() -> list[str]:
    """Every estimator, the default first."""
    return list(_WHERE)


def estimator(name: str = DEFAULT) -> Factory:
    """The estimator called `name`; only its own module (and scikit-learn for the forest) is imported."""
    if name not in _WHERE:
        raise UnknownNameError("estimator", name, _WHERE, where="timing.estimator")
    module, _, attribute = _WHERE[name].partition(":")
    factory: Factory = getattr(import_module(module), attribute)
    return factory
