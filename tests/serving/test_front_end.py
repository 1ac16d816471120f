"""The front end: what a client sees beyond what the scheduler does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.serving.features.breakdown import BEFORE, FRONT_END, OUTAGE
from gnomon.serving.results.latency import request_times
from gnomon.serving.results.latency_breakdown import accounts
from gnomon.serving.results.metrics import summarize
from gnomon.serving.scenario import Scenario
from serving_kit import requests_of, run, scenario

ONE_S = 0.0114
"""A prompt of ten tokens and its first token alone: 0.01 + 10 (1e-4 + 1e-5) + 3e-4."""


def times(front_end: dict, arrival_s=(0.0, 0.0, 0.0, 5.0), prompt=(100, 50, 10, 10), **changes):
    done = run(scenario(front_end=front_end, **changes), requests=requests_of(arrival_s, prompt, [5] * len(prompt)))
    return done, request_times(done)


def test_a_burst_is_tokenised_one_after_another():
    plain, _ = times({})
    done, seen = times({"per_request_s": 0.1, "per_prompt_token_s": 1e-3})
    q = done.cluster.requests
    assert q.arrival_s.tolist() == [0.0, 0.0, 0.0, 5.0], "as the client sent them"
    # The scheduler sees them after 0.2, 0.35 and 0.46 s; the last one finds the front end idle.
    assert q.scheduled_s[0] == pytest.approx(0.2)
    assert q.scheduled_s[1] >= 0.35 and q.scheduled_s[2] >= 0.46
    assert q.scheduled_s[3] == pytest.approx(5.11)
    alone = plain.cluster.requests.first_token_s[3] - 5.0
    assert seen.ttft_s[3] == pytest.approx(alone + 0.11)


def test_more_workers_take_in_more_at_once():
    done, _ = times({"per_request_s": 0.1, "workers": 2})
    q = done.cluster.requests
    assert q.front_s == pytest.approx([0.1, 0.1, 0.2, 0.1]) and q.scheduled_s[0] == pytest.approx(0.1)


@pytest.mark.parametrize("places", [{"workers": 2}, {"num_replicas": 2}])
@pytest.mark.parametrize("router", ["round_robin", "least_outstanding"])
def test_a_short_prompt_overtakes_a_long_one_that_is_known_ahead(places: dict, router: str):
    """A millisecond a token: the first is tokenised until 1 s, the others one after another by the second worker, as
    those of a load with calls of agents are."""
    slow = {"per_prompt_token_s": 1e-3, "workers": places.get("workers", 1)}
    setup = {"num_replicas": places.get("num_replicas", 1), "router": router}
    done, _ = times(slow, (0.0, 0.1, 0.1, 0.2), (1000, 200, 100, 50), **setup)
    q = done.cluster.requests
    assert q.arrival_s + q.front_s == pytest.approx([1.0, 0.3, 0.4, 0.45])
    assert np.argsort(q.scheduled_s).tolist() == [1, 2, 3, 0]
    more = calls(slow, [0.0, 0.1, 0.1, 0.2, np.inf], [-1, -1, -1, -1, 0], [0.0] * 5, [1000, 200, 100, 50, 10], **setup)
    assert more.front_s[:4].tolist() == q.front_s.tolist()


def test_each_replica_takes_in_its_own_requests_behind_the_router():
    """Round robin over two replicas: the first and third request queue in one front end, the second has the other."""
    two = {"num_replicas": 2, "router": "round_robin"}
    done, _ = times({"per_request_s": 0.1, "per_prompt_token_s": 1e-3, "per_replica": True}, **two)
    q = done.cluster.requests
    assert q.replica.tolist() == [0, 1, 0, 1]
    assert q.arrival_s.tolist() == [0.0, 0.0, 0.0, 5.0], "as the client sent them"
    assert q.front_s == pytest.approx([0.2, 0.15, 0.2 + 0.11, 0.11])
    assert q.scheduled_s[:2] == pytest.approx([0.2, 0.15]) and q.scheduled_s[3] == pytest.approx(5.11)
    shared, _ = times({"per_request_s": 0.1, "per_prompt_token_s": 1e-3}, **two)
    assert shared.cluster.requests.front_s == pytest.approx([0.2, 0.15, 0.26, 0.11]), "whoever is done"
    assert (done.cluster.replicas.num_coming == 0).all()


def test_one_replica_has_one_front_end_wherever_it_stands():
    one, other = (times({"per_request_s": 0.1, "per_replica": own})[0].cluster.requests for own in (False, True))
    for stamp in ("arrival_s", "scheduled_s", "first_token_s", "finished_s", "front_s"):
        assert one[stamp].tolist() == other[stamp].tolist(), stamp


def test_a_router_that_counts_sees_what_is_being_tokenised_and_a_picker_does_not():
    """The second request comes while the first is tokenised: least outstanding counts it as coming, llm-d's picker has
    metrics without it and so draws."""
    slow = {"per_request_s": 1.0, "per_replica": True}
    counted, _ = times(slow, (0.0, 0.5), (10, 10), num_replicas=2, router="least_outstanding")
    assert counted.cluster.requests.replica.tolist() == [0, 1]
    chosen = set()
    for seed in range(6):
        picked, _ = times(slow, (0.0, 0.5), (10, 10), num_replicas=2, router="llmd", seed=seed)
        chosen.add(tuple(picked.cluster.requests.replica.tolist()))
    assert (0, 0) in chosen or (1, 1) in chosen


def test_ranks_of_one_replica_share_its_front_end():
    """Two replicas of two ranks: each takes in two requests, one after the other."""
    ranks = {"data_parallel": 2, "expert_parallel": True, "num_kv_blocks": 1000}
    setup = {"model": "mixtral-8x7b", "replica": ranks, "num_replicas": 2, "router": "round_robin"}
    done, _ = times({"per_request_s": 0.1, "per_replica": True}, (0.0,) * 4, (10,) * 4, **setup)
    q = done.cluster.requests
    assert q.replica.tolist() == [0, 1, 2, 3]
    assert q.front_s == pytest.approx([0.1, 0.2, 0.1, 0.2])


def fails_until_5s(at_s: float) -> dict:
    """The replica fails and is up again at 5 s."""
    at_once = dict.fromkeys(("node_s", "image_s", "weights_s", "compile_s", "warmup_s"), 0.0)
    events = [{"at_s": at_s, "what": "fail", "replica": 0}, {"at_s": 5.0, "what": "repair", "replica": 0}]
    return {"events": events, "failures": {"detect_s": 0.1}, "cold_start": at_once}


def test_waiting_for_a_replica_is_no_time_in_its_front_end():
    """Sent at 1 s, while the only replica is away until 5 s: what comes then belongs to that detour."""
    slow = {"per_request_s": 0.5, "per_replica": True}
    setup = scenario(front_end=slow, fleet=fails_until_5s(0.5))
    done = run(setup, requests=requests_of([1.0], [10], [5]), explained=True)
    before = accounts(done).parts_ns[0, BEFORE] / 1e9
    assert (before[OUTAGE], before[FRONT_END]) == (4.5, 0.0)
    assert done.cluster.requests.arrival_s.tolist() == [1.0]
    assert done.cluster.requests.scheduled_s.tolist() == [5.5]


def test_a_front_end_that_died_has_nothing_to_do_when_its_replica_is_back():
    """Ten seconds a request: two were to be tokenised until 20 s, and start over at 5 s."""
    setup = scenario(front_end={"per_request_s": 10.0, "per_replica": True}, fleet=fails_until_5s(4.5))
    done = run(setup, requests=requests_of([0.0, 0.0], [10, 10], [5, 5]))
    assert done.cluster.requests.scheduled_s == pytest.approx([15.0, 25.0])


def test_the_way_back_delays_every_token_alike():
    _, plain = times({})
    _, seen = times({"reply_s": 0.25})
    assert seen.ttft_s == pytest.approx(plain.ttft_s + 0.25)
    assert seen.e2e_s == pytest.approx(plain.e2e_s + 0.25)
    assert seen.tpot_s == pytest.approx(plain.tpot_s)


def test_messages_are_written_one_after_another():
    """One request, four decodes: each iteration writes one message, which takes longer than the iteration."""
    (_, plain), (done, seen) = (times({"per_message_s": s}, (0.0,), (10,)) for s in (0.0, 0.1))
    assert seen.ttft_s[0] == pytest.approx(plain.ttft_s[0] + 0.1)
    assert seen.tpot_s[0] == pytest.approx(0.1), "the writer is the bottleneck"
    _, few = times({"per_message_s": 0.1, "stream_interval": 10}, (0.0,), (10,))
    assert few.tpot_s[0] < 0.03
    assert summarize(done).latency.e2e_s.max == pytest.approx(seen.e2e_s[0])


def test_a_chunk_of_a_prompt_gives_no_message():
    """A prompt of 100 tokens in ten chunks: nothing is written before its first token."""
    chunked = scenario(front_end={"per_message_s": 1.0}, batching={"policy": "vllm_v1", "max_batch_tokens": 10})
    done = run(chunked, requests=requests_of([0.0], [100], [1]))
    q = done.cluster.requests
    assert done.cluster.replicas.num_iterations[0] == 10
    assert q.first_reply_s[0] == pytest.approx(1.0)


def calls(
    front_end: dict, arrival_s: list[float], parent: list[int], think_s: list[float], prompt: list | None = None,
    **changes,
):  # fmt: skip
    """Calls of ten prompt tokens and one of output; call i waits for `parent[i]` (-1: for none), then for its tool."""
    count = len(arrival_s)
    made = replace(
        requests_of(arrival_s, prompt or [10] * count, [1] * count),
        parent_offsets=np.concatenate(([0], np.cumsum(np.array(parent) >= 0))),
        parents=np.array([one for one in parent if one >= 0]),
        think_s=np.array(think_s),
    )
    return run(scenario(front_end=front_end, **changes), requests=made).cluster.requests


def test_an_idle_front_end_delays_no_follower_however_much_arrives_later():
    """A session's calls at 0, 20 and 40 s, another's at 600 s: nobody meets anybody."""
    q = calls({"per_request_s": 0.1}, [0.0, 600.0, np.inf, np.inf], [-1, -1, 0, 2], [0.0, 0.0, 20.0, 20.0])
    assert q.front_s == pytest.approx([0.1] * 4)
    between = 20.0 + 0.1 + ONE_S
    assert q.arrival_s == pytest.approx([0.0, 600.0, between, 2 * between])
    assert q.first_token_s - q.arrival_s == pytest.approx([0.1 + ONE_S] * 4)


def test_those_known_ahead_and_followers_queue_in_order_of_time():
    """The dependent comes at 10.51 s, while the request of 10.4 s is taken in; that of 10.6 s waits for both."""
    q = calls({"per_request_s": 0.5}, [0.0, 10.4, 10.6, np.inf], [-1, -1, -1, 0], [0.0, 0.0, 0.0, 10.0])
    assert q.arrival_s[3] == pytest.approx(10.5 + ONE_S)
    assert q.arrival_s + q.front_s == pytest.approx([0.5, 10.9, 11.9, 11.4])


def test_followers_come_in_order_of_their_tools_not_of_their_parents():
    """Two calls end at 0.1 and 0.2 s; the tool of the first takes longer, so its dependent comes second."""
    q = calls({"per_request_s": 0.1}, [0.0, 0.0, np.inf, np.inf], [-1, -1, 0, 1], [0.0, 0.0, 50.0, 1.0])
    assert q.front_s == pytest.approx([0.1, 0.2, 0.1, 0.1])


def test_clients_that_think_for_different_times_are_taken_in_as_they_come():
    loop = {"process": "closed_loop", "concurrency": 4, "think_s": 1.0, "think": "exponential"}
    load = {"rate": None, "num_requests": 40, "arrivals": loop}
    q = run(scenario(front_end={"per_request_s": 0.1}, workload=load)).cluster.requests
    free_s = 0.0
    for one in np.argsort(q.arrival_s, kind="stable"):
        free_s = max(free_s, q.arrival_s[one]) + 0.1
        assert q.arrival_s[one] + q.front_s[one] == pytest.approx(free_s)


def closed(**front_end: float) -> Scenario:
    loop = {"process": "closed_loop", "concurrency": 4}
    lengths = {"distribution": "fixed", "prompt": 100, "output": 10}
    load = {"rate": None, "num_requests": 24, "warmup_requests": 4, "arrivals": loop, "lengths": lengths}
    return scenario(front_end=front_end, workload=load, batching={"policy": "vllm_v1", "prefix_cache": False})


def test_a_closed_loop_waits_for_the_front_end_both_ways():
    plain, slow = run(closed()), run(closed(per_request_s=0.05, reply_s=0.5))
    a, b = request_times(plain), request_times(slow)
    assert np.all(b.e2e_s >= 0.5 + 0.05)
    assert slow.cluster.requests.scheduled_s[0] - slow.cluster.requests.arrival_s[0] == pytest.approx(0.05)
    assert slow.cluster.requests.scheduled_s[3] - slow.cluster.requests.arrival_s[3] >= 0.2
    assert summarize(slow).duration_s > summarize(plain).duration_s + 5 * 0.55
    assert np.isfinite(a.ttft_s).all()
    q = slow.cluster.requests
    sent, seen = np.sort(q.arrival_s[4:]), np.sort(q.finished_s)[:20]
    assert sent == pytest.approx(seen, abs=0.2), "the next one is sent when the client has the answer"


def test_no_front_end_changes_nothing():
    plain = run(closed())
    assert np.all(plain.cluster.requests.front_s == 0)


def test_a_front_end_takes_no_negative_time():
    with pytest.raises(ConfigError, match="per_request_s"):
        build(Scenario, {"front_end": {"per_request_s": -1}})


def test_routers_see_replicas_as_they_are_when_a_front_end_lets_a_request_pass() -> None:
    """The second answer is over when the third request comes through: its replica is free again, the first's is not."""
    asked = scenario(num_replicas=2, router="least_outstanding", front_end={"per_request_s": 0.01})
    done = run(asked, requests=requests_of([0.0, 0.0, 30.0], [10, 10, 10], [4000, 2, 2]))
    assert done.cluster.requests.finished_s[1] < 30.0 < done.cluster.requests.finished_s[0]
    assert done.cluster.requests.replica.tolist() == [0, 1, 1]
