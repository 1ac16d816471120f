"""Modes of generation and training, on time lines worked out on paper.

The engine is a stand-in that gives every sequence one token a second, whatever else runs; training takes one second a
group. One actor, one rollout GPU, two prompts a step (one sample each), one mini-batch, a weight sync of half a second.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon import catalog
from gnomon.core.arrays import Floats, Ints
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.posttrain.costs import Costs, num_packed, num_tensors, reward_copies, reward_s, sync_s
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.scenario.config import AlgorithmConfig, Posttrain
from gnomon.posttrain.scenario.lengths import Lengths
from gnomon.posttrain.simulator import simulate, step
from gnomon.posttrain.simulator.record import RunRecord
from gnomon.posttrain.simulator.rollout import Rollouts, Sequences
from gnomon.posttrain.simulator.simulate import run
from gnomon.posttrain.simulator.turns import rollouts_of
from gnomon.report.posttrain.figures import bars
from posttrain_kit import assert_owned_once, assert_tokens_conserved, small

SYNC_S = 0.5


class OneTokenASecond:
    """The rollouts of one step."""

    def __init__(self, config: Posttrain, num_instances: int, sequences: Sequences, number: int) -> None:
        self.sequences, count = sequences, len(sequences)
        self.left = (sequences.response - sequences.generated).astype(float)
        self.since, self.done_s = np.full(count, np.inf), np.full(count, np.inf)
        self.again_s = np.where(sequences.generated > 0, 1.0, 0.0) if sequences.processed is None else np.zeros(count)
        self.instance_of, self.num_preemptions, self.count = np.full(count, -1), 0, num_instances

    def submit(self, ids: Ints, instances: Ints, now: float) -> None:
        self.instance_of[ids] = instances
        self.since[ids] = now + self.again_s[ids]  # A second to prefill again what had begun.

    def advance(self, until: float) -> None:
        ends = self.since + self.left
        is_done = (ends <= until) & (self.done_s == math.inf)
        self.done_s[is_done] = ends[is_done]

    def withdraw(self, instance: int, now: float) -> tuple[Ints, float]:
        self.advance(now)
        ids = np.flatnonzero((self.instance_of == instance) & (self.done_s == math.inf))
        self.left[ids] -= np.maximum(0.0, now - self.since[ids])
        self.instance_of[ids], self.since[ids] = -1, np.inf
        return ids, now

    def generated(self, ids: Ints) -> Ints:
        return np.asarray(self.sequences.response[ids] - np.ceil(self.left[ids] - 1e-9)).astype(np.int64)

    @property
    def finished_s(self) -> Floats:
        return self.done_s

    @property
    def num_finished(self) -> int:
        return int(np.isfinite(self.done_s).sum())

    @property
    def seats(self) -> Ints:
        return self.instance_of

    @property
    def unfinished(self) -> Ints:
        running = self.instance_of[(self.instance_of >= 0) & (self.done_s == math.inf)]
        return np.bincount(running, minlength=self.count)

    @property
    def kv_use(self) -> Floats:
        return np.zeros(self.count)

    @property
    def next_event_s(self) -> float:
        ends = (self.since + self.left)[self.done_s == math.inf]
        return float(ends.min(initial=math.inf))

    @property
    def busy_s(self) -> Floats:
        return np.zeros(self.count)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run steps on the given responses: every step's own prompts, in order."""

    def run_on(responses: list[list[int]], policy: str = "disaggregated", **algorithm: Any) -> RunRecord:
        queue = [length for step_lengths in responses for length in step_lengths]

        def draw(config: Any, num_groups: int, size: int, seed: int, number: int) -> Lengths:
            taken = [queue.pop(0) for _ in range(num_groups)]
            lengths = np.array(taken, np.int64).reshape(-1, 1)
            return Lengths(np.ones_like(lengths), lengths)

        monkeypatch.setattr(simulate, "draw", draw)
        monkeypatch.setattr(step, "rollouts_of", OneTokenASecond)
        monkeypatch.setattr(Costs, "train_s", lambda self, tokens: float(tokens.size))
        monkeypatch.setattr(Costs, "_update_s", lambda self, num_gpus: 0.0)
        monkeypatch.setattr(Costs, "sync_s", lambda self, has_inference, num_rollout=None: SYNC_S)
        given = {"rollout_batch_size": 2, "group_size": 1, "n_minibatches": 1, "fetch_minibatches": 1}
        config = small((1, 1, 0), algorithm=given | algorithm, num_steps=len(responses))
        record = run(config, make_policy(policy))
        assert_owned_once(record)
        assert_tokens_conserved(record)
        return record

    return run_on


def seconds(record: RunRecord) -> list[float]:
    return [round(one.duration_s, 3) for one in record.steps]


def lags(record: RunRecord) -> list[list[int]]:
    return [sorted(one.ages.tolist()) for one in record.steps]


def test_a_synchronous_step_waits_for_its_longest(paper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "OVER_SUBMISSION", 1.0)
    record = paper([[4, 8], [3, 5]])
    # Sync 0.5, the longest 8, two groups trained one after the other.
    assert seconds(record) == [10.5, 7.5] and lags(record) == [[0, 0], [0, 0]]


def test_one_step_off_generates_the_next_batch_meanwhile(paper: Any) -> None:
    record = paper([[4, 8, 3, 9], [5, 2], [6, 1]], mode="one_step_off")
    # Step 0 fills the pipe: both batches are generated, the first is trained until 0.5 + 8 + 2. Then a step lasts as
    # long as the longer of two seconds of training and the longest of the next batch.
    assert seconds(record) == [10.5, 5.5, 6.5] and lags(record) == [[0, 0], [1, 1], [1, 1]]


def test_asynchronous_sequences_are_interrupted_and_go_on(paper: Any) -> None:
    record = paper([[4, 8, 20], [3, 30]], staleness=0.5)
    # Three may be in flight. Step 0: 4 and 8 are there at 8.5, trained until 10.5; the third has 10 of its 20 tokens.
    # Step 1: it is prefilled again for 1 s, and ends at 0.5 + 1 + 10 = 11.5; the new one of 3 at 3.5 (that
    # of 30 does not matter); trained until 13.5.
    assert seconds(record) == [10.5, 13.5]
    assert lags(record) == [[0, 0], [0, 1]] and record.steps[0].tokens_carried == 10
    assert record.steps[1].tokens_prefilled_again == 11


def test_a_kept_kv_cache_saves_the_second_prefill(paper: Any) -> None:
    record = paper([[4, 8, 20], [3, 30]], staleness=0.5, keep_kv=True)
    assert seconds(record)[1] == 12.5 and record.steps[1].tokens_prefilled_again == 0


def test_what_is_not_interrupted_is_completed_before_the_sync(paper: Any) -> None:
    record = paper([[4, 8, 20], [3, 4]], staleness=0.5, interrupt=False)
    # The third ends at 20.5, and only then weights are synced; step 1 has it at once and waits for the one of 3;
    # that of 4 is complete before training is.
    assert seconds(record)[:2] == [20.5, 5.5] and lags(record)[1] == [0, 1]


def test_a_bound_on_the_lag_waits_or_drops(paper: Any) -> None:
    lengths = [[1, 2, 30, 40], [1, 2], [1, 2], [1, 2]]
    free = paper(lengths, staleness=1.0)
    # Two long ones keep two places; the short ones of every step are trained at once: 0.5 + 2 + 2.
    assert seconds(free)[:3] == [4.5, 4.5, 4.5] and lags(free)[:3] == [[0, 0]] * 3
    waits = paper(lengths, staleness=1.0, max_lag=1)
    # In step 1 they may not get older: 40 less the 4 tokens of step 0, a second to prefill, sync, training.
    assert seconds(waits)[:2] == [4.5, 0.5 + 1 + 36 + 2] and lags(waits)[1] == [1, 1]
    drops = paper([*lengths[:2], [1, 2, 1, 2], [1, 2]], staleness=1.0, max_lag=1, stale="drop")
    # After step 1 both would be two updates old: dropped, with the 4 + 3 tokens of each, and two new prompts come.
    assert seconds(drops)[:2] == [4.5, 4.5] and [one.num_dropped for one in drops.steps[:2]] == [0, 2]
    assert drops.steps[1].tokens_discarded == 14


def test_weights_are_synced_every_other_step(paper: Any) -> None:
    record = paper([[1, 2, 3, 4, 9, 9], [], [1, 2, 1, 2]], staleness=0.5, sync_every=2)
    # Six may be in flight at a sync. Step 1 begins without one, with groups complete or going on: 1 s and 2 s more.
    assert [one.owned()["transition"] for one in record.steps] == [2 * SYNC_S, 0.0, 2 * SYNC_S]
    assert lags(record)[0] == [0, 0] and lags(record)[1] == [1, 1]


def test_taking_turns_asynchronously_stops_when_enough_is_there(paper: Any) -> None:
    record = paper([[4, 8, 20]], policy="colocated", staleness=0.5)
    # Enough at 8.5; it is seen at the next check, a tenth of a second later at most; then the actor takes both GPUs and
    # trains a group on each.
    assert seconds(record)[0] == pytest.approx(8.5 + 0.3 + 1, abs=0.11)
    assert record.steps[0].tokens_carried == 8


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"mode": "sync", "staleness": 0.5}, "staleness is not used"),
        ({"n_minibatches": 4, "fetch_minibatches": 3}, "cannot be taken 3 at a time"),
        ({"sync_every": 2}, "sync_every is for the mode async"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        build(AlgorithmConfig, given)


def test_prompts_in_flight_are_bounded() -> None:
    """(1 + staleness) x a period's prompts, less those that it has trained; no more than the lag allows."""
    algorithm = AlgorithmConfig(rollout_batch_size=64, staleness=0.5, sync_every=2)
    assert [algorithm.allowed(step) for step in range(4)] == [192, 128, 192, 128]
    assert AlgorithmConfig(rollout_batch_size=64, staleness=3.0, max_lag=1).allowed(0) == 128
    assert AlgorithmConfig(rollout_batch_size=64).allowed(3) == 64


def test_turns_wait_for_their_tools_and_keep_their_tokens() -> None:
    plain = run(small(), make_policy("disaggregated"))
    calls = run(small(environment={"turns": 4, "tool_s": 0.5, "tool_tokens": 8}), make_policy("disaggregated"))
    few = run(small(environment={"turns": 4, "tool_s": 0.5, "concurrency": 2}), make_policy("disaggregated"))
    assert_tokens_conserved(calls)
    assert calls.steps[0].tokens_generated == plain.steps[0].tokens_generated
    assert plain.steps[0].rollout_end_s < calls.steps[0].rollout_end_s < few.steps[0].rollout_end_s
    # 64 sequences x 3 calls of 0.5 s on average, two at a time.
    assert few.steps[0].rollout_end_s > 0.7 * 64 * 3 * 0.5 / 2


def test_a_reward_model_reads_sequences_one_after_another_on_its_gpus() -> None:
    """Rewards queue for the copies: with one, the last comes no sooner than all are read."""
    given = {"reward_model": "qwen2.5-7b", "reward_gpus": 1}
    plain, judged, more = (
        run(small((2, 6, 0), algorithm={"recompute_logprobs": False}, environment=one))
        for one in ({}, given, given | {"reward_gpus": 4})
    )
    assert judged.steps[0].rollout_end_s > more.steps[0].rollout_end_s > plain.steps[0].rollout_end_s
    least = len(plain.steps[0].finished_s) * reward_s(small(environment=given), 2)
    assert judged.steps[0].rollout_end_s > least, "every sequence is read by the one copy"
    assert more.dollars_per_step / more.step_s == pytest.approx(12 / 8 * plain.dollars_per_step / plain.step_s)
    with pytest.raises(ConfigError, match="do not hold whole copies"):
        reward_copies(small(environment=given | {"reward_tensor_parallel": 2}))


def test_a_call_that_fails_is_repeated_after_its_timeout() -> None:
    """Two calls of no time, half of all fail: a quarter of the sequences see no failure, as many again just one."""
    environment = {"turns": 3, "tool_s": 0.0, "failure": 0.5, "timeout_s": 1000.0}
    config = small((2, 1, 0), environment=environment, rollout={"max_running_requests": 1000})
    count = 1000
    sequences = Sequences(np.arange(count), *(np.full(count, value) for value in (16, 9, 0)))
    ends = []
    for number in (0, 0, 1):
        rollouts = rollouts_of(config, 1, sequences, number)
        rollouts.submit(np.arange(count), np.zeros(count, np.int64), 0.0)
        rollouts.advance(math.inf)
        ends.append(rollouts.finished_s)
    assert (ends[0] < 1000.0).mean() == pytest.approx(0.25, abs=0.05)
    assert (ends[0] < 2000.0).mean() == pytest.approx(0.5, abs=0.05)
    assert (ends[0] == ends[1]).all() and (ends[0] != ends[2]).any()


def test_a_group_prefills_its_prompt_once_per_instance() -> None:
    """One instance, groups of four, prompts of 64 tokens in blocks of 16: three of four prompts are found."""
    lengths = {"distribution": "fixed", "mean": 40, "max_prompt": 64, "prompt_mean": 4000}
    sequences = Sequences(*(np.array(row) for row in ([0, 0, 0, 0, 1, 1], [64] * 6, [40] * 6, [0] * 6)))
    computed = []
    for shared in (False, True):
        config = small((2, 1, 0), lengths=lengths, rollout={"prefix_cache": shared, "max_running_requests": 2})
        rollouts = Rollouts(config, 1, sequences)
        rollouts.submit(np.arange(6), np.zeros(6, np.int64), 0.0)
        rollouts.advance(math.inf)
        assert rollouts.num_finished == 6
        computed.append(int(rollouts._replicas["tokens_computed"].sum()))
    assert computed[0] - computed[1] in (3 * 48, 4 * 48), "two run at once: the second of a pair may miss the first"


def test_switching_trains_with_more_groups_after_idle_steps_and_with_fewer_after_calm_ones() -> None:
    """0.4, after two idle steps 0.45, after two calm ones 0.42; an idle and a calm one in turn change nothing."""
    policy = make_policy("switching")
    base = {"migration_s": 4.0, "reshard_s": 1.0}

    def ratio(*waited: float) -> float:
        return policy.adapted(SimpleNamespace(actor_waited_s=waited, **base))

    assert ratio() == ratio(9.0) == ratio(9.0, 1.0, 9.0) == 0.4
    assert ratio(9.0, 9.0) == pytest.approx(0.45) and ratio(9.0, 9.0, 1.0, 1.0) == pytest.approx(0.42)
    assert ratio(*[9.0] * 40) == 1.0 and ratio(*[0.0] * 40) == 0.0


def test_idle_rollout_is_drawn_apart_from_busy() -> None:
    record = run(small((2, 4, 2)), make_policy("disaggregated"))
    found = bars(record)
    step = record.steps[0]
    size = {owner: sum((b.last - b.first + 1) * (b.end_s - b.start_s) for b in found if b.owner == owner)
            for owner in ("rollout", "idle rollout")}  # fmt: skip
    assert size["rollout"] + size["idle rollout"] == pytest.approx(step.owned()["rollout"])
    for gpu in (2, 3, 4, 5):
        idle = next(b for b in found if b.owner == "idle rollout" and b.first <= gpu <= b.last)
        assert idle.start_s == step.instance_end_s[gpu] and idle.end_s == pytest.approx(step.duration_s)
    assert max(step.instance_end_s.values()) == pytest.approx(float(step.finished_s.max()))


def test_a_weight_sync_takes_its_tensors_and_its_bytes() -> None:
    """Qwen3-30B-A3B: 48 layers x 128 experts x 3 matrices; 61.1 GB at 0.34 of a network of 36 GB/s."""
    model = catalog.model("qwen3-30b-a3b")
    assert num_tensors(model) == (483, 18_432)
    config = build(Posttrain, {"model": "qwen3-30b-a3b", "device": "h20"})
    far = 483 * 2e-4 + 18_432 * 6e-4 + 2 * model.num_parameters / (0.34 * 36e9)
    assert sync_s(config, model, 16, 16) == pytest.approx(far)
    near = 483 * 2e-4 + 18_432 * 6e-4 + 2 * model.num_parameters / 300e9
    assert sync_s(config, model, 4, 4) == pytest.approx(near)
    engine = build(Posttrain, {"device": "h20", "transitions": {"sync": "checkpoint_engine"}})
    every = 483 * 5e-5 + 18_432 * 9.5e-5 + 2 * model.num_parameters / (4 * 300e9)  # Inside a node all four ranks send.
    assert sync_s(engine, model, 4, 4) == pytest.approx(every)
    quantised = build(Posttrain, {"model": "qwen3-30b-a3b", "device": "h20", "rollout": {"dtype": "fp8"}})
    assert sync_s(quantised, model, 16, 16) == far  # Quantised where it arrives.
    packed = build(Posttrain, {"device": "h20", "transitions": {"sync": "broadcast"}})
    one_port = 18_915 * 3.3e-5 + 2 * model.num_parameters / (1.16 * 36e9)  # However many ranks there are.
    assert sync_s(packed, model, 16, 16) == sync_s(packed, model, 64, 32) == pytest.approx(one_port)


@pytest.mark.parametrize("policy", ["disaggregated", "elastic"])
@pytest.mark.parametrize("more", [{}, {"prefix_cache": True}, {"migration": "kv_transfer"}])
def test_ranks_of_an_instance_share_experts_and_move_together(policy: str, more: dict[str, Any]) -> None:
    """Instances of two data-parallel ranks: no sequence is lost when one leaves, and both ranks have work."""
    parts = {"actor": "0-7", "rollout": "8-15"}
    rollout = {"data_parallel": 2, "expert_parallel": True, "max_running_requests": 4}
    config = small(
        (8, 8, 0),
        model="qwen3-30b-a3b",
        cluster={"num_nodes": 2, "gpus_per_node": 8, "component_placement": parts},
        actor={"expert_parallel": 8, "recompute": 1.0, "deal": "sequences"},
        rollout=rollout | more,
    )
    record = run(config, make_policy(policy))
    assert_tokens_conserved(record)
    assert_owned_once(record)
    assert (record.steps[0].num_moved > 0) == (policy == "elastic")
    alone = run(
        config.model_copy(update={"rollout": type(config.rollout)(max_running_requests=4)}), make_policy(policy)
    )
    assert record.tokens_s != alone.tokens_s


def test_whole_sequences_are_packed() -> None:
    """By hand: 10 has no room for two of 6; 4 goes beside the first 6, 5 has a place of its own, 12 stands alone."""
    assert num_packed(np.array([[6, 6], [4, 5]]), 10) == 3
    assert num_packed(np.array([12, 12, 3]), 10) == 3
    assert num_packed(np.array([3, 3, 3]), 10) == 1
