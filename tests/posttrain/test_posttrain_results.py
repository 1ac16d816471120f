"""What the simulator says about workloads: gains where there is a tail, none where there is none; lengths and costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnomon.core.config import build, load
from gnomon.core.errors import ConfigError, DataError
from gnomon.posttrain.costs import Costs
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.scenario.config import LengthsConfig, Posttrain
from gnomon.posttrain.scenario.lengths import draw
from gnomon.posttrain.simulator.simulate import run
from gnomon.posttrain.studies.stages import calibrate, colocated_costs, with_efficiencies
from gnomon.verify.posttrain import Check
from posttrain_kit import small

EXAMPLES = Path(__file__).parents[2] / "examples" / "posttrain"


def test_elastic_saves_20_to_50_percent_on_a_long_tail() -> None:
    config = load(Posttrain, EXAMPLES / "elastic.yaml")
    static, elastic = run(config, make_policy("disaggregated")), run(config, make_policy("elastic"))
    assert 0.2 < 1 - elastic.step_s / static.step_s < 0.5
    assert elastic.shares()["tail"] < static.shares()["tail"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_safe_policy_loses_to_static_in_no_example(path: Path) -> None:
    """`payback` is what `auto_scheduler` runs unless flags name another: at most 1 % behind, ahead on a long tail."""
    config = load(Posttrain, path)
    static, safe = run(config, make_policy("disaggregated")), run(config, make_policy("payback"))
    assert safe.step_s <= 1.01 * static.step_s
    assert (safe.step_s < 0.9 * static.step_s) == (path.stem == "elastic")


@pytest.mark.parametrize("pre_process", [False, True])
@pytest.mark.parametrize("mean", [2500, 3000, 3500])
def test_elastic_gains_little_on_a_flat_workload_and_loses_at_most_transitions(pre_process: bool, mean: int) -> None:
    """Its actor helps with the first responses, before which it has nothing to train; that is all there is to gain."""
    config = load(Posttrain, EXAMPLES / "flat.yaml")
    config = config.model_copy(update={"lengths": config.lengths.model_copy(update={"mean": mean})})
    static = run(config, make_policy("disaggregated"))
    elastic = run(config, make_policy("elastic", {"use_pre_process_policy": pre_process}))
    transitions = config.transitions.migration_s + 2 * Costs(config).reshard_s + config.transitions.check_interval_s
    first_s = float(static.steps[0].finished_s.min())
    assert -first_s < elastic.step_s - static.step_s < transitions


def test_a_gate_can_fail() -> None:
    assert not Check("B", "x", 100.0, 111.0, "gate").ok and Check("B", "x", 100.0, 109.0, "gate").ok
    assert Check("B", "x", 100.0, 150.0, "reported").ok
    assert not Check("speed", "x", 1.0, 1.1, "gate", is_bound=True).ok


def test_calibration_recovers_the_efficiencies_behind_measured_times() -> None:
    truth = {"rollout": 0.8, "inference": 0.4, "actor": 0.3}
    found = calibrate(small(), colocated_costs(with_efficiencies(small(), **truth)))
    assert found.efficiencies == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("distribution", ["gamma", "lognormal", "fixed"])
def test_lengths_have_the_mean_that_was_asked_for(distribution: str) -> None:
    config = LengthsConfig(distribution=distribution, mean=9000.0)  # type: ignore[arg-type]
    lengths = draw(config, 4000, 4, seed=1, step=0)
    assert lengths.response.mean() == pytest.approx(9000, rel=0.03)
    assert lengths.response.max() <= config.max_response and lengths.prompt.max() <= config.max_prompt


def test_lengths_are_correlated_inside_a_group_only() -> None:
    response = draw(LengthsConfig(group_correlation=0.6), 4000, 2, seed=1, step=0).response
    assert np.corrcoef(response[:, 0], response[:, 1])[0, 1] == pytest.approx(0.6, abs=0.06)
    assert abs(np.corrcoef(response[:-1, 0], response[1:, 0])[0, 1]) < 0.05


def test_lengths_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("100\n200\n600\n")
    config = LengthsConfig(distribution="empirical", file=str(file), mean=300.0)
    assert set(np.unique(draw(config, 200, 4, 0, 0).response)) <= set(range(100, 601))
    with pytest.raises(DataError, match="no such file"):
        draw(LengthsConfig(distribution="empirical"), 1, 1, 0, 0)


def test_costs_follow_the_work() -> None:
    config = small((1, 6, 1))
    costs = Costs(config)
    tokens = np.full((4, 4), 1000)
    one, four = (costs.train_at_once(tokens, n)[0] for n in (1, 4))
    assert 3.5 < one / four < 4.0  # The gradients' all-reduce is on top.
    assert costs.logprob_s(tokens.ravel()) < one / 3
    forward = costs.logprob_s(tokens.ravel()) / 0.2
    recomputing = Costs(small((1, 6, 1), actor={"efficiency": 0.2, "recompute": 1.0}))
    assert recomputing.train_at_once(tokens, 1)[0] == pytest.approx(one + forward, rel=0.01)
    assert 2.5 < one / forward < 3.5
    evenly = np.zeros(4)  # All there at once: ranks take one group each, and nobody waits.
    assert costs.train_stream(tokens, evenly, 5.0, 4)[0] == pytest.approx(5.0 + four)
    late = np.array([0.0, 0.0, 0.0, 100.0])  # The optimiser's step waits for the last group, and for nothing else.
    end, busy = costs.train_stream(tokens, late, 5.0, 4)
    assert end == pytest.approx(100.0 + four) and busy == pytest.approx(four)
    uneven = np.concatenate([np.full((2, 4), 16_000), np.full((2, 4), 100)])
    balanced = Costs(small((1, 6, 1), actor={"efficiency": 0.2, "balance": True}))
    assert balanced.train_at_once(uneven, 2)[0] < 0.65 * costs.train_at_once(uneven, 2)[0]


def test_forward_passes_alone_have_micro_batches_of_their_own() -> None:
    """Twelve sequences of 1,000 in packs of 2,000 are six micro-batches; in packs of 6,000 two, which launch less."""
    tokens = np.full(12, 1000)
    packed = {"efficiency": 0.2, "max_tokens": 2000}
    alone, narrow, wide = (
        Costs(small((1, 7, 0), algorithm={"actor_passes": passes}, actor=packed | more)).train_s(tokens)
        for passes, more in ((0, {}), (1, {}), (1, {"pass_tokens": 6000}))
    )
    grid = Costs(small((1, 7, 0)))._train
    attention = float(grid.attention_s(tokens, 1, 0).sum())
    for took, count, size in ((narrow, 6, 2000.0), (wide, 2, 6000.0)):
        assert took - alone == pytest.approx((count * grid.base_s(size, 1, 0) + attention) / 0.2)
    assert wide < narrow


def test_a_sequence_that_can_never_fit_is_refused_up_front() -> None:
    config = small(model="qwen2.5-32b", lengths={"max_response": 200_000})
    with pytest.raises(ConfigError, match="KV cache of an instance holds"):
        run(config)


def test_plain_python_gives_the_same_result() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from posttrain_kit import small\n"
        "from gnomon.posttrain.policies import make_policy\n"
        "from gnomon.posttrain.simulator.simulate import run\n"
        "c = small(lengths={'mean': 60}, algorithm={'rollout_batch_size': 8})\n"
        "print(repr(run(c, make_policy('elastic')).step_s))\n"
    )
    folder = Path(__file__).parents[2]
    environment = os.environ | {"GNOMON_JIT": "0"}
    plain = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    config = small(lengths={"mean": 60}, algorithm={"rollout_batch_size": 8})
    assert float(plain.stdout) == pytest.approx(run(config, make_policy("elastic")).step_s, rel=1e-12)


def test_slower_kernels_are_launched_no_slower() -> None:
    # A Grace launches a layer for 1.1 ms, whatever its kernels take; only those are slowed down.
    given = {"model": "qwen3-30b-a3b", "device": "gb200", "cluster": {"num_nodes": 4, "gpus_per_node": 4}}
    seconds = []
    for efficiency in (1.0, 0.5):
        config = build(
            Posttrain, given | {"actor": {"efficiency": efficiency, "expert_parallel": 16, "recompute": 0.0}}
        )
        seconds.append([Costs(config, 16).train_s(np.array([tokens])) for tokens in (512, 131_072)])
    few, many = (slow / fast for fast, slow in zip(*seconds, strict=True))
    assert few < 1.1 and 1.9 < many <= 2.0
