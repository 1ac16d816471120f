"""The summary against what a reader would compute from the tables by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.api.serving import simulate
from gnomon.serving.engine.state import WAITING
from gnomon.serving.results.metrics import summarize
from gnomon.serving.results.paired import COMPARED, _resampled_p99, paired_differences
from gnomon.serving.results.percentiles import NUM_BATCHES, mean_with_margin, percentiles, weighted_percentiles
from gnomon.serving.results.summary import Summary, check_summary
from serving_results import chat, one_server, pipeline


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 20)), min_size=1, max_size=50))
def test_weighted_percentiles_are_those_of_the_repeated_values(pairs: list[tuple[float, int]]) -> None:
    values, counts = (np.array(column) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, counts)
    found = weighted_percentiles(values.astype(float), counts)
    for name, level in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(found, name) == np.percentile(repeated, level, method="inverted_cdf")
    assert found.max == repeated.max()
    assert found.mean == pytest.approx(repeated.mean())


def test_percentiles_leave_out_what_is_not_known() -> None:
    assert percentiles(np.array([np.nan, 1.0, 3.0])).mean == 2.0
    assert percentiles(np.array([np.nan])).p99 is None
    assert weighted_percentiles(np.empty(0), np.empty(0, np.int64)).mean is None


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        mean, margin = mean_with_margin(random.exponential(1.0, 1000))
        assert margin is not None
        hits += abs(mean - 1.0) <= margin
    assert 0.92 < hits / 400 < 0.98
    assert mean_with_margin(np.ones(150))[1] is None


def test_latencies_are_those_of_the_table_of_requests() -> None:
    result = chat()
    frame, latency = result.requests, result.summary.latency
    arrival, first, end = (frame[name].to_numpy() for name in ("arrival_s", "first_token_s", "finished_s"))
    output = frame["output_tokens"].to_numpy()
    assert latency.ttft_s.p99 == pytest.approx(np.percentile(first - arrival, 99))
    assert latency.e2e_s.mean == pytest.approx((end - arrival).mean())
    assert latency.normalized_s.p50 == pytest.approx(np.median((end - arrival) / output))
    several = output > 1
    assert latency.tpot_s.p90 == pytest.approx(np.percentile(((end - first) / (output - 1.0).clip(1))[several], 90))
    assert latency.scheduling_delay_s.max == pytest.approx((frame["scheduled_s"].to_numpy() - arrival).max())


def test_gaps_between_tokens_are_all_there() -> None:
    result = chat()
    log, q = result.run.log, result.run.cluster.requests
    gaps, counts = log.gap_s[: log.used[2]], log.gap_count[: log.used[2]]
    assert counts.sum() == (q.output_tokens - 1).sum()
    assert (gaps * counts).sum() == pytest.approx((q.finished_s - q.first_token_s).sum())


def test_throughput_and_cost() -> None:
    result = chat()
    s, frame = result.summary, result.requests
    span = frame["finished_s"].max() - frame["arrival_s"].min()
    assert s.duration_s == pytest.approx(span)
    assert s.throughput.requests_per_s == pytest.approx(600 / span)
    assert s.throughput.output_tokens_per_s == pytest.approx(frame["output_tokens"].sum() / span)
    assert s.cost.per_hour == pytest.approx(2.69)  # of one H100, in the catalog
    dollars = 2.69 * span / 3600
    assert s.cost.per_million_output_tokens == pytest.approx(dollars / frame["output_tokens"].sum() * 1e6)
    assert s.prompt_to_output == pytest.approx(frame["prompt_tokens"].sum() / frame["output_tokens"].sum())


def test_a_price_of_ones_own() -> None:
    dear = replace(chat().run, scenario=chat().scenario.model_copy(update={"price_per_gpu_hour": 10.0}))
    assert summarize(dear).cost.per_hour == 10.0


def test_slo_attainment_and_goodput() -> None:
    result = chat()
    slo, frame = result.summary.slo, result.requests
    assert slo is not None
    ttft, tpot = frame["ttft_s"].to_numpy() <= 0.08, frame["tpot_s"].fill_null(0).to_numpy() <= 0.015
    assert 0 < ttft.mean() < 1, "a target that all or none meet shows nothing"
    assert 0 < tpot.mean() < 1
    assert slo.ttft_attainment == pytest.approx(ttft.mean())
    assert slo.attainment == pytest.approx((ttft & tpot).mean())
    assert slo.goodput_requests_per_s == pytest.approx((ttft & tpot).sum() / result.summary.duration_s)


def test_time_is_busy_bubble_or_idle() -> None:
    summary = pipeline().summary
    staged, *others = summary.replicas
    for use in (summary.utilization, *(one.utilization for one in summary.replicas)):
        assert use.bubble is not None
        assert use.idle is not None
        assert use.busy + use.bubble + use.idle == pytest.approx(1.0)
        assert 0 < use.mfu < 1
        assert 0 < use.hbm < 1
        assert 0 < use.kv_mean <= use.kv_peak <= 1
    assert staged.utilization.bubble
    assert staged.num_gpus == 2
    assert all(one.utilization.bubble == 0 for one in others)
    assert sum(one.finished for one in summary.replicas) == 400


def test_busy_time_of_stages_is_that_of_the_iterations() -> None:
    result = pipeline()
    frame = result.iterations.filter(result.iterations["replica"] == 0)
    busy = frame["duration_s"].sum() / 2 / result.summary.duration_s
    assert result.summary.replicas[0].utilization.busy == pytest.approx(busy)


def test_the_wait_of_an_md1_queue_is_that_of_theory() -> None:
    """Pollaczek-Khinchine: at a load of 0.7 the mean wait is 0.7 / (2 x 0.3) x 0.1 s, inside 95 of 100 intervals."""
    theory, covered = 0.7 / 0.6 * 0.1, 0
    for seed in range(40):
        summary = one_server(7.0, 20_000, seed).summary
        wait = summary.latency.scheduling_delay_s
        assert wait.mean is not None
        assert wait.mean_margin is not None
        covered += abs(wait.mean - theory) <= wait.mean_margin
        assert summary.utilization.busy == pytest.approx(0.7, rel=0.03)
    assert covered >= 34  # Fewer have a chance of 0.3 % if the intervals are right.


def test_an_overload_is_called_one_and_its_capacity_is_known() -> None:
    summary = one_server(12.0, 2000).summary
    assert summary.saturation is not None
    assert summary.saturation.is_saturated
    assert summary.saturation.capacity_per_s == pytest.approx(10.0, rel=0.02)
    assert any(text.startswith("Saturated") for text in summary.warnings)


@pytest.mark.parametrize("rate", [3.0, 6.0, 8.0])
def test_a_load_below_capacity_is_not_called_an_overload(rate: float) -> None:
    false_alarms = sum(
        trend.is_saturated
        for seed in range(20)
        if (trend := one_server(rate, 2000, seed).summary.saturation) is not None
    )
    assert false_alarms == 0


def test_no_trend_is_read_from_a_batch_or_a_handful() -> None:
    assert one_server(5.0, 50).summary.saturation is None
    at_once = simulate(workload={"num_requests": 200, "arrivals": "batch"})
    assert at_once.summary.saturation is None
    assert at_once.summary.throughput.offered_requests_per_s is None


def test_a_rejection_says_what_was_needed_and_what_there_is() -> None:
    lengths = {"distribution": "fixed", "prompt": 1000, "output": 10}
    summary = simulate(**{"replica.num_kv_blocks": 50, "workload": {"num_requests": 20, "lengths": lengths}}).summary
    assert summary.requests.rejected == 20
    assert summary.requests.finished == 0
    assert summary.latency.ttft_s.mean is None
    (why,) = [text for text in summary.warnings if "rejected" in text]
    assert "63 KV blocks (1,000 tokens)" in why
    assert "has 50" in why


def test_a_time_limit_counts_what_is_left() -> None:
    result = one_server(12.0, 500, time_limit_s=20.0)
    counts, status = result.summary.requests, result.requests["status"].cast(str)
    assert counts.finished == (status == "finished").sum() > 0
    assert counts.not_arrived == (status == "not_arrived").sum() > 0
    assert counts.finished + counts.unfinished + counts.not_arrived == 500
    assert result.summary.duration_s <= 20.0
    first = result.requests["arrival_s"].min()
    assert result.summary.utilization.busy == pytest.approx((20.0 - first) / result.summary.duration_s), "always busy"
    assert any("time limit of 20 s" in text for text in result.summary.warnings)


def test_requests_that_are_too_long_count_as_offered() -> None:
    summary = simulate(**{"replica.max_request_tokens": 500, "workload.num_requests": 300}).summary
    assert summary.requests.too_long > 0
    assert summary.requests.finished + summary.requests.too_long == summary.requests.offered == 300
    assert any("rejected" in note for note in summary.notes)


def test_pre_emptions_are_counted() -> None:
    lengths = {"distribution": "fixed", "prompt": 100, "output": 200}
    workload = {"num_requests": 60, "arrivals": "batch", "lengths": lengths}
    result = simulate(**{"replica.num_kv_blocks": 100, "workload": workload})
    counts, frame = result.summary.requests, result.requests
    assert counts.preemptions == frame["num_restarts"].sum() > 0
    assert counts.preempted == (frame["num_restarts"] > 0).sum()
    assert result.summary.latency.preempted_s.mean
    assert counts.finished == 60


def test_thinned_tables_and_extrapolated_times_are_said() -> None:
    run = chat().run
    replicas = run.cluster.replicas.copy()
    replicas.num_beyond_measured = 7
    log = run.log._replace(used=run.log.used + np.array([0, 0, 0, 3, 1, 0]))
    told = " ".join(summarize(replace(run, log=log, cluster=run.cluster._replace(replicas=replicas))).warnings)
    assert "one in 4" in told
    assert "7 of" in told
    assert "TBT percentiles are rounded" in told


def test_a_shared_prefix_is_found_again() -> None:
    sessions = {"num_active": 8, "turns": 5, "shared_prefix_tokens": 512}
    workload = {"preset": "chat-1m", "num_requests": 200, "sessions": sessions, "rate": 5}
    summary = simulate(model="llama-3.1-8b", workload=workload).summary
    assert summary.prefix_hit_rate is not None
    assert summary.prefix_hit_rate > 0.3
    without = simulate(**{"model": "llama-3.1-8b", "workload": workload, "batching.prefix_cache": False}).summary
    assert without.prefix_hit_rate is None


def test_paired_differences_see_what_single_means_cannot() -> None:
    random = np.random.default_rng(0)
    before = random.exponential(1.0, 2000)
    times: Any = SimpleNamespace(**dict.fromkeys(COMPARED, before))
    later: Any = SimpleNamespace(**{name: before + random.normal(0.01, 0.02, 2000) for name in COMPARED})
    mean = next(d for d in paired_differences(times, later) if d.metric == "e2e_s" and d.statistic == "mean")
    assert mean.is_clear
    assert mean.low is not None
    assert mean.high is not None
    assert mean.low < 0.01 < mean.high
    assert mean.high - mean.low < 0.2 * (mean_with_margin(before)[1] or 0)
    same = paired_differences(times, times)
    assert all(d.difference == 0 and not d.is_clear for d in same)


@pytest.mark.parametrize("count", [200, 231, 1000])
def test_resampled_p99_is_that_of_the_resample(count: int) -> None:
    rng = np.random.default_rng(count)
    values = np.round(rng.exponential(size=count), 1)  # With ties.
    draws = rng.integers(0, NUM_BATCHES, (30, NUM_BATCHES))
    size = count // NUM_BATCHES
    blocks = values[: size * NUM_BATCHES].reshape(NUM_BATCHES, size)
    expected = [np.percentile(blocks[drawn], 99) for drawn in draws]
    drawn = np.array([np.bincount(one, minlength=NUM_BATCHES) for one in draws])
    assert _resampled_p99(values, drawn).tolist() == expected


def _cut(**overrides: object) -> Summary:
    """One prompt of 1,000 tokens at a time, each in one iteration of 1 s, cut off in the middle of the third."""
    setup = {
        "model": "llama-2-7b",
        "device": "a100",
        "timing": {"source": "table", "table": {"per_token": 0.001}},
        "batching": {"max_sequences": 1, "prefix_cache": False},
        "workload": {
            "num_requests": 5,
            "arrivals": {"process": "batch"},
            "lengths": {"distribution": "fixed", "prompt": 1000, "output": 1},
        },
    }
    return simulate({**setup, **overrides}).summary


def test_work_after_the_time_limit_does_not_count() -> None:
    whole, half, start = _cut(), _cut(time_limit_s=2.5), _cut(time_limit_s=0.25)
    assert (half.requests.finished, half.requests.unfinished) == (2, 3)
    for name in ("mfu", "hbm", "busy"):
        expected = getattr(whole.utilization, name)
        assert getattr(half.utilization, name) == pytest.approx(expected, rel=1e-9), name
        assert getattr(start.utilization, name) == pytest.approx(expected, rel=1e-9), name


def test_work_after_the_time_limit_does_not_count_in_a_pipeline() -> None:
    """Two stages of 1 s each, one batch at a time: a limit in the middle of either stage counts half of that stage."""
    stages = {"replica": {"pipeline_parallel": 2}, "batching": {"max_sequences": 1, "prefix_cache": False}}
    whole = _cut(**stages).utilization.mfu
    for limit, of_two in ((0.5, 0.5), (1.5, 1.5), (2.0, 2.0)):
        done = _cut(time_limit_s=limit, **stages).utilization.mfu
        assert done * limit == pytest.approx(whole * of_two, rel=1e-9), "the stages are busy without a pause"


def test_times_shorter_than_any_gpu_can_have_are_said() -> None:
    fast = _cut(timing={"source": "table", "table": {"per_token": 1e-8}})
    assert fast.utilization.mfu > 1
    assert any("of their arithmetic" in text for text in fast.warnings)
    assert not any("of their" in text for text in _cut().warnings)


def test_requests_that_are_never_finished_are_told_without_a_time_limit() -> None:
    result = one_server(5, 20)
    run = result.run
    cluster = run.cluster._replace(requests=run.cluster.requests.copy())
    cluster.requests.status[3] = WAITING
    summary = summarize(replace(run, cluster=cluster))
    assert summary.requests.unfinished == 1
    assert any("1 requests were never finished" in text for text in summary.warnings)


@pytest.mark.parametrize("policy", ["vllm", "lightllm", "trtllm"])
def test_a_rejection_for_the_token_budget_names_the_token_budget(policy: str) -> None:
    lengths = {"distribution": "fixed", "prompt": 1000, "output": 1}
    summary = simulate(
        {
            "batching": {"policy": policy, "max_batch_tokens": 512},
            "timing": {"source": "table", "table": {"per_token": 0.001}},
            "workload": {"num_requests": 3, "rate": 1.0, "lengths": lengths},
        }
    ).summary
    assert summary.requests.rejected == 3
    (why,) = [text for text in summary.warnings if "rejected" in text]
    assert "1,000 tokens to prefill" in why and "at most 512 tokens" in why and "max_batch_tokens" in why
    assert "KV blocks" not in why


def test_every_summary_is_checked() -> None:
    summary = chat().summary
    check_summary(summary)
    broken = [
        replace(summary, utilization=replace(summary.utilization, busy=1.1)),
        replace(summary, utilization=replace(summary.utilization, mfu=-0.1)),
        replace(summary, prefix_hit_rate=1.5),
        replace(summary, duration_s=-1.0),
        replace(summary, latency=replace(summary.latency, ttft_s=replace(summary.latency.ttft_s, mean=-1.0))),
        replace(summary, requests=replace(summary.requests, finished=summary.requests.finished - 1)),
        replace(summary, slo=replace(summary.slo, attainment=1.2)),
    ]
    for one in broken:
        with pytest.raises(AssertionError):
            check_summary(one)


def test_priorities_are_classes_of_users(tmp_path: Path) -> None:
    def served(levels: int) -> Any:
        path = tmp_path / "trace.csv"
        rows = [f"{i},100,10,{i % levels}" for i in range(50)]
        path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,priority", *rows]))
        return simulate(**{"workload.trace.file": str(path)}).summary

    both = served(2)
    assert [one.name for one in both.classes] == ["priority 0", "priority 1"]
    assert sum(one.finished for one in both.classes) == 50
    assert served(1).classes == [] and served(1).fairness is None


def test_a_mean_agrees_with_its_parts() -> None:
    """Two replicas hold 20 and 40 % while they are there, one all the time and one half of it; a third is never
    there: (0.2 x 1 + 0.4 x 0.5) / 1.5."""
    from gnomon.serving.results.usage import ReplicaUse, Utilization, overall

    def use(kv: float) -> ReplicaUse:
        shares = Utilization(mfu=kv, hbm=kv, busy=kv, bubble=0.0, idle=0.0, kv_mean=kv, kv_peak=kv)
        return ReplicaUse(0, "both", "h100", 1, 100, 0, 0, 0, 0, 0, None, shares)

    found = overall([use(0.2), use(0.4), use(0.0)], np.array([1.0, 0.5, 0.0]))
    assert found.kv_mean == pytest.approx(0.4 / 1.5) == found.mfu
