"""Estimators: what they reproduce, where they extrapolate, how held-out error is counted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError, MissingExtraError, UnknownNameError
from gnomon.timing.estimators import ESTIMATORS
from gnomon.timing.estimators.grid import Grid, filled
from gnomon.timing.estimators.validation import a_fifth, held_out_errors, shuffled, unshuffled
from gnomon.timing.operators import Decode, Elementwise
from gnomon.timing.sources.profile.measured import Fixed, Priced, bound_for


def kernel(x: Floats) -> Floats:
    """Attention of decodes: a floor, and bytes over bandwidth with steps of 64 KV tokens."""
    decodes, kv = x.T
    return 5e-6 + decodes * np.ceil(kv / 64) * 64 * 2e-9


def plane(decodes: list[int], kv: list[int]) -> Floats:
    return np.array([(d, k) for d in decodes for k in kv], dtype=float)


POINTS = plane([1, 2, 4, 8, 16, 32, 64], [64 * i for i in range(1, 40)])


@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_every_estimator_learns_a_straight_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path))
    few = {"n_estimators": (100,), "max_depth": (8, 16), "min_samples_split": (2,)}
    monkeypatch.setattr("gnomon.timing.estimators.forest.SETTINGS", few)
    x = np.arange(1.0, 400.0)[:, None]
    y = 1e-5 + 2e-7 * x[:, 0]
    made = ESTIMATORS[name](None).fit(x, y)
    at = np.array([[10.5], [200.25], [399.0]])
    assert made.predict(at) == pytest.approx(1e-5 + 2e-7 * at[:, 0], rel=0.02)


def test_unknown_estimator_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'forest'"):
        ESTIMATORS["forrest"]


def test_the_grid_returns_measured_points_exactly() -> None:
    y = kernel(POINTS)
    assert Grid().fit(POINTS, y).predict(POINTS) == pytest.approx(y)


def test_repeated_points_count_with_their_median() -> None:
    x = np.array([[1.0], [1.0], [1.0], [2.0]])
    y = np.array([1.0, 9.0, 2.0, 5.0])
    assert Grid().fit(x, y).predict(np.array([[1.0], [2.0]])) == pytest.approx([2.0, 5.0])


def test_beyond_its_points_the_grid_follows_the_bound() -> None:
    x = np.arange(1.0, 50.0)[:, None]
    bound = Fixed(lambda at: 1e-6 * at[:, 0] ** 2)
    made = Grid(bound).fit(x, 3e-6 * x[:, 0] ** 2)
    assert made.predict(np.array([[500.0]])) == pytest.approx([3e-6 * 500.0**2])


def test_holes_are_filled_by_what_rows_and_columns_agree_on() -> None:
    rows = np.array([0.0, 0.7, 0.7, 1.9, 2.0, 4.0])
    columns = np.array([0.0, 0.1, 5.0, 5.1, 5.2])
    grid = rows[:, None] + columns
    holed = grid.copy()
    holed[2, 2] = holed[4, 1] = np.nan
    axes = [np.arange(6.0), np.arange(5.0)]
    assert filled(holed, axes) == pytest.approx(grid)


def test_a_row_that_was_never_measured_is_interpolated_between_its_neighbours() -> None:
    x = POINTS[POINTS[:, 0] != 8]
    made = Grid(bound_for(Decode(1, 1, 1, 1, 1))).fit(x, kernel(x))
    at = POINTS[POINTS[:, 0] == 8]
    assert made.predict(at) == pytest.approx(kernel(at), rel=0.02)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_no_hole_survives_and_values_stay_in_range(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)))
    count = int(np.prod(shape))
    known = data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    grid = np.where(np.array(known).reshape(shape), 1.5, np.nan)
    assert filled(grid, [np.arange(float(size)) for size in shape]) == pytest.approx(np.full(shape, 1.5))


def test_points_that_share_no_values_are_refused() -> None:
    x = np.random.default_rng(0).random((300, 3))
    with pytest.raises(DataError, match="300 x 300 x 300"):
        Grid().fit(x, np.ones(300))


def test_bound_for_finds_the_prices_and_none_is_negative() -> None:
    x = plane([1, 2, 4, 8], [16, 64, 256, 1024])
    truth = 1e-5 + 3e-9 * x[:, 0] * x[:, 1]
    bound = bound_for(Decode(1, 1, 1, 1, 1))
    assert bound is not None
    formula = bound.fitted(x, truth)
    assert formula(np.array([[100.0, 10000.0]])) == pytest.approx([1e-5 + 3e-3])
    falling = Priced(lambda at: np.column_stack([np.ones(len(at)), at[:, 0]]))
    decreasing = falling.fitted(x, 1.0 / x[:, 0])
    assert decreasing(np.array([[1e6, 0.0]]))[0] > 0


def test_a_wrong_roofline_is_outvoted_by_the_amounts_of_work() -> None:
    x = plane([1, 2, 4, 8], [16, 64, 256, 1024])
    truth = kernel(x)
    wrong = bound_for(Decode(1, 1, 1, 1, 1), lambda at: np.sqrt(at[:, 0]))
    assert wrong is not None
    far = np.array([[64.0, 8192.0]])
    assert wrong.fitted(x, truth)(far) == pytest.approx(kernel(far), rel=0.1)


def test_element_wise_kernels_take_the_roofline_as_it_is() -> None:
    roofline = bound_for(Elementwise(4.0), kernel)
    assert roofline is not None
    assert roofline.fitted(POINTS, np.ones(len(POINTS)))(POINTS) == pytest.approx(kernel(POINTS))
    assert bound_for(Elementwise(4.0)) is None


def test_held_out_points_are_not_seen() -> None:
    seen: list[int] = []

    class Memory:
        def fit(self, x: Floats, y: Floats) -> Memory:
            self.known = set(x[:, 0])
            seen.append(len(y))
            return self

        def predict(self, x: Floats) -> Floats:
            assert not self.known & set(x[:, 0])
            return np.full(len(x), 2.0)

    x = np.arange(20.0)[:, None]
    errors = held_out_errors(Memory, x, np.ones(20), num_folds=5, shuffle=True)
    assert errors == pytest.approx(np.ones(20))
    assert seen == [16] * 5
    assert a_fifth(Memory, x, np.ones(20)).mean == pytest.approx(1.0)


def test_a_fifth_is_the_first_of_the_shuffled_folds() -> None:
    """Seconds are powers of two and 1 is predicted, so that every error says which point it is of."""

    class One:
        def fit(self, x: Floats, y: Floats) -> One:
            assert len(y) == 12
            return self

        def predict(self, x: Floats) -> Floats:
            return np.ones(len(x))

    y = 0.5 ** np.arange(15.0)
    held_out = np.random.default_rng(0).permutation(15)[:3]
    of_three = np.sort(2.0**held_out - 1.0)
    found = a_fifth(One, np.arange(15.0)[:, None], y)
    assert (found.median, found.mean) == pytest.approx((of_three[1], of_three.mean()))
    errors = held_out_errors(One, np.arange(15.0)[:, None], y, num_folds=5, shuffle=True)
    assert found.mean == pytest.approx(errors[held_out].mean())


def test_consecutive_folds_are_harder_than_shuffled_ones() -> None:
    """Steps of 64 KV tokens, measured every 32: a gap of many steps is guessed less well than a single hole."""
    x = np.array([(d, k) for k in range(32, 2048, 32) for d in (1, 2, 4, 8, 16, 32, 64)], dtype=float)
    y = kernel(x)
    bound = bound_for(Decode(1, 1, 1, 1, 1))
    within, across = shuffled(lambda: Grid(bound), x, y), unshuffled(lambda: Grid(bound), x, y)
    assert within.mean < 0.01 < across.mean < 0.1


def test_a_forest_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon.timing.estimators.forest.cache_home", lambda: tmp_path)
    x = np.arange(1.0, 60.0)[:, None]
    first = ESTIMATORS["forest"](None).fit(x, x[:, 0]).predict(x)
    (kept,) = (tmp_path / "forests").iterdir()
    stamp = kept.stat().st_mtime_ns
    again = ESTIMATORS["forest"](None).fit(x, x[:, 0]).predict(x)
    assert (again == first).all()
    assert kept.stat().st_mtime_ns == stamp
    ESTIMATORS["forest"](None).fit(x, 2 * x[:, 0])
    assert len(list((tmp_path / "forests").iterdir())) == 2


def test_a_forest_chooses_its_settings_by_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that one split finds: the deeper tree only fits the noise."""
    from gnomon.timing.estimators import forest

    monkeypatch.setattr(forest, "SETTINGS", {"n_estimators": (5,), "max_depth": (1, 12), "min_samples_split": (2,)})
    random = np.random.default_rng(0)
    x = np.arange(120, dtype=float)[:, None]
    y = np.where(x[:, 0] < 60, 1.0, 3.0) * random.lognormal(0.0, 0.3, 120)
    made = forest.ForestCV(None, cache=False).fit(x, y)
    assert made.chosen == {"n_estimators": 5, "max_depth": 1, "min_samples_split": 2}
    line = forest.ForestCV(None, cache=False).fit(x, 1.0 + x[:, 0])
    assert line.chosen["max_depth"] == 12


def test_a_forest_without_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"\[forest\]"):
        ESTIMATORS["forest"](None).fit(np.ones((3, 1)), np.ones(3))


def test_the_grid_of_vidurs_forests() -> None:
    """As in its configuration: 27 forests, each judged by five folds."""
    from gnomon.timing.estimators.forest import FOLDS, SETTINGS

    trees, depth, split = (250, 500, 750), (8, 16, 32), (2, 5, 10)
    assert {"n_estimators": trees, "max_depth": depth, "min_samples_split": split} == SETTINGS
    assert FOLDS == 5
