"""The serving engine: invariants, the same results by every way of computing them, and never a hang."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.jit import ENABLED
from gnomon.serving.engine import guard
from gnomon.serving.engine.log import new_log
from gnomon.serving.engine.state import FINISHED, REJECTED
from gnomon.serving.policies import POLICIES as POLICY_SPECS
from gnomon.serving.run import compilation
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import BatchingConfig, ReplicaConfig
from gnomon.serving.scenario.pools import resolve
from gnomon.timing.iteration import IterationTables
from gnomon.workload import generate
from serving_kit import POLICIES, ROUTERS, TABLE, assert_same, check_invariants, outcome, requests_of, run, scenario

KEEP_ALL = 1_000_000
"""Keeping the members of all batches makes the engine handle decodes one by one."""


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_books(policy: str) -> None:
    check_invariants(run(scenario(batching={"policy": policy})))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_books_when_memory_is_short(policy: str) -> None:
    done = run(
        scenario(
            batching={"policy": policy, "block_size": 1 if policy == "lightllm" else 16},
            replica={"num_kv_blocks": 600 if policy == "lightllm" else 60, "max_request_tokens": 400},
        )
    )
    check_invariants(done)
    if policy in ("vllm", "sarathi", "vllm_v1", "sglang"):
        assert done.cluster.replicas[0].num_preemptions > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("blocks", "overlap"), [(None, False), (70, False), (None, True), (70, True)])
def test_stepping_together_equals_stepping_one_by_one(policy: str, blocks: int | None, overlap: bool) -> None:
    replica = {"num_kv_blocks": blocks and (blocks * 16 if policy == "lightllm" else blocks), "max_request_tokens": 400}
    batching = {"policy": policy, "overlap": overlap and POLICY_SPECS[policy].overlaps}
    setup = scenario(batching=batching, replica=replica, num_replicas=2, workload={"num_requests": 150})
    assert_same(outcome(run(setup)), outcome(run(setup, keep_members=KEEP_ALL)))


def test_stepping_together_equals_stepping_one_by_one_with_measured_times() -> None:
    """Measured decodes take longer when KV lengths are skewed: the longest of the batch must be the same both ways."""
    measured = {"model": "llama-3-8b", "device": "h200", "timing": {"source": "auto", "table": None}}
    lengths = {"distribution": "uniform", "prompt": [10, 3000], "output": [1, 300]}
    setup = scenario(**measured, workload={"num_requests": 300, "rate": 30.0, "lengths": lengths})
    together = run(setup)
    assert together.tables.skew.shape[1] > 0
    assert together.cluster.replicas[0].num_beyond_measured == 0
    assert_same(outcome(together), outcome(run(setup, keep_members=KEEP_ALL)))


def test_iterations_beyond_the_measured_sizes_are_the_same_both_ways() -> None:
    """By the mean length of the decodes in either way, not by the longest of them."""

    def limited(tables: IterationTables) -> IterationTables:
        measured = tables.measured.copy()
        measured[:, 2] = 120.0
        return tables._replace(measured=measured)

    lengths = {"distribution": "uniform", "prompt": [10, 200], "output": [50, 100]}
    setup = scenario(workload={"num_requests": 100, "rate": 20.0, "lengths": lengths})
    together, one_by_one = (run(setup, adjust=limited, keep_members=kept) for kept in (0, KEEP_ALL))
    beyond = [int(done.cluster.replicas[0].num_beyond_measured) for done in (together, one_by_one)]
    assert 0 < beyond[0] == beyond[1] < one_by_one.cluster.replicas[0].num_iterations


def test_the_iterations_that_are_kept_of_many_are_the_same_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in so many: what is known of an iteration is noted when it begins, and kept when it ends."""
    module = import_module("gnomon.serving.run.simulate")
    monkeypatch.setattr(module, "new_log", partial(new_log, 64))
    setup = scenario(workload={"num_requests": 100, "rate": 20.0})
    kept = [(done.log.iterations, done.log.used) for done in (run(setup), run(setup, keep_members=KEEP_ALL))]
    assert kept[0][1][3] == kept[1][1][3] > 2 and 0 < kept[0][1][0] == kept[1][1][0]
    for name in ("number", "start_s", "end_s", "decodes", "decode_kv", "prefill_tokens"):
        assert np.array_equal(*(rows[name][: used[0]] for rows, used in kept)), name


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_workloads_keep_the_books_and_agree_both_ways(data: Any) -> None:
    count = data.draw(st.integers(1, 40))
    arrival = np.sort(data.draw(st.lists(st.floats(0, 3), min_size=count, max_size=count)))
    prompt = data.draw(st.lists(st.integers(1, 200), min_size=count, max_size=count))
    output = data.draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    policy = data.draw(st.sampled_from(POLICIES))
    stages = data.draw(st.integers(1, 3)) if policy != "lightllm" else 1
    blocks = data.draw(st.integers(18, 80)) * (16 if policy == "lightllm" else 1)
    setup = scenario(
        batching={
            "policy": policy,
            "max_sequences": data.draw(st.integers(stages, 20)),
            "max_batch_tokens": data.draw(st.integers(200, 600)),
            "overlap": data.draw(st.booleans()) and POLICY_SPECS[policy].overlaps,
            "surplus_token": data.draw(st.booleans()),
        },
        replica={"num_kv_blocks": blocks, "pipeline_parallel": stages, "max_request_tokens": 260},
        num_replicas=data.draw(st.integers(1, 3)),
        router={"name": data.draw(st.sampled_from(ROUTERS))},
    )
    offered = requests_of(arrival, prompt, output)
    done = run(setup, requests=offered)
    check_invariants(done)
    assert_same(outcome(done), outcome(run(setup, requests=offered, keep_members=KEEP_ALL)))


def test_same_seed_same_bytes_in_one_process() -> None:
    setup = scenario(num_replicas=3, router={"name": "power_of_two"})
    assert_same(outcome(run(setup)), outcome(run(setup)))


_PLAIN = """
import pickle, sys
sys.path.insert(0, {tests!r})
from serving_kit import outcome, run, scenario
results = {{}}
for name, changes in pickle.load(open({cases!r}, "rb")).items():
    results[name] = outcome(run(scenario(**changes)))
pickle.dump(results, open({out!r}, "wb"))
"""

SHORT = {
    "num_requests": 25,
    "rate": 80.0,
    "lengths": {"distribution": "uniform", "prompt": [10, 200], "output": [1, 30]},
}
PARITY = {
    **{f"policy {p}": {"batching": {"policy": p}, "workload": SHORT} for p in POLICIES},
    **{f"router {r}": {"router": {"name": r}, "num_replicas": 3, "workload": SHORT} for r in ROUTERS},
    "pre-emption": {"replica": {"num_kv_blocks": 40}, "workload": {"num_requests": 25}},
    "pipeline": {"replica": {"pipeline_parallel": 3}, "workload": SHORT},
    "speculation": {"replica": {"speculative": {"num_tokens": 3}}, "workload": SHORT},
    "closed loop": {
        "workload": {"num_requests": 25, "rate": None, "arrivals": {"process": "closed_loop", "concurrency": 4}}
    },
    "sessions": {
        "workload": {"num_requests": 25, "sessions": {"num_active": 3, "turns": 4, "shared_prefix_tokens": 64}},
        "replica": {"num_kv_blocks": 200},
    },
}


def test_plain_python_gives_identical_results(tmp_path: Path) -> None:
    """GNOMON_JIT=0 runs everything uncompiled, for a debugger, with identical results."""
    cases, out = tmp_path / "cases.pickle", tmp_path / "plain.pickle"
    cases.write_bytes(pickle.dumps(PARITY))
    script = _PLAIN.format(tests=str(Path(__file__).parents[1]), cases=str(cases), out=str(out))
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "GNOMON_JIT": "0"}, timeout=300)
    plain = pickle.loads(out.read_bytes())
    for name, changes in PARITY.items():
        try:
            assert_same(outcome(run(scenario(**changes))), plain[name])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_arrivals_of_one_instant_are_queued_before_a_batch_forms() -> None:
    offered = requests_of([1.0, 1.0, 1.0], [50, 60, 70], [2, 2, 2])
    done = run(scenario(), requests=offered, keep_members=100)
    assert done.log.iterations[0]["size"] == 3
    assert np.all(done.cluster.requests.scheduled_s == 1.0)


def test_an_arrival_at_the_instant_of_a_batch_end_joins_the_next_batch() -> None:
    first = run(scenario(), requests=requests_of([0.0], [50], [5]))
    end = first.log.iterations[0].end_s
    done = run(scenario(), requests=requests_of([0.0, end], [50, 50], [5, 5]), keep_members=100)
    assert done.cluster.requests.scheduled_s[1] == end
    assert done.log.iterations[1]["size"] == 2


def test_one_output_token_ends_with_the_prefill() -> None:
    done = run(scenario(), requests=requests_of([0.0], [50], [1]))
    request = done.cluster.requests[0]
    assert request.first_token_s == request.finished_s
    assert done.cluster.replicas[0].num_iterations == 1


@pytest.mark.parametrize("policy", ["orca", "faster_transformer"])
@pytest.mark.parametrize("output", [57, 58, 60])
def test_a_request_may_outgrow_a_reservation_that_is_rounded_down(policy: str, output: int) -> None:
    """260 tokens at most make 16 blocks, which hold 256; at 241 the next one is exactly a block of steps away."""
    setup = scenario(batching={"policy": policy}, replica={"num_kv_blocks": 40, "max_request_tokens": 260})
    requests = requests_of([0.0, 0.0, 0.0], [200, 1, 180], [output, 1, 60])
    done = run(setup, requests=requests)
    check_invariants(done)
    assert_same(outcome(done), outcome(run(setup, requests=requests, keep_members=KEEP_ALL)))


@pytest.mark.parametrize(("blocks", "most"), [(40, (40 + 3) * 16), (400, 200 + 180 + 150 + 3 * 60)])
def test_whole_prompts_in_one_iteration_are_bounded_by_the_kv_cache_and_by_the_longest(blocks: int, most: int) -> None:
    changes = {"num_kv_blocks": blocks, "max_request_tokens": 260}
    (pool,) = resolve(scenario(batching={"policy": "orca", "max_sequences": 3}, replica=changes))
    requests = requests_of([0.0] * 4, [200, 1, 180, 150], [60, 1, 60, 60])
    assert pool.max_iteration_tokens(requests) == most


def test_closed_loop_keeps_its_concurrency() -> None:
    workload = {"rate": None, "num_requests": 60, "arrivals": {"process": "closed_loop", "concurrency": 7}}
    done = run(scenario(num_replicas=2, workload=workload))
    check_invariants(done)
    requests = done.cluster.requests
    events = sorted([(t, 1) for t in requests.arrival_s] + [(t, -1) for t in requests.finished_s])
    assert np.cumsum([change for _, change in events]).max() == 7, "the end that releases a request comes before it"
    assert np.isin(requests.arrival_s[7:], requests.finished_s).all()


def test_prefix_cache_shortens_prefill() -> None:
    sessions = {"num_active": 4, "turns": 6, "shared_prefix_tokens": 512}
    workload = {"num_requests": 60, "sessions": sessions, "max_tokens": 3000, "over_long": "drop"}
    on = run(scenario(workload=workload))
    off = run(scenario(workload=workload, batching={"prefix_cache": False}))
    check_invariants(on)
    assert on.cluster.replicas[0].cache_hits > 0.5 * on.cluster.replicas[0].cache_queries
    assert on.cluster.replicas[0].tokens_computed < 0.6 * off.cluster.replicas[0].tokens_computed
    assert off.cluster.replicas[0].cache_hits == 0


def test_a_preempted_request_finds_its_blocks_again() -> None:
    crowded = {"replica": {"num_kv_blocks": 60, "max_request_tokens": 400}, "workload": {"num_requests": 120}}
    on = run(scenario(**crowded))
    off = run(scenario(**crowded, batching={"prefix_cache": False}))
    assert on.cluster.replicas[0].num_preemptions > 0
    assert on.cluster.replicas[0].cache_hits > 0
    assert on.cluster.replicas[0].tokens_computed < off.cluster.replicas[0].tokens_computed


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang"])
@pytest.mark.parametrize("stages", [1, 2])
def test_blocks_counted_until_a_preemption_give_the_same_results_as_blocks_tracked_from_the_start(
    policy: str, stages: int
) -> None:
    crowded = scenario(
        replica={"num_kv_blocks": 60, "max_request_tokens": 400, "pipeline_parallel": stages},
        workload={"num_requests": 120},
        batching={"policy": policy},
    )
    counted = generate(crowded.workload, crowded.seed)
    # A prefix that the first request shares with nobody has all blocks tracked from its arrival on.
    offsets = np.minimum(np.arange(len(counted) + 1), 1)
    tracked = replace(counted, prefix_offsets=offsets, prefix_hashes=np.array([7]))
    late, early = run(crowded, requests=counted), run(crowded, requests=tracked)
    check_invariants(late)
    assert late.cluster.replicas[0].num_preemptions > 0
    if policy != "sglang":  # What it retracts waits behind all others, and may be overwritten before its turn comes.
        assert late.cluster.replicas[0].cache_hits > 0
    for column in ("first_token_s", "finished_s", "num_restarts", "cached_tokens"):
        assert np.array_equal(late.cluster.requests[column], early.cluster.requests[column])


def test_progress_is_told_while_the_last_requests_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has waited long enough can end a run although nothing arrives any more."""
    monkeypatch.setattr(guard, "SLICE_ITERATIONS", 10)
    told: list[tuple[int, int]] = []
    run(scenario(), requests=requests_of([0.0], [10], [100]), on_progress=lambda *said: told.append(said))
    assert len(told) >= 9 and set(told) == {(1, 1)}

    def enough(done: int, total: int) -> None:
        raise ConfigError(f"enough, at {done} of {total}.")

    with pytest.raises(ConfigError, match="enough, at 1 of 1"):
        run(scenario(), requests=requests_of([0.0], [10], [100]), on_progress=enough)


def test_speculation_takes_as_many_iterations_as_accepted_drafts_leave() -> None:
    def iterations(acceptance: float) -> int:
        setup = scenario(replica={"speculative": {"num_tokens": 4, "acceptance": acceptance}})
        done = run(setup, requests=requests_of([0.0], [50], [101]))
        check_invariants(done)
        return int(done.cluster.replicas[0].num_iterations)

    assert iterations(0.0) == 101
    assert iterations(1.0) == 1 + 100 // 5
    # Expected tokens per iteration at acceptance a and k drafts: (1 - a^(k+1)) / (1 - a) = 3.36 for 0.8 and 4.
    assert iterations(0.8) == pytest.approx(1 + 100 / 3.36, rel=0.25)


def test_every_stage_of_a_pipeline_waits_for_its_launches() -> None:
    """Two stages of 16 layers each, 1 ms of launching a layer: no stage takes less than 16 ms, whatever it computes."""
    timing = {**TABLE, "host": {"launch_per_layer_s": 1e-3, "exposed_s": 2e-3}}
    setup = scenario(replica={"pipeline_parallel": 2}, timing=timing)
    done = run(setup, requests=requests_of([0.0], [10], [1]))
    check_invariants(done)
    assert done.cluster.requests[0].first_token_s == pytest.approx(2 * 0.016 + 0.002)


def test_every_chunk_reads_the_kv_before_it() -> None:
    """Two prompts of 20 tokens in chunks of 10: the second iteration reads 10 + 10 tokens of KV, 512 KiB each."""
    setup = scenario(batching={"max_chunk_tokens": 10, "prefix_cache": False})
    done = run(setup, requests=requests_of([0.0, 0.0], [20, 20], [1, 1]))
    check_invariants(done)
    replica = done.cluster.replicas[0]
    assert replica.num_iterations == 2
    weights = done.tables.work[0, 3]
    assert replica.bytes - 2 * weights == pytest.approx(20 * 2 * 32 * 32 * 128 * 2)


def test_data_parallel_ranks_step_together() -> None:
    setup = scenario(
        model="qwen3-30b-a3b",
        device="h100",
        replica={"data_parallel": 2, "expert_parallel": True},
        router={"name": "vllm_dp"},
        timing={"source": "roofline", "table": None},
    )
    done = run(setup)
    check_invariants(done)
    rows = done.log.iterations[: done.log.used[0]]
    a, b = (set(rows.end_s[rows.replica == r]) for r in (0, 1))
    assert a & b, "they share the ends of iterations"


def test_unequal_replicas_and_policies_in_one_fleet() -> None:
    done = run(
        scenario(
            pools=[
                {"num_replicas": 2, "device": "a100"},
                {"num_replicas": 1, "device": "h100", "batching": {"policy": "sarathi"}},
            ],
            router={"name": "least_outstanding"},
        )
    )
    check_invariants(done)
    assert np.bincount(done.cluster.requests.replica, minlength=3).min() > 0


def test_a_pool_changes_single_keys_of_a_section() -> None:
    setup = build(
        Scenario,
        {
            "engine": "none",
            "replica": {"memory_utilization": 0.5, "max_request_tokens": 4000},
            "batching": {"max_sequences": 32, "block_size": 32},
            "pools": [
                {"replica": {"tensor_parallel": 2}, "batching": {"max_sequences": 8}},
                {"batching": "sarathi"},
                {"replica": {"memory_utilization": 0.7}},
            ],
        },
    )
    wide, other, full = setup.all_pools()
    assert wide.replica == ReplicaConfig(tensor_parallel=2, memory_utilization=0.5, max_request_tokens=4000)
    assert wide.given_batching == BatchingConfig(max_sequences=8, block_size=32)
    assert other.replica == setup.replica
    assert other.given_batching == BatchingConfig(policy="sarathi"), "another policy has its own defaults"
    assert full.replica == ReplicaConfig(memory_utilization=0.7, max_request_tokens=4000)
    assert full.given_batching == setup.batching
    assert build(Scenario, setup.model_dump(mode="json")).all_pools() == setup.all_pools(), (
        "a saved scenario says the same"
    )


def test_a_short_log_thins_itself_out_and_never_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnomon.serving.engine.log import new_log
    from gnomon.serving.run import simulate

    whole = run(scenario(num_replicas=80, workload={"num_requests": 800}))
    monkeypatch.setattr(simulate, "new_log", lambda **kept: new_log(64, 100, **kept))
    thin = run(scenario(num_replicas=80, workload={"num_requests": 800}))
    assert thin.log.used[3] > 1, "iterations are sampled"
    assert thin.log.used[4] > 0, "gaps are merged"
    assert thin.log.used[0] <= 64
    assert np.array_equal(thin.cluster.requests.finished_s, whole.cluster.requests.finished_s)
    gaps = [(one.log.gap_s[: one.log.used[2]] * one.log.gap_count[: one.log.used[2]]).sum() for one in (thin, whole)]
    assert gaps[0] == pytest.approx(gaps[1])


# Never a hang.


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_that_can_never_be_admitted_is_rejected(policy: str) -> None:
    blocks = {"lightllm": 200, "trtllm": 8}.get(policy, 14)
    offered = requests_of([0.0, 0.0, 5.0], [20, 300, 20], [5, 5, 5])
    longest = 200 if policy in ("orca", "faster_transformer") else 4000
    setup = scenario(batching={"policy": policy}, replica={"num_kv_blocks": blocks, "max_request_tokens": longest})
    done = run(setup, requests=offered)
    if longest == 200:
        assert "rejected" in " ".join(done.notes)
        return
    check_invariants(done)
    assert done.cluster.requests.status.tolist() == [FINISHED, REJECTED, FINISHED]


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang", "vllm", "sarathi"])
def test_an_output_that_outgrows_memory_is_rejected(policy: str) -> None:
    done = run(
        scenario(batching={"policy": policy}, replica={"num_kv_blocks": 6}), requests=requests_of([0.0], [40], [2000])
    )
    check_invariants(done)
    assert done.cluster.requests.status[0] == REJECTED


@pytest.mark.parametrize("policy", POLICIES)
def test_no_memory_at_all_rejects_everything(policy: str) -> None:
    done = run(scenario(batching={"policy": policy}, replica={"num_kv_blocks": 0}, workload={"num_requests": 5}))
    check_invariants(done)
    assert np.all(done.cluster.requests.status == REJECTED)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_cap_of_one_serves_one_by_one(policy: str) -> None:
    done = run(scenario(batching={"policy": policy, "max_sequences": 1}, workload={"num_requests": 20}))
    check_invariants(done)
    assert done.log.iterations[: done.log.used[0]]["size"].max() == 1


def test_a_time_limit_cuts_an_overload_short() -> None:
    done = run(scenario(workload={"rate": 1000.0, "num_requests": 3000}, time_limit_s=2.0))
    assert 0 < done.cluster.replicas[0].num_finished < 3000
    assert done.log.iterations[: done.log.used[0]].end_s.max() < 2.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"batching": {"policy": "sarathy"}}, UnknownNameError, "Did you mean 'sarathi'"),
        ({"router": {"name": "round_robbin"}}, UnknownNameError, "Did you mean 'round_robin'"),
        ({"router": {"name": "lookahead", "options": {"other": 3}}}, UnknownNameError, "others"),
        ({"router": {"name": "random", "lengths": "oracle"}}, ConfigError, "does not look at output lengths"),
        ({"router": {"name": "random", "checkpoint": "p.npz"}}, ConfigError, "has no policy file"),
        ({"batching": {"policy": "lightllm"}, "replica": {"pipeline_parallel": 2}}, ConfigError, "pipeline"),
        ({"batching": {"policy": "sarathi", "prefix_cache": True}}, ConfigError, "sarathi has no prefix_cache"),
        (
            {"batching": {"policy": "orca"}, "replica": {"speculative": {"num_tokens": 2}}},
            ConfigError,
            "speculative decoding is not part of orca",
        ),
    ],
)
def test_mistakes_are_explained(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(scenario(**changes))


@pytest.mark.skipif(not ENABLED, reason="nothing is compiled under GNOMON_JIT=0")
def test_another_process_compiles_the_loop_unless_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(compilation, "compiled_code_folder", lambda: tmp_path)
    monkeypatch.setattr(compilation, "_compiled_proceed", cache(lambda: None))
    monkeypatch.setattr(compilation.subprocess, "Popen", lambda *words, **_: started.append(words) or object())
    monkeypatch.setattr(compilation.os, "cpu_count", lambda: 2)
    (tmp_path / "iteration_breakdown.tabulate-98.py311.nbi").touch()  # What else was compiled says nothing of it.
    assert compilation.BackgroundCompilation().is_compiling
    (tmp_path / "loop.proceed-294.py311.nbi").touch()
    assert not compilation.BackgroundCompilation().is_compiling
    assert len(started) == 1
