"""What routers foretell, worked out by hand. In plain Python, where their helpers can be called one by one: with
compiled code this file runs itself again in a child with GNOMON_JIT=0."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnomon import jit
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.state import IN_FLIGHT, RUNNING, TPOT_S, TTFT_S, WAITING
from gnomon.serving.policies import UNBOUNDED
from gnomon.serving.routers import (
    ROUTERS,
    cache_aware,
    dynamo_kv,
    gateway,
    known,
    learned,
    llmd,
    lookahead,
    observation,
    predicted_latency,
    prediction,
    prefix_aware,
)
from gnomon.serving.routers.prediction import PRIOR_OUTPUT, PRIOR_WEIGHT
from gnomon.timing.iteration import blank, geometric_axis
from serving_kit import requests_of, run, scenario
from test_router_decisions import choice, fleet_of

plain = pytest.mark.skipif(jit.ENABLED, reason="helpers of compiled code cannot be called from Python")


@pytest.mark.skipif(not jit.ENABLED, reason="this is the child")
def test_all_of_this_in_plain_python() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", __file__]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "GNOMON_JIT": "0", "PYTHONPATH": paths}
    ended = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:]


def timed(fleet: Fleet, kv_s: float = 0.0) -> Fleet:
    """Every token takes 1 ms; a decode `kv_s` for each KV token that it reads."""
    axis = geometric_axis(4096.0)
    tables = blank(1)._replace(
        token_s=np.arange(1001.0)[None] * 1e-3,
        sequence_s=np.zeros((1, 65)),
        expert_s=np.zeros((1, 0)),
        prompt_s=np.zeros((1, 0)),
        prefill_s=np.zeros((1, axis.size, axis.size)),
        decode_s=np.arange(65.0)[None, :, None] * axis * kv_s,
        mixed_s=np.zeros((1, 0, 1, 1, 1)),
        skew=np.zeros((1, 0, 1)),
        chunk_axis=axis,
        kv_axis=axis,
        decodes_axis=axis,
    )
    return fleet._replace(tables=tables)


BOOKS: dict[str, list[float]] = {
    "num_stages": [1, 1], "num_blocks": [100, 100], "free_blocks": [60, 100], "block_size": [10, 10],
    "max_running": [8, 8], "max_batch_tokens": [200, 200], "max_chunk_tokens": [1000, 1000],
    "num_holding": [4, 0], "num_outstanding": [5, 0], "num_waiting": [1, 0], "prefill_left": [50, 0],
    "waiting_tokens": [30, 0], "longest_prompt": [UNBOUNDED] * 2,
}  # fmt: skip


def fleet(router: str = "unselfish", kv_s: float = 0.0, **changes: list[float]) -> Fleet:
    made = fleet_of({**BOOKS, **changes}, router=router, prompt_tokens=100, arrival_s=2.0)
    return timed(made, kv_s)


@plain
def test_an_iteration_is_its_tokens_and_what_its_decodes_read() -> None:
    seen = fleet(kv_s=1e-4)
    assert known.iteration_s(seen, 0, 30, 0, 0.0) == pytest.approx(0.030)
    assert known.iteration_s(seen, 0, 30, 4, 64.0) == pytest.approx(0.034 + 4 * 64 * 1e-4)
    assert known.iteration_s(seen, 0, 0, 3, 16.0) == pytest.approx(0.003 + 3 * 16 * 1e-4)
    assert known.iteration_s(seen, 0, 5000, 0, 0.0) == pytest.approx(1.0), "no more than the table has"
    assert known.iteration_s(seen, 0, 0, 0, 0.0) == 1e-9
    assert known.iteration_s(seen, 0, 0, 80, 16.0) == pytest.approx(0.080 + 64 * 16 * 1e-4)
    seen = seen._replace(tables=seen.tables._replace(sequence_s=np.arange(65.0)[None] * 1e-2))
    for chunk, decodes, seconds in ((1, 4, 0.005 + 0.05), (0, 4, 0.004 + 0.04), (0, 64, 0.704), (1, 90, 0.731)):
        assert known.iteration_s(seen, 0, chunk, decodes, 0.0) == pytest.approx(seconds)


@plain
def test_chunks_leave_room_for_decodes() -> None:
    """200 tokens an iteration: 196 beside 4 decodes; at least half of them however many decode."""
    assert prediction.chunk_of(fleet(), 0, 1000.0) == 196
    assert prediction.chunk_of(fleet(), 0, 50.0) == 50
    assert prediction.chunk_of(fleet(num_holding=[150, 0]), 0, 1000.0) == 100
    assert prediction.chunk_of(fleet(max_chunk_tokens=[64, 64]), 0, 1000.0) == 64
    assert prediction.chunk_of(fleet(), 0, 0.0) == 1
    unbounded = {"max_batch_tokens": [UNBOUNDED] * 2, "max_chunk_tokens": [UNBOUNDED] * 2}
    assert prediction.chunk_of(fleet(**unbounded), 0, 1e5) == 4092, "not one prompt as long as the queue"
    assert prediction.chunk_of(fleet(num_holding=[9000, 0], **unbounded), 0, 1e5) == 2048
    assert prediction.kv_each(fleet(), 0) == 40 * 10 / 4
    assert prediction.kv_each(fleet(), 1) == 0.0


@plain
def test_the_mean_output_begins_with_a_belief() -> None:
    assert prediction.mean_output(fleet()) == PRIOR_OUTPUT
    seen = fleet(num_produced=[300, 100], num_finished=[4, 2])
    assert prediction.mean_output(seen) == (PRIOR_OUTPUT * PRIOR_WEIGHT + 400) / (PRIOR_WEIGHT + 6)
    assert prediction.expected_output(seen, 0, 7.0) == 7.0
    assert prediction.expected_output(seen._replace(predicted_output=np.array([55.0])), 0, 7.0) == 55.0


@plain
@pytest.mark.parametrize(("predicted", "produced", "expected"), [(5, 0, 5), (5, 3, 2), (5, 4, 1), (5, 9, 1)])
def test_an_answer_goes_on_for_at_least_one_token(predicted: int, produced: int, expected: int) -> None:
    seen = fleet()._replace(predicted_output=np.array([float(predicted)]))
    request = seen.cluster.requests[0]
    request.prefill_tokens, request.processed = 100, 100 + produced
    assert prediction.output_left(seen, 0, 0, 77.0) == expected
    assert prediction.output_left(fleet(), 0, 0, 77.0) == 77.0, "nothing is predicted"


@plain
def test_predicted_latency_of_a_loaded_replica() -> None:
    """150 prompt tokens in one chunk beside 4 decodes: 154 ms. Then 20 steps of 6 tokens, once: 600 tokens are free,
    and 30 + 100 + 20 needed."""
    assert predicted_latency.predicted_s(fleet(), 0, 100, 20.0) == pytest.approx(0.154 + 20 * 0.006)
    assert predicted_latency.predicted_s(fleet(), 1, 100, 20.0) == pytest.approx(0.100 + 20 * 0.001)


@plain
def test_predicted_latency_of_a_full_replica() -> None:
    """Three at once, six in all: two rounds. 100 tokens are free of the 150 needed: a twentieth of all memory more."""
    full = fleet(max_running=[3, 3], free_blocks=[10, 100])
    assert predicted_latency.predicted_s(full, 0, 100, 20.0) == pytest.approx(0.154 + (2.0 + 50 / 1000) * 20 * 0.003)
    exact = fleet(free_blocks=[15, 100])
    assert predicted_latency.predicted_s(exact, 0, 100, 20.0) == pytest.approx(0.154 + 20 * 0.006)


@plain
def test_what_sending_a_request_somewhere_means() -> None:
    """4 decodes of 100 KV tokens at 1 ms and 10 us a KV token: 8 ms a step; with the request (100 prompt tokens) 10 ms.
    Its prefill beside them: 104 ms and 4 ms of KV. Ahead of it 50 tokens: 54 + 4 ms."""
    seen = fleet(kv_s=1e-5, num_in_flight=[1, 0], next_end_s=[2.5, 0.0])
    at = observation.Arrival(0, 2.0, 100, 20.0, 200.0)
    times = observation.predict(seen, 0, 100, at)
    kv = 4 * _between(100.0)
    joined = 5 * _between(100.0)
    assert times.step == pytest.approx(0.004 + kv)
    assert times.joined_step == pytest.approx(0.005 + joined)
    assert times.first_token == pytest.approx(0.5 + (0.054 + kv) + (0.104 + kv))
    assert times.finish == pytest.approx(times.first_token + 20 * times.joined_step)
    assert times.stall == pytest.approx(0.100 * 4)
    assert times.crowding == pytest.approx((times.joined_step - times.step) * 4 * 20)
    assert times.stalls_to_come == 0.0
    assert times.alone_first_token == pytest.approx(0.100)
    assert times.alone_step == pytest.approx(0.001 + _between(100.0))
    idle = observation.predict(seen, 1, 60, at)
    assert idle.first_token == pytest.approx(0.060), "40 of the 100 tokens are cached there"
    assert (idle.step, idle.stall, idle.crowding) == (0.0, 0.0, 0.0)


def _between(kv: float) -> float:
    """10 us a token, on a straight line between the points of the table, which the time is anyway."""
    return 1e-5 * kv


@plain
def test_a_prefill_alone_goes_in_chunks_of_what_an_iteration_takes() -> None:
    """At 1 ms a token and 10 ms an iteration. 450 tokens are 2.25 chunks of 200; of one token, one."""
    for caps, new, expected in (
        ({}, 100, 0.110),
        ({}, 450, 2.25 * 0.210),
        ({"max_chunk_tokens": [50, 50]}, 450, 9 * 0.060),
        ({}, 1, 0.011),
        ({"max_chunk_tokens": [1, 1]}, 20, 20 * 0.011),
        ({"max_batch_tokens": [0, 0]}, 20, 20 * 0.011),
    ):
        seen = fleet(**caps)
        seen = seen._replace(tables=seen.tables._replace(token_s=seen.tables.token_s + 0.01))
        assert observation._prefill_alone_s(seen, 0, new) == pytest.approx(expected)


@plain
def test_a_full_replica_makes_it_wait_for_mean_requests() -> None:
    """Three places for six: two rounds; the second starts after a mean request of 200 steps. Of memory, 50 tokens of
    1,000 are missing: a twentieth of a round more."""
    seen = fleet(max_running=[3, 3], free_blocks=[10, 100])
    times = observation.predict(seen, 0, 100, observation.Arrival(0, 2.0, 100, 20.0, 200.0))
    assert times.first_token == pytest.approx(0.054 + 0.104 + (1.0 + 0.05) * 200 * 0.005)


@plain
def test_prefills_of_late_will_hold_it_up() -> None:
    """Of the last 4 s, 1 s went to prefills there: each of its 20 steps takes a quarter longer."""
    seen = fleet()
    base = observation._PER_REPLICA * 2
    seen.memory[base + observation._WINDOW_S] = 4.0
    seen.memory[observation._PREFILL_S] = 1.0
    times = observation.predict(seen, 0, 100, observation.Arrival(0, 2.0, 100, 20.0, 200.0))
    assert times.stalls_to_come == pytest.approx(0.25 * 20 * 0.005)


@plain
def test_added_latency_is_a_weighted_sum() -> None:
    times = observation.Prediction(0.0, 0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0, 0.0, 0.0)
    assert observation.added_s(times, 2.0, 3.0, 4.0, 5.0) == 10 + 2 + 300 + 4000 + 50_000


@plain
def test_moving_averages() -> None:
    """The first arrival at 2 s sets the mean prompt; the second, 4 s later, the gaps. Then 0.05 or half: whichever is
    larger, as long as there are few."""
    seen, base = fleet(num_finished=[3, 1]), observation._PER_REPLICA * 2
    memory = seen.memory
    observation._update_averages(seen, observation.Arrival(0, 2.0, 100, 20.0, 200.0))
    assert memory[base + observation._PROMPT] == 100.0
    assert memory[base + observation._COUNT] == 1.0
    assert memory[base + observation._GAP] == 0.0
    assert memory[observation._COMPLETIONS] == 6.0, "3 of this replica, times the replicas"
    assert memory[observation._OUTSTANDING] == 5.0
    memory[base + observation._WINDOW_S], memory[observation._PREFILL_S] = 8.0, 1.0
    seen.cluster.replicas.num_finished[0] = 5
    observation._update_averages(seen, observation.Arrival(0, 6.0, 300, 20.0, 200.0))
    assert memory[base + observation._PROMPT] == 200.0
    assert memory[base + observation._GAP] == memory[base + observation._SLOW_GAP] == 4.0
    assert memory[base + observation._SQUARED_GAP] == 16.0
    assert memory[observation._COMPLETIONS] == 6.0 + 0.5 * (4.0 - 6.0)
    assert memory[observation._PREFILL_S] == pytest.approx(math.exp(-0.5))
    observation._update_averages(seen, observation.Arrival(0, 8.0, 200, 20.0, 200.0))
    assert memory[base + observation._GAP] == 3.0
    assert memory[base + observation._SQUARED_GAP] == 10.0


@plain
def test_choices_are_remembered() -> None:
    """A twentieth of: both replicas' share, and that of prompt tokens (100 of a mean of 50); its prefill alone."""
    seen = fleet()
    seen.memory[observation._PER_REPLICA * 2 + observation._PROMPT] = 50.0
    observation.remember_choice(seen, 0, 1)
    first, second = seen.memory[:6], seen.memory[6:12]
    assert (first[observation._ARRIVALS], second[observation._ARRIVALS]) == (0.0, pytest.approx(0.1))
    assert (first[observation._ARRIVED], second[observation._ARRIVED]) == (0.0, pytest.approx(0.2))
    assert (first[observation._PREFILL_S], second[observation._PREFILL_S]) == (0.0, pytest.approx(0.1))


@plain
def test_a_row_of_features() -> None:
    seen = fleet()
    out = np.full((2, observation.NUM_FEATURES), np.nan)
    observation.observe(seen, 0, out, 8)
    assert not np.isnan(out).any()
    names = dict(zip(observation.FEATURES, out[0], strict=True))
    other = dict(zip(observation.FEATURES, out[1], strict=True))
    expected = {
        "outstanding": math.log1p(5), "waiting": math.log1p(1), "running_share": 0.5, "prefill_left": math.log1p(50),
        "kv_used_share": 0.4, "kv_demand_share": 0.43, "decode_left": math.log1p(5 * 200), "batch_cap": math.log1p(8),
        "outstanding_vs_mean": 5 / 3.5, "prefill_left_vs_mean": 50 / 125, "decode_left_vs_mean": 1000 / 700,
        "mean_kv": math.log1p(100), "prefix_hit_share": 0.0, "new_tokens": math.log1p(100),
        "prompt": math.log1p(100), "prompt_vs_mean": 0.0, "expected_output": math.log1p(200),
        "num_replicas": math.log(2), "backlog": math.log1p(2.5), "kv_used_in_all": 0.2, "trend": 0.0,
        "decode_speed": 0.0, "prefill_speed": 0.0,
        "first_token": math.log((0.054 + 0.104) / 0.1), "first_token_vs_best": math.log(0.158 / 0.1),
        "finish": math.log((0.158 + 200 * 0.005) / 0.3), "finish_vs_best": math.log(1.158 / 0.3),
        "step_vs_best": math.log(5.0), "stall": math.log1p(0.4 / 0.3),
        "crowding": math.log1p(0.001 * 4 * 200 / 0.3),
    }  # fmt: skip
    for name, value in expected.items():
        assert names[name] == pytest.approx(value), name
    assert other["finish_vs_best"] == other["added_vs_best"] == other["step_vs_best"] == 0.0
    added = 1.158 + 2.5 * 0.158 + 0.5 * 0.4 + 1.0 * 0.8
    assert names["added_vs_best"] == pytest.approx(math.log(added / (0.3 + 2.5 * 0.1)))
    assert seen.memory[12 + observation._WINDOW_S] == pytest.approx(4.0 * 200 * (0.005 + 0.001) / 2)
    square = (0.158**2 + 0.1**2) / 2
    assert observation.longest_wait_s(seen, 3.0) == pytest.approx(3.0 * square**0.5)
    assert observation.longest_wait_s(seen, 0.0) == observation.longest_wait_s(fleet(), 3.0) == math.inf


@plain
@pytest.mark.parametrize(
    ("now", "silence", "outstanding", "silent"),
    [
        (2.25, 4.0, 5.0, False),
        (3.08, 4.0, 5.0, False),
        (3.14, 4.0, 5.0, True),
        (9.0, 0.0, 5.0, False),
        (9.0, 4.0, 0.0, False),
    ],
)
def test_a_replica_is_silent_when_no_token_comes_for_much_longer_than_an_iteration(
    now: float, silence: float, outstanding: float, silent: bool
) -> None:
    """Four decode and 50 prompt tokens are left: by first beliefs an iteration takes 10 ms + 2 ms of prompt + four
    times 0.04 ms of decode and 0.005 ms of context, 12.18 ms. It is 17.6 times as slow: 214.4 ms. The last token came
    at 2 s, so silence begins at 2 + 0.25 + 4 x 0.2144 = 3.107 s."""
    told = known.at_first([100, 100], 0.25, 0.0, 0.0)
    told[known._HEARD_S], told[known._FREE], told[known._FACTOR] = 2.0, 60.0, 17.6
    books = {"num_outstanding": [outstanding, 0.0], "num_waiting": [min(1.0, outstanding), 0.0]}
    assert known.is_silent(fleet("gateway", **books)._replace(known=told), 0, now, silence, 50.0) == silent


@plain
def test_who_sees_all_sees_that_a_replica_is_dead() -> None:
    assert not known.is_silent(fleet(), 0, 9.0, 4.0, 50.0)
    assert known.is_silent(fleet(frozen=[1, 0]), 0, 2.0, 4.0, 50.0)
    assert not known.is_silent(fleet(frozen=[1, 0]), 0, 2.0, 0.0, 50.0)


@plain
def test_what_a_gateway_has_read_is_as_old_as_its_last_reading() -> None:
    """Free blocks as reported at 2 s, though ten of them were taken since; its own requests are known at once."""
    exact = fleet("gateway", reported_free=[70, 100], next_end_s=[2.5, 9.0], num_in_flight=[1, 0])
    seen = exact._replace(known=known.at_first([100, 100], 0.25, 0.0, 0.0))
    known.look(seen, 2.0)
    seen.cluster.replicas.reported_free[0] = 50
    known.look(seen, 2.2)
    assert (known.free_blocks(seen, 0), known.kv_used_each(seen, 0, 5)) == (70.0, 300 / 5)
    known.look(seen, 2.25)
    assert known.free_blocks(seen, 0) == 50.0
    seen.cluster.replicas.reported_free[0] = 40
    known.look(seen, 2.4)
    assert known.free_blocks(seen, 0) == 50.0, "so it is where no iteration has ended since"
    assert known.free_blocks(exact, 0) == 60.0, "the replica's own books say so"
    assert known.batch_ends_in_s(exact, 0, 2.2, 4, 125.0) == pytest.approx(0.3)
    half = (0.01 + 4 * (4e-5 + 5e-8 * 125)) / 2  # By first beliefs.
    assert known.batch_ends_in_s(seen, 0, 2.2, 4, 125.0) == pytest.approx(half)
    assert known.batch_ends_in_s(exact, 1, 2.2, 0, 0.0) == known.batch_ends_in_s(seen, 1, 2.2, 0, 0.0) == 0.0


@plain
def test_features_are_cut_at_ten_deviations() -> None:
    count = observation.NUM_FEATURES
    numbers, row = np.concatenate([[0.0], np.full(count, 5.0), np.full(count, 2.0)]), np.full(count, 5.0)
    row[:5] = [9.0, 24.9, 26.0, -14.9, -99.0]
    learned._normalise(numbers, 1, row)
    assert row[:6] == pytest.approx([2.0, 9.95, 10.0, -9.95, -10.0, 0.0])


@plain
@pytest.mark.parametrize(
    ("gap", "slow_gap", "squared", "rate", "bursts"),
    [
        (1.0, 2.0, 8.0, 2.0, 2.0),  # twice as many of late; the squares' mean is twice the mean's square
        (1e-9, 1.0, 1e-9, 1e3, 1e-3),  # no more than a thousand times
        (1.0, 1e-9, 1.0, 1e-3, 1e3),
    ],
)
def test_rates_and_bursts_are_ratios_up_to_a_thousand(
    gap: float, slow_gap: float, squared: float, rate: float, bursts: float
) -> None:
    seen, base = fleet(), observation._PER_REPLICA * 2
    for name, value in (("_GAP", gap), ("_SLOW_GAP", slow_gap), ("_SQUARED_GAP", squared)):
        seen.memory[base + getattr(observation, name)] = value
    out = np.zeros((2, observation.NUM_FEATURES))
    observation._observe_all(seen, observation.Arrival(0, 2.0, 100, 20.0, 200.0), out)
    for row in out:
        assert row[[observation.RATE_VS, observation.BURSTINESS]] == pytest.approx([math.log(rate), math.log(bursts)])


@plain
@pytest.mark.parametrize(("depth", "tokens", "longest"), [(1, 10, 10), (2, 40, 30), (3, 45, 30), (8, 45, 30)])
def test_the_head_of_a_queue(depth: int, tokens: int, longest: int) -> None:
    """Three wait, of 10, 30 and 5 tokens, the first since 1.5 s; one more request is not in the queue."""
    seen = fleet(num_waiting=[3, 0], first_waiting=[2, -1])
    requests = np.zeros(4, seen.cluster.requests.dtype).view(np.recarray)
    requests.prefill_tokens, requests.arrival_s = [30, 99, 10, 5], [2.0, 0.0, 1.5, 3.0]
    requests.next_waiting = [3, -1, 0, -1]
    seen = seen._replace(cluster=seen.cluster._replace(requests=requests))
    row = np.zeros(observation.NUM_FEATURES)
    observation._observe_queue(seen, 0, 4.0, row, depth)
    head = row[[observation.HEAD_TOKENS, observation.HEAD_LONGEST, observation.HEAD_AGE]]
    assert head == pytest.approx([math.log1p(tokens), math.log1p(longest), 2.5])
    observation._observe_queue(seen, 1, 4.0, row, depth)
    assert row[[observation.HEAD_TOKENS, observation.HEAD_LONGEST, observation.HEAD_AGE]].tolist() == [0.0, 0.0, 0.0]


@plain
def test_the_highest_score_or_a_draw_from_their_softmax() -> None:
    scores = np.array([0.0, math.log(2.0), math.log(2.0), math.log(5.0)])
    assert learned.choose(scores, 3, 0.0, 0.9) == 1, "ties to the lowest"
    assert learned.choose(scores, 4, 0.0, 0.0) == 3
    drawn = [learned.choose(scores, 4, 1.0, draw) for draw in (0.0, 0.09, 0.11, 0.29, 0.31, 0.49, 0.51, 0.99)]
    assert drawn == [0, 0, 1, 1, 2, 2, 3, 3], "shares 1, 2, 2 and 5 of ten"
    assert learned.choose(scores, 4, 1.0, 1.0) == 3
    assert learned.choose(np.zeros(2), 2, 1.0, 0.5) == 1, "a draw at the edge belongs to the next"
    cold = [learned.choose(scores, 4, 0.5, draw) for draw in (0.02, 0.03, 0.14, 0.15)]
    assert cold == [0, 1, 1, 2], "1, 4, 4 and 25 of 34"


@plain
def test_replicas_that_take_nothing_are_not_chosen() -> None:
    seen, scores = fleet(), np.array([3.0, 2.0])
    learned._rule_out_others(seen, scores)
    assert scores.tolist() == [3.0, 2.0]
    learned._rule_out_others(seen._replace(candidates=np.array([1])), scores)
    assert scores.tolist() == [-np.inf, 2.0]


def work(*rows: tuple[float, float, float]) -> Any:
    """Of each request: prompt tokens and output tokens to come, KV tokens held."""
    return np.array(rows, float)


@plain
def test_lookahead_admits_while_places_and_memory_last() -> None:
    two = fleet("lookahead", max_running=[2, 8], num_blocks=[10, 100])

    def end(r: int, left: Any, first: int) -> int:
        return lookahead._admitted(two, r, left, first, len(left), 0, 0, 1.0)[0]

    assert end(0, work((10, 5, 0), (10, 5, 0), (10, 5, 0)), 0) == 2
    assert end(0, work((0, 0, 0), (10, 5, 0), (10, 5, 0)), 1) == 3, "one has ended"
    assert end(0, work((60, 5, 0), (40, 5, 0), (1, 5, 0)), 0) == 2, "100 tokens of memory"
    assert end(0, work((60, 5, 0), (41, 5, 0)), 0) == 1
    assert end(0, work((200, 5, 0), (1, 5, 0)), 0) == 1, "the first goes in anyhow"
    assert end(1, work((1, 5, 30), (1, 5, 30)), 0) == 2


@plain
def test_lookahead_looks_no_more_at_what_has_ended() -> None:
    """Of those before the fourth, which is not in the batch, the first and the third go on."""
    left = work((1, 5, 10), (0, 0, 20), (2, 6, 30), (3, 7, 40))
    assert lookahead._drop_ended(left, 0, 3) == 1
    assert left[1:].tolist() == [[1, 5, 10], [2, 6, 30], [3, 7, 40]]


@plain
def test_lookahead_runs_a_chunk_or_decodes_until_one_is_done() -> None:
    """Two decodes of 30 and 50 KV tokens beside the first 198 of 250 prompt tokens; then the rest; then 3 steps."""
    seen = fleet("lookahead", kv_s=1e-5)
    left = work((0, 4, 30), (0, 9, 50), (250, 6, 0))
    assert lookahead._run_iterations(seen, 0, left, 0, 3) == pytest.approx(0.200 + 2 * 40 * 1e-5)
    assert left.tolist() == [[0, 3, 31], [0, 8, 51], [52, 6, 198]]
    assert lookahead._run_iterations(seen, 0, left, 0, 3) == pytest.approx(0.054 + 2 * 41 * 1e-5)
    assert left.tolist() == [[0, 2, 32], [0, 7, 52], [0, 5, 251]], "its first token"
    mean = (32 + 52 + 251) / 3 + 0.5
    assert lookahead._run_iterations(seen, 0, left, 0, 3) == pytest.approx(2 * (0.003 + 3 * mean * 1e-5), rel=1e-3)
    assert left[:, 1:].tolist() == [[0, 34], [5, 54], [3, 253]]
    capped = fleet("lookahead", max_chunk_tokens=[100, 100])
    left = work((250, 6, 0), (30, 2, 0))
    assert lookahead._run_iterations(capped, 0, left, 0, 2) == pytest.approx(0.130)
    assert left[:, :2].tolist() == [[150, 6], [0, 1]]


@plain
@pytest.mark.parametrize("others", [0.0, 0.7])
@pytest.mark.parametrize("batching", [{"max_sequences": 4}, {"max_sequences": 4, "overlap": True}])
def test_lookahead_goes_on_where_the_arrival_before_left_it(batching: Any, others: float) -> None:
    """Two bursts over replicas of two sizes: the same choices, seconds and sums as when every play begins anew, and
    fewer iterations to play."""
    router = {"name": "lookahead", "lengths": "oracle", "options": {"others": others}}
    pools = [{"replica": {"num_kv_blocks": 60}}, {"replica": {"num_kv_blocks": 500}}]
    given = scenario(pools=pools, router=router, batching=batching)
    chance = np.random.default_rng(3)
    offered = requests_of(np.repeat((0.0, 0.5), 20), chance.integers(5, 400, 40), chance.integers(1, 60, 40))
    played: dict[int, list[Any]] = {}
    for scratch in (0, lookahead.KEPT):
        with pytest.MonkeyPatch.context() as patch:
            seen: list[Any] = []
            steps: list[int] = []
            play, step = lookahead.play_on, lookahead._run_iterations

            def stepped(*args: Any, steps: list[int] = steps, step: Any = step) -> Any:
                steps.append(0)
                return step(*args)

            def noted(*args: Any, seen: list[Any] = seen, play: Any = play) -> Any:
                own, all_others = play(*args)
                seen.append((min(own, args[-1]), all_others if args[-2] else 0.0))  # Stopped at the limit.
                return own, all_others

            patch.setattr(lookahead, "play_on", noted)
            patch.setattr(lookahead, "_run_iterations", stepped)
            patch.setitem(ROUTERS._specs, "lookahead", replace(ROUTERS["lookahead"], scratch=scratch))
            done = run(given, requests=offered)
            played[scratch] = [done.cluster.requests.replica.tolist(), seen, len(steps)]
    assert played[0][:2] == played[lookahead.KEPT][:2]
    assert played[lookahead.KEPT][2] < played[0][2] / 2


@plain
def test_what_routers_look_at_is_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that a replica has yet to hear of are there; those that a batch computes a token too many of are not."""
    seen: list[int] = []
    begin = lookahead._begin

    def compared(fleet: Any, r: int, *rest: Any) -> Any:
        state, q = fleet.cluster.replicas[r], fleet.cluster.requests
        ids = np.empty(state.num_outstanding, np.int64)
        there = np.flatnonzero((q.replica == r) & np.isin(q.status, (WAITING, RUNNING, IN_FLIGHT)))
        assert sorted(ids[: prediction.outstanding(fleet.cluster, r, ids)]) == there.tolist()
        seen.append(int(state.num_deferred))
        return begin(fleet, r, *rest)

    monkeypatch.setattr(lookahead, "_begin", compared)
    batching = {"max_sequences": 8, "overlap": True, "surplus_token": True}
    workload = {
        "num_requests": 60,
        "rate": 40.0,
        "lengths": {"distribution": "uniform", "prompt": [5, 30], "output": [1, 20]},
    }
    run(
        scenario(
            num_replicas=2, router={"name": "lookahead", "lengths": "oracle"}, batching=batching, workload=workload
        )
    )
    assert max(seen) > 0


@plain
@pytest.mark.parametrize(
    ("hits", "weight", "expected"),
    [
        ([0, 0, 0], 1.0, 1),  # queues alone: 0, 1, 0.5
        ([4, 3, 2], 1.0, 1),  # and 1, 0.5, 0 for prefixes: 1, 1.5, 0.5
        ([4, 3, 2], 3.0, 0),  # 3, 2.5, 0.5
        ([2, 2, 2], 9.0, 1),  # all hold the same
        ([0, 0, 1], 1.0, 2),  # 0, 1, 1.5: who holds nothing gets nothing
        ([9, 0, 0], 0.0, 1),  # of no interest
    ],
)
def test_llmd_scores_prefixes_from_the_least_to_the_most(
    hits: list[int], weight: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llmd, "replica_view", lambda cluster, r: r)
    monkeypatch.setattr(llmd, "prefix_cache", SimpleNamespace(count_hits=lambda r, request_id: hits[r]))
    books: dict[str, list[float]] = {"reported_waiting": [4, 0, 2], "reported_free": [5] * 3, "num_blocks": [10] * 3}
    seen = fleet_of(books, router="llmd", prefix_count=1)
    seen.parameters[2] = weight
    assert llmd.llmd(seen, 0) == expected


@plain
def test_vllm_dp_remembers_each_replica_by_itself() -> None:
    """Three: waiting and running 1 and 1, 0 and 6, 1 and 0. Scores 5, 6, 4; then 5, 6, 8; then 9, 6, 8."""
    from gnomon.serving.routers import ROUTERS

    books = {"num_waiting": [1.0, 0.0, 1.0], "num_outstanding": [2.0, 6.0, 1.0]}
    seen = fleet_of(books, router="vllm_dp", arrival_s=0.0)
    route = ROUTERS["vllm_dp"].route
    assert [route(seen, 0) for _ in range(5)] == [2, 0, 1, 2, 0]


@plain
def test_sticky_until_full_by_memory() -> None:
    """The default takes nine tenths of the blocks as full."""
    books: dict[str, Any] = {"num_outstanding": [0, 1], "num_coming": [0, 0], "num_blocks": [10, 10]}
    assert choice("sticky_until_full", {**books, "free_blocks": [2, 9]}) == 0
    assert choice("sticky_until_full", {**books, "free_blocks": [1, 9]}) == 1
    assert choice("sticky_until_full", {**books, "num_outstanding": [7, 8], "free_blocks": [9, 9]}) == 0
    assert choice("sticky_until_full", {**books, "num_outstanding": [8, 7], "free_blocks": [9, 9]}) == 1
    assert choice("sticky_until_full", {**books, "num_outstanding": [9, 8], "free_blocks": [9, 9]}) == 1, "both full"


@plain
def test_requests_in_flight_count_for_llmd_as_the_picker_knows_them() -> None:
    """4, 2 + 2 and 1 of at most 4: twice nothing, nothing and three quarters are added. With none all are alike."""
    fleet = fleet_of({"num_outstanding": [4, 2, 0], "num_coming": [0, 2, 1]}, router="llmd")
    at = [llmd.SEEN * r + llmd.SCORE for r in range(3)]
    fleet.memory[at] = 0.5
    llmd.score_active(fleet, 2.0)
    assert fleet.memory[at].tolist() == [0.5, 0.5, 2.0]
    fleet.cluster.replicas["num_outstanding"] = fleet.cluster.replicas["num_coming"] = 0
    llmd.score_active(fleet, 2.0)
    assert fleet.memory[at].tolist() == [2.5, 2.5, 4.0]


@plain
def test_two_readings_are_fitted() -> None:
    """On the second of two replicas, by NumPy: sums and products of which 0.985 is kept, four rounds of Gauss-Seidel
    with speeds of at least 0, 300 readings of one unit each of the fleet's speeds, which then follow a fiftieth of
    the way. The factor follows the ratio of seconds to those expected, between a fifth and five, by 0.15."""
    told = known.at_first([100, 100], 0.25, 0.0, 0.0)
    mine, usual = known._PER_REPLICA, 2 * known._PER_REPLICA + known._USUAL
    begun = told.copy()
    speeds, fleets = np.array([0.01, 0.04, 0.004, 0.005]), np.array([0.01, 0.04, 0.004, 0.005])
    factor, sums, products = 1.0, np.zeros(4), np.zeros((4, 4))
    for elapsed_s, iterations, prefill, made, kv in ((3.0, 20, 8e3, 900.0, 250.0), (0.9, 30, 1e3, 700.0, 400.0)):
        done = np.array([iterations, prefill / 1000, made / 100, made * kv / 100_000])
        factor += 0.15 * (min(5.0, elapsed_s / (speeds @ done)) - factor)
        sums, products = 0.985 * sums + done * elapsed_s, 0.985 * products + np.outer(done, done)
        for _ in range(4):
            for i in range(4):
                others = products[i] @ speeds - products[i, i] * speeds[i]
                speeds[i] = max(0.0, (sums[i] + 300 * fleets[i] - others) / (products[i, i] + 300))
        fleets += 0.02 * (speeds - fleets)
        known._fit(told, mine, usual, elapsed_s, iterations, prefill, made, kv)
    assert told[mine + known._FACTOR] == pytest.approx(factor, rel=1e-9)
    assert told[mine + known._SPEEDS : mine + known._SUMS] == pytest.approx(speeds, rel=1e-9)
    assert told[mine + known._SUMS : mine + known._PRODUCTS] == pytest.approx(sums, rel=1e-9)
    assert told[mine + known._PRODUCTS : mine + known._SCRAPED_S] == pytest.approx(products.ravel(), rel=1e-9)
    assert told[usual:] == pytest.approx(fleets, rel=1e-9)
    changed = np.flatnonzero(told != begun)
    assert changed[0] == mine + known._FACTOR and not np.isin([mine + known._SCRAPED_S, usual - 1], changed).any()


@plain
@pytest.mark.parametrize(("elapsed_s", "factor"), [(1.2, 1.6), (0.001, 0.88), (0.3, 1.075)])
def test_one_reading_moves_a_factor_between_a_fifth_and_five(elapsed_s: float, factor: float) -> None:
    """Twenty iterations of 10 ms were expected: 0.15 of the way to 5, to a fifth, to one and a half."""
    told = known.at_first([100], 0.25, 0.0, 0.0)
    known._fit(told, 0, known._PER_REPLICA + known._USUAL, elapsed_s, 20, 0.0, 0.0, 0.0)
    assert told[known._FACTOR] == pytest.approx(factor)
    speed = (20 * elapsed_s + 3.0) / (400 + 300)
    assert told[known._SPEEDS : known._SUMS] == pytest.approx([speed, 0.04, 0.004, 0.005])


@plain
def test_what_one_reading_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of replica 1, first read at 1 s with 3 iterations, 500 tokens computed, 40 of them made, 70 of 100 blocks free;
    then with 7, 900 and 60: 380 prompt tokens, and 300 KV tokens over the four that run."""
    made = fleet("gateway", num_outstanding=[0, 5], num_waiting=[0, 1], num_iterations=[0, 3], tokens_computed=[0, 500],
                 num_produced=[0, 40], reported_free=[100, 70])  # fmt: skip
    told, seen, mine = known.at_first([100, 100], 0.25, 0.0, 0.0), [], known._PER_REPLICA
    monkeypatch.setattr(known, "_fit", lambda *given: seen.append(given[1:]))
    made, replicas = made._replace(known=told), made.cluster.replicas
    known.look(made, 1.0)
    first = {"_READ_S": 1.0, "_ITERATIONS": 3, "_TOKENS": 500, "_PRODUCED": 40, "_BUSY": 1, "_FREE": 70,
             "_HEARD_S": 1.0, "_HEARD": 40, "_SCRAPED_S": 1.0}  # fmt: skip
    assert {name: told[mine + getattr(known, name)] for name in first} == first
    assert [told[getattr(known, name)] for name in ("_BUSY", "_HEARD_S", "_SCRAPED_S")] == [0.0, 1.0, 1.0]
    for name, value in (("num_iterations", 7), ("tokens_computed", 900), ("num_produced", 60), ("reported_free", 20)):
        replicas[name][1] = value
    known.look(made, 1.2)
    assert {name: told[mine + getattr(known, name)] for name in first} == first | {"_HEARD_S": 1.2, "_HEARD": 60}
    known.look(made, 1.5)
    assert [one[:2] for one in seen] == [(mine, 2 * mine + known._USUAL)]
    assert seen[0][2:] == pytest.approx((0.5, 4, 380.0, 20.0, 300 / 4))
    second = first | {"_READ_S": 1.5, "_ITERATIONS": 7, "_TOKENS": 900, "_PRODUCED": 60, "_FREE": 20, "_HEARD": 60}
    second |= {"_HEARD_S": 1.2, "_SCRAPED_S": 1.5}
    assert {name: told[mine + getattr(known, name)] for name in first} == second
    replicas["num_iterations"][1] = 8
    known.look(made, 3.4)  # One iteration in 1.9 s: too little to learn from, and not yet too long.
    assert told[mine + known._READ_S] == 1.5 and told[mine + known._SCRAPED_S] == 3.4
    known.look(made, 3.65)
    assert told[mine + known._READ_S] == 3.65 and told[mine + known._ITERATIONS] == 8 and len(seen) == 1
    replicas["num_iterations"][1], replicas["num_outstanding"][1], replicas["num_coming"][1] = 10, 0, 1
    known.look(made, 4.0)
    assert told[mine + known._HEARD_S] == 1.2 and told[mine + known._BUSY] == 1.0 and len(seen) == 2
    assert seen[1][2:] == pytest.approx((0.35, 2, 0.0, 0.0, 800.0), abs=1e-9)
    replicas["num_coming"][1] = 0
    known.look(made, 4.1)
    assert told[mine + known._HEARD_S] == 4.1 and told[mine + known._BUSY] == 0.0


@plain
@pytest.mark.parametrize(("tail_s", "base"), [(0.0, 0), (1.5, 0), (1.5, 3)])
def test_what_a_gateway_weighs(monkeypatch: pytest.MonkeyPatch, tail_s: float, base: int) -> None:
    """1 ms a token and 10 us a KV token of a decode; a prompt of 100, 60 of them new on replica 0, and 20 output
    tokens to come where answers have 200 in the mean. Four decode on replica 0, of 100 KV tokens each, to the end of
    their iteration at 2.5 s: 8 ms a step, 10 ms with one more, 2 x (30 + 8) ms for the 60 tokens in chunks of 30. One
    waits and two are on their way, of 50 and twice 35 tokens: 4 chunks ahead. Three places for eight: 5/3 rounds more,
    and as many as memory lacks: 630 + 100 + 20 tokens where 600 of 1,000 are free. All memory is in use by now.
    Of its time a tenth went into prefills of late, so that steps take 1 / (1 - that) times as long. Whoever is later
    than 6 s or slower than 12 ms a token costs three answers of 0.9 s."""
    made = fleet("gateway", kv_s=1e-5, num_in_flight=[1, 0], next_end_s=[2.5, 9.0], num_coming=[2, 0],
                 max_chunk_tokens=[30, 1000], max_running=[3, 8], waiting_tokens=[630, 0],
                 tokens_computed=[1001, 1000])  # fmt: skip
    made = made._replace(memory=np.zeros(base + 16), predicted_output=np.array([20.0]))
    monkeypatch.setattr(known, "new_tokens", lambda _fleet, r, _request: (60, 100)[r])
    of_fleet, memory = base + 8, made.memory
    memory[base : base + 2], memory[base + 4 : base + 6] = (0.9, 1.5), (0.0, 0.0)
    memory[of_fleet : of_fleet + 6], memory[of_fleet + 7] = (3.0, tail_s, 0.2, 0.06, 0.4, 35.0), 0.9
    weights = np.array([2.5, 0.5, 1.25, 2.0, 0.7, 5.0, 6.0, 4.0, 0.3, 3.0])
    made.cluster.classes[0, TTFT_S], made.cluster.classes[0, TPOT_S] = 6.0, 0.012
    chosen = gateway.weigh(made, 0, weights, base)
    own, ahead = 2 * 0.038, 120 / 30 * 0.038
    wait = 0.5 + ahead + (5 / 3 + 0.15) * 200 * 0.010
    window = 4 * 200 * 0.010
    sent = 0.9 * math.exp(-0.5 / window)
    cost = wait + own + 20 * 0.010 + 2.5 * (wait + own) + 0.5 * 2 * 0.030 * 4 + 1.25 * 0.002 * 4 * 20
    step_s = 0.010 / (1 - sent / window)
    cost += 2.0 * (step_s - 0.010) * 20 + 0.7 * own * 3 + 5.0 * 0.4 * own * 4
    slower, slow, late = (
        1 / (1 + ratio**-4) for ratio in ((step_s + own / 200) / 0.012, step_s / 0.012, (wait + own) / 6)
    )
    assert 0.1 < slow < slower < 0.9 and 0.1 < late < 0.9
    cost += 3.0 * 0.9 * (1 - (1 - late) * (1 - slow) + 4 * (slower - slow))
    idle = 0.1 + 20 * 0.002 + 2.5 * 0.1 + 3.0 * 0.9 * (1 - (1 - 1 / (1 + 60**4)) * (1 - 1 / (1 + 6**4)))
    assert memory[base : base + 3] == pytest.approx([sent, 2.0, cost])
    assert memory[base + 4 : base + 7] == pytest.approx([0.0, 2.0, idle])
    tail = tail_s + 0.06 / 0.4
    late = [6.0 * (first / tail) ** 2 * tail * new for first, new in ((wait + own, 0.6), (0.1, 1.0))]
    assert memory[[base + 3, base + 7]] == pytest.approx(late if tail_s else [0.0, 0.0])
    speed = 60 / own + 100 / 0.1
    even_s, alone_s = ((wait + own) * 60 / own + 100) / speed, 100 * 2 / speed
    assert even_s > tail_s
    learned_s = tail_s * math.exp(20 / 24 * 0.99) if tail_s else even_s
    learned = [4.0, learned_s, 0.2 + (alone_s - 0.2) / 4, 0.06 + (alone_s**2 - 0.06) / 4, 0.4, 35.0, idle]
    assert memory[of_fleet : of_fleet + 8] == pytest.approx([*learned, 0.9 + (200 * (0.010 + 0.002) / 2 - 0.9) / 4])
    assert chosen == 1
    gateway.remember(made, 0, 60, base)
    assert memory[of_fleet + 5] == 35.0 + 25.0 / 4
    assert memory[base] == pytest.approx(sent + 0.060)
    costs = [(memory[at + 2], memory[at + 3]) for at in (base, base + 4)]
    more = math.log(sum(costs[0]) / sum(costs[1])) + math.log(costs[0][0] / idle)
    assert gateway.cost_vs_best(made, 0, 1, base) == pytest.approx(more) and 0.0 < more < gateway.MOST
    assert gateway.cost_vs_best(made, 1, 1, base) == 0.0


@plain
def test_a_gateway_takes_the_soonest_of_those_that_cost_hardly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle replicas at 1 ms a token, of 30, 60, 50 and 50 new prompt tokens; a late first token costs so much on the
    first that the second would be better, which costs more than 0.3 above the least. Of equal ones the first counts."""
    for news, chosen in (((30, 60, 50), 0), ((100, 100, 100), 0), ((100, 90, 90), 1), ((31, 40, 30), 2)):
        books = {name: [value[1]] * 3 for name, value in BOOKS.items()}
        made = timed(fleet_of(books, router="gateway", prompt_tokens=100, arrival_s=2.0))
        monkeypatch.setattr(known, "new_tokens", lambda _fleet, r, _request, news=news: news[r])
        assert gateway.weigh(made, 0, made.parameters, 0) == chosen


@plain
@pytest.mark.parametrize(("within", "chosen"), [(0.11, 1), (0.09, 0)])
def test_a_sooner_first_token_may_not_cost_any_price(within: float, chosen: int) -> None:
    """Replica 0 is free in 30 ms: 130 + 10 x 1 ms. On replica 1 four decode: 104 + 10 x 5 ms, a tenth more."""
    made = fleet("gateway", num_in_flight=[1, 0], next_end_s=[2.03, 9.0], num_outstanding=[0, 4], num_waiting=[0, 0],
                 prefill_left=[0, 0])  # fmt: skip
    made = made._replace(predicted_output=np.array([10.0]))
    made.memory[8 + gateway._COUNT : 8 + gateway._FOUND] = 5.0, 0.05, 1.0, 1.0
    weights = np.zeros(10)
    weights[6], weights[8] = 1e3, within
    assert gateway.weigh(made, 0, weights, 0) == chosen
    assert made.memory[[2, 6]] == pytest.approx([0.140, 0.154])


@plain
@pytest.mark.parametrize(("seconds", "limit_s", "odds"), [(1, 1, 1), (2, 1, 16), (1, 2, 1 / 16), (9, math.inf, 0)])
def test_a_limit_is_missed_the_likelier_the_further_beyond_it(seconds: float, limit_s: float, odds: float) -> None:
    assert gateway._missed(seconds, limit_s) == pytest.approx(odds / (1 + odds))


@plain
@pytest.mark.parametrize(("longest", "fits"), [(104, True), (103, False)])
def test_nothing_is_sent_where_a_prompt_does_not_fit_beside_the_decodes(longest: int, fits: bool) -> None:
    """Four decode, and 100 prompt tokens come."""
    made = fleet("gateway", longest_prompt=[longest, UNBOUNDED])
    gateway.weigh(made, 0, made.parameters, 0)
    assert (made.memory[2] < 1e9) == fits and made.memory[6] < 1e9


@plain
@pytest.mark.parametrize(("limit_s", "power"), [(math.inf, 4), (10.0, 2)])
def test_lateness_weighs_less_where_an_slo_says_what_is_too_late(limit_s: float, power: int) -> None:
    """The first token after 100 ms on the idle replica, half the tail's 200."""
    made = fleet("gateway")
    made.cluster.classes[0, TTFT_S] = limit_s
    made.memory[8 + gateway._TAIL_S], made.memory[8 + gateway._ALONE_S] = 0.2, 1.0
    gateway.weigh(made, 0, np.array([0.0] * 6 + [7.0] + [0.0] * 3), 0)
    assert made.memory[7] == pytest.approx(7.0 * 0.5**power * 0.2)


@plain
@pytest.mark.parametrize(("sent_s", "slower_s"), [(0.0, 0.0), (0.4, 0.020), (0.6, 0.060), (80.0, 0.080)])
def test_decodes_step_in_the_time_that_prefills_leave(sent_s: float, slower_s: float) -> None:
    """So much was sent in four answers of 200 tokens at 1 ms; 20 tokens are to come. At least a fifth is left."""
    made = fleet("gateway")._replace(predicted_output=np.array([20.0]))
    made.memory[4:6] = sent_s, 2.0
    gateway.weigh(made, 0, np.array([0.0] * 3 + [1.0] + [0.0] * 6), 0)
    assert made.memory[6] == pytest.approx(0.1 + 20 * 0.001 + slower_s)


@plain
@pytest.mark.parametrize(
    ("count", "even_s", "step"), [(5.0, 9.0, 0.8 * 0.99), (5.0, 2.0, -0.8 * 0.01), (980.0, 9.0, 0.1 * 0.99)]
)
def test_a_tail_is_followed_faster_at_first(count: float, even_s: float, step: float) -> None:
    """From 2 s, which itself is not above it; of the prefills alone a fifth, later a hundredth counts."""
    memory = np.array([9.0, count, 2.0, 0.5, 0.3, 7.0, 7.0, 7.0])
    gateway._learn_tail(memory, 1, even_s, 1.5)
    weight = max(0.01, 1 / count)
    assert memory == pytest.approx(
        [9.0, count, 2.0 * math.exp(step), 0.5 + weight, 0.3 + weight * (2.25 - 0.3), 7, 7, 7]
    )
    assert gateway._tail_s(memory, 1) == pytest.approx(memory[2] + memory[4] / (2 * memory[3]))


@plain
def test_choices_are_remembered_beside_those_before() -> None:
    """Of three, from 0.5 and 0.8 on; its 100 prompt tokens of a mean of 50 take 0.1 s."""
    seen = timed(fleet_of({name: [*two, two[1]] for name, two in BOOKS.items()}, router="learned", prompt_tokens=100))
    count = observation._PER_REPLICA
    seen.memory[3 * count + observation._PROMPT] = 50.0
    seen.memory[3 * count + 8 + 3 * gateway._PER_REPLICA + gateway._COUNT] = 4.0
    for r in range(3):
        seen.memory[count * r : count * r + 6] = 0.5, 0.8, 3.0, 4.0, 5.0, 0.3
    observation.remember_choice(seen, 0, 1)
    others = [0.475, 0.76, 3.0, 4.0, 5.0, 0.3]
    chosen = [0.5 + 0.05 * 2.5, 0.8 + 0.05 * 5.2, 3.0, 4.0, 5.0, 0.4]
    assert seen.memory[: 3 * count] == pytest.approx([*others, *chosen, *others])
    rule = np.zeros(3 * gateway._PER_REPLICA + 8)
    rule[gateway._PER_REPLICA], rule[-8 + gateway._COUNT], rule[-8 + gateway._MEAN_NEW] = 0.1, 4.0, 25.0
    assert seen.memory[3 * count + 8 : 3 * count + 8 + rule.size] == pytest.approx(rule)


@plain
def test_moving_averages_of_the_second_of_three() -> None:
    """The 400th arrival, 3 s after the one before: a twentieth of what is quick, a 200th of what is slow."""
    many = {name: [*two, two[1]] for name, two in BOOKS.items()} | {
        "num_finished": [9, 12, 9],
        "num_outstanding": [1, 7, 1],
    }
    seen, count = timed(fleet_of(many, router="learned")), observation._PER_REPLICA
    base, memory = 3 * count, seen.memory
    memory[count : 2 * count] = 0.5, 0.8, 3.0, 10.0, 5.0, 0.3
    memory[base : base + 8] = 7.0, 2.0, 4.0, 20.0, 60.0, 399.0, 6.0, 0.25
    observation._update_averages(seen, observation.Arrival(0, 10.0, 100, 20.0, 200.0))
    averages = [10.0, 2.05, 3.995, 20.0 - 0.005 * 11, 60.2, 400.0, 6.0, 0.25]
    assert memory[base : base + 8] == pytest.approx(averages)
    mine = [0.5, 0.8, 3.0 + 0.05 * 3, 12.0, 5.1, 0.3 * math.exp(-0.5)]
    assert memory[count : 2 * count] == pytest.approx(mine)
    observation.remember_pace(seen, observation.Arrival(0, 10.0, 100, 20.0, 200.0), 0.01, 0.65)
    assert memory[base + 6 : base + 8] == pytest.approx([8.0, 0.251])
    memory[base + observation._COUNT] = 1e6
    observation.remember_pace(seen, observation.Arrival(0, 10.0, 100, 20.0, 200.0), 0.01, 0.251 + 100.0)
    assert memory[base + 7] == pytest.approx(0.261)


@plain
def test_every_feature_of_the_second_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both as busy as the first of `BOOKS`, but for what is said here; on the second 40 of the 100 tokens are cached.
    Steps take 4 and with one more 5 ms, there 4 and 5 ms, too; its own prefill 64 ms behind one of 70 tokens, 74 ms,
    on the other 104 behind 54 ms."""
    both = {name: [value[0]] * 2 for name, value in BOOKS.items()} | {
        "num_outstanding": [5, 9], "num_waiting": [1, 2], "num_holding": [4, 4], "prefill_left": [50, 70],
        "free_blocks": [60, 55], "num_in_flight": [0, 1], "next_end_s": [0.0, 10.2], "first_waiting": [0, 0],
        "num_finished": [3, 4], "num_produced": [30, 770], "max_running": [16, 20], "waiting_tokens": [30, 35],
    }  # fmt: skip
    seen = timed(fleet_of(both, router="learned", prompt_tokens=100, prefill_tokens=90, arrival_s=10.0))
    monkeypatch.setattr(observation, "new_tokens", lambda _fleet, r, _request: (100, 60)[r])
    seen = seen._replace(predicted_output=np.array([20.0]))
    monkeypatch.setattr(observation, "_decode_left", lambda _fleet, r, _mean: (150.0, 330.0)[r])
    monkeypatch.setattr(gateway, "weigh", lambda *_: 0)
    monkeypatch.setattr(gateway, "cost_vs_best", lambda _fleet, r, best, _base: 0.25 + r + best)
    memory, count = seen.memory, observation._PER_REPLICA
    memory[count : 2 * count] = 0.5, 0.8, 3.0, 2.0, 5.0, 0.3
    memory[2 * count : 2 * count + 8] = 7.0, 2.0, 4.0, 20.0, 60.0, 399.0, 6.0, 0.25
    out = np.full((2, observation.NUM_FEATURES), np.nan)
    observation.observe(seen, 0, out, 1)
    mean = (2000.0 + 800.0) / 17
    rounds = 0.0  # Ten of twenty places, 155 of 550 free tokens.
    first, other = 0.2 + 0.074 + 0.064 + rounds, 0.054 + 0.104
    stalls = 0.3 * math.exp(-0.5) / 6.0 * 20 * 0.005
    added = [one + 20 * 0.005 + 2.5 * one + 0.5 * stall + 0.001 * 4 * 20 + 2.0 * late
             for one, stall, late in ((other, 0.4, 0.0), (first, 0.24, stalls))]  # fmt: skip
    alone = 0.060 + 20 * 0.001
    log, log1p = math.log, math.log1p
    expected = {
        "outstanding": log1p(9), "waiting": log1p(2), "running_share": 0.2, "prefill_left": log1p(70),
        "kv_used_share": 0.45, "kv_demand_share": 0.485, "decode_left": log1p(330), "outstanding_vs_mean": 9 / 8,
        "prefill_left_vs_mean": 70 / 160, "decode_left_vs_mean": 330 / 260, "decode_speed": 0.0, "prefill_speed": 0.0,
        "batch_cap": log1p(20), "mean_kv": log1p(450 / 4), "batch_ends_in": log1p(0.2 / 0.005), "recent_arrivals": 0.5,
        "recent_prompt_tokens": 0.8, "recent_completions": 3.0 + 0.05 * (2 * 2 - 3.0),
        "trend": log1p(9) - log1p(5.2), "queue_head_tokens": log1p(90), "queue_head_longest": log1p(90),
        "queue_head_age": 0.0, "prefix_hit_share": 0.4, "new_tokens": log1p(60), "first_token": log(first / 0.060),
        "first_token_vs_best": log(first / other), "finish": log((first + 0.1) / alone),
        "finish_vs_best": log((first + 0.1) / (other + 0.1)), "step_vs_best": 0.0, "stall": log1p(0.24 / alone),
        "crowding": log1p(0.08 / alone), "stalls_to_come": log1p(stalls / alone),
        "added_vs_best": log(added[1] / added[0]), "gateway_vs_best": 1.25, "prompt": log1p(100),
        "prompt_vs_mean": log(100 / 60.2), "expected_output": log1p(20), "num_replicas": log(2),
        "rate_vs_mean": log(3.995 / 2.05), "burstiness": log(19.945 / 3.995**2), "backlog": log1p(7.0),
        "kv_used_in_all": 0.425,
    }  # fmt: skip
    assert dict(zip(observation.FEATURES, out[1], strict=True)) == pytest.approx(expected)
    assert out[0, observation.PREFILL_SPEED] == pytest.approx(log(0.06 / 0.1)) and out[0, observation.FINISH_VS] == 0.0
    assert memory[2 * count + 6] == pytest.approx(4.0 * mean * 0.005)
    assert memory[2 * count + 7] == pytest.approx(0.25 + ((first**2 + other**2) / 2 - 0.25) / 400)


def _shares(books: Any) -> Any:
    return (books["num_blocks"] - books["free_blocks"] + books["waiting_tokens"] / books["block_size"]) / books[
        "num_blocks"
    ]


COSTS: dict[str, Any] = {
    "least_outstanding": lambda b, new: b["num_outstanding"] + b["num_coming"],
    "vidur_lor": lambda b, new: b["num_waiting"],
    "least_kv": lambda b, new: _shares(b),
    "least_prefill_tokens": lambda b, new: b["prefill_left"] * 1000 + b["num_outstanding"],
    "lmetric": lambda b, new: (b["prefill_left"] + 60) * (b["num_outstanding"] + 1),
    "prefix_aware": lambda b, new: (new + b["prefill_left"]) * 1000 + b["num_outstanding"],
    "dynamo_kv": lambda b, new: (
        (b["prefill_left"] + new + b["waiting_tokens"] + new) / b["block_size"] + b["num_blocks"] - b["free_blocks"]
    ),
    "hash_spill": lambda b, new: b["num_outstanding"] + b["num_coming"],
    "adapter_aware": lambda b, new: b["num_outstanding"] + b["num_coming"],
    "llmd": lambda b, new: (
        (b["reported_waiting"] - b["reported_waiting"].min()) / max(1, np.ptp(b["reported_waiting"]))
        + (b["num_blocks"] - b["reported_free"]) / b["num_blocks"]
    ),
    "vllm_dp": lambda b, new: 4 * b["num_waiting"] + b["num_outstanding"] - b["num_waiting"],
}


@plain
@pytest.mark.parametrize("router", COSTS)
def test_the_first_of_the_least_cost_is_chosen(router: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas 1 to 4 of six, with small numbers, so that many are equal."""
    random, candidates = np.random.default_rng(5), np.arange(1, 5)
    for _ in range(150):
        num_blocks, waiting = random.choice([4, 8], 6), random.integers(0, 3, 6)
        books: dict[str, Any] = {
            "num_blocks": num_blocks, "free_blocks": random.integers(1, num_blocks), "num_waiting": waiting,
            "block_size": random.choice([2, 4], 6), "waiting_tokens": 4 * random.integers(0, 3, 6),
            "num_outstanding": waiting + random.integers(0, 3, 6), "num_coming": random.integers(0, 3, 6),
            "prefill_left": 20 * random.integers(0, 3, 6), "reported_waiting": random.integers(0, 3, 6),
            "reported_free": random.integers(1, num_blocks),
        }  # fmt: skip
        hits = random.integers(0, 3, 6)
        made = fleet_of(books, router=router, prompt_tokens=60, adapter=-1)._replace(candidates=candidates)
        monkeypatch.setattr(prefix_cache, "count_hits", lambda replica, _, hits=hits: hits[replica.number])
        for module in (dynamo_kv, prefix_aware):
            monkeypatch.setattr(module, "replica_view", lambda _, r: SimpleNamespace(number=r))
        seen = {name: column[candidates] for name, column in books.items()}
        costs = COSTS[router](seen, 60 - hits[candidates] * seen["block_size"])
        assert ROUTERS[router].route(made, 0) == 1 + int(np.argmin(costs))
        assert ROUTERS[router].route(made._replace(candidates=np.array([3])), 0) == 3


@plain
def test_lookahead_plays_one_of_idle_replicas_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three idle ones at row 0, one that is busy, one at row 2, and one whose cache is to be looked at."""
    played: list[int] = []

    def play_on(_fleet: Fleet, r: int, *_: Any) -> tuple[float, float]:
        played.append(r)
        return 9.0 - r, 0.0

    monkeypatch.setattr(lookahead, "play_on", play_on)
    books: dict[str, list[float]] = {
        "row": [0, 0, 0, 2, 0, 0], "num_outstanding": [0, 1, 0, 0, 0, 0], "tracks_blocks": [0, 0, 0, 0, 0, 1]
    }  # fmt: skip
    made = fleet_of(books, router="lookahead")
    assert lookahead.lookahead(made, 0) == 5 and played == [0, 1, 3, 4, 5], "4 is again another than the one before"
    played.clear()
    lookahead.lookahead(made._replace(known=known.at_first([9] * 6, 1.0, 0.0, 0.0)), 0)
    assert played == list(range(6)), "who does not see all thinks each of its own speed"


@plain
def test_cache_aware_chooses_by_hits_by_tokens_sent_and_by_the_spread_of_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas 1 to 4 of six: what holds more than 0.3 of 10 tokens, or who was sent the least; the least busy where
    loads differ by more than 2 and by more than half of the least."""
    random, chosen = np.random.default_rng(6), set()
    monkeypatch.setattr(cache_aware, "replica_view", lambda _, r: SimpleNamespace(number=r))
    for _ in range(300):
        outstanding, coming, sent = random.integers(0, 5, 6), random.integers(0, 3, 6), 10.0 * random.integers(0, 3, 6)
        blocks, hits, fewest = random.choice([1, 2], 6), random.integers(0, 3, 6), int(random.integers(0, 4))
        books = {"num_outstanding": outstanding + fewest, "num_coming": coming, "block_size": blocks}
        made = fleet_of(books, router="cache_aware", prompt_tokens=10)  # type: ignore[arg-type]
        made = made._replace(candidates=np.arange(1, 5), parameters=np.array([0.3, 2.0, 1.5]))
        made.memory[:6] = sent
        monkeypatch.setattr(prefix_cache, "count_hits", lambda replica, _, hits=hits: hits[replica.number])
        loads, held = (outstanding + fewest + coming)[1:5], (hits * blocks)[1:5]
        expected, why = (int(held.argmax()), "held") if held.max() > 3 else (int(sent[1:5].argmin()), "sent")
        if loads.max() - loads.min() > 2 and loads.max() > 1.5 * loads.min():
            expected, why = int(loads.argmin()), "load"
        assert ROUTERS["cache_aware"].route(made, 0) == 1 + expected
        sent[1 + expected] += 10.0
        assert made.memory[:6].tolist() == sent.tolist()
        chosen.add(why)
    assert len(chosen) == 3


@plain
def test_hash_spill_by_its_hash() -> None:
    """Replicas 1 to 4 of six; of four with `total` requests and one more each takes up to 1.25 times its share."""
    random, prime, full = np.random.default_rng(7), 2**31 - 1, 0
    for session in (0, 7, 123_456, 2**31 - 1, *range(1000, 1100)):
        books: dict[str, Any] = {name: random.integers(0, 4, 6) for name in ("num_outstanding", "num_coming")}
        made = fleet_of(books, router="hash_spill", session=session)._replace(candidates=np.arange(1, 5))
        loads = (books["num_outstanding"] + books["num_coming"])[1:5]
        weights = []
        for r in range(1, 5):
            mixed = (session * 2_654_435_761 + (r + 1) * 2_246_822_519) % prime
            for factor in (48_271, 69_621):
                mixed = (mixed ^ (mixed >> 15)) * factor % prime
            weights.append(mixed)
        is_full = loads >= math.ceil(1.25 * (loads.sum() + 1) / 4)
        full += int(is_full[int(np.argmax(weights))])
        assert ROUTERS["hash_spill"].route(made, 0) == 1 + int(np.argmax(np.where(is_full, -1, weights)))
    assert full > 10
