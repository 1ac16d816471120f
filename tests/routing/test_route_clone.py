"""Demonstrations and cloning: files that are refused where they do not fit, soft targets, regret."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gnomon.core.errors import DataError, UnknownNameError  # noqa: E402
from gnomon.routing import demos  # noqa: E402
from gnomon.routing.clone import clone  # noqa: E402
from gnomon.routing.config import CloneConfig, RouteConfig  # noqa: E402
from gnomon.routing.network import Scorer, initialize, load_scorer, save_scorer  # noqa: E402
from gnomon.serving.routers.observation import GATEWAY_VS, NUM_FEATURES  # noqa: E402

COUNT, REPLICAS = 1200, 4


def synthetic(seed: int = 0, noise: float = 0.0) -> demos.Demos:
    """A teacher that wants the smallest feature 0, whose costs are that feature, perhaps with noise."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((COUNT, REPLICAS, NUM_FEATURES)).astype(np.float32)
    rows[..., GATEWAY_VS] = 0.0  # The rule has no opinion.
    mask = np.arange(REPLICAS) < random.integers(2, REPLICAS + 1, COUNT)[:, None]
    raw = rows[:, :, 0] + noise * random.standard_normal((COUNT, REPLICAS))
    known = np.where(mask, raw, np.inf)
    costs = np.where(mask, known - known.min(1, keepdims=True), 0.0).astype(np.float32)
    weights = np.exp(-costs / 0.2) * mask
    targets = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return demos.Demos(rows * mask[..., None], mask, targets, costs, np.arange(COUNT) % 20)


def fresh() -> Scorer:
    scorer = Scorer(NUM_FEATURES, 16)
    initialize(scorer, 0)
    return scorer


def test_a_clone_agrees_with_its_teacher():
    scorer, found = fresh(), synthetic()
    scorer.normalizer.fit(found.rows[found.mask])
    heard: list[dict[str, float]] = []
    history = clone(found, CloneConfig(epochs=20, learning_rate=1e-2, batch=64), scorer, 0, heard.append)
    assert heard == history
    assert max(row["agreement"] for row in history) > 0.9
    assert history[-1]["indifferent"] == 0.0
    assert history[-1]["validation_regret"] < 0.1 * found.costs.mean()


def test_noise_in_the_costs_averages_out():
    """Single costs are far off, but the regret is linear in them: the clone finds what is best on average."""
    scorer, noisy, clean = fresh(), synthetic(noise=2.0), synthetic(seed=1)
    config = CloneConfig(epochs=12, learning_rate=3e-3, batch=64, cross_entropy_weight=0.0, regret_weight=1.0)
    clone(noisy, config, scorer, 0, lambda metrics: None)
    with torch.no_grad():
        chosen = scorer(torch.tensor(clean.rows), torch.tensor(clean.mask)).argmax(1).numpy()
    ours = clean.costs[np.arange(COUNT), chosen].mean()
    uniform = (clean.costs.sum(1) / clean.mask.sum(1)).mean()
    assert ours < 0.4 * uniform


def test_a_teacher_without_a_reason_is_cloned_to_a_uniform_choice():
    found = synthetic()
    uniform = (found.mask / found.mask.sum(1, keepdims=True)).astype(np.float32)
    found = replace(found, targets=uniform, costs=np.zeros_like(found.costs))
    scorer = fresh()
    history = clone(found, CloneConfig(epochs=5), scorer, 0, lambda metrics: None)
    assert (history[-1]["agreement"], history[-1]["indifferent"]) == (1.0, 1.0), "whatever it does, the teacher agrees"
    with torch.no_grad():
        p = torch.softmax(scorer(torch.tensor(found.rows), torch.tensor(found.mask)), -1).numpy()
    assert np.abs(p - uniform).max() < 0.15


def test_the_best_epoch_is_kept_and_it_stops_where_nothing_improves():
    """Labels without a reason: what is learned by heart makes the validation worse."""
    found = synthetic()
    choice = (np.random.default_rng(0).random(COUNT) * found.mask.sum(1)).astype(int)
    found = replace(found, targets=np.eye(REPLICAS, dtype=np.float32)[choice], costs=np.zeros_like(found.costs))
    scorer = fresh()
    config = CloneConfig(epochs=12, patience=2, learning_rate=1e-2, batch=64)
    history = clone(found, config, scorer, 0, lambda metrics: None)
    losses = [row["validation_loss"] for row in history]
    assert len(history) < 12
    assert losses[-1] > min(losses)
    still = config.model_copy(update={"epochs": 1, "learning_rate": 1e-9})
    best = clone(found, still, scorer, 0, lambda metrics: None)
    assert best[0]["validation_loss"] == pytest.approx(min(losses), rel=1e-4)


def test_whole_clusters_are_held_out():
    from gnomon.routing.clone import _held_out

    found = synthetic()
    held_out = _held_out(found, CloneConfig(validation_share=0.1), 0)
    assert not set(found.cluster[held_out]) & set(found.cluster[~held_out])
    assert held_out.mean() == pytest.approx(0.1, abs=0.02)


def test_a_clone_that_is_saved_and_loaded_acts_the_same(tmp_path):
    scorer, found = fresh(), synthetic()
    scorer.normalizer.fit(found.rows[found.mask])
    path = save_scorer(scorer, tmp_path / "clone.npz", "none", {"seed": 0})
    again = load_scorer(path)
    rows, mask = torch.tensor(found.rows), torch.tensor(found.mask)
    with torch.no_grad():
        assert torch.equal(scorer(rows, mask), again(rows, mask))


def test_loading_is_strict(tmp_path):
    path = save_scorer(fresh(), tmp_path / "clone.npz", "none", {})
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays.pop("rho1.bias")
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=r"rho1\.bias"):
        load_scorer(path)


def test_demonstrations_are_written_and_read_back(tmp_path):
    found, config = synthetic(), RouteConfig()
    path = demos.write(found, tmp_path / "demos.npz", config)
    again = demos.read(path, RouteConfig())
    assert all(np.array_equal(getattr(found, name), getattr(again, name)) for name in ("rows", "mask", "costs"))


def test_demonstrations_of_other_features_or_lengths_are_refused(tmp_path, monkeypatch):
    path = demos.write(synthetic(), tmp_path / "demos.npz", RouteConfig())
    with pytest.raises(DataError, match="with lengths 'none', asked for is 'oracle'"):
        demos.read(path, RouteConfig(lengths="oracle"))
    with pytest.raises(DataError, match="with queue_depth 8, asked for is 3") as refused:
        demos.read(path, RouteConfig(queue_depth=3))
    assert "--queue-depth" in str(refused.value)
    monkeypatch.setattr(demos, "SCHEMA_HASH", "another")
    with pytest.raises(DataError, match="other features"):
        demos.read(path, RouteConfig())


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_damaged_demonstrations_are_refused(tmp_path, content):
    path = tmp_path / "demos.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="no demonstrations"):
        demos.read(path, RouteConfig())
    with pytest.raises(DataError, match="there are no demonstrations"):
        demos.read(tmp_path / "absent.npz", RouteConfig())


def test_pickles_in_demonstrations_are_refused(tmp_path):
    path = tmp_path / "demos.npz"
    np.savez(path, description=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="no demonstrations"):
        demos.read(path, RouteConfig())


def test_clusters_of_joined_demonstrations_stay_different():
    found = demos.joined([synthetic(), synthetic(1)])
    assert len(found) == 2 * COUNT
    assert len(np.unique(found.cluster)) == 40
    assert not set(found.cluster[:COUNT]) & set(found.cluster[COUNT:])


def test_costs_are_relative_to_the_best_choice_in_units_of_each_cluster():
    costs = np.array([[[3.0, 5.0, np.inf]], [[30.0, 10.0, np.inf]]])  # two steps of one cluster, two replicas
    mask = np.isfinite(costs)
    made = demos._in_units_of_their_spread(costs, mask, softness=0.5)
    scale = np.mean([(0 + 2) / 2, (20 + 0) / 2])
    assert made["costs"][:, 0, :2] == pytest.approx(np.array([[0, 2], [20, 0]]) / scale, rel=1e-5)
    assert (made["targets"][~mask] == 0).all()
    assert made["targets"].sum(-1) == pytest.approx(np.ones((2, 1)))
    assert made["targets"][0, 0, 0] > made["targets"][0, 0, 1] > 0


def test_a_teacher_is_labelled_by_what_it_goes_by():
    """Where a request adds twice the latency, the probability is 2 ** -sharpness times as high."""
    label = demos._Labels(RouteConfig(), "least_outstanding")
    rows, mask = np.zeros((1, 3, NUM_FEATURES)), np.array([[True, True, False]])
    rows[0, 1, GATEWAY_VS] = np.log(2.0)
    targets, costs = label(None, rows, mask)
    assert targets[0, 1] / targets[0, 0] == pytest.approx(2.0**-20)
    assert targets[0, 2] == 0 and costs[0].tolist() == pytest.approx([0.0, np.log(2.0), 0.0])


@pytest.mark.parametrize("driver", ["random", "round_robin"])
def test_routers_without_a_reason_label_themselves_as_uniform(driver):
    label = demos._Labels(RouteConfig(demos={"teacher": "own"}), driver)
    targets, costs = label(None, np.zeros((1, 3, NUM_FEATURES)), np.array([[True, True, False]]))
    assert targets.tolist() == [[0.5, 0.5, 0.0]] and not costs.any()


def test_unknown_drivers_and_teachers_are_explained():
    with pytest.raises(UnknownNameError, match="round_robin"):
        demos.check_names(RouteConfig(demos={"drivers": ["round_robbin"]}))
    with pytest.raises(UnknownNameError, match="unselfish"):
        demos.check_names(RouteConfig(demos={"teacher": "unselfsh"}))


def test_the_observed_state_can_be_dumped(tmp_path):
    import polars as pl

    path = demos.dump_state(synthetic(), tmp_path / "state.csv", most=10)
    frame = pl.read_csv(path)
    assert {"decision", "replica", "target", "outstanding"} <= set(frame.columns)
    assert frame.height == synthetic().mask[:10].sum()
