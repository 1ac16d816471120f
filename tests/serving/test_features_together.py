"""Features that meet: replicas that die and come back, warm-ups in fleets, time limits, front ends of several ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.report.serving.files import STATUS, request_frame
from gnomon.serving.autoscaling.evacuation import redirect
from gnomon.serving.engine import guard
from gnomon.serving.engine.allocation import renew
from gnomon.serving.engine.state import LIMITS, MOVING, NONE, NUM_SHED, NUM_STATUS, RUNNING, STATE, WAITING, Cluster
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run
from serving_kit import requests_of, run, scenario

AT_ONCE = dict.fromkeys(("node_s", "image_s", "weights_s", "compile_s", "warmup_s"), 0.0)
CONTENTS = ("growth", "block_key", "block_users", "slot_key", "free_rows", "service", "adapter_slots")


def fails(at_s: float, back_s: float, **fleet: Any) -> dict[str, Any]:
    """Replica 0 fails, and is up again at `back_s`."""
    events = [{"at_s": at_s, "what": "fail", "replica": 0}, {"at_s": back_s, "what": "repair", "replica": 0}]
    return {"events": events, "failures": {"detect_s": 0.1}, "cold_start": AT_ONCE, **fleet}


CLASSES = [{"name": "a", "share": 0.5, "weight": 2.0}, {"name": "b", "share": 0.5}]
SESSIONS = {"sessions": {"num_active": 4, "turns": 3, "shared_prefix_tokens": 32}}
FULL: dict[str, dict[str, Any]] = {
    "vllm_v1": {"workload": SESSIONS},
    "vllm_v1 overlapped": {"workload": SESSIONS, "batching": {"policy": "vllm_v1", "block_size": 16, "overlap": True}},
    "sglang": {"workload": SESSIONS},
    "trtllm": {"workload": SESSIONS},
    "vtc": {"workload": {"classes": CLASSES}},
    "drr": {"workload": {"classes": CLASSES}},
    "lightllm": {},
    "faster_transformer": {},
    "sarathi": {"workload": {"adapters": {"count": 3}}, "lora": {"max_loaded": 2}},
}


def came_back(name: str) -> tuple[Run, Run]:
    """A run that ends just after replica 0, full of work, has died and come back; and one in which nothing happened."""
    given = FULL[name]
    load = {
        "num_requests": 60,
        "rate": 60.0,
        "lengths": {"distribution": "uniform", "prompt": [20, 120], "output": [20, 60]},
    }
    setup = {
        "num_replicas": 2,
        "replica": {"num_kv_blocks": 60, "max_request_tokens": 700},
        "front_end": {"per_request_s": 1e-3, "per_message_s": 2e-3, "reply_s": 0.01, "per_replica": True},
        "batching": {"policy": name, "block_size": 16},
        **given,
        "workload": {**load, **given.get("workload", {})},
        "fleet": fails(0.9, 1.05),
        "router": "round_robin",
    }
    done = run(scenario(**setup, time_limit_s=1.0501), requests=None)
    setup["workload"] = {**setup["workload"], "rate": 1e-6}
    return done, run(scenario(**setup, time_limit_s=1e-9))


def assert_new(one: Cluster, other: Cluster, r: int) -> None:
    """Replica `r` of both clusters has the same limits, state and contents."""
    for name in (*LIMITS, *STATE):
        assert one.replicas[name][r] == other.replicas[name][r], name
    for name in CONTENTS:
        if name != "stage_free_s":  # When it was last at work, for the accounts: that is over.
            assert getattr(one, name)[r].tobytes() == getattr(other, name)[r].tobytes(), name
    assert not one.tables[r, :, :1].any()
    assert one.next_end_s[r] == other.next_end_s[r]


@pytest.mark.parametrize("name", FULL)
def test_a_replica_that_died_and_was_repaired_is_as_new(name: str) -> None:
    done, fresh = came_back(name)
    assert done.fleet is not None and done.fleet.retries > 5, "it was full of work"
    assert done.cluster.replicas.num_iterations[0] > 10
    assert done.cluster.replicas.num_outstanding[1] > 5, "the other one has it all"
    # What has come since belongs to its new life: nothing may have.
    assert done.cluster.replicas.num_outstanding[0] == 0
    assert_new(done.cluster, fresh.cluster, 0)
    assert done.cluster.stage_free_s[0].max() <= 0.9, "no stage is taken by a former life"


def test_nothing_in_the_state_of_a_replica_is_missed() -> None:
    """Whatever stands there, and whatever a later feature adds to it, is gone; limits and accounts stay."""
    fresh = run(scenario(workload={"rate": 1e-6, "num_requests": 1}, time_limit_s=1e-9)).cluster
    kept = {name: fresh.replicas[name].copy() for name in fresh.replicas.dtype.names or () if name not in STATE}
    new = fresh._replace(replicas=fresh.replicas.copy(), **{name: getattr(fresh, name).copy() for name in CONTENTS})
    for name in STATE:
        fresh.replicas[name] = 77
    fresh.replicas.num_in_flight = 0
    for name in ("growth", "block_key", "block_users", "slot_key", "service"):
        getattr(fresh, name)[:] = 77
    fresh.free_rows[:] = fresh.free_rows[:, ::-1].copy()
    fresh.tables[:, :, 0] = 10**6
    renew(fresh, 0)
    assert_new(fresh, new, 0)
    for name, value in kept.items():
        assert fresh.replicas[name] == value, name


def test_messages_of_a_former_life_delay_no_reply() -> None:
    """Half a second a message: answers are behind when the replica dies; the one after its return waits for none."""
    slow = {"per_message_s": 0.5}
    made = requests_of([*[0.0] * 10, 6.0], [10] * 11, [8] * 10 + [1])
    cut = scenario(front_end=slow, fleet=fails(0.05, 1.0), num_replicas=2, router="round_robin")
    done = run(cut, requests=made, forced_replicas=np.array([0, 1] * 5 + [0], np.int32))
    assert done.cluster.requests.first_reply_s[10] == pytest.approx(0.5)


# A request that finds part of its prompt is no more work than the rest of it.


def sharing(arrival_s: list[float], prompt: list[int], output: list[int], shared: list[int], **changes: Any) -> Run:
    """Requests with the same leading blocks of 16 tokens, so many each, served one at a time."""
    hashes = np.concatenate([np.arange(1, count + 1) for count in shared])
    made = requests_of(arrival_s, prompt, output)
    made = replace(made, prefix_hashes=hashes, prefix_offsets=np.cumsum([0, *shared]))
    batching = {"policy": "vllm_v1", "block_size": 16, "max_sequences": 1, "prefix_cache": True}
    how = {"forced_replicas": changes.pop("forced_replicas")} if "forced_replicas" in changes else {}
    return run(scenario(batching=batching, replica={"num_kv_blocks": 200}, **changes), requests=made, **how)


def test_what_a_queued_request_will_find_is_no_work_left() -> None:
    """Ten blocks are cached when two more requests come and wait behind a long answer."""
    done = sharing([0.0, 1.0, 1.5, 1.5], [161, 170, 200, 180], [1, 500, 5, 5], [10] * 4, time_limit_s=2.0)
    state = done.cluster.replicas[0]
    assert (state.num_waiting, state.waiting_tokens) == (2, 380)
    assert state.prefill_left == 380 - 2 * 160
    done = sharing([0.0, 1.0, 1.5, 1.5], [161, 170, 200, 180], [1, 5, 5, 5], [10] * 4)
    assert done.cluster.replicas.prefill_left[0] == 0


def test_work_that_is_foreseen_in_vain_is_counted_when_it_begins() -> None:
    """The cached blocks are taken for a long prompt before the waiting request comes to run: all of it is computed."""
    times = {"arrival_s": [0.0, 1.0, 1.0], "prompt": [161, 3190, 170], "output": [1, 2, 2], "shared": [10, 0, 10]}
    done = sharing(**times)
    assert done.cluster.requests.cached_tokens.tolist() == [0, 0, 0]
    assert done.cluster.replicas.prefill_left[0] == 0
    # At 1.02 s it waits while the long prompt is computed, and seems to have ten tokens left.
    assert sharing(**times, time_limit_s=1.02).cluster.replicas.prefill_left[0] == 3190 + 10


def test_a_router_by_work_goes_to_the_queue_that_will_find_its_prompts() -> None:
    """Replica 0 has 20 tokens to compute for its queue of 180, replica 1 has 100: the next one goes to 0."""
    done = sharing(
        [0.0, 1.0, 1.0, 1.5, 1.5, 1.6], [161, 170, 20, 180, 100, 30], [1, 500, 500, 5, 5, 5], [10, 10, 0, 10, 0, 0],
        num_replicas=2, router="least_prefill_tokens", time_limit_s=1.7,
        forced_replicas=np.array([0, 0, 1, 0, 1, NONE], np.int32),
    )  # fmt: skip
    assert done.cluster.replicas.prefill_left.tolist() == [20 + 30, 100]


# Several ranks, several replicas: whose answer is when with its client.


def test_a_call_is_sent_when_its_own_rank_has_written_the_answer() -> None:
    """Two ranks in step, one of which writes ten messages an iteration more than the other."""
    count = 12
    made = replace(
        requests_of([0.0] * 11 + [np.inf], [10] * count, [20] * 10 + [2, 1]),
        parent_offsets=np.array([0] * 12 + [1]),
        parents=np.array([10]),
        think_s=np.zeros(count),
    )
    ranks = {"data_parallel": 2, "expert_parallel": True, "num_kv_blocks": 1000}
    setup = scenario(model="mixtral-8x7b", replica=ranks, front_end={"per_message_s": 1e-3})
    for here in (0, 1):  # The leader of the group, and the other one.
        forced = np.full(count, 1 - here, np.int32)
        forced[10:] = here
        q = run(setup, requests=made, forced_replicas=forced).cluster.requests
        assert q.arrival_s[11] == pytest.approx(q.finished_s[10], abs=1e-12)


def test_no_client_has_its_last_token_before_its_first() -> None:
    """The prefill replica writes slowly because it has many answers to give; the decode replica is idle."""
    apart = [{"role": "prefill", "num_replicas": 1}, {"role": "decode", "num_replicas": 1}]
    setup = scenario(
        pools=apart,
        num_replicas=1,
        batching={"policy": "sarathi"},
        disaggregation={"first_token": "prefill", "bandwidth_gb_s": 1e4},
        front_end={"per_message_s": 0.02},
    )
    q = run(setup, requests=requests_of([0.0] * 8, [10] * 8, [2] * 8)).cluster.requests
    assert (q.finished_s >= q.first_token_s).all()


@pytest.mark.parametrize("policy", ["sarathi", "vllm_v1"])
@pytest.mark.parametrize("first", ["prefill", "transfer"])
def test_no_part_of_a_moved_requests_time_is_negative(policy: str, first: str) -> None:
    """Decodes beside replicas that do both: the clock of prefills is that of the replica where a request decodes."""
    setup = scenario(
        pools=[{"num_replicas": 1}, {"role": "decode", "num_replicas": 1}],
        num_replicas=1,
        batching={"policy": policy},
        disaggregation={"first_token": first, "bandwidth_gb_s": 0.2},
        workload={"num_requests": 25},
    )
    done = run(setup, explained=True)
    assert done.cluster.parts_ns.min() > -5, "beyond rounding"


# Warm-ups and fleets; loops that return to their guard.

LOOP = {"process": "closed_loop", "concurrency": 2}
WARM = {"rate": None, "num_requests": 20, "warmup_requests": 3, "arrivals": LOOP}


def test_a_warm_up_in_a_fleet_ends_and_what_was_planned_goes_on() -> None:
    plain = run(scenario(workload=WARM, num_replicas=2))
    done = run(scenario(workload=WARM, num_replicas=2, fleet={"max_replicas": 2}))
    assert done.cluster.requests.finished_s.tolist() == plain.cluster.requests.finished_s.tolist()
    late = float(plain.cluster.requests.finished_s.max()) / 2
    assert late > float(plain.cluster.requests.arrival_s.min()), "after the warm-up"
    cut = run(scenario(workload=WARM, num_replicas=2, fleet=fails(late, late + 0.2)))
    assert cut.fleet is not None and (cut.fleet.failures, cut.fleet.retries > 0) == (1, True)


def test_links_that_go_down_after_a_warm_up_are_up_during_it() -> None:
    """They went down, and up again, when the warm-up had nothing more to do: an hour before their time."""
    pools = [{"role": "prefill", "num_replicas": 1}, {"role": "decode", "num_replicas": 1}]
    down = {"pools": pools, "num_replicas": 1, "workload": WARM, "disaggregation": {"down_s": [1.0, 3600.0]}}
    q = run(scenario(**down)).cluster.requests
    late = q[q.arrival_s > 1.0]
    assert late.size and (late.moving_s < 0).all(), "nothing moves any more"


def test_warm_up_requests_that_are_turned_away_have_ended() -> None:
    load = {**WARM, "arrivals": {**LOOP, "concurrency": 8}, "warmup_requests": 8, "num_requests": 16}
    done = run(scenario(workload=load, admission={"name": "queue_limit", "options": {"max_waiting": 1.0}}))
    assert done.cluster.requests.size == 16 and done.cluster.control[NUM_SHED] > 0


class Enough(Exception):
    """Somebody does not want to wait any longer."""


def test_a_fleet_that_waits_for_ever_can_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but ticks: the guard has its turn between them."""
    monkeypatch.setattr(guard, "SLICE_ITERATIONS", 1000)
    turns: list[int] = []

    def told(sent: int, total: int) -> None:
        turns.append(sent)
        if len(turns) > 5:
            raise Enough

    never = {"min_replicas": 0, "controller": {"name": "schedule", "steps": [[0.0, 0]], "interval_s": 1.0}}
    setup = scenario(fleet={**never, "events": [{"at_s": 0.0, "what": "drain", "replica": 0}]})
    with pytest.raises(Enough):
        run(setup, requests=requests_of([10.0], [10], [5]), on_progress=told)


# Time limits.


def test_a_closed_loop_that_is_cut_short_has_requests_that_were_never_sent() -> None:
    load = {"rate": None, "num_requests": 50, "arrivals": LOOP}
    summary = summarize(run(scenario(workload=load, time_limit_s=1.0)))
    assert summary.requests.not_arrived > 10 and summary.requests.finished > 0
    assert summary.duration_s == 1.0


def test_a_warm_up_that_is_cut_short_says_so() -> None:
    with pytest.raises(ConfigError, match="3 warm-up requests never ended"):
        run(scenario(workload=WARM, time_limit_s=1e-3))


def test_every_state_has_a_name_in_the_table() -> None:
    assert sorted(STATUS) == list(range(NUM_STATUS))


@pytest.mark.parametrize("at_s", [0.05, 0.3])
def test_requests_that_a_time_limit_cuts_in_motion_are_in_the_table(at_s: float) -> None:
    """Two adapters, one slot, half a second to load one: who waits for it is on the way."""
    lora = {"max_loaded": 1, "latency_s": 0.5}
    done = run(scenario(workload={"adapters": {"count": 2}, "rate": 100.0}, lora=lora, time_limit_s=at_s))
    moving = int(np.count_nonzero(done.cluster.requests.status == MOVING))
    assert moving > 0
    assert (request_frame(done)["status"] == "moving").sum() == moving


# Fleets: figures of replicas that came late, and books.


def test_a_replica_that_is_ready_after_the_last_request_was_never_busy() -> None:
    """It starts at 0 and takes 100 s; all is over after one."""
    start = {**AT_ONCE, "compile_s": 100.0}
    events = [{"at_s": 0.0, "what": "start", "replica": 1}]
    fleet = {
        "max_replicas": 2,
        "cold_start": start,
        "events": events,
        "controller": {"name": "fixed", "interval_s": 200.0},
    }
    summary = summarize(run(scenario(fleet=fleet), requests=requests_of([0.0], [10], [5])))
    assert [use.utilization.busy for use in summary.replicas][1] == 0.0
    assert 0.9 < summary.replicas[0].utilization.busy <= 1.0


def test_what_would_have_been_decoded_by_a_dead_replica_may_stay_where_it_is() -> None:
    """Three requests are prefilled in replica 0, to be decoded in 1, which dies; 0 and 2 can take them."""
    pools = [{"num_replicas": 1}, {"role": "decode", "num_replicas": 2}]
    cluster = run(scenario(pools=pools, num_replicas=1, workload={"num_requests": 4}), requests=None).cluster
    q, replicas = cluster.requests, cluster.replicas
    q.held_blocks = 0
    q.status[:] = [WAITING, RUNNING, MOVING, RUNNING]
    q.replica[:], q.decode_replica[:] = [0, 0, 0, 1], [1, 1, 1, 1]
    replicas.num_outstanding, replicas.num_coming = [0, 1, 0], [0, 3, 0]
    redirect(cluster, range(1, 2), np.array([0, 2]), slice(0, None))
    # Those that stay come to nobody; the fewest requests are in 0 as long as none is said to come there.
    assert q.decode_replica.tolist() == [0, 0, 0, 1]
    assert replicas.num_coming.tolist() == [0, 0, 0]
    replicas.num_outstanding, replicas.num_coming = [5, 1, 0], [0, 3, 0]
    q.decode_replica[:] = 1
    redirect(cluster, range(1, 2), np.array([0, 2]), slice(0, None))
    assert q.decode_replica.tolist() == [2, 2, 2, 1] and replicas.num_coming.tolist() == [0, 0, 3]


def test_books_are_right_where_plain_and_decode_replicas_fail() -> None:
    pools = [{"num_replicas": 2}, {"role": "decode", "num_replicas": 2}]
    failures = {"mtbf_s": 3.0, "mttr_s": 0.5, "detect_s": 0.2}
    for seed in range(4):
        setup = scenario(
            pools=pools, num_replicas=1, seed=seed, workload={"num_requests": 40}, router="least_outstanding",
            fleet={"failures": failures, "cold_start": AT_ONCE, "controller": {"name": "fixed", "interval_s": 1.0}},
        )  # fmt: skip
        done = run(setup)  # The guard looks at the books.
        assert done.fleet is not None and done.fleet.failures > 1
