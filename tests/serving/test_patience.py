"""Clients that give up, try again, send stages of load and the same prompts in turn; worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.serving.engine.state import ABANDONED, FINISHED
from gnomon.serving.features.cancel import cancel
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run import patience
from gnomon.workload import WorkloadConfig, generate
from serving_kit import requests_of, run, scenario

STEP_S = 0.0106
"""The longest decode of one sequence: 0.01 + 1e-4 + 3e-4 + 1e-7 for each KV token."""


def served(patience, arrival_s=(0.0, 0.5), prompt=(10, 10), output=(1001, 11), **changes):
    patience = patience if isinstance(patience, dict) else {"give_up_after_s": patience}
    changes = {"batching": {"max_sequences": 1}, "workload": {"patience": patience}} | changes
    done = run(scenario(**changes), requests=requests_of(arrival_s, prompt, output))
    assert (done.cluster.replicas.free_blocks == done.cluster.replicas.num_blocks).all(), "blocks are freed"
    return done, done.cluster.requests


def test_what_waits_behind_a_request_that_is_given_up_takes_its_place():
    """A thousand tokens take ten seconds. After two the client leaves, and the short request behind it begins with the
    end of the iteration in flight."""
    done, q = served(2.0)
    assert q.status.tolist() == [ABANDONED, FINISHED]
    assert q.finished_s[0] == pytest.approx(2.0)
    assert 2.0 <= q.scheduled_s[1] <= 2.0 + STEP_S
    assert q.finished_s[1] < 2.0 + 13 * STEP_S, "eleven tokens later"
    counts = summarize(done).requests
    assert (counts.finished, counts.abandoned, counts.offered) == (1, 1, 2)
    assert "1 times a client gave up after 2 s" in done.notes[-1]


def test_one_that_waits_leaves_the_queue():
    """Three at once, 0.9 s each: the first ends in time, the second is being computed after one second and the third
    has never begun. The one that came at 0.5 s takes their place."""
    _, q = served(1.0, arrival_s=(0.0, 0.0, 0.0, 0.5), prompt=(10,) * 4, output=(85, 85, 85, 5))
    assert q.status.tolist() == [FINISHED, ABANDONED, ABANDONED, FINISHED]
    assert q.finished_s[1:3] == pytest.approx([1.0, 1.0])
    assert q.scheduled_s[2] < 0.0 < q.scheduled_s[1]
    assert 1.0 <= q.scheduled_s[3] <= 1.0 + STEP_S


def test_patience_that_nobody_needs_changes_nothing():
    patient, _ = served(1e4)
    plain = run(scenario(batching={"max_sequences": 1}), requests=requests_of((0.0, 0.5), (10, 10), (1001, 11)))
    for stamp in ("scheduled_s", "first_token_s", "finished_s"):
        assert patient.cluster.requests[stamp].tolist() == plain.cluster.requests[stamp].tolist()


@pytest.mark.parametrize("front_end", [{}, {"per_request_s": 0.05}, {"per_request_s": 0.05, "per_replica": True}])
def test_another_try_is_a_request_of_its_own(front_end):
    """Given up at 2 and sent again at 5, given up for good at 7; the other is served between, from 2 on."""
    _, q = served({"give_up_after_s": 2.0, "retries": 1, "retry_after_s": 3.0}, front_end=front_end)
    assert q.status.tolist() == [ABANDONED, FINISHED, ABANDONED]
    assert q.arrival_s == pytest.approx([0.0, 0.5, 5.0])
    assert q.finished_s[[0, 2]] == pytest.approx([2.0, 7.0])


def test_users_of_a_closed_loop_go_on_after_giving_up():
    """Each of two users sends a request of ten seconds and leaves after one: six requests take three seconds."""
    workload = {
        "patience": {"give_up_after_s": 1.0}, "rate": None, "num_requests": 6,
        "lengths": {"prompt": 10, "output": 1001},
        "arrivals": {"process": "closed_loop", "concurrency": 2},
    }  # fmt: skip
    q = run(scenario(workload=workload)).cluster.requests
    assert (q.status == ABANDONED).all()
    assert q.finished_s - q.arrival_s == pytest.approx(np.ones(6))
    assert q.arrival_s[-1] == pytest.approx(2.0, abs=3 * STEP_S)


def test_who_is_in_no_replicas_hands_is_not_asked_to_leave(monkeypatch):
    """A front end takes in twenty a second: of a hundred at once all but ten have given up before they pass it."""
    asked = list[int]()
    monkeypatch.setattr(patience, "cancel", lambda cluster, r, now_s: asked.append(r) or cancel(cluster, r, now_s))
    some = {"front_end": {"per_request_s": 0.05}, "batching": {}}
    _, q = served(0.52, [0.0] * 100, [10] * 100, [5] * 100, **some)
    gone = np.flatnonzero(q.status == ABANDONED)
    assert gone.size >= 88 and set(asked) <= set(gone.tolist()) and len(asked) <= 2 * gone.size


def test_only_who_is_there_is_looked_at(monkeypatch):
    """Of 300 requests with seven further tries each, one in fifty milliseconds, all of which give up before their first
    token at 10 ms: nobody waits but those of 40 ms and the next to come. It looked at all 2,400 every time."""
    looked = list[int]()
    deadlines = patience.Patience._deadline_s
    monkeypatch.setattr(
        patience.Patience, "_deadline_s", lambda self: looked.append(deadlines(self).size) or deadlines(self)
    )
    tries = {"give_up_after_s": 0.002, "retries": 7, "retry_after_s": 0.001}
    _, q = served(tries, 0.05 * np.arange(300), [10] * 300, [5] * 300)
    assert len(q) == 2400 and (q.status == ABANDONED).all() and max(looked) <= 12


def test_an_overloaded_server_loses_requests():
    """Every policy's queue at three times the rate that it can serve: many give up, nothing is left behind."""
    impatient = {"patience": {"give_up_after_s": 1.5}}
    for policy in ("vllm_v1", "sglang", "trtllm"):
        changes = {"batching": {"policy": policy, "max_sequences": 4}, "workload": {"rate": 40.0} | impatient}
        done = run(scenario(**changes))
        counts = summarize(done).requests
        assert counts.finished + counts.abandoned == 80 and 10 < counts.abandoned < 75
        assert (done.cluster.replicas.free_blocks == done.cluster.replicas.num_blocks).all()
        late = done.cluster.requests[done.cluster.requests.status == FINISHED]
        assert (late.finished_s - late.arrival_s <= 1.5 + 0.1).all()


def test_stages_of_load_have_figures_of_their_own():
    """Ten seconds at 2 per second, then five at 8: 20 and 40 requests, the last of each at its stage's end."""
    given = {"arrivals": {"process": "stages", "stages": [[2, 10], [8, 5]]}, "lengths": {"prompt": 10, "output": 5}}
    requests = generate(build(WorkloadConfig, given), 0)
    assert requests.user_class.tolist() == [0] * 20 + [1] * 40
    assert requests.arrival_s[[19, 59]] == pytest.approx([10.0, 15.0])
    assert (np.diff(requests.arrival_s) >= 0).all()
    classes = summarize(run(scenario(workload=given | {"rate": None, "num_requests": None}))).classes
    assert [(one.name, one.finished) for one in classes] == [("stage 1: 2/s", 20), ("stage 2: 8/s", 40)]


def test_prompts_in_turn_are_found_in_the_prefix_cache():
    """Three prompts of 64 tokens in turn: the first round is computed, and of each later one all but the last block."""
    workload = {
        "prompts_in_turn": 3, "num_requests": 12, "rate": 1.0, "lengths": {"prompt": 64, "output": 2},
        "arrivals": "fixed_interval",
    }  # fmt: skip
    q = run(scenario(workload=workload, batching={"prefix_cache": True})).cluster.requests
    assert q.cached_tokens.tolist() == [0] * 3 + [48] * 9


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"patience": {"give_up_after_s": -1}}, "give_up_after_s"),
        ({"patience": {"give_up_after_s": 1}, "agents": {}}, "leave patience out"),
        ({"patience": {"give_up_after_s": 1, "retries": 1}, "rate": None,
          "arrivals": {"process": "closed_loop", "concurrency": 2}}, "leave patience.retries out"),
        ({"prompts_in_turn": 3, "sessions": {}}, "prompts in turn"),
        ({"arrivals": {"process": "stages", "stages": [[2, 10]]}, "rate": None}, "leave num_requests out"),
        ({"arrivals": {"process": "stages", "stages": []}, "rate": None, "num_requests": None}, "stages"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(workload, words):
    with pytest.raises(GnomonError, match=words):
        scenario(workload=workload)


def test_what_one_that_leaves_would_have_found_is_not_taken_off_twice():
    """All have the same prompt; whoever waits knows that it is there, and leaves."""
    workload = {
        "prompts_in_turn": 1, "num_requests": 8, "rate": 1000.0, "lengths": {"prompt": 64, "output": 90},
        "arrivals": "fixed_interval", "patience": {"give_up_after_s": 1.0},
    }  # fmt: skip
    done = run(scenario(workload=workload, batching={"prefix_cache": True, "max_sequences": 1}))
    assert np.count_nonzero((done.cluster.requests.status == ABANDONED) & (done.cluster.requests.scheduled_s < 0)) > 2
    assert done.cluster.replicas.prefill_left.tolist() == [0]


@pytest.mark.parametrize("more", [{"replica": {"pipeline_parallel": 2}}, {"lora": {"latency_s": 0.5}}])
def test_replicas_that_work_for_clients_who_left_are_not_busy_all_the_more(more):
    """The only client leaves before its prompt has been computed, or its adapter was there."""
    workload = {"num_requests": 1, "patience": {"give_up_after_s": 0.005}} | (
        {"adapters": {}} if "lora" in more else {}
    )
    use = summarize(run(scenario(workload=workload, **more))).utilization
    assert 0.0 < use.busy <= 1.0 and use.busy + use.bubble + use.idle == pytest.approx(1.0)
