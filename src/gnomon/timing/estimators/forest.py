"""Random forests, as Vidur trains them; here to compare with. Needs the extra [forest].

Trained forests are kept under the cache folder by a hash of what they were trained on.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import MissingExtraError
from gnomon.core.files import written_whole
from gnomon.core.jit import cache_home
from gnomon.timing.estimators.interface import Bound

NUM_TREES = 100


class Forest:
    """scikit-learn's forest on the raw sizes; the bound is not used. Beyond its data it answers the last value."""

    def __init__(self, bound: Bound | None = None, *, cache: bool = True) -> None:
        self._cache = cache
        self._model: Any = None

    def fit(self, x: Floats, y: Floats) -> Forest:
        """Train, or load the forest trained on the same data before."""
        try:
            import sklearn
            from sklearn.ensemble import RandomForestRegressor
        except ImportError:
            raise MissingExtraError("The estimator forest", "forest") from None
        digest = hashlib.sha256(f"{sklearn.__version__} {NUM_TREES} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x).tobytes())
        digest.update(np.ascontiguousarray(y).tobytes())
        path = cache_home() / "forests" / f"{digest.hexdigest()[:32]}.pickle"
        if self._cache and path.is_file():
            self._model = pickle.loads(path.read_bytes())
            return self
        self._model = RandomForestRegressor(n_estimators=NUM_TREES, random_state=0).fit(x, y)
        if self._cache:
            with written_whole(path) as temporary:
                temporary.write_bytes(pickle.dumps(self._model))
        return self

    def predict(self, x: Floats) -> Floats:
        """The mean over the trees."""
        return np.asarray(self._model.predict(x), dtype=float)
