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
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.state import IN_FLIGHT, RUNNING, WAITING
from gnomon.serving.policies import UNBOUNDED
from gnomon.serving.routers import (
    ROUTERS,
    known,
    learned,
    llmd,
    lookahead,
    observation,
    predicted_latency,
    prediction,
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
    "waiting_tokens": [30, 0],
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
