"""Random forests, as Vidur trains them; here to compare with. Needs the extra [forest].

`forest` has fixed settings; `forest_cv` chooses among Vidur's by cross-validation and says which (`chosen`).

Trained forests are kept under the cache folder by a hash of what they were trained on.
"""

from __future__ import annotations

import hashlib
import pickle
from contextlib import suppress
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.cache_folder import cache_home, warn_once
from gnomon.core.errors import ConfigError, MissingExtraError
from gnomon.core.files import written_whole
from gnomon.timing.estimators.interface import ESTIMATORS, Bound

NUM_TREES = 100
SETTINGS = {"n_estimators": (250, 500, 750), "max_depth": (8, 16, 32), "min_samples_split": (2, 5, 10)}
"""Vidur's grid (vidur/config/config.py, RandomForrestExecutionTimePredictorConfig)."""
FOLDS = 5


@ESTIMATORS.register("forest")
class Forest:
    """scikit-learn's forest on the raw sizes; the bound is not used. Beyond its data it answers the last value."""

    def __init__(self, bound: Bound | None = None, *, cache: bool = True) -> None:
        self._cache = cache
        self._model: Any = None

    @property
    def chosen(self) -> dict[str, int]:
        return {name: self._model.get_params()[name] for name in SETTINGS}

    def fit(self, x: Floats, y: Floats) -> Forest:
        """Train, or load the forest trained on the same data before."""
        try:
            import sklearn
        except ImportError:
            raise MissingExtraError("The estimator forest", "forest") from None
        digest = hashlib.sha256(f"{type(self).__name__} {sklearn.__version__} {NUM_TREES} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x).tobytes())
        digest.update(np.ascontiguousarray(y).tobytes())
        home = cache_home() if self._cache else None
        path = home / "forests" / f"{digest.hexdigest()[:32]}.pickle" if home else None
        if path is not None and path.is_file():
            with suppress(Exception):  # A damaged file is made again.
                self._model = pickle.loads(path.read_bytes())
                return self
        self._model = self._trained(x, y)
        if path is not None:
            try:
                with written_whole(path) as temporary:
                    temporary.write_bytes(pickle.dumps(self._model))
            except ConfigError as error:
                warn_once(f"{error} The forest is trained again next time.")
        return self

    def _trained(self, x: Floats, y: Floats) -> Any:
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(n_estimators=NUM_TREES, random_state=0).fit(x, y)

    def predict(self, x: Floats) -> Floats:
        return np.asarray(self._model.predict(x), dtype=float)


@ESTIMATORS.register("forest_cv")
class ForestCV(Forest):
    """A forest whose settings are those with the least relative error in cross-validation."""

    def _trained(self, x: Floats, y: Floats) -> Any:
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.model_selection import GridSearchCV, KFold

        folds = KFold(min(FOLDS, len(y)), shuffle=True, random_state=0)
        search = GridSearchCV(
            RandomForestRegressor(random_state=0), {name: list(values) for name, values in SETTINGS.items()},
            cv=folds, scoring="neg_mean_absolute_percentage_error",
        )  # fmt: skip
        return search.fit(x, y).best_estimator_
