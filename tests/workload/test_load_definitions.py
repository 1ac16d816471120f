"""Load definitions of inference-perf and guidellm, and ServeGen's client pools, as workloads.

The files of inference-perf and guidellm are examples that the tools publish (examples/vllm/config-random.yml and
config-shared-prefix-multi-turn.yml; the scenario concurrent-8k-800-norm), shortened to what a load consists of. The
client pool is written by hand after ServeGen's description of its data; lines of its trace are as published.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from gnomon.convert.load_definitions import convert_load, guidellm, inference_perf
from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.workload import generate
from gnomon.workload.config import TraceConfig, WorkloadConfig
from gnomon.workload.traces import read_trace
from gnomon.workload.written import export

RANDOM = """
load:
  type: constant
  stages:
  - rate: 1
    duration: 30
api: completion
server:
  type: vllm
  model_name: HuggingFaceTB/SmolLM2-135M-Instruct
  base_url: http://0.0.0.0:8000
  ignore_eos: true
data:
  type: random
  input_distribution:
    min: 10
    max: 100
    mean: 50
    std: 10
    total_count: 100
  output_distribution:
    min: 10
    max: 100
    mean: 60
    std: 20
    total_count: 100
"""
MULTI_TURN = """
load:
  type: constant
  stages:
  - rate: 20
    duration: 5
data:
  type: shared_prefix
  shared_prefix:
    num_unique_system_prompts: 2
    num_users_per_system_prompt: 10
    system_prompt_len: 100
    question_len: 50
    output_len: 50
    enable_multi_turn_chat: true
"""
NORMAL = {
    "metadata": {"name": "concurrent-8k-800-norm"},
    "spec": {
        "backend": {"kind": "openai_http", "request_format": "/v1/chat/completions"},
        "profile": {"kind": "concurrent"},
        "data": [{"kind": "synthetic_text", "prompt_tokens": 8000, "prompt_tokens_stdev": 8500, "prompt_tokens_min": 50,
                  "prompt_tokens_max": 30000, "output_tokens": 800, "output_tokens_stdev": 1500,
                  "output_tokens_min": 20, "output_tokens_max": 8000}],
        "constraints": [{"kind": "max_duration", "seconds": 450}],
    },
    "benchmarks": [{"profile.streams": 1}, {"profile.streams": 50}],
}  # fmt: skip


def test_inference_perf_random():
    made = inference_perf(RANDOM, "config.yml")
    assert made.values["workload"] == {
        "rate": 1.0,
        "num_requests": 30,
        "arrivals": {"process": "poisson", "even": True},
        "lengths": {"distribution": "normal", "prompt": [50.0, 10.0, 10, 100], "output": [60.0, 20.0, 10, 100]},
    }
    assert made.values["engine"] == "vllm" and "SmolLM2" in made.notes[0]
    assert [key for key, _ in made.without] == ["api completion", "server.base_url http://0.0.0.0:8000",
                                                "server.ignore_eos True"]  # fmt: skip
    drawn = generate(made.scenario.workload, 0)
    assert len(drawn) == 30 and drawn.arrival_s[-1] <= 30.0
    assert drawn.prompt_tokens.min() >= 10 and drawn.prompt_tokens.max() <= 100


def test_inference_perf_stages_and_conversations():
    text = RANDOM.replace("    duration: 30\n", "    duration: 30\n  - rate: 3\n    duration: 10\n")
    workload = inference_perf(text, "config.yml").values["workload"]
    assert workload["rate"] == 60 / 40 and workload["num_requests"] == 60
    assert workload["arrivals"] == {"process": "piecewise", "pieces": [[30, 1], [10, 3]]}
    made = inference_perf(MULTI_TURN, "config.yml")
    assert made.values["workload"]["sessions"] == {
        "shared_prefix_tokens": 100, "num_shared_prefixes": 2, "num_active": 20, "turns": 5,
    }  # fmt: skip
    assert generate(made.scenario.workload, 0).prompt_tokens.min() == 150
    users = inference_perf(MULTI_TURN.replace("constant", "concurrent").replace("rate: 20", "concurrency_level: 4")
                           .replace("duration: 5", "num_requests: 40"), "config.yml")  # fmt: skip
    assert users.values["workload"]["arrivals"] == {"process": "closed_loop", "concurrency": 4}


def test_guidellm_scenario_and_command():
    made = guidellm(json.dumps(NORMAL), "scenario.json")
    assert made.values["workload"] == {
        "arrivals": {"process": "closed_loop", "concurrency": 1},
        "num_requests": 1000,
        "lengths": {
            "distribution": "normal",
            "prompt": [8000.0, 8500.0, 50, 30000],
            "output": [800.0, 1500.0, 20, 8000],
        },
    }
    assert "the first of 2 runs" in made.notes[0] and "1,000 are simulated" in made.notes[1]
    made = convert_load("guidellm", "guidellm run --profile kind=poisson,rate=2 "
                        "--constraint kind=max_duration,seconds=30 "
                        "--data kind=synthetic_text,prompt_tokens=256,output_tokens=128,prefix_tokens=64")  # fmt: skip
    assert made.values["workload"] == {
        "arrivals": {"process": "poisson"},
        "rate": 2,
        "num_requests": 60,
        "lengths": {"distribution": "normal", "prompt": [256.0, 0.0, 256, 256], "output": [128.0, 0.0, 128, 128]},
        "sessions": {"turns": 1, "shared_prefix_tokens": 64, "num_shared_prefixes": 1},
    }


@pytest.mark.parametrize(
    ("text", "read", "where", "what"),
    [
        (RANDOM.replace("rate: 1\n", "rate: fast\n"), inference_perf, "it:5", "must be a number"),
        (RANDOM.replace("type: random", "type: mock"), inference_perf, "it:14", "does not say how long"),
        (
            RANDOM.replace("stages:\n  - rate: 1\n    duration: 30\n", "stages: []\n"),
            inference_perf,
            "it:4",
            "must list",
        ),
        (RANDOM.replace("load:\n", "load\n"), inference_perf, "it:3", "mapping values"),
        ("[]", inference_perf, "it", "keys and values"),
        (json.dumps(NORMAL, indent=1).replace('"kind": "concurrent"', '"kind": "sweep"'), guidellm, "it:11", "several"),
        (json.dumps(NORMAL, indent=1).replace("8000,", "-1,", 1), guidellm, "it:16", "must be a number"),
        ("guidellm run --data prompt_tokens=1", guidellm, "it", "no --profile"),
    ],
)
def test_mistakes_are_named_with_their_line(text, read, where, what):
    with pytest.raises(GnomonError, match=what) as raised:
        read(text, "it")
    assert str(raised.value).startswith(f"{where}: ")


def test_gnomon_convert_writes_a_scenario(tmp_path, cli):
    (tmp_path / "config.yml").write_text(RANDOM)
    out = tmp_path / "scenario.yaml"
    asked = ("convert", "inference-perf", str(tmp_path / "config.yml"), "--model", "llama-3-8b", "--out", str(out))
    assert "options mapped" in cli(*asked).output
    assert json.loads(cli("workload", "show", str(out), "--json").output)["num_requests"] == 30


# ServeGen.

TRACE = "0,1.1666666666666667,0.9812997595412902,Gamma,1.0384763614345214,0.8245559198741792\n" \
        "600,0,0,,0,0\n" \
        "1200,0.64,1.0495706477216191,Weibull,1.0269980493187594,1.7057127973248827\n"  # fmt: skip
LENGTHS = {
    "0": {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": "{7: 1.0}"},
    "600": {"input_tokens": "{}", "output_tokens": "{}"},
    "1200": {"input_tokens": "{40: 1.0}", "output_tokens": "{1: 0.5, 3: 0.5}"},
}


@pytest.fixture
def pool(tmp_path):
    folder = tmp_path / "m-large"
    folder.mkdir()
    (folder / "chunk-0-trace.csv").write_text(TRACE)
    (folder / "chunk-0-dataset.json").write_text(json.dumps(LENGTHS))
    (folder / "chunk-12-trace.csv").write_text("0,2.0,1.0,Gamma,1.0,0.5\n600,2.0,1.0,Gamma,1.0,0.5\n")
    (folder / "chunk-12-dataset.json").write_text(json.dumps({"0": LENGTHS["1200"]}))
    return folder


def test_a_client_pool_is_drawn(pool):
    trace = read_trace(TraceConfig(file=str(pool)), seed=1)
    first = trace.prompt_tokens >= 100
    assert (trace.arrival_s[first] < 600).all() and (trace.output_tokens[first] == 7).all()
    assert 560 < first.sum() < 840  # 1.17 a second for 600 s, give or take 5 deviations.
    assert abs((trace.prompt_tokens[first] == 300).mean() - 0.75) < 0.1
    late = trace.arrival_s >= 1200
    assert 300 < late.sum() < 470 and set(trace.output_tokens[late]) == {1, 3}
    assert 2100 < (~first & ~late).sum() < 2700  # The other client, for two windows.
    assert (np.diff(trace.arrival_s) >= 0).all()
    again, other = (read_trace(TraceConfig(file=str(pool)), seed=seed) for seed in (1, 2))
    assert (again.arrival_s == trace.arrival_s).all() and len(other) != len(trace)
    back = read_trace(TraceConfig(file=str(export(trace, pool / "drawn.csv"))), seed=1)
    assert all(
        (getattr(back, one) == getattr(trace, one)).all() for one in ("arrival_s", "prompt_tokens", "output_tokens")
    )
    part = read_trace(TraceConfig(file=str(pool), start_s=1200, end_s=1300), seed=1)
    assert part.arrival_s.max() < 100 and set(part.prompt_tokens) == {40}


def test_a_client_pool_is_a_workload(pool, cli):
    shown = json.loads(cli("workload", "show", "--workload.trace.file", str(pool), "--json").output)
    assert "2 clients of m-large" in shown["notes"][0]


@pytest.mark.parametrize(
    ("file", "text", "where"),
    [
        ("chunk-0-trace.csv", TRACE + "1800,1,1,Gamma\n", "chunk-0-trace.csv:4: "),
        ("chunk-0-trace.csv", TRACE + "600,1,1,Gamma,1,1\n", "chunk-0-trace.csv:4: "),
        ("chunk-0-trace.csv", TRACE.replace("Weibull", "Cauchy"), "chunk-0-trace.csv:3: "),
        ("chunk-0-trace.csv", "", "chunk-0-trace.csv: "),
        ("chunk-0-dataset.json", '{\n"0": {', "chunk-0-dataset.json:2: "),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{1: 1.0}"}}', "chunk-0-dataset.json: "),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "open(1)", "output_tokens": "{}"}}', "chunk-0-dataset.json: "),
        ("chunk-12-trace.csv", "0,5000,1,Gamma,1,0.0002\n600,5000,1,Gamma,1,0.0002\n", "m-large: "),
    ],
)
def test_broken_client_pools(pool, file, text, where):
    (pool / file).write_text(text)
    with pytest.raises(GnomonError) as raised:
        read_trace(TraceConfig(file=str(pool)))
    assert where in str(raised.value)


BELLS = {"distribution": "normal", "prompt": [256.0, 40.0, 16, 600], "output": [128.0, 0.0, 128, 128]}
CHAT = {"turns": 3, "shared_prefix_tokens": 64, "num_shared_prefixes": 2, "num_active": 10}


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("guidellm", {"arrivals": "poisson", "rate": 2.5, "num_requests": 40, "lengths": BELLS}),
        ("guidellm", {"arrivals": "fixed_interval", "rate": 3.0, "num_requests": 40, "lengths": BELLS}),
        ("guidellm", {"arrivals": {"process": "closed_loop", "concurrency": 10}, "num_requests": 50, "lengths": BELLS,
                      "sessions": CHAT}),
        ("guidellm", {"arrivals": "batch", "num_requests": 50, "lengths": BELLS}),
        ("inference-perf", {"arrivals": "poisson", "rate": 2.5, "num_requests": 40, "lengths": BELLS}),
        ("inference-perf", {"arrivals": {"process": "poisson", "even": True}, "rate": 7.0, "num_requests": 33,
                            "lengths": {"distribution": "fixed", "prompt": 90, "output": 12}}),
        ("inference-perf", {"arrivals": {"process": "piecewise", "pieces": [[30, 1], [10, 3]]}, "rate": 1.5,
                            "num_requests": 60, "lengths": BELLS}),
        ("inference-perf", {"arrivals": {"process": "closed_loop", "concurrency": 4}, "num_requests": 30,
                            "lengths": BELLS, "sessions": CHAT}),
    ],
)  # fmt: skip
def test_a_load_reads_back_as_it_was_written(tool, given, cli, tmp_path):
    (tmp_path / "scenario.json").write_text(json.dumps({"workload": given}))
    cli("workload", "export", str(tmp_path / "scenario.json"), "--as", tool, "--out", str(tmp_path / "load.yaml"))
    back = build(WorkloadConfig, convert_load(tool, str(tmp_path / "load.yaml")).values["workload"])
    one, other = generate(build(WorkloadConfig, given), 3), generate(back, 3)
    assert (one.arrival_s == other.arrival_s).all() and (one.prefix_hashes == other.prefix_hashes).all()
    assert (one.prompt_tokens.mean(), one.output_tokens.mean()) == pytest.approx(
        (other.prompt_tokens.mean(), other.output_tokens.mean()), rel=0.1
    )


@pytest.mark.parametrize(
    ("tool", "given", "told"),
    [
        ("guidellm", {"lengths": {"distribution": "uniform", "prompt": [1, 5], "output": [1, 5]}}, "uniform"),
        ("guidellm", {"arrivals": {"process": "gamma", "cv": 2}, "rate": 2, "lengths": BELLS}, "rate and arrivals"),
        ("inference-perf", {"arrivals": "poisson", "rate": 2, "lengths": BELLS, "sessions": CHAT}, "sessions"),
        ("inference-perf", {"rate": 2, "lengths": BELLS, "prompt_scale": 2.0}, "prompt_scale"),
    ],
)  # fmt: skip
def test_what_a_load_definition_cannot_say_is_named(tool, given, told, cli, tmp_path):
    (tmp_path / "scenario.json").write_text(json.dumps({"workload": given}))
    words = ("workload", "export", str(tmp_path / "scenario.json"), "--as", tool, "--out", str(tmp_path / "load.yaml"))
    assert told in cli(*words, code=2).output
    assert not (tmp_path / "load.yaml").exists()
