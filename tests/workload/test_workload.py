"""Arrivals, lengths, seeds and limits of generated workloads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.core.config import build, dump, load
from gnomon.core.errors import ConfigError, GnomonError, UnknownNameError
from gnomon.workload import Requests, WorkloadConfig, generate, limit_lengths, presets, with_rate


def workload(**choices: object) -> WorkloadConfig:
    return build(WorkloadConfig, choices)


def gaps(requests: Requests) -> np.ndarray:
    return np.diff(requests.arrival_s, prepend=0.0)


def test_default_is_chat_at_a_poisson_rate():
    config = WorkloadConfig()
    assert (config.preset, config.arrivals.process, config.lengths.distribution) == ("chat-1m", "poisson", "preset")
    assert len(generate(config, 0)) == config.num_requests


@pytest.mark.parametrize(("arrivals", "cv"), [("poisson", 1.0), ({"process": "gamma", "cv": 3.0}, 3.0)])
def test_gaps_have_the_mean_and_variation_asked_for(arrivals, cv):
    requests = generate(workload(rate=4.0, num_requests=200_000, arrivals=arrivals), seed=3)
    assert gaps(requests).mean() == pytest.approx(0.25, rel=4 * cv / np.sqrt(200_000))
    assert gaps(requests).std() / gaps(requests).mean() == pytest.approx(cv, rel=0.03)
    assert (gaps(requests) >= 0).all()


def test_poisson_gaps_are_exponential():
    sample = np.sort(gaps(generate(workload(rate=2.0, num_requests=50_000), seed=1)))
    expected = 1 - np.exp(-2.0 * sample)
    distance = np.abs(expected - np.arange(1, 50_001) / 50_000).max()
    assert distance < 1.63 / np.sqrt(50_000)  # Kolmogorov-Smirnov at 1 %


def test_fixed_interval_and_batch():
    fixed = generate(workload(rate=8.0, num_requests=5, arrivals="fixed_interval"), 0)
    assert fixed.arrival_s.tolist() == [0, 0.125, 0.25, 0.375, 0.5]
    batch = generate(workload(num_requests=5, arrivals="batch"), 0)
    assert batch.arrival_s.tolist() == [0] * 5
    assert batch.rate is None


def test_piecewise_rate_follows_the_pieces():
    pieces = [[10, 1], [20, 0], [10, 3]]
    requests = generate(
        workload(rate=50.0, num_requests=100_000, arrivals={"process": "piecewise", "pieces": pieces}), 0
    )
    phase = requests.arrival_s % 40
    first, silent, third = ((phase < 10).sum(), ((phase >= 10) & (phase < 30)).sum(), (phase >= 30).sum())
    assert silent == 0
    assert third / first == pytest.approx(3, rel=0.03)
    assert len(requests) / requests.arrival_s[-1] == pytest.approx(50, rel=0.02)


def test_diurnal_swings_between_peak_and_trough():
    arrivals = {"process": "diurnal", "period_s": 1000, "peak_to_trough": 4, "peak_s": 300}
    requests = generate(workload(rate=20.0, num_requests=400_000, arrivals=arrivals), 0)
    counts, _ = np.histogram(requests.arrival_s[requests.arrival_s < 20_000] % 1000, bins=20)
    assert counts[5:7].argmax() + 5 in (5, 6)
    assert counts.max() / counts.min() == pytest.approx(4, rel=0.1)


def test_closed_loop_starts_with_its_users():
    arrivals = {"process": "closed_loop", "concurrency": 3, "think_s": 2.0, "think": "exponential"}
    requests = generate(workload(num_requests=20_000, arrivals=arrivals), 0)
    assert requests.concurrency == 3
    assert requests.arrival_s[:4].tolist() == [0, 0, 0, np.inf]
    assert np.isinf(requests.arrival_s[3:]).all()
    assert requests.think_s.mean() == pytest.approx(2.0, rel=0.05)


def test_with_rate_equals_generating_at_that_rate_bit_for_bit():
    for arrivals in ("poisson", {"process": "gamma", "cv": 2}, {"process": "diurnal", "period_s": 60}):
        slow = generate(workload(rate=1.7, num_requests=1000, arrivals=arrivals), 5)
        fast = generate(workload(rate=9.1, num_requests=1000, arrivals=arrivals), 5)
        assert (with_rate(slow, 9.1).arrival_s == fast.arrival_s).all()
        assert with_rate(slow, 9.1).rate == 9.1
    with pytest.raises(ConfigError, match="above 0"):
        with_rate(slow, 0.0)
    with pytest.raises(ConfigError, match="no arrival rate"):
        with_rate(generate(workload(num_requests=5, arrivals="batch"), 0), 2.0)


def test_streams_do_not_disturb_each_other():
    base = generate(workload(num_requests=1000), 7)
    again = generate(workload(num_requests=1000), 7)
    other = generate(workload(num_requests=1000), 8)
    burst = generate(workload(num_requests=1000, arrivals={"process": "gamma", "cv": 3}), 7)
    fixed = generate(workload(num_requests=1000, lengths={"distribution": "fixed", "prompt": 5, "output": 5}), 7)
    fewer = generate(workload(num_requests=100), 7)
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert (getattr(base, name) == getattr(again, name)).all()
        assert (getattr(base, name) != getattr(other, name)).any()
        assert (getattr(base, name)[:100] == getattr(fewer, name)).all()
    assert (burst.prompt_tokens == base.prompt_tokens).all()
    assert (fixed.arrival_s == base.arrival_s).all()


def test_uniform_ranges_and_totals():
    each = generate(
        workload(num_requests=50_000, lengths={"distribution": "uniform", "prompt": [10, 20], "output": [1, 3]}), 0
    )
    assert set(np.unique(each.prompt_tokens)) == set(range(10, 21))
    assert set(np.unique(each.output_tokens)) == {1, 2, 3}
    total = generate(
        workload(num_requests=50_000, lengths={"distribution": "uniform", "total": [100, 300], "prompt_to_output": 4}),
        0,
    )
    assert (total.total_tokens.min(), total.total_tokens.max()) == (100, 300)
    assert total.prompt_tokens.sum() / total.output_tokens.sum() == pytest.approx(4, rel=0.01)


def test_zipf_probabilities():
    choice = {"distribution": "zipf", "total": [1000, 1003], "theta": 1.0, "prompt_to_output": 9}
    requests = generate(workload(num_requests=100_000, lengths=choice), 0)
    values, counts = np.unique(requests.total_tokens, return_counts=True)
    assert values.tolist() == [1000, 1001, 1002, 1003]
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert counts / 100_000 == pytest.approx(1 / (np.arange(1, 5) * harmonic), abs=0.006)
    scrambled = generate(workload(num_requests=1000, lengths={**choice, "total": [1, 999], "scramble": True}), 0)
    assert np.median(scrambled.total_tokens) > 300


def test_lognormal_percentiles_and_correlation():
    choice = {
        "distribution": "lognormal",
        "prompt_median": 400,
        "prompt_p90": 1600,
        "output_median": 150,
        "output_p90": 450,
        "rank_correlation": 0.6,
    }
    requests = generate(workload(num_requests=200_000, lengths=choice), 0)
    assert np.percentile(requests.prompt_tokens, [50, 90]) == pytest.approx([400, 1600], rel=0.02)
    assert np.percentile(requests.output_tokens, [50, 90]) == pytest.approx([150, 450], rel=0.02)
    logs = np.corrcoef(np.log(requests.prompt_tokens), np.log(requests.output_tokens))[0, 1]
    assert logs == pytest.approx(0.6, abs=0.01)


def test_a_mixture_has_its_shares_and_its_first_requests_do_not_depend_on_their_number():
    parts = [
        {"share": 9, "lengths": {"distribution": "uniform", "prompt": [100, 200], "output": [10, 20]}},
        {"share": 1, "lengths": {"distribution": "fixed", "prompt": 9000, "output": 30}},
    ]
    choice = {"distribution": "mixture", "parts": parts}
    requests = generate(workload(num_requests=50_000, lengths=choice), 0)
    long = requests.prompt_tokens == 9000
    assert long.mean() == pytest.approx(0.1, abs=0.005)
    assert (requests.output_tokens[long] == 30).all()
    assert requests.prompt_tokens[~long].max() == 200
    fewer = generate(workload(num_requests=100, lengths=choice), 0)
    assert (fewer.prompt_tokens == requests.prompt_tokens[:100]).all()


# Vidur (MLSys 2024, arXiv:2405.05465), table of workloads: mean, median, 90th percentile.
PUBLISHED = {
    "chat-1m": ((686, 417, 1678), (197, 139, 484)),
    "arxiv-4k": ((2588, 2730, 3702), (291, 167, 372)),
    "bwb-4k": ((1067, 1037, 1453), (1612, 1601, 2149)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_statistics(name):
    requests = generate(workload(preset=name, num_requests=200_000), 0)
    for lengths, (mean, median, p90) in zip(
        (requests.prompt_tokens, requests.output_tokens), PUBLISHED[name], strict=True
    ):
        assert lengths.mean() == pytest.approx(mean, rel=0.02)
        assert np.percentile(lengths, [50, 90]) == pytest.approx([median, p90], rel=0.02)
    assert requests.total_tokens.max() <= 4096


def test_every_preset_draws_whole_positive_lengths():
    for name, preset in presets().items():
        requests = generate(workload(preset=name, num_requests=20_000), 1)
        assert requests.prompt_tokens.min() >= 1
        assert requests.output_tokens.min() >= 1
        assert requests.total_tokens.max() <= preset.max_tokens
        assert preset.source


def test_over_long_requests():
    choice = {"num_requests": 4, "lengths": {"distribution": "fixed", "prompt": 90, "output": 20}}
    requests = generate(workload(**choice), 0)
    truncated = limit_lengths(requests, 100, "truncate")
    assert (truncated.prompt_tokens[0], truncated.output_tokens[0]) == (80, 20)
    short = limit_lengths(requests, 15, "truncate")
    assert (short.prompt_tokens[0], short.output_tokens[0]) == (1, 14)
    rejected = limit_lengths(requests, 100, "reject")
    assert (len(rejected), rejected.num_rejected) == (0, 4)
    dropped = limit_lengths(requests, 100, "drop")
    assert (len(dropped), dropped.num_rejected) == (0, 0)
    assert dropped.notes == ("4 of 4 requests longer than 100 tokens: dropped.",)
    assert limit_lengths(requests, 110, "reject") is requests


def test_limited_requests_keep_arrivals_prefixes_and_their_rate():
    config = workload(num_requests=2000, max_tokens=1000, sessions={"num_active": 8, "turns": 3}, rate=2.0)
    free = generate(workload(num_requests=2000, sessions={"num_active": 8, "turns": 3}, rate=2.0), 0)
    requests = generate(config, 0)
    kept = np.flatnonzero(free.total_tokens <= 1000)
    assert 0 < len(kept) < 2000
    assert (requests.arrival_s == free.arrival_s[kept]).all()
    assert (requests.prefix(5) == free.prefix(kept[5])).all()
    assert (with_rate(requests, 4.0).arrival_s == generate(config.model_copy(update={"rate": 4.0}), 0).arrival_s).all()


def test_closed_loop_refills_after_dropping():
    arrivals = {"process": "closed_loop", "concurrency": 16}
    requests = generate(workload(num_requests=200, arrivals=arrivals, max_tokens=500, over_long="drop"), 0)
    assert len(requests) < 200
    assert (requests.arrival_s == 0).sum() == 16


def test_scaled_lengths_and_priorities():
    base = generate(workload(num_requests=10_000), 0)
    double = generate(
        workload(
            num_requests=10_000, prompt_scale=2, classes=[{"name": "a", "share": 3}, {"name": "b", "priority": 1}]
        ),
        0,
    )
    assert (double.prompt_tokens == 2 * base.prompt_tokens).all()
    assert double.priority.mean() == pytest.approx(0.25, abs=0.02)
    assert (double.arrival_s == base.arrival_s).all()


def test_saved_workload_reads_back_equal(tmp_path):
    config = workload(arrivals={"process": "gamma", "cv": 2}, sessions={"turns": 2}, max_tokens=4096)
    file = tmp_path / "workload.yaml"
    file.write_text(dump(config))
    assert load(WorkloadConfig, file) == config
    assert load(WorkloadConfig, file, {"preset": "azure-code"}).preset == "azure-code"


def test_short_form_can_be_changed_by_a_flag(tmp_path):
    file = tmp_path / "workload.yaml"
    file.write_text("arrivals: diurnal\n")
    assert load(WorkloadConfig, file, {"arrivals.period_s": "60"}).arrivals.period_s == 60


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"preset": "chat-2m"}, "chat-1m"),
        ({"rate": -1}, "rate"),
        ({"rate": float("inf")}, "finite"),
        ({"arrivals": {"process": "gamma", "cv": float("nan")}}, "cv"),
        ({"arrivals": "batch", "rate": 2}, "no rate"),
        ({"arrivals": "trace"}, r"set trace\.file"),
        ({"arrivals": {"process": "gamma"}}, "cv"),
        ({"arrivals": {"process": "gama"}}, "'gamma'"),
        ({"arrivals": {"cv": 2}}, "process is missing"),
        ({"lengths": "zip"}, "'zipf'"),
        ({"arrivals": {"process": "piecewise", "pieces": [[5, 0]]}}, "above 0"),
        ({"lengths": {"distribution": "uniform", "prompt": [1, 2]}}, "either"),
        ({"lengths": {"distribution": "uniform", "prompt": [9, 2], "output": [1, 2]}}, "empty"),
        ({"lengths": {"distribution": "fixed", "prompt": 5, "output": 0}}, "output"),
        ({"preset": "chat-1m", "lengths": {"distribution": "fixed", "prompt": 5, "output": 5}}, "not used"),
        ({"classes": [{"name": "a", "share": 0}]}, "above 0"),
    ],
)
def test_mistakes_are_named(choices, message):
    with pytest.raises(GnomonError, match=message) as caught:
        workload(**choices)
    assert isinstance(caught.value, ConfigError | UnknownNameError)


LENGTHS = st.sampled_from(
    [
        None,
        {"distribution": "fixed", "prompt": 700, "output": 1},
        {"distribution": "uniform", "prompt": [1, 900], "output": [1, 300]},
        {"distribution": "zipf", "total": [2, 2000]},
    ]
)
ARRIVALS = st.sampled_from(
    ["poisson", "fixed_interval", "diurnal", "batch", {"process": "closed_loop", "concurrency": 3}]
)


@given(
    seed=st.integers(0, 2**40),
    num_requests=st.integers(1, 60),
    lengths=LENGTHS,
    arrivals=ARRIVALS,
    sessions=st.sampled_from([None, {"num_active": 2, "turns": 3, "shared_prefix_tokens": 40}]),
    max_tokens=st.sampled_from([None, 2, 500, 1500]),
    over_long=st.sampled_from(["reject", "truncate", "drop"]),
)
def test_requests_are_always_well_formed(seed, num_requests, lengths, arrivals, sessions, max_tokens, over_long):
    requests = generate(
        workload(
            num_requests=num_requests,
            lengths=lengths,
            arrivals=arrivals,
            sessions=sessions,
            max_tokens=max_tokens,
            over_long=over_long,
        ),
        seed,
    )
    count = len(requests)
    assert count == num_requests or over_long != "truncate"
    assert count + requests.num_rejected == num_requests or over_long == "drop"
    assert (requests.arrival_s[1:] >= requests.arrival_s[:-1]).all()
    assert (requests.prompt_tokens >= 1).all()
    assert (requests.output_tokens >= 1).all()
    assert max_tokens is None or (requests.total_tokens <= max_tokens).all()
    assert (requests.arrival_s.dtype, requests.prompt_tokens.dtype, requests.prefix_hashes.dtype) == (
        np.float64, np.int32, np.int64,
    )  # fmt: skip
    assert len(requests.prefix_offsets) == count + 1
    assert requests.prefix_offsets[-1] == len(requests.prefix_hashes)
    blocks = np.diff(requests.prefix_offsets)
    assert (blocks >= 0).all()
    assert (blocks * requests.prefix_block_tokens < requests.total_tokens + requests.prefix_block_tokens).all()
    for name in ("output_tokens", "session", "priority"):
        assert len(getattr(requests, name)) == count


def test_prefix_hits_by_cache_size_by_hand(monkeypatch):
    """Blocks 1 2, then 3 4 5, then 1 2 again: four others were used since; a cache of five blocks finds both."""
    from gnomon.workload import describe

    requests = Requests(
        arrival_s=np.arange(3.0),
        prompt_tokens=np.array([32, 48, 40], np.int32),
        output_tokens=np.ones(3, np.int32),
        prefix_offsets=np.array([0, 2, 5, 7]),
        prefix_hashes=np.array([1, 2, 3, 4, 5, 1, 2]),
        prefix_block_tokens=16,
    )
    monkeypatch.setattr(describe, "CACHE_TOKENS", (48, 79, 80, 1000))
    found = describe.describe(requests)["prefix_hits_by_cache"]
    assert [row["cache_tokens"] for row in found] == [48, 79, 80]
    assert [row["hit_rate"] for row in found] == [0.0, 0.0, 32 / 120]


def test_prefix_hits_of_a_sample_are_those_of_all(monkeypatch):
    from gnomon.workload import describe

    config = WorkloadConfig(num_requests=800, sessions={"num_active": 50, "turns": 4, "shared_prefix_tokens": 64})
    requests = generate(config, 0)
    all_of_them = describe.hits_by_cache_size(requests)
    monkeypatch.setattr(describe, "MOST_BLOCKS", len(requests.prefix_hashes) // 5)
    sample = describe.hits_by_cache_size(requests)
    assert all_of_them[-1]["hit_rate"] == pytest.approx(describe._reusable_prefix_share(requests))
    for one, other in zip(all_of_them, sample, strict=False):
        assert one["hit_rate"] == pytest.approx(other["hit_rate"], abs=0.05)


def test_turns_and_waits_are_told():
    from gnomon.workload.describe import describe

    config = WorkloadConfig(num_requests=400, agents={"calls": 4, "tool_s": 1.5})
    summary = describe(generate(config, 0))
    assert summary["turns"] == 4 and summary["wait_s"] == pytest.approx(1.5, rel=0.2)
    tools = {row[""]: row for row in summary["percentiles"]}["tool or user (s)"]
    assert tools["mean"] == summary["wait_s"] and tools["p50"] < tools["mean"] < tools["p99"]
    assert describe(generate(WorkloadConfig(num_requests=40), 0))["turns"] is None


def test_normal_lengths_stay_within_their_bounds():
    config = {"distribution": "normal", "prompt": [100, 30, 60, 140], "output": [10, 0, 10, 10]}
    drawn = generate(WorkloadConfig(num_requests=4000, lengths=config), 0)
    assert drawn.prompt_tokens.min() == 60 and drawn.prompt_tokens.max() == 140
    assert abs(drawn.prompt_tokens.mean() - 100) < 1.5 and set(drawn.output_tokens) == {10}
    with pytest.raises(ConfigError, match="is empty"):
        build(WorkloadConfig, {"lengths": config | {"output": [10, 1, 20, 5]}})


TWO_KINDS = [
    {"name": "long", "lengths": {"distribution": "fixed", "prompt": 900, "output": 10}},
    {"name": "short", "lengths": {"distribution": "fixed", "prompt": 90, "output": 100}},
]


def test_stages_have_the_class_that_is_named():
    arrivals = {"process": "stages", "stages": [[4, 5], [2, 5], [1, 5]], "classes": ["short", "long", "short"]}
    requests = generate(workload(arrivals=arrivals, classes=TWO_KINDS), 0)
    assert requests.user_class.tolist() == [1] * 20 + [0] * 10 + [1] * 5
    assert requests.prompt_tokens.tolist() == [90] * 20 + [900] * 10 + [90] * 5


@pytest.mark.parametrize("named", [["long"], ["long", "other"], ["long", "short", "short"]])
def test_stages_name_a_class_each(named):
    arrivals = {"process": "stages", "stages": [[4, 5], [2, 5]], "classes": named}
    with pytest.raises(GnomonError, match=r"give one of the classes \(long, short\) for each stage"):
        workload(arrivals=arrivals, classes=TWO_KINDS)
