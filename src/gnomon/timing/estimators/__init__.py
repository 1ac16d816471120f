"""Estimators: from measured points to seconds at any point in between.

Each is made with a bound (a formula that has the right shape, such as the roofline), then `fit` once and asked with
`predict`. See docs/estimators.md for what each is good at.
"""

from gnomon.core.arrays import Floats
from gnomon.timing.estimators.interface import DEFAULT, ESTIMATORS, Bound, Estimator, Factory, Formula

__all__ = ["DEFAULT", "ESTIMATORS", "Bound", "Estimator", "Factory", "Floats", "Formula"]
