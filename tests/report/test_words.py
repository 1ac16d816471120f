"""Mistakes that people make most, and what they are told."""

from __future__ import annotations

import json

import pytest

from gnomon import catalog
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.units import duration
from gnomon.report.serving.text import workload_words
from gnomon.search.config import SloTargets
from gnomon.serving.scenario import Scenario


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("1.5 h", 5400.0), ("20us", 2e-5), ("2min", 120.0), ("3s", 3.0), ("500", None), ("5 days", None)],
)
def test_durations_with_units(text, seconds):
    assert duration(text) == (pytest.approx(seconds) if seconds else None)


def test_seconds_may_be_given_with_a_unit():
    slo = build(Scenario, {"slo": {"ttft_s": "500ms", "tpot_s": "20 ms"}}).slo
    assert (slo.ttft_s, slo.tpot_s) == (0.5, 0.02)
    assert build(SloTargets, {"ttft_s": {"p99": "500ms", "mean": 1}}).ttft_s == {"p99": 0.5, "mean": 1}
    with pytest.raises(ConfigError, match=r"slo\.ttft_s: Input should be a valid number"):
        build(Scenario, {"slo": {"ttft_s": "soon"}})


def test_milliseconds_given_as_seconds_are_doubted():
    (doubt,) = build(Scenario, {"slo": {"ttft_s": 500, "tpot_s": 0.05}}).slo.doubts
    assert doubt == "slo.ttft_s is in seconds: 500 is 8.3 min. If milliseconds were meant, write 500ms."


def test_lengths_alone_are_fixed():
    lengths = build(Scenario, {"workload": {"lengths": {"prompt": 100, "output": 20}}}).workload.lengths
    assert (lengths.distribution, lengths.prompt, lengths.output) == ("fixed", 100, 20)
    with pytest.raises(ConfigError, match=r"workload\.lengths\.output: Field required"):
        build(Scenario, {"workload": {"lengths": {"prompt": 100}}})


def test_a_share_given_in_percent():
    with pytest.raises(ConfigError, match=r"90 % is 0\.9 \(given: 90\)"):
        build(Scenario, {"replica": {"memory_utilization": 90}})


def test_prompts_that_no_model_of_that_context_takes(cli):
    told = cli("simulate", "--workload.lengths.prompt", "200000", "--workload.lengths.output", "9", code=2).output
    assert "longer than 8,192 tokens" in told and "a model with a longer context" in told


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(ConfigError) as error:
        catalog.model("qwen3-9b")
    told = str(error.value)
    assert "Did you mean 'qwen3-8b'" in told and "gnomon catalog models" in told and len(told) < 250


def test_a_model_in_the_cache_of_hugging_face(tmp_path, monkeypatch):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 1000,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    }  # fmt: skip
    folder = tmp_path / "hub" / "models--Our--Own-3B" / "snapshots" / "0a1b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = catalog.model("Our/Own-3B")
    assert (found.name, found.hf_id, found.num_layers) == ("own-3b", "Our/Own-3B", 16)
    with pytest.raises(ConfigError, match="Hugging Face's cache"):
        catalog.model("Our/Other-3B")


def test_wrong_commands_and_missing_runs(cli, tmp_path):
    assert "Did you mean simulate?" in cli("simulat", code=2).output
    told = cli("explain", str(tmp_path / "demo"), code=2).output
    assert "Make one: gnomon simulate --out" in told


def test_whole_sessions_of_agents_are_said(cli):
    told = cli(
        "simulate", "--workload.agents.calls", "8", "--requests", "60", "--workload.lengths.prompt", "50",
        "--workload.lengths.output", "10", "--no-intervals", "--timing.source", "roofline",
    ).output  # fmt: skip
    assert "56 calls: 7 whole sessions of 8." in told


def test_a_version_without_a_name_is_that_of_the_usual_engine():
    chosen = build(Scenario, {"engine": {"version": "0.19.0"}}).engine
    assert chosen is not None and (chosen.name, chosen.version) == ("vllm", "0.19.0")
    with pytest.raises(UnknownNameError, match=r"unknown version of vllm '0\.5'"):
        build(Scenario, {"engine": {"version": "0.5"}})


def test_stages_with_the_lengths_of_a_trace_have_no_rate(tmp_path):
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,3\n")
    arrivals = {"process": "stages", "stages": [[2.0, 4.0]]}
    workload = {"trace": str(tmp_path / "trace.csv"), "lengths": "trace", "arrivals": arrivals}
    assert workload_words(build(Scenario, {"workload": workload})).endswith("of trace.csv, stages arrivals")
