"""KV of agents' calls while their tools run: held, let go, expired; by hand, and through failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.run.simulate import Run
from gnomon.workload import Requests
from serving_kit import requests_of, run, scenario

SECOND = {"source": "table", "table": {"per_iteration": 1.0}}


def session(others: list[tuple[float, int, int]]) -> Requests:
    """A session of two calls with a tool of ten seconds, and requests of (arrival, prompt, output) beside it.

    The first call computes 64 tokens and answers with 17 in as many seconds: at 17 s five blocks of 16 are in the
    cache. The second one, whose prompt begins with them, arrives at 27 s.
    """
    arrival_s, prompt, output = zip((0.0, 64, 17), *others, (np.inf, 96, 2), strict=True)
    made, count = requests_of(arrival_s, prompt, output), 2 + len(others)
    hashed = np.zeros(count + 1, np.int64)
    hashed[1:] = 5
    hashed[-1] = 11
    return replace(
        made,
        prefix_offsets=hashed,
        prefix_hashes=np.concatenate([np.arange(5), np.arange(6)]) + 7,
        think_s=np.array([0.0] * (count - 1) + [10.0]),
        parent_offsets=np.array([0] * count + [1]),
        parents=np.array([0]),
    )


def served(others: list[tuple[float, int, int]], **cache: float) -> Run:
    """One replica with memory for 12 blocks."""
    setup = scenario(timing=SECOND, replica={"num_kv_blocks": 12}, tool_cache=cache)
    return run(setup, requests=session(others))


PASSING = [(18.0, 100, 2), (21.0, 100, 2)]
"""Two requests of seven blocks each, one after the other: the second takes those that have been free for longest."""


@pytest.mark.parametrize(
    ("cache", "cached"),
    [
        ({}, 0),  # the second took those of the session's first call
        ({"keep_s": 100.0}, 80),  # it had to take those of the first
        ({"keep_s": 2.0}, 0),  # at 19 s they were let go, before the first had ended
        ({"keep_s": 5.0}, 80),  # at 22 s, when the second had its blocks
    ],
)
def test_what_is_held_is_found_again(cache: dict[str, float], cached: int) -> None:
    q = served(PASSING, **cache).cluster.requests
    assert q.finished_s[0] == 17.0 and q.arrival_s[3] == 27.0
    assert q.finished_s[1:3].tolist() == [20.0, 23.0]
    assert q.cached_tokens[3] == cached


def test_it_is_held_until_the_next_call_has_passed_the_front_end_of_its_replica() -> None:
    """Four seconds a request: the first call ends at 21 s, the other request is tokenised at 32 s, and the next call,
    sent at 31 s, after it."""
    front_end = {"per_request_s": 4.0, "per_replica": True}
    setup = scenario(timing=SECOND, replica={"num_kv_blocks": 12}, tool_cache={"keep_s": 100.0}, front_end=front_end)
    assert run(setup, requests=session([(28.0, 120, 2)])).cluster.requests.scheduled_s[1] == 36.0


@pytest.mark.parametrize(("keep_s", "scheduled_s"), [(5.0, 22.0), (100.0, 27.0)])
def test_who_needs_what_is_held_waits_for_it(keep_s: float, scheduled_s: float) -> None:
    """Eight blocks do not fit beside the five: not rejected, but served when these are let go, or the next call is
    there."""
    q = served([(18.0, 120, 2)], keep_s=keep_s).cluster.requests
    assert (q.status == FINISHED).all()
    assert q.scheduled_s[1] == scheduled_s
    assert served([(18.0, 120, 2)]).cluster.requests.scheduled_s[1] == 18.0


@pytest.mark.parametrize(("expire_s", "cached"), [(9.0, 0), (11.0, 80)])
def test_what_nobody_uses_expires(expire_s: float, cached: int) -> None:
    """The tool takes ten seconds."""
    assert served([], expire_s=expire_s).cluster.requests.cached_tokens[1] == cached


def test_what_others_use_does_not_expire() -> None:
    """Sessions share their first 32 tokens: as long as some call uses them, they are found, whoever computed them."""
    agents = {"calls": 4, "tool_s": 20.0, "shared_prefix_tokens": 32}
    lengths = {"distribution": "fixed", "prompt": 20, "output": 5}
    load = {"num_requests": 400, "rate": 4.0, "lengths": lengths, "agents": agents}
    done = run(scenario(workload=load, tool_cache={"expire_s": 5.0}))
    cached = done.cluster.requests.cached_tokens
    later = np.arange(cached.size) >= 100
    assert (cached[1:] >= 32).mean() > 0.97
    assert (cached[later] > 32).mean() == pytest.approx(
        1 - np.exp(-5 / 20), abs=0.1
    )  # its own: tools below five seconds


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_held_in_the_end(seed: int) -> None:
    """Replicas die and drain while they hold KV, others take the next call, refused calls end sessions."""
    done = run(
        scenario(
            seed=seed,
            num_replicas=2,
            router="prefix_aware" if seed else "round_robin",
            replica={"num_kv_blocks": 60},
            admission={"name": "queue_limit", "options": {"max_waiting": 30}},
            workload={
                "num_requests": 300,
                "rate": 30.0,
                "lengths": {"distribution": "fixed", "prompt": 40, "output": 10},
                "agents": {"calls": 5, "tool_s": 1.0, "sub_agents": 1, "sub_calls": 2, "shared_prefix_tokens": 32},
            },
            tool_cache={"keep_s": 2.0, "expire_s": 3.0},
            fleet={
                "failures": {"mtbf_s": 6.0, "mttr_s": 1.0, "detect_s": 0.2},
                "controller": {"name": "queue_driven", "interval_s": 0.7, "options": {"stabilization_s": 1.0}},
                "min_replicas": 1,
                "max_replicas": 3,
                "cold_start": {"weights_s": 0.5, "compile_s": 0.0, "warmup_s": 0.0},
            },
        )
    )
    replicas = done.cluster.replicas
    assert done.fleet is not None and done.fleet.failures > 0
    assert np.array_equal(replicas.free_blocks, replicas.num_blocks) and not replicas.num_held.any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tool_cache": {"keep_s": 1.0}}, "no request of the workload waits for another"),
        ({"tool_cache": {"keep_s": 2.0, "expire_s": 1.0}}, "expire_s must be at least keep_s"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(scenario(**changes))


def test_it_needs_a_prefix_cache() -> None:
    setup = scenario(batching={"prefix_cache": False}, tool_cache={"keep_s": 1.0})
    with pytest.raises(ConfigError, match="there is no prefix cache"):
        run(setup, requests=session([]))
