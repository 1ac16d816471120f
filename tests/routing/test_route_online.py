"""Learning while a simulation runs: the safe router beside it, regret, and who decides after a bad block."""

from __future__ import annotations

import csv
import itertools

import pytest

torch = pytest.importorskip("torch")

from gnomon.core.config import build  # noqa: E402
from gnomon.core.errors import ConfigError, UnknownNameError  # noqa: E402
from gnomon.routing import online  # noqa: E402
from gnomon.routing.config import RouteConfig  # noqa: E402
from gnomon.routing.network import Scorer, initialize  # noqa: E402
from gnomon.serving.routers.observation import NUM_FEATURES  # noqa: E402

CONFIG = {"start": "nothing", "train": {"steps": 32, "minibatch": 32, "num_environments": 8},
          "online": {"decisions": 256}, "scenarios": ("chat",)}  # fmt: skip


def config(**changes):
    return build(RouteConfig, {**CONFIG, **changes})


def learned(made):
    scorer = Scorer(NUM_FEATURES, 8)
    initialize(scorer, 0)
    return list(online.learn(made, scorer)), scorer


def test_a_safe_block_follows_a_bad_one_and_regret_adds_up():
    """With no margin at all, a block that loses anything is the last for a while."""
    blocks, _ = learned(config(online={"decisions": 512, "margin": 0.0}))
    assert [one.decisions for one in blocks] == list(range(32, 513, 32))
    lost = sum(one.safe_reward - one.reward for one in blocks)
    assert blocks[-1].regret == pytest.approx(lost / sum(abs(one.safe_reward) for one in blocks))
    assert not blocks[0].is_safe
    out = 0
    for before, after in itertools.pairwise(blocks):
        if not before.is_safe:
            is_bad = before.safe_reward > before.reward
            assert after.is_safe == is_bad
            out += is_bad
    assert out, "a random policy loses against least outstanding"


def test_a_policy_that_is_put_aside_does_not_change():
    made = config(online={"decisions": 64, "margin": 0.0})
    blocks, scorer = learned(made)
    fresh = Scorer(NUM_FEATURES, 8)
    initialize(fresh, 0)
    if blocks[0].safe_reward > blocks[0].reward:
        assert all(
            torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), scorer.state_dict().values(), strict=True)
        )
    _, kept = learned(config(online={"decisions": 64, "margin": 1.0}))
    assert not torch.equal(kept.phi0.weight, fresh.phi0.weight), "with a wide margin it learns"


def test_what_cannot_run_is_refused():
    with pytest.raises(UnknownNameError, match="least_outstanding"):
        online.check(config(online={"safe": "least_oustanding"}))
    with pytest.raises(ConfigError, match="one load"):
        online.check(config(scenarios=("chat", "unequal")))


def test_the_command_writes_policy_blocks_and_a_picture(cli, tmp_path):
    flags = ("--start", "nothing", "--scenario", "chat", "--online.decisions", "128", "--train.steps", "32",
             "--train.num-environments", "8", "--out", str(tmp_path))  # fmt: skip
    assert "regret over time" in cli("route", "train", "--online", *flags).output
    rows = list(csv.DictReader((tmp_path / "online.csv").read_text().splitlines()))
    assert [row["decisions"] for row in rows] == ["32", "64", "96", "128"]
    assert "Regret so far against least_outstanding" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "policy.npz").is_file()
