"""Benchmark clients as workloads, and warm-up requests that no figure counts."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from gnomon.core.config import build, dump
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.serving.results.metrics import summarize
from gnomon.serving.scenario import Scenario
from gnomon.workload import WorkloadConfig, generate
from gnomon.workload.clients import clients
from serving_kit import check_invariants, run, scenario


def workload(**client: object) -> WorkloadConfig:
    return build(WorkloadConfig, {"client": client})


def test_inferencex_is_a_closed_loop_of_ten_rounds_after_two_of_warm_up():
    config = workload(name="inferencex", concurrency=4, prompt=1000, output=500)
    requests = generate(config, seed=1)
    assert (requests.concurrency, requests.num_warmup, len(requests)) == (4, 8, 48)
    assert requests.arrival_s.tolist() == [0.0] * 4 + [np.inf] * 44
    measured = requests.take(np.arange(8, 48))
    assert measured.prompt_tokens.min() >= 800 and measured.prompt_tokens.max() <= 1000
    assert measured.output_tokens.min() >= 400 and measured.output_tokens.max() <= 500
    assert np.all(requests.prompt_tokens[:9] == requests.prompt_tokens[8])
    assert np.all(requests.output_tokens[:9] == requests.output_tokens[8])


def test_lengths_are_uniform_over_the_range():
    requests = generate(workload(name="inferencex_2025", concurrency=2000, prompt=1000, output=1000), seed=0)
    for tokens in (requests.prompt_tokens, requests.output_tokens):
        assert tokens.min() == 800 and tokens.max() == 1000
        assert tokens.mean() == pytest.approx(900, abs=4 * 58 / np.sqrt(20_000))
    assert abs(np.corrcoef(requests.prompt_tokens, requests.output_tokens)[0, 1]) < 0.03


def test_a_client_is_spelled_out_and_reads_back():
    config = workload(name="inferencex", concurrency=16)
    assert config.client is None
    assert (config.arrivals.process, config.num_requests, config.warmup_requests) == ("closed_loop", 160, 32)
    assert build(WorkloadConfig, yaml.safe_load(dump(config))) == config


def test_what_is_given_beside_a_client_wins():
    given = {"client": {"name": "inferencex", "concurrency": 4}, "num_requests": 7, "warmup_requests": 0}
    config = build(WorkloadConfig, given)
    assert (config.num_requests, config.warmup_requests) == (7, 0)


def test_other_clients():
    burst = build(WorkloadConfig, {"client": "vllm_bench"})
    assert (burst.arrivals.process, burst.num_requests) == ("batch", 1000)
    few = generate(workload(name="genai_perf", concurrency=3, prompt=100, output=10), 0)
    assert len(few) == 10 and set(few.prompt_tokens.tolist()) == {100}
    any_length = generate(workload(name="sglang_bench", concurrency=8), 0)
    assert any_length.prompt_tokens.min() < 60
    wide = generate(workload(name="vllm_bench", prompt=1000, shortest=0.5, longest=1.5), 0)
    assert 500 <= wide.prompt_tokens.min() < 520 and 1480 < wide.prompt_tokens.max() <= 1500


def test_clients_that_send_at_a_rate():
    even = build(WorkloadConfig, {"client": {"name": "inference_perf", "rate": 5.0}, "num_requests": 100})
    assert (even.arrivals.process, even.arrivals.even, even.rate) == ("poisson", True, 5.0)
    assert generate(even, 0).arrival_s[-1] == pytest.approx(20.0)
    gaps = np.diff(generate(build(WorkloadConfig, {"client": {"name": "guidellm", "rate": 4.0}}), 0).arrival_s)
    assert gaps == pytest.approx(np.full(999, 0.25))
    assert build(WorkloadConfig, {"client": {"name": "vllm_bench", "rate": 4.0}}).arrivals.process == "poisson"


def test_every_client_names_its_source():
    assert all(client.source and client.description for client in clients().values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"client": "inferencex"}, "in flight"),
        ({"client": {"name": "guidellm", "rate": 2.0, "concurrency": 4}}, "or sends at a rate"),
        ({"client": {"name": "inferencex", "concurrency": 2, "shortest": 2.0}}, "exceeds"),
        ({"client": {"name": "vllm_bench"}, "preset": "chat-1m"}, "own lengths"),
        ({"warmup_requests": 4}, "closed loop"),
    ],
)
def test_what_makes_no_sense_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        build(WorkloadConfig, given)


def test_unknown_client():
    with pytest.raises(UnknownNameError, match="inferencex"):
        build(WorkloadConfig, {"client": "inference"})


def loop(warmup: int, **changes: object) -> Scenario:
    return scenario(
        workload={
            "rate": None,
            "num_requests": 60,
            "warmup_requests": warmup,
            "arrivals": {"process": "closed_loop", "concurrency": 6},
        },
        **changes,
    )


@pytest.mark.parametrize("policy", ["vllm_v1", "vllm", "orca"])
def test_warm_up_changes_no_figure_of_a_server_without_memory(policy):
    plain, warmed = (run(loop(count, batching={"policy": policy, "prefix_cache": False})) for count in (0, 12))
    check_invariants(warmed)
    a, b = plain.cluster.requests, warmed.cluster.requests
    start = b.arrival_s.min()
    assert start > 0
    for stamp in ("scheduled_s", "first_token_s", "finished_s"):
        assert np.allclose(a[stamp], b[stamp] - start, atol=1e-9)
    before, after = summarize(plain), summarize(warmed)
    assert after.requests == before.requests
    assert after.duration_s == pytest.approx(before.duration_s)
    assert after.latency.tbt_s.mean == pytest.approx(before.latency.tbt_s.mean)
    assert after.iterations.count == before.iterations.count
    assert after.utilization.busy == pytest.approx(before.utilization.busy)
    assert after.utilization.mfu == pytest.approx(before.utilization.mfu)
    assert any("12 warm-up" in note for note in after.notes)


def test_members_name_the_measured_requests():
    done = run(loop(6), keep_members=100_000)
    members = done.log.members[: done.log.used[1], 0]
    assert members.min() == 0 and members.max() == 59


def test_a_time_limit_inside_the_warm_up_is_refused():
    with pytest.raises(ConfigError, match="warm-up"):
        run(loop(6, time_limit_s=0.05))
