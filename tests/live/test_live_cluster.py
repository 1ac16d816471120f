"""The cluster behind `gnomon serve`: the engine of `gnomon simulate`, request by request."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from gnomon.api.serving import scenario, simulate
from gnomon.live.cluster import Call, Full, LiveCluster
from gnomon.live.driver import Driver, Metrics
from gnomon.workload import generate
from live_kit import SMALL, is_empty, small_cluster

KINDS = {
    "vllm_v1": {},
    "overlapped": {"engine": "vllm"},
    "sglang": {"batching": "sglang"},
    "sarathi": {"batching": "sarathi"},
    "short of memory": {"replica.num_kv_blocks": 700},
    "stages": {"replica.pipeline_parallel": 2},
    "speculative": {"replica.speculative": {"num_tokens": 2, "acceptance": 0.6}},
    "front end": {"front_end": {"per_request_s": 0.004, "reply_s": 0.002}},
    "front ends": {"front_end": {"per_request_s": 0.004, "per_replica": True}, "num_replicas": 2},
    "adapters": {"workload.adapters": {"count": 3}, "lora.max_loaded": 2, "num_replicas": 2},
    "apart": {"pools": [{"role": "prefill"}, {"role": "decode"}]},
    "slow spells": {"timing.host.slow_share": 0.4, "timing.host.slow_factor": 4.0, "timing.host.slow_spell_s": 0.3},
    "least outstanding": {"num_replicas": 3, "router": "least_outstanding"},
}


def asked(number, prompt, output, adapter=-1):
    """A request whose prompt nobody shares."""
    first = 1 + 1_000_000 * number
    return Call(list(range(first, first + int(prompt) + int(output))), int(prompt), adapter=adapter)


def run_to_the_end(live, ids, cancels=()):
    """Go on event by event; `cancels` are (time, request)."""
    due, now = sorted(cancels), 0.0
    for _ in range(200_000):
        now = min(live.next_s(), due[0][0] if due else math.inf)
        if now == math.inf:
            return
        live.advance(now)
        while due and due[0][0] <= now:
            live.leave(due.pop(0)[1], now)
        live.advance(now)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("kind", KINDS)
def test_stamps_are_those_of_simulate(kind):
    chosen = scenario(SMALL, **KINDS[kind], requests=60, rate=40)
    done = simulate(chosen, intervals=False).run.cluster.requests
    requests, live = generate(chosen.workload, chosen.seed), LiveCluster(chosen, slots=256, room=1 << 18)
    ids = []
    for number, arrival_s in enumerate(requests.arrival_s):
        adapter = int(requests.adapter[number]) if len(requests.adapter) else -1
        one = asked(number, requests.prompt_tokens[number], requests.output_tokens[number], adapter)
        live.advance(arrival_s)
        ids.append(live.send(arrival_s, one))
    run_to_the_end(live, ids)
    assert is_empty_but_for_records(live)
    q = live.cluster.requests[ids]
    np.testing.assert_allclose(q.first_token_s + q.first_reply_s, done.first_token_s, rtol=2e-3)
    np.testing.assert_allclose(q.finished_s + q.last_reply_s, done.finished_s, rtol=2e-3)
    assert (live.produced(np.array(ids)) == requests.output_tokens).all()


def is_empty_but_for_records(live):
    for request_id in list(live._held):
        live.leave(request_id, 1e6)
    return is_empty(live)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_that_leave_leave_nothing_behind(kind):
    live = LiveCluster(scenario(SMALL, **KINDS[kind]), slots=256, room=1 << 18)
    random, ids, cancels = np.random.default_rng(7), [], []
    for number in range(80):
        arrival_s = 0.01 * number
        live.advance(arrival_s)
        adapter = int(random.integers(-1, live.num_adapters)) if live.num_adapters else -1
        ids.append(live.send(arrival_s, asked(number, random.integers(1, 1500), random.integers(1, 200), adapter)))
        if number % 2 == 0:
            cancels.append((arrival_s + float(random.choice([0.0, 0.002, 0.03, 0.3, 1.0])), ids[-1]))
    run_to_the_end(live, ids, cancels)
    stayed = np.array(ids)[1::2]
    assert live.ended(stayed).all()
    assert (live.produced(stayed) == live.cluster.requests.output_tokens[stayed]).all()
    assert live.num_live == len(stayed)
    assert is_empty_but_for_records(live)
    assert (live.cluster.growth == 0).all() and (live.cluster.replicas.num_loose == 0).all()
    if live.cluster.block_users.size:
        assert (live.cluster.block_users == 0).all()


@pytest.mark.parametrize("kind", ["vllm_v1", "sarathi", "short of memory", "least outstanding"])
def test_the_next_token_is_known_while_its_batch_runs(kind):
    """Said of every token but the first and the last of each request, and never of one that does not come then."""
    live, known = LiveCluster(scenario({**SMALL, "engine": None}, **KINDS[kind]), slots=256, room=1 << 18), 0
    ids = np.array([live.send(0.0, asked(number, 100 + 300 * number, 5 + number)) for number in range(6)])
    for _ in range(200):
        now_s, expected_s, produced = live.next_s(), live.next_tokens_s(ids), live.produced(ids)
        if now_s == math.inf:
            break
        live.advance(now_s)
        came = live.produced(ids) > produced
        assert (came >= (expected_s == now_s)).all() and (live.newest_s(ids)[expected_s == now_s] == now_s).all()
        known += int((expected_s == now_s).sum())
    assert live.ended(ids).all()
    assert known == sum(5 + number - 2 for number in range(6))


@pytest.mark.parametrize("kind", ["overlapped", "stages", "speculative", "front end"])
def test_no_token_is_foretold_that_takes_time_or_chance_to_come(kind):
    live = LiveCluster(scenario({**SMALL, "engine": None}, **KINDS[kind]), slots=256, room=1 << 18)
    ids = np.array([live.send(0.0, asked(number, 100, 20)) for number in range(3)])
    for _ in range(12):
        live.advance(live.next_s())
        assert (live.next_tokens_s(ids) == math.inf).all()
    assert live.produced(ids).max() > 1


def test_reading_a_request_takes_none_of_the_servers_time():
    """It came at 10 ms and was read until 15; another was read for long, but what has happened stays as it was."""
    at_s = 0.0

    async def drive():
        nonlocal at_s
        live = small_cluster()
        driver = Driver(live, Metrics(live, "sim"), clock=lambda: at_s)
        at_s = 0.015
        first = driver.send(asked(1, 100, 5), 0.010)
        at_s = 0.020
        second = driver.send(asked(2, 100, 5), 0.001)
        return [float(live.cluster.requests[one.id].arrival_s) for one in (first, second)], [
            first.sent_s,
            second.sent_s,
        ]

    arrived, sent = asyncio.run(drive())
    assert sent == pytest.approx([0.010, 0.015])
    assert np.subtract(arrived, sent) == pytest.approx(arrived[0] - sent[0]) and arrived[0] < 0.012


def test_a_client_that_leaves_makes_room_at_once():
    """4 requests of 2,000 tokens need all memory; the fifth waits until one of them leaves."""
    live = small_cluster(**{"replica.num_kv_blocks": 510, "batching.prefix_cache": False})
    ids = [live.send(0.0, asked(number, 1900, 100)) for number in range(5)]
    for _ in range(50):
        live.advance(live.next_s())
    assert live.cluster.requests.scheduled_s[ids[4]] < 0
    now = live.next_s()
    live.advance(now)
    live.leave(ids[0], now)
    for _ in range(3):
        live.advance(live.next_s())
    assert live.cluster.requests.scheduled_s[ids[4]] >= now
    assert live.num_live == 4


def test_records_are_used_again_and_forget_who_had_them():
    live = LiveCluster(scenario(SMALL, **{"replica.num_kv_blocks": 200}), slots=8, room=1 << 12)
    now = 0.0
    for round_ in range(4):
        ids = [live.send(now, asked(10 * round_ + i, 500, 300)) for i in range(8)]
        with pytest.raises(Full):
            live.send(now, asked(999, 5, 5))
        run_to_the_end(live, ids)
        now = float(live.cluster.requests.finished_s.max())
        q = live.cluster.requests[ids]
        assert (q.cached_tokens == 0).all()
        assert q.num_preemptions.sum() > 0
        for one in ids:
            live.leave(one, now)
    assert is_empty(live)


def test_equal_prompts_meet_in_the_cache_and_adapters_keep_apart():
    live = small_cluster(**{"workload.adapters": {"count": 2}})
    tokens = list(range(1, 101))
    now = 0.0
    for adapter, cached in ((-1, 0), (-1, 96), (0, 0), (1, 0), (0, 96)):
        one = live.send(now, Call([*tokens, 7], 100, adapter=adapter))
        run_to_the_end(live, [one])
        assert live.cluster.requests[one].cached_tokens == cached
        now = float(live.cluster.requests[one].finished_s)
        live.leave(one, now)
