"""Invariants of simulated steps, for every policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.scenario.config import LengthsConfig, Posttrain
from gnomon.posttrain.scenario.lengths import quantile
from gnomon.posttrain.simulator import allocation
from gnomon.posttrain.simulator.rollout import PromptQueue, Rollouts, Sequences
from gnomon.posttrain.simulator.simulate import run
from gnomon.posttrain.studies.compare import compare, run_chosen
from gnomon.posttrain.studies.stages import StageCosts, calibrate
from posttrain_kit import (
    EVERY_POLICY,
    assert_owned_once,
    assert_tokens_conserved,
    assert_work_on_own_gpus,
    policies,
    small,
)

PLACEMENTS = [(2, 4, 2), (1, 6, 1), (4, 2, 2), (2, 6, 0), (4, 3, 1), (1, 1, 1)]


@settings(max_examples=25, deadline=None)
@given(
    placement=st.sampled_from(PLACEMENTS),
    policy=st.sampled_from(EVERY_POLICY),
    seed=st.integers(0, 1000),
    mean=st.integers(20, 900),
    shape=st.sampled_from([0.8, 3.1, 50.0]),
    cap=st.sampled_from([2, 8, 64]),
)
def test_every_step_ends_with_its_books_in_order(
    placement: tuple[int, int, int], policy: tuple[str, dict[str, object]], seed: int, mean: int, shape: float, cap: int
) -> None:
    """No deadlock; one owner per GPU; tokens conserved; staleness bounded; every mini-batch trained."""
    config = small(
        placement,
        lengths={"mean": mean, "shape": shape},
        rollout={"max_running_requests": cap},
        num_steps=2,
        seed=seed,
    )
    record = run(config, make_policy(*policy))
    assert_owned_once(record)
    assert_work_on_own_gpus(record)
    assert_tokens_conserved(record)
    limit = policy[1].get("staleness", 0)
    assert record.staleness <= limit  # type: ignore[operator]
    for step in record.steps:
        assert sum(one.component == "actor" for one in step.work) == config.algorithm.n_minibatches
        assert sum(step.idle().values()) == pytest.approx(record.num_gpus * step.duration_s)


def test_two_runs_are_the_same() -> None:
    config = small(num_steps=2)
    for policy in policies():
        first, second = run(config, policy), run(config, policy)
        assert [step.spans for step in first.steps] == [step.spans for step in second.steps]
        assert all((a.finished_s == b.finished_s).all() for a, b in zip(first.steps, second.steps, strict=True))


def test_lengths_do_not_depend_on_the_policy() -> None:
    config = small(num_steps=2)
    totals = {tuple(s.tokens_trained for s in run(config, make_policy(n)).steps) for n in ("colocated", "elastic")}
    assert len(totals) == 1


@pytest.mark.parametrize("migration", ["reprefill", "kv_transfer"])
def test_moved_sequences_finish_with_all_their_tokens(migration: str) -> None:
    """Tokens computed are those without a move, plus what is prefilled again, no more and no less."""
    config = small(rollout={"max_running_requests": 64, "migration": migration})
    count = 24
    response = np.arange(200, 200 + 10 * count, 10)
    prompt = np.full(count, 50)
    sequences = Sequences(np.arange(count), prompt, response, np.zeros(count, np.int64))
    rollouts = Rollouts(config, 2, sequences)
    everyone = np.arange(count)
    rollouts.submit(everyone, everyone % 2, 0.0)
    rollouts.advance(0.5)
    moved, stop = rollouts.withdraw(0, 0.5)
    assert stop >= 0.5 and set(moved) <= set(everyone[::2]) and len(moved) > 5
    assert rollouts.unfinished[0] == 0 and rollouts.kv_use[0] == 0.0
    generated = rollouts.generated(moved)
    assert (generated > 0).all() and (generated < response[moved]).all()
    rollouts.advance(stop + 1.0)
    rollouts.submit(moved, np.ones(len(moved), np.int64), stop + 1.0)
    rollouts.advance(np.inf)
    assert np.isfinite(rollouts.finished_s).all()
    assert (rollouts.finished_s[moved] > stop + 1.0).all()
    again = (prompt[moved] + generated - 1).sum() if migration == "reprefill" else 0
    assert int(rollouts._replicas["tokens_computed"].sum()) == (prompt + response - 1).sum() + again
    assert rollouts.num_preemptions == 0


def test_instances_with_pipeline_stages_can_be_emptied() -> None:
    config = small((2, 4, 2), rollout={"pipeline_parallel": 2, "max_running_requests": 8})
    record = run(config, make_policy("elastic"))
    assert record.steps[0].num_moved > 0
    assert np.isfinite(record.steps[0].finished_s).all()
    assert_tokens_conserved(record)
    assert_owned_once(record)


def test_an_emptied_instance_can_be_used_again() -> None:
    config = small()
    sequences = Sequences(*(np.full(4, value) for value in (0, 32, 400, 0)))
    rollouts = Rollouts(config, 1, sequences)
    ids, here = np.arange(4), np.zeros(4, np.int64)
    rollouts.submit(ids, here, 0.0)
    rollouts.advance(0.3)
    moved, stop = rollouts.withdraw(0, 0.3)
    rollouts.submit(moved, here[: len(moved)], stop)
    rollouts.advance(np.inf)
    assert np.isfinite(rollouts.finished_s).all() and rollouts.unfinished[0] == 0


def test_an_emptied_instance_is_as_new() -> None:
    """Its books are empty, and the accounts hold what was computed: nothing of the batch that was taken back."""
    config = small()
    sequences = Sequences(*(np.full(4, value) for value in (0, 32, 400, 0)))
    rollouts = Rollouts(config, 1, sequences)
    ids, here = np.arange(4), np.zeros(4, np.int64)
    rollouts.submit(ids, here, 0.0)
    rollouts.advance(0.3)
    before = rollouts._replicas[0].copy()
    assert before.num_loose > 0 and before.num_grouped == 4, "decodes step together"
    _, stop = rollouts.withdraw(0, 0.3)
    state, fleet = rollouts._replicas[0], rollouts._fleet.cluster
    for book in ("num_loose", "num_grouped", "steppable", "num_holding", "num_in_flight", "step_kv", "num_waiting"):
        assert state[book] == 0, book
    assert fleet.next_end_s[0] == np.inf
    assert (fleet.requests.last_token_s == stop).all(), "the last step gave everybody a token"
    # One batch was launched at `stop` and taken back: the same accounts as one instance that is looked at before it.
    assert state.num_iterations == before.num_iterations
    for account in ("flops", "bytes", "kv_block_s", "busy_s"):
        assert state[account] == pytest.approx(before[account], rel=1e-9), account


def test_synchronous_policies_have_no_staleness_and_partial_rollout_keeps_its_bound() -> None:
    config = small(num_steps=5, lengths={"mean": 600, "shape": 0.9})
    for policy in policies():
        staleness = run(config, policy).staleness
        assert staleness <= getattr(policy, "staleness", 0)
    bold = run(config, make_policy("partial_rollout", {"staleness": 2, "extra": 0.5}))
    assert 1 <= bold.staleness <= 2
    assert any(step.tokens_carried > 0 for step in bold.steps)


def test_tail_batching_collects_long_prompts_into_a_long_step() -> None:
    config = small(num_steps=8, lengths={"mean": 600, "shape": 0.9})
    record = run(config, make_policy("tail_batching", {"extra": 0.5}))
    discarded = [step.tokens_discarded for step in record.steps]
    assert any(discarded) and not all(discarded)  # The long step waits for all of its prompts.


@settings(max_examples=4, deadline=None)
@given(
    placement=st.sampled_from([(2, 4, 2), (1, 6, 1), (4, 2, 2), (2, 6, 0)]),
    seed=st.integers(0, 1000),
    mean=st.integers(50, 900),
    lengths=st.sampled_from([("gamma", 0.8), ("gamma", 3.1), ("lognormal", 1.0), ("fixed", 1.0)]),
    cap=st.sampled_from([4, 8, 64]),
)
def test_the_oracle_is_never_worse(
    placement: tuple[int, int, int], seed: int, mean: int, lengths: tuple[str, float], cap: int
) -> None:
    """Than any policy with any options, on whatever it meets; nor is the plan that it names, run on its own."""
    distribution, shape = lengths
    config = small(
        placement,
        seed=seed,
        lengths={"mean": mean, "distribution": distribution, "shape": shape},
        rollout={"max_running_requests": cap},
    )
    outcomes = compare(config, policies())
    assert [one.policy for one in outcomes[:-1]] == [policy.name for policy in policies()]
    assert outcomes[-1].policy == "oracle"
    assert outcomes[-1].record.tokens_s >= max(one.record.tokens_s for one in outcomes[:-1])
    assert outcomes[-1].regret == 0.0 and all(one.regret >= 0.0 for one in outcomes)


def test_prompts_go_to_instances_as_they_have_room() -> None:
    config = small((2, 4, 2), rollout={"max_running_requests": 8}, lengths={"distribution": "fixed"})
    record = run(config, make_policy("disaggregated"))
    # 64 sequences, four instances of 8: two waves of the same length.
    waves = np.sort(record.steps[0].finished_s)
    assert waves[31] < waves[32] - 0.2 * waves[0] and waves[0] == pytest.approx(waves[31], rel=0.01)


def test_the_instance_with_short_responses_gets_more_of_them() -> None:
    response = np.array([2000, 2000] + [100] * 22)
    sequences = Sequences(np.repeat(np.arange(12), 2), np.full(24, 50), response, np.zeros(24, np.int64))
    config = small(rollout={"max_running_requests": 2})
    rollouts = Rollouts(config, 2, sequences)
    queue = PromptQueue(rollouts, np.arange(24), config, longest_first=False)
    now = 0.0
    while queue:
        queue.feed([0, 1], now=now)
        now += 0.05
        rollouts.advance(now)
    rollouts.advance(np.inf)
    assert np.isfinite(rollouts.finished_s).all()
    assert (rollouts.instance_of == 0).sum() == 2  # The long group alone; all the others passed it by.


def test_samples_of_a_group_are_dealt_one_by_one_and_few_prompts_at_once() -> None:
    sequences = Sequences(np.repeat(np.arange(6), 4), *(np.full(24, value) for value in (50, 400, 0)))
    config = small(rollout={"deal": "sequences"}, algorithm={"in_flight": 2})
    rollouts = Rollouts(config, 4, sequences)
    queue = PromptQueue(rollouts, np.arange(24), config, longest_first=False)
    queue.feed([0, 1, 2, 3], now=0.0)
    assert len(queue) == 4 and rollouts.unfinished.tolist() == [2, 2, 2, 2]
    assert rollouts.instance_of[:4].tolist() == [0, 1, 2, 3]
    queue.feed([0, 1, 2, 3], now=0.0)
    assert len(queue) == 4  # Nothing has ended.
    rollouts.advance(np.inf)
    queue.feed([0, 1, 2, 3], now=float(rollouts.finished_s[:8].max()))
    assert len(queue) == 2


def test_training_starts_with_the_first_group() -> None:
    record = run(small(lengths={"mean": 600, "shape": 0.9}), make_policy("disaggregated"))
    step = record.steps[0]
    first = min(one.start_s for one in step.work if one.component == "actor")
    groups = np.sort(step.finished_s.reshape(16, 4).max(axis=1))
    assert groups[0] < first < groups[3]  # Not only when the four groups of the mini-batch are there.


def test_the_oracle_is_a_policy_that_can_be_asked() -> None:
    config = small(lengths={"mean": 500})
    best = run_chosen(small(lengths={"mean": 500}, policy="oracle"), keep_decisions=False)
    assert best.policy == "oracle" and best.follows
    assert best.tokens_s >= max(run(config, make_policy(name)).tokens_s for name in ("colocated", "elastic"))


def test_idle_time_is_attributed() -> None:
    config = small(lengths={"mean": 600, "shape": 0.9})
    static = run(config, make_policy("disaggregated")).shares()
    assert static["tail"] > 0.05 and static["waiting"] > 0.05 and static["unusable"] == 0.0
    turns = run(config, make_policy("colocated"))
    moved = turns.steps[0].idle()["transition"] / turns.num_gpus
    # Two syncs of everybody (283 tensors of 0.2 ms, and NVLink), a switch of all GPUs to inference, one of half of them
    # to the actor.
    sync_s = 0.1 + 283 * 2e-4 + 1.54e9 * 2 / 300e9
    assert moved == pytest.approx(2 * sync_s + 0.3 + 0.3 / 2, rel=0.01)
    # Actors of 1, 2 and 4 GPUs are valid: what colocated training leaves over is nobody's.
    assert turns.shares()["unusable"] > 0.0
    # Rollout's GPUs are given up early and stay unused although the actor could grow: that is no matter of sizes.
    early = run(config, make_policy("partial_rollout")).shares()
    assert early["unusable"] == 0.0 and early["waiting"] > static["waiting"]


def test_drifting_lengths_make_later_steps_longer() -> None:
    record = run(small(num_steps=4, lengths={"mean": 300, "drift": 0.3}), make_policy("disaggregated"))
    assert record.steps[-1].tokens_trained > 1.5 * record.steps[0].tokens_trained
    assert record.steps[-1].duration_s > record.steps[0].duration_s


def test_a_step_too_long_for_its_check_interval_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run(small()).steps) > 0
    monkeypatch.setattr(allocation, "MAX_LOOKS", 2)
    with pytest.raises(ConfigError, match="looked at more than 2 times, every"):
        run(small())


@pytest.mark.parametrize("shape", [0.01, 0.1, 0.8, 3.1, 99.0, 101.0, 701.0, 1e4, 1e6])
def test_lengths_of_every_allowed_shape_have_its_spread(shape: float) -> None:
    """Also where the density is steeper than any grid over the lengths: gamma's deviation is mean / sqrt(shape)."""
    at = (np.arange(200_000) + 0.5) / 200_000
    values = quantile(LengthsConfig(shape=shape, max_response=2**30), 4000.0, at)
    assert values.mean() == pytest.approx(4000.0, rel=0.02)
    assert values.std() / values.mean() * np.sqrt(shape) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize(
    "fields",
    [
        {"lengths.shape": 1e30},
        {"lengths.shape": 1e-30},
        {"actor.efficiency": 1e300},
        {"rollout.efficiency": 1e-300},
        {"transitions.switch_s": 1e30},
    ],
)
def test_shapes_efficiencies_and_pauses_that_mean_nothing_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Input should be"):
        load(Posttrain, None, fields)


def test_a_measured_time_that_no_efficiency_explains() -> None:
    with pytest.raises(ConfigError, match=r"an efficiency of .* explains nothing"):
        calibrate(small(), StageCosts(actor=0.0, rollout=1e-300, inference=0.0))
