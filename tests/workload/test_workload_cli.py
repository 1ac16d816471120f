"""`gnomon workload`: show, export, presets, formats, fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.workload import Requests, WorkloadConfig, generate, presets
from gnomon.workload.describe import describe, histogram
from gnomon.workload.formats import FORMATS
from gnomon.workload.lengths import Z90
from gnomon.workload.presets import NORMAL, Knots, fit, ks_distance, marginal, preset_yaml, quality
from gnomon.workload.traces import read_requests
from gnomon.workload.written import export

ARRAYS = ("arrival_s", "prompt_tokens", "output_tokens", "session", "priority", "prefix_offsets", "prefix_hashes",
          "adapter", "parent_offsets", "parents", "think_s")  # fmt: skip


def same(one: Requests, other: Requests) -> bool:
    return one.prefix_block_tokens == other.prefix_block_tokens and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "choices",
    [{}, {"sessions": {"shared_prefix_tokens": 40, "num_active": 5}}, {"adapters": {}}, {"agents": {}},
     {"classes": [{"name": "a"}, {"name": "b", "share": 2, "priority": 1}]}],
)  # fmt: skip
def test_exported_requests_read_back_equal_and_repeat_to_the_byte(tmp_path, suffix, choices):
    requests = generate(build(WorkloadConfig, {"num_requests": 300, **choices}), 4)
    first = export(requests, tmp_path / f"a.{suffix}")
    second = export(generate(build(WorkloadConfig, {"num_requests": 300, **choices}), 4), tmp_path / f"b.{suffix}")
    assert first.read_bytes() == second.read_bytes()
    assert same(generate(build(WorkloadConfig, {"trace": str(first)}), 0), requests)


def test_export_refuses_other_formats(tmp_path):
    requests = generate(build(WorkloadConfig, {"num_requests": 3}), 0)
    with pytest.raises(ConfigError, match=r"csv or \.parquet"):
        export(requests, tmp_path / "requests.txt")


def test_export_command(cli, tmp_path):
    out = tmp_path / "requests.csv"
    flags = ("--workload.preset", "arxiv-4k", "--workload.num-requests", "50", "--seed", "3", "--out", str(out))
    assert "Wrote 50 requests" in cli("workload", "export", *flags).output
    assert out.read_text().splitlines()[0] == "arrival_s,prompt_tokens,output_tokens"
    loop = ("--workload.arrivals.process", "closed_loop", "--workload.arrivals.concurrency", "4")
    assert "server decides" in cli("workload", "export", *loop, "--out", str(out)).output
    assert out.read_text().splitlines()[0] == "prompt_tokens,output_tokens"


def test_show_reads_the_workload_of_a_scenario(cli, tmp_path):
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("model: llama-3-8b\nseed: 2\nworkload: {preset: azure-code, rate: 4, num_requests: 2000}\n")
    page = tmp_path / "page.html"
    shown = json.loads(cli("workload", "show", str(scenario), "--json", "--html", str(page)).output)
    assert shown["num_requests"] == 2000
    assert shown["requests_per_s"] == pytest.approx(4, rel=0.1)
    assert sum(count for _, _, count in shown["histograms"]["prompt tokens"]) == 2000
    assert "azure-code" in page.read_text()
    table = cli("workload", "show", str(scenario), "--workload.rate", "8").output
    assert "prompt tokens" in table
    assert "█" in table


def test_show_says_what_was_rejected(cli):
    output = cli("workload", "show", "--workload.max-tokens", "512", "--workload.num-requests", "500").output
    assert "longer than 512 tokens: rejected" in output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--workload.preset", "chat"), "chat-1m"),
        (("--workload.rate", "fast"), "workload.rate"),
        (("--workload.trace.file", "nowhere.csv"), "no such file"),
        (("--seed", "-1"), "seed"),
    ],
)
def test_mistakes_end_with_code_2(cli, flags, message):
    assert message in cli("workload", "show", *flags, code=2).output


def test_presets_and_formats_are_listed(cli):
    rows = json.loads(cli("workload", "presets", "--json").output)
    assert {row["preset"] for row in rows} == {"chat-1m", "arxiv-4k", "bwb-4k", "azure-conv", "azure-code"}
    assert {row["format"] for row in json.loads(cli("workload", "formats", "--json").output)} == set(FORMATS)


def test_description_of_batches_loops_and_prefixes():
    batch = describe(generate(build(WorkloadConfig, {"num_requests": 10, "arrivals": "batch"}), 0))
    assert batch["requests_per_s"] is None
    # Turns of 20 + 12 tokens in blocks of 8: prompts of 20, 52, 84 tokens; of their blocks, those of the 32 and 64
    # tokens that prompts and answers had before repeat: 4 and 8.
    lengths = {"distribution": "fixed", "prompt": 20, "output": 12}
    sessions = {"num_active": 1, "turns": 3, "block_tokens": 8}
    shown = describe(generate(build(WorkloadConfig, {"num_requests": 3, "lengths": lengths, "sessions": sessions}), 0))
    assert shown["num_sessions"] == 1
    assert shown["reusable_prefix_share"] == pytest.approx((4 + 8) * 8 / (20 + 52 + 84))


def test_histogram_counts_everything():
    assert sum(c for _, _, c in histogram(np.array([1, 10, 100, 1000]))) == 4
    assert histogram(np.array([5, 5])) == [(5.0, 5.0, 2)]


def test_fitted_preset_follows_the_trace(cli, tmp_path):
    random = np.random.default_rng(0)
    prompt = np.maximum(1, random.gamma(2.0, 300, 20_000)).astype(np.int32)
    output = np.maximum(1, 0.2 * prompt + random.gamma(2.0, 50, 20_000)).astype(np.int32)
    preset = fit(prompt, output, description="made up", source="a test")
    for row in quality(preset, prompt, output):
        if row["KS"] is not None:
            assert row["KS"] < 0.015
    file = tmp_path / "ours.yaml"
    file.write_text(preset_yaml(preset))
    requests = generate(build(WorkloadConfig, {"preset": str(file), "num_requests": 20_000}), 0)
    assert requests.prompt_tokens.mean() == pytest.approx(prompt.mean(), rel=0.02)
    assert np.corrcoef(requests.prompt_tokens, requests.output_tokens)[0, 1] == pytest.approx(
        np.corrcoef(prompt, output)[0, 1], abs=0.05
    )


def test_fit_command(cli, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n" + "".join(f"{100 + i},{i + 1}\n" for i in range(100)))
    rows = json.loads(cli("workload", "fit", str(trace), "--out", str(tmp_path / "p.yaml"), "--json").output)
    assert [row["of"] for row in rows] == ["recorded", "preset"] * 2
    few = tmp_path / "few.csv"
    few.write_text("num_prefill_tokens,num_decode_tokens\n5,5\n")
    assert "too few" in cli("workload", "fit", str(few), "--out", str(tmp_path / "p.yaml"), code=2).output
    few.write_text("num_prefill_tokens,num_decode_tokens\n" + "5,5\n" * 30)
    cli("workload", "fit", str(few), "--out", str(tmp_path / "p.yaml"))
    assert "YAML" in cli("workload", "fit", str(trace), "--out", "p.json", code=2).output


def fit_published(mean: float, median: float, p90: float, longest: int) -> Knots:
    """A distribution with this mean, median and 90th percentile, no longer than `longest`.

    Log-normal between the median and the 90th percentile; the spread is multiplied by a factor below the median and
    divided by it above the 90th percentile, and the factor is the one that makes the mean right.
    """
    spread = np.log(p90 / median) / Z90
    scores = np.array([NORMAL.inv_cdf((k + 0.5) / 20_000) for k in range(20_000)])

    def knots(factor: float) -> Knots:
        lowest = max(-4.0, -np.log(median) / (spread * factor))
        highest = min(5.0, Z90 + np.log(longest / p90) / (spread / factor))
        ends = (
            (lowest, median * np.exp(lowest * spread * factor)),
            (highest, p90 * np.exp((highest - Z90) * spread / factor)),
        )
        return tuple((round(float(z), 4), round(float(x), 2)) for z, x in (ends[0], (0, median), (Z90, p90), ends[1]))

    low, high = 0.1, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        # The larger the factor, the smaller the mean.
        low, high = (middle, high) if marginal(knots(middle), scores).mean() > mean else (low, middle)
    return knots(low)


def test_published_presets_are_what_the_fit_gives():
    assert presets()["chat-1m"].prompt == fit_published(686, 417, 1678, longest=4095)
    assert presets()["chat-1m"].output == fit_published(197, 139, 484, longest=4095)
    assert presets()["bwb-4k"].prompt == fit_published(1067, 1037, 1453, longest=4095)
    assert presets()["bwb-4k"].output == fit_published(1612, 1601, 2149, longest=4095)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("azure-conv", "splitwise_conv.csv"),
        ("azure-code", "splitwise_code.csv"),
        ("arxiv-4k", "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"),
    ],
)
def test_fitted_presets_are_what_the_traces_give(reference, name, file):
    trace = read_requests(str(reference / "traces" / file))
    shipped = presets()[name]
    assert shipped == fit(
        trace.prompt_tokens, trace.output_tokens, description=shipped.description, source=shipped.source
    )
    requests = generate(build(WorkloadConfig, {"preset": name, "num_requests": 100_000}), 1)
    assert ks_distance(trace.prompt_tokens, requests.prompt_tokens) < 0.02
    assert ks_distance(trace.output_tokens, requests.output_tokens) < 0.02
