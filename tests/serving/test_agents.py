"""Agents: calls that wait for the answer before, tools in between, sub-agents that are waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.serving.engine.state import FINISHED, SHED
from gnomon.serving.results.metrics import summarize
from gnomon.workload import WorkloadConfig, generate
from serving_kit import run, scenario

LENGTHS = {"distribution": "fixed", "prompt": 20, "output": 5}


def workload(**agents: Any) -> dict[str, Any]:
    return {"num_requests": 120, "rate": 20.0, "lengths": LENGTHS, "agents": {"shared_prefix_tokens": 32, **agents}}


def test_every_call_waits_for_those_before_it() -> None:
    done = run(scenario(num_replicas=2, workload=workload(calls=4, sub_agents=2, sub_calls=3)))
    q, requests = done.cluster.requests, done.requests
    assert (q.status == FINISHED).all()
    for i in range(len(requests)):
        parents = requests.parents[requests.parent_offsets[i] : requests.parent_offsets[i + 1]]
        if parents.size:
            assert q.arrival_s[i] == pytest.approx(q.finished_s[parents].max() + requests.think_s[i])
    assert requests.think_s[:12].tolist() == [0.0] * 12 and requests.think_s[12:].mean() > 0.5


def test_the_graph_of_a_session() -> None:
    """Three calls and one sub-agent of two: 0 -> (3 -> 4), then 1 after 0 and 4, then 2."""
    made = generate(WorkloadConfig(**workload(calls=3, sub_agents=1, sub_calls=2) | {"num_requests": 5}), 0)
    lists = [made.parents[a:b].tolist() for a, b in zip(made.parent_offsets, made.parent_offsets[1:], strict=False)]
    assert lists == [[], [0, 4], [1], [0], [3]]
    # 32 shared, then 20 new and 5 answered in each call of the conversation; the sub-agent begins its own.
    assert made.prompt_tokens.tolist() == [52, 77, 102, 52, 77]
    assert np.isfinite(made.arrival_s).tolist() == [True, False, False, False, False]


def test_the_context_is_found_again() -> None:
    done = run(scenario(batching={"block_size": 16}, workload=workload(calls=6)))
    summary = summarize(done)
    assert summary.prefix_hit_rate is not None and summary.prefix_hit_rate > 0.5
    assert summary.requests.finished == 120


@pytest.mark.parametrize("fleet", [None, {"max_replicas": 2, "controller": {"interval_s": 1.0}}])
def test_a_refused_call_ends_its_session(fleet: Any) -> None:
    """Whoever waits for a call that was turned away is turned away, too, and nobody else; the run ends."""
    gate = {"name": "queue_limit", "options": {"max_waiting": 1}}
    crowded = workload(calls=3, sub_agents=1, sub_calls=2) | {"rate": 200.0}
    done = run(scenario(batching={"max_sequences": 2}, admission=gate, workload=crowded, fleet=fleet))
    q, requests = done.cluster.requests, done.requests
    assert np.isin(q.status, (FINISHED, SHED)).all()
    shed = q.status == SHED
    assert shed.any() and not shed.all()
    for i in np.flatnonzero(requests.parent_offsets[1:] > requests.parent_offsets[:-1]):
        parents = requests.parents[requests.parent_offsets[i] : requests.parent_offsets[i + 1]]
        assert shed[i] or not shed[parents].any()
        assert not shed[i] or shed[parents].any() or q.arrival_s[i] >= q.finished_s[parents].max()
    assert summarize(done).requests.shed == shed.sum()


def test_impossible_agents_are_refused() -> None:
    with pytest.raises(ConfigError, match="sessions of their own"):
        scenario(workload=workload() | {"sessions": {}})
    with pytest.raises(ConfigError, match="8 calls"):
        run(scenario(workload=workload() | {"num_requests": 5}))


def test_calls_that_make_no_whole_session_are_said_to_be_left_out() -> None:
    """60 calls in sessions of 8: 56 are sent."""
    found = generate(build(WorkloadConfig, {"agents": {}, "num_requests": 60}), 0)
    assert len(found) == 56
    assert found.notes[-1] == "A session has 8 calls: 56 of 60 make whole sessions, and are sent."
