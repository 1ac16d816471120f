"""`gnomon calibrate`: readers of logs, known constants found again, what cannot be told, and the file it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration_kit import TABLE, TRUTH, recorded, recorded_folder, recorded_log, server, steps
from gnomon import simulate
from gnomon.api.serving import scenario
from gnomon.calibration import drift, naming, request_fit
from gnomon.calibration.calibrate import StepLogs, calibrate
from gnomon.calibration.gap import explain
from gnomon.calibration.kernels import Kernels, kernels_of
from gnomon.calibration.logs import Log, Stamps, Steps, load_of
from gnomon.calibration.read import read_log, read_logs
from gnomon.calibration.step_files import steps_from_columns
from gnomon.calibration.step_fit import Data, with_clock
from gnomon.core.config import build, load
from gnomon.core.errors import ConfigError, DataError
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Calibration, Constant, Provenance, read_calibration


def fitted(truth: dict[str, float], seed: int, noise: float = 0.1, batches: tuple[float, ...] = (6, 40)):
    rng = np.random.default_rng(seed)
    logs = [Log(f"load-{batch:g}", steps=steps(rng, 1500, batch, truth, noise)) for batch in batches]
    return calibrate(logs, server())


NAMES = {
    "timing.host.decode.per_iteration_s": TRUTH["decode"],
    "timing.host.decode.per_sequence_s": TRUTH["per_sequence"],
    "timing.host.mixed.per_iteration_s": TRUTH["mixed"],
    "timing.host.mixed.per_sequence_s": TRUTH["per_sequence"],
    "timing.host.mixed.launch_per_layer_s": TRUTH["launch"] / 32,
}


@pytest.mark.slow
def test_known_constants_lie_within_their_intervals() -> None:
    """90 % intervals: of 30 constants about three may lie outside, and none far."""
    inside, far = 0, 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        logs = [Log(f"load-{size}", steps=steps(rng, 1500, size, TRUTH, 0.1)) for size in (6, 40)]
        one = StepLogs(server(), logs, with_scale=False, with_clock=True).fit([log.name for log in logs])
        constants = naming.of_steps(one.fit, one.data, server(), one.states)[0]
        for name, value in NAMES.items():
            one = constants[name]
            inside += one.low <= value <= one.high
            far += not (one.value - 3 * (one.value - one.low) <= value <= one.value + 3 * (one.high - one.value))
    assert inside >= 0.8 * 6 * len(NAMES)
    assert far <= 1


def test_without_noise_the_constants_are_exact() -> None:
    constants = fitted(TRUTH, 1, noise=0.0).calibration.constants
    for name, value in NAMES.items():
        assert constants[name].value == pytest.approx(value, rel=0.02)
        assert constants[name].identified


def test_a_phase_that_was_not_seen_borrows_and_says_so() -> None:
    found = fitted(TRUTH, 2).calibration
    assert any("prefill: 0 iterations seen" in note for note in found.provenance.notes)
    same = [found.constants[f"timing.host.{phase}.per_iteration_s"].value for phase in ("prefill", "mixed")]
    assert same[0] == same[1]


def test_one_load_is_warned_about_and_equal_batches_have_no_slope() -> None:
    rng = np.random.default_rng(0)
    one = steps(rng, 400, 8, {**TRUTH, "launch": 0.0}, 0.05)
    decodes = one.take(one.chunks_squared == 0)
    equal = Steps(**{**vars(decodes), "sequences": np.full(len(decodes), 8), "decodes": np.full(len(decodes), 8)})
    notes = calibrate([Log("only", steps=equal)], server()).calibration.provenance.notes
    assert notes[0].startswith("Only one load was seen")
    assert any("a part per sequence cannot be identified" in note for note in notes)


def test_a_host_that_drifts_is_named() -> None:
    logs = [Log(name, steps=steps(np.random.default_rng(i), 600, size, TRUTH, 0.05)) for i, (name, size) in
            enumerate((("low", 10), ("high", 60)))]  # fmt: skip
    assert "timing.host.slow_share" not in calibrate(logs, server()).calibration.constants
    slow = np.arange(600) // 100 % 3 == 0
    for log in logs:
        assert log.steps is not None
        log.steps.seconds[slow & (log.steps.chunks_squared > 0)] *= 1.8
    found = calibrate(logs, server()).calibration
    assert found.constants["timing.host.slow_factor"].value == pytest.approx(1.8, rel=0.15)
    assert found.constants["timing.host.slow_share"].value == pytest.approx(1 / 3, abs=0.15)


@pytest.mark.parametrize("seed", range(2))
def test_one_slow_round_does_not_hide_what_is_bound_by_launching(seed: int) -> None:
    """In the last quarter of one load launches take five times as long."""
    rng = np.random.default_rng(seed)
    logs = [Log(f"load-{size}", steps=steps(rng, 1500, size, TRUTH, 0.1)) for size in (6, 40)]
    late = logs[1].steps
    assert late is not None
    late.seconds[(np.arange(1500) >= 1125) & (late.chunks_squared > 0)] += 4 * TRUTH["launch"]
    found = StepLogs(server(), logs, with_scale=False, with_clock=True).fit(["load-6", "load-40"]).fit.phases[2]
    assert found.launch + found.constant == pytest.approx(TRUTH["launch"] + TRUTH["mixed"], rel=0.06)
    assert found.launch > 0.5 * TRUTH["launch"]


def test_every_iteration_bound_by_launching_is_said() -> None:
    truth = {**TRUTH, "launch": 0.08}
    notes = fitted(truth, 3).calibration.provenance.notes
    assert any("known by their sum only" in note for note in notes)


def test_decodes_beyond_the_token_budget_are_timed() -> None:
    """60 decodes run together although the budget is 32 tokens: all tokens of an iteration but for decodes."""
    decodes, none = np.array([60]), np.zeros(1)
    log = Log(
        "x",
        steps=Steps(
            np.ones(1), decodes, decodes, none, none, decodes, np.array([6000.0]), np.array([100.0]), np.ones(1)
        ),
    )
    found = kernels_of(server(**{"batching.max_batch_tokens": 32}), [log])["x"]
    assert found.seconds() == pytest.approx(0.004 + 60 * 2e-5 + 6000 * 1e-8)
    with pytest.raises(ConfigError, match="of 60 tokens and 60 sequences; the scenario allows 32 and 16"):
        kernels_of(server(**{"batching.max_batch_tokens": 32, "batching.max_sequences": 16}), [log])


def test_a_held_out_load_is_foretold() -> None:
    rng = np.random.default_rng(5)
    logs = [Log(f"load-{batch}", steps=steps(rng, 1500, batch, TRUTH, 0.1)) for batch in (5, 20, 45)]
    found = calibrate(logs, server(), hold_out=["load-20"])
    by_name = {one.name: one for one in found.checks}
    assert not by_name["load-20"].is_fitted and abs(by_name["load-20"].step_error) < 0.02
    assert [one.fitted for one in found.calibration.provenance.loads] == [True, False, True]
    with pytest.raises(ConfigError, match="no log is called"):
        calibrate(logs, server(), hold_out=["load-99"])


def test_constants_of_requests_are_found_again() -> None:
    truth = {"per_iteration_s": 0.003, "per_sequence_s": 1e-4, "reply": 0.005}
    found = calibrate([recorded(rate, 4, **truth) for rate in (2.0, 8.0)], server()).calibration
    for name, value in truth.items():
        one = found.constants[f"timing.host.{name}" if name != "reply" else "front_end.reply_s"]
        assert one.low <= value <= one.high or not one.identified
    assert found.constants["timing.host.per_iteration_s"].identified
    assert "cannot be foretold" in found.provenance.notes[0] and not found.constants["front_end.reply_s"].identified
    assert any("do not tell phases apart" in note for note in found.provenance.notes)


def test_a_factor_on_kernels_stays_within_what_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server far faster than its kernels: the fit went to 0, which no scenario takes, and ended in a traceback."""
    monkeypatch.setattr(request_fit, "STARTS", (0.0,))
    stamps = recorded(2.0, 4, num_requests=80).stamps
    assert stamps is not None
    arrival_s = stamps.requests.arrival_s
    faster = [arrival_s + 0.05 * (one - arrival_s) for one in (stamps.first_token_s, stamps.last_token_s)]
    target = request_fit.target_of(Log("faster", stamps=Stamps(stamps.requests, *faster)))
    assert request_fit.fit_requests(server(), [target], with_scale=True).constants.scale == 0.7


def test_what_stays_is_told_by_a_held_out_load_of_requests() -> None:
    """The held-out server is slower than the one that was fitted: what the calibration says it leaves has it in."""
    logs = [recorded(2.0, 4, per_iteration_s=0.003), recorded(6.0, 4, per_iteration_s=0.003)]
    slower = recorded(8.0, 4, per_iteration_s=0.012)
    found = calibrate([*logs, slower], server(), hold_out=["rate-8"])
    (check,) = [one for one in found.checks if not one.is_fitted]
    assert check.predicted is not None and check.predicted < -0.05
    told = [one.predicted for one in found.checks]
    assert found.calibration.error >= np.sqrt(np.mean(np.square(told))) - 1e-3
    assert "cannot be foretold within 10%" in found.calibration.provenance.notes[0]


def test_a_slow_host_is_the_same_however_decodes_are_handled() -> None:
    """Steps in one loop stop at the end of a window; where members are recorded each is an iteration of its own."""
    chosen = server(**{"timing.host.per_iteration_s": 0.002, "timing.host.slow_share": 0.3,
                       "timing.host.slow_factor": 3.0, "timing.host.slow_spell_s": 1.0,
                       "workload.rate": 2.0, "workload.num_requests": 60})  # fmt: skip
    ways = [run(chosen, keep_members=members) for members in (0, 100_000)]
    both = [one.cluster.requests.last_token_s for one in ways]
    assert both[0] == pytest.approx(both[1], abs=1e-9)
    rows = ways[1].log.iterations[: ways[1].log.used[0]]
    alone = rows[(rows["prefill_tokens"] == 0) & (rows["decodes"] == 1)]
    seconds = np.round(alone["end_s"] - alone["start_s"] - 0.00402, 4)
    assert set(seconds.tolist()) == {0.002, 0.006}, "three times as long in a slow window"


def test_the_file_is_read_back_and_the_scenario_wins(tmp_path: Path, cli) -> None:
    for batch in (5, 40):
        one = steps(np.random.default_rng(batch), 800, batch, TRUTH, 0.0)
        rows = [
            {"duration_ms": 1e3 * one.seconds[i], "prefill_tokens": int(one.chunks_squared[i] ** 0.5),
             "decodes": int(one.decodes[i]), "decode_kv": one.decode_kv[i]}
            for i in range(len(one))
        ]  # fmt: skip
        (tmp_path / f"s{batch}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "server.yaml").write_text(json.dumps({
        "timing": {"source": "table", "table": TABLE["timing.table"]},
        "batching": {"max_batch_tokens": 2048, "max_sequences": 64},
        "workload": {"num_requests": 50},
    }))  # fmt: skip
    files = [str(tmp_path / f"s{batch}.jsonl") for batch in (5, 40)]
    out = tmp_path / "calibration.yaml"
    said = cli("calibrate", *files, "--scenario", str(tmp_path / "server.yaml"), "--out", str(out))
    assert "timing.host.decode.per_iteration_s" in said.stdout and "identified" in said.stdout
    read = read_calibration(out)
    chosen = scenario(tmp_path / "server.yaml", calibration=str(out))
    assert chosen.timing.host is not None
    assert chosen.timing.host.decode.per_iteration_s == read.constants["timing.host.decode.per_iteration_s"].value
    assert chosen.timing.host.decode.asynchronous is False
    own = scenario(tmp_path / "server.yaml", calibration=str(out), **{"timing.host.decode.per_iteration_s": 0.5})
    assert own.timing.host is not None and own.timing.host.decode.per_iteration_s == 0.5
    summary = simulate(chosen).summary
    assert summary.timing_error == pytest.approx(1.645 * read.error)
    assert summary.latency.tpot_s.mean > simulate(tmp_path / "server.yaml").summary.latency.tpot_s.mean
    data = json.loads(cli("calibrate", *files, "--scenario", str(tmp_path / "server.yaml"), "--json").stdout)
    assert data["format"] == "gnomon-calibration" and len(data["loads"]) == 2


def test_drawn_constants_follow_the_covariance() -> None:
    found = fitted(TRUTH, 7).calibration
    draws = np.array([
        list(found.drawn(np.random.default_rng(i).standard_normal(16)).values()) for i in range(400)
    ])  # fmt: skip
    spread = np.array(found.spread)
    assert draws.std(0) == pytest.approx(np.sqrt((spread**2).sum(1)), rel=0.25)
    assert (draws >= 0).all()


def test_rounds_are_compared_with_the_median_one() -> None:
    factors = {"a": 1.0, "b": 1.05, "c": 1.1, "d": 1.3, "e": 1.6}
    assert drift.slow_rounds(factors) == pytest.approx({"d": 1.3 / 1.1, "e": 1.6 / 1.1})


def test_who_waits_for_an_iteration() -> None:
    """A prompt of an engine that does not mix delays the three that decode; with columns, as they say."""
    rows = {"duration_ms": [5] * 8, "prefill_tokens": [0, 100] * 4, "decodes": [3, 0] * 4}
    assert steps_from_columns(rows, "x").felt[:4].tolist() == [3, 4, 3, 4]
    told = rows | {"running": [3, 9] * 4, "waiting": [0, 2] * 4}
    assert steps_from_columns(told, "x").felt[:4].tolist() == [3, 11, 3, 11]


# Formats

REQUESTS = [(0.0, 0.05, 1.05, 100, 11), (0.5, 0.58, 1.58, 200, 21)]


def bench(**more):
    return {
        "input_lens": [100, 200], "output_lens": [11, 21], "ttfts": [0.05, 0.08], "itls": [[0.1] * 10, [0.05] * 20],
        "errors": ["", ""], **more,
    }  # fmt: skip


FILES = {
    "requests.jsonl": "".join(
        json.dumps({"queued_ts": 7 + a, "first_token_ts": 7 + f, "last_token_ts": 7 + z, "input_toks": p,
                    "output_toks": o})
        + "\n"
        for a, f, z, p, o in REQUESTS
    ),
    "simulated.csv": "arrival_s,prompt_tokens,output_tokens,first_token_s,finished_s\n"
    + "".join(f"{a},{p},{o},{f},{z}\n" for a, f, z, p, o in REQUESTS),
    "vllm_bench.json": json.dumps(bench(start_times=[100.0, 100.5])),
    "aiperf.jsonl": "".join(
        json.dumps({
            "metadata": {"request_start_ns": int((3 + a) * 1e9), "benchmark_phase": "profiling"},
            "metrics": {
                "time_to_first_token": {"value": 1e3 * (f - a), "unit": "ms"},
                "request_latency": {"value": 1e3 * (z - a), "unit": "ms"},
                "input_sequence_length": {"value": p, "unit": "tokens"},
                "output_sequence_length": {"value": o, "unit": "tokens"},
            },
        })
        + "\n"
        for a, f, z, p, o in REQUESTS
    ),
    "genai_perf.json": json.dumps({"experiments": [{"requests": [
        {"timestamp": int(a * 1e9), "response_timestamps": [int(f * 1e9), int(z * 1e9)], "input_token_count": p,
         "output_token_count": o} for a, f, z, p, o in REQUESTS]}]}),
    "inference_perf.json": json.dumps([
        {"start_time": a, "end_time": z, "info": {"input_tokens": p, "output_tokens": o, "output_token_times": [f, z]},
         "error": None} for a, f, z, p, o in REQUESTS]),
    "inference_perf_new.json": json.dumps([
        {"start_time": a, "end_time": z, "error": None, "info": {
            "request_metrics": {"text": {"input_tokens": p}},
            "response_metrics": {"output_tokens": o, "output_token_times": [f, z]}}} for a, f, z, p, o in REQUESTS]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_of_clients_say_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    stamps = read_log(tmp_path / name).stamps
    assert stamps is not None
    assert stamps.requests.arrival_s == pytest.approx([0.0, 0.5], abs=1e-6)
    assert stamps.first_token_s == pytest.approx([0.05, 0.58], abs=1e-6)
    assert stamps.last_token_s == pytest.approx([1.05, 1.58], abs=1e-6)
    assert stamps.requests.prompt_tokens.tolist() == [100, 200] and stamps.requests.output_tokens.tolist() == [11, 21]


VLLM_BENCH = {
    "date": "20260102-030405", "endpoint_type": "openai", "backend": "openai", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B", "tokenizer_id": "meta-llama/Llama-3.1-8B", "num_prompts": 3,
    "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None, "duration": 1.6, "completed": 2, "failed": 1,
    "total_input_tokens": 300, "total_output_tokens": 32, "request_throughput": 1.25, "request_goodput": None,
    "output_throughput": 20.0, "total_token_throughput": 207.5, "max_output_tokens_per_s": 22.0,
    "max_concurrent_requests": 2, "rtfx": 0.0,
    "input_lens": [100, 150, 200], "output_lens": [11, 0, 21], "ttfts": [0.05, 0.0, 0.08],
    "itls": [[0.1] * 10, [], [0.05] * 20], "start_times": [8123.25, 8123.5, 8123.75],
    "generated_texts": ["a", "", "b"], "errors": ["", "Service Unavailable", ""],
    "mean_ttft_ms": 65.0, "median_ttft_ms": 65.0, "std_ttft_ms": 15.0, "p99_ttft_ms": 79.7,
    "mean_tpot_ms": 75.0, "mean_itl_ms": 66.7,
}  # fmt: skip
"""The keys of a file of `vllm bench serve --save-result --save-detailed`; a failed request has but its prompt."""

SGLANG_BENCH = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 1,
    "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 1024, "random_range_ratio": 0.0,
    "server_info": {"tp_size": 8}, "duration": 2.2, "completed": 2, "total_input_tokens": 300,
    "total_output_tokens": 32, "total_output_tokens_retokenized": 32, "request_throughput": 0.9,
    "input_throughput": 136.0, "output_throughput": 14.5, "mean_e2e_latency_ms": 1065.0, "mean_ttft_ms": 65.0,
    "mean_tpot_ms": 75.0, "mean_itl_ms": 66.7, "concurrency": 0.97, "accept_length": None,
    "input_lens": [100, 200], "output_lens": [11, 21], "ttfts": [0.05, 0.08],
    "itls": [[0.1] * 10, [0.05] * 20], "generated_texts": ["a", "b"], "errors": ["", ""],
}  # fmt: skip
"""A line of a file of SGLang's bench_serving with `--output-details`: every run appends one, with Python's Infinity."""


def aiperf(start_ns: int, metrics: dict[str, Any], error: Any = None, cancelled: bool = False) -> str:
    """A line of AIPerf's profile_export.jsonl, as its documentation shows it."""
    about = {
        "session_num": 45, "x_request_id": "7609a2e7", "x_correlation_id": "32ee4f33", "conversation_id": "77aa5b0e",
        "turn_index": 0, "request_start_ns": start_ns, "request_ack_ns": start_ns + 1, "request_end_ns": start_ns + 2,
        "worker_id": "worker_359d423a", "record_processor_id": "record_processor_1fa47cd7",
        "benchmark_phase": "profiling", "was_cancelled": cancelled, "cancellation_time_ns": None,
    }  # fmt: skip
    return json.dumps({"metadata": about, "metrics": metrics, "error": error}) + "\n"


def aiperf_metrics(ttft_ms: float, latency_ms: float, prompt: int, output: int) -> dict[str, Any]:
    values = {
        "input_sequence_length": (prompt, "tokens"), "time_to_first_token": (ttft_ms, "ms"),
        "time_to_second_token": (4.9, "ms"), "request_latency": (latency_ms, "ms"),
        "output_token_count": (output, "tokens"), "inter_chunk_latency": ([4.9, 5.3], "ms"),
        "output_sequence_length": (output, "tokens"), "inter_token_latency": (5.2, "ms"),
        "output_token_throughput_per_user": (192.1, "tokens/sec/user"),
    }  # fmt: skip
    return {name: {"value": value, "unit": unit} for name, (value, unit) in values.items()}


START_NS = 1759813207532900363
CANCELLED = {"code": 499, "type": "RequestCancellationError", "message": "Request was cancelled after 0.000 seconds"}


def genai_perf(start_ns: int, ttft_ns: int, last_ns: int, prompt: int, output: int) -> dict[str, Any]:
    """A request of genai-perf's profile_export.json: first the role, then text, then counts, then the end."""

    def line(**message: Any) -> dict[str, str]:
        return {"response": "data: " + json.dumps({"id": "abc", "object": "chat.completion.chunk", **message}) + "\n\n"}

    outputs = [
        line(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]),
        line(choices=[{"index": 0, "delta": {"content": "dogs"}, "finish_reason": None}]),
        line(choices=[{"index": 0, "delta": {"content": " bark"}, "finish_reason": "stop"}]),
        line(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output}),
        {"response": "data: [DONE]\n\n"},
    ]  # fmt: skip
    times = [ttft_ns // 2, ttft_ns, last_ns, last_ns + 5_000_000, last_ns + 6_000_000]
    return {
        "timestamp": start_ns,
        "request_inputs": {"payload": '{"messages":[{"role":"user","content":"a"}],"model":"m","stream":true}'},
        "response_timestamps": [start_ns + one for one in times],
        "response_outputs": outputs,
    }


def lifecycle(start: float, first: float, last: float, prompt: int, output: int, error: Any = None) -> dict[str, Any]:
    """An entry of inference-perf's per_request_lifecycle_metrics.json; its own count of tokens is one short here."""
    response = {
        "output_tokens": output - 1, "server_usage": {"prompt_tokens": prompt, "completion_tokens": output},
        "response_chunks": ["a", "b"], "chunk_times": [first, last], "output_token_times": [first, last],
    }  # fmt: skip
    info = {
        "request_metrics": {"text": {"input_tokens": prompt}}, "response_metrics": None if error else response,
        "extra_info": {}, "lora_adapter": None, "graph_event_id": None, "labels": {}, "retries_attempted": 0,
        "retries_recovered": False, "input_tokens": prompt,
    }  # fmt: skip
    return {"start_time": start, "end_time": last, "request": "{}", "response": "{}", "info": info, "error": error}


WHOLE_FILES = {
    "vllm.json": json.dumps(VLLM_BENCH),
    "profile_export.jsonl": aiperf(START_NS, aiperf_metrics(50.0, 1050.0, 100, 11))
    + aiperf(START_NS + 100, {"error_isl": {"value": 550, "unit": "tokens"}}, CANCELLED, cancelled=True)
    + aiperf(START_NS + 500_000_000, aiperf_metrics(80.0, 1080.0, 200, 21)),
    "profile_export.json": json.dumps({
        "service_kind": "openai", "endpoint": "v1/chat/completions",
        "experiments": [{
            "experiment": {"mode": "request_rate", "value": 2.0},
            "requests": [genai_perf(START_NS, 50_000_000, 1_050_000_000, 100, 11),
                         genai_perf(START_NS + 500_000_000, 80_000_000, 1_080_000_000, 200, 21)],
            "window_boundaries": [START_NS, START_NS + 10**10],
        }],
        "version": "2.59.0",
    }),
    "per_request_lifecycle_metrics.json": json.dumps([
        lifecycle(41.5, 41.55, 42.55, 100, 11),
        lifecycle(41.6, 41.6, 41.6, 90, 5, {"error_type": "TimeoutError", "error_msg": "timed out"}),
        lifecycle(42.0, 42.08, 43.08, 200, 21),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_files_with_all_that_clients_write(name: str, tmp_path: Path) -> None:
    """Requests that failed are left out, counts are the server's, and text counts rather than messages."""
    (tmp_path / name).write_text(WHOLE_FILES[name])
    stamps = read_log(tmp_path / name).stamps
    assert stamps is not None
    assert stamps.requests.arrival_s == pytest.approx([0.0, 0.5], abs=1e-6)
    assert stamps.first_token_s == pytest.approx([0.05, 0.58], abs=1e-6)
    assert stamps.last_token_s == pytest.approx([1.05, 1.58], abs=1e-6)
    assert stamps.requests.prompt_tokens.tolist() == [100, 200] and stamps.requests.output_tokens.tolist() == [11, 21]


def test_of_several_runs_in_one_file_the_last_counts(tmp_path: Path) -> None:
    earlier = {**SGLANG_BENCH, "input_lens": [7, 7]}
    (tmp_path / "sglang.jsonl").write_text(json.dumps(earlier) + "\n" + json.dumps(SGLANG_BENCH) + "\n")
    stamps = read_log(tmp_path / "sglang.jsonl").stamps
    assert stamps is not None and stamps.closed_loop and stamps.requests.concurrency == 1
    assert stamps.requests.prompt_tokens.tolist() == [100, 200]
    assert (stamps.last_token_s - stamps.first_token_s) == pytest.approx([1.0, 1.0])


def test_a_benchmark_without_times_of_sending_is_a_closed_loop(tmp_path: Path) -> None:
    file = tmp_path / "sglang.jsonl"
    file.write_text(json.dumps(bench(max_concurrency=1)) + "\n")
    stamps = read_log(file).stamps
    assert stamps is not None and stamps.closed_loop and stamps.requests.concurrency == 1
    assert stamps.first_token_s == pytest.approx([0.05, 0.08])
    file.write_text(json.dumps(bench()) + "\n")
    with pytest.raises(DataError, match="when its requests were sent"):
        read_log(file)


def test_the_servers_own_log_of_iterations(tmp_path: Path) -> None:
    line = "INFO EngineCore: Iteration({}): 1 context requests, 512 context tokens, 7 generation requests, 7 generation tokens, iteration elapsed time: 12.50 ms, GPU KV cache usage: 3%\n"  # noqa: E501
    (tmp_path / "server.log").write_text("noise\n" + "".join(line.format(i) for i in range(9)))
    found = read_log(tmp_path / "server.log").steps
    assert found is not None and len(found) == 9 and not found.knows_kv
    assert found.seconds[0] == pytest.approx(0.0125) and found.tokens[0] == 519 and found.sequences[0] == 8


SCRAPE = """# HELP vllm:time_to_first_token_seconds x
vllm:time_to_first_token_seconds_count{{model_name="m"}} {count}
vllm:time_to_first_token_seconds_sum{{model_name="m"}} {ttft}
vllm:inter_token_latency_seconds_count{{model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_sum{{model_name="m"}} {itl}
vllm:prompt_tokens_total{{model_name="m"}} {prompt}
vllm:generation_tokens_total{{model_name="m"}} {tokens}
vllm:num_requests_running{{model_name="m"}} {running}
"""


def test_scrapes_give_means_between_the_first_and_the_last(tmp_path: Path) -> None:
    at = {"count": 10, "ttft": 1.0, "tokens": 1000, "itl": 20.0, "prompt": 5000, "running": 4}
    (tmp_path / "1.prom").write_text(SCRAPE.format(**at))
    later = SCRAPE.format(count=30, ttft=5.0, tokens=5000, itl=60.0, prompt=9000, running=8)
    (tmp_path / "2.prom").write_text(later)
    found = read_log(tmp_path).counters
    assert found is not None
    assert (found.ttft_s, found.tpot_s, found.running) == pytest.approx((0.2, 0.01, 6.0))
    assert (found.prompt_tokens, found.output_tokens) == pytest.approx((200.0, 200.0))
    since_start = read_log(tmp_path / "1.prom").counters
    assert since_start is not None and since_start.ttft_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{}", "not known"),
        ("[1, 2]", "holds no objects"),
        ('{"ttfts": [0.1]}', "not as expected"),
        ('{"duration_s": -1, "prefill_tokens": 1, "decodes": 1}', "negative"),
        ('{"duration_s": 1, "prefill_tokens": 1, "decodes": 1}', "8 are needed"),
        (
            '{"arrival_s": 1, "first_token_s": 0, "finished_s": 2, "prompt_tokens": 3, "output_tokens": 2}',
            "before it was",
        ),
    ],
)
def test_a_file_that_is_no_log_is_told(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(DataError, match=words):
        read_log(tmp_path / "log.jsonl")


def test_repeats_of_a_load() -> None:
    assert [load_of(name) for name in ("chat-60", "chat-60.2")] == ["chat-60", "chat-60"]


# Why a simulation differs


def test_the_cause_that_was_put_in_comes_first(tmp_path: Path, cli) -> None:
    run_ = recorded_folder(tmp_path / "slow-host", per_iteration_s=0.004)
    words = ["explain-gap", str(run_), "--scenario", str(run_ / "scenario.yaml")]
    found = json.loads(cli(*words, "--json").stdout)
    assert found["causes"][0]["name"].startswith("host time of decode")
    assert "+4.0" in found["causes"][0]["evidence"]
    assert found["latencies"]["tpot"]["mean"]["simulated"] < found["latencies"]["tpot"]["mean"]["recorded"]
    said = cli(*words, "--out", str(tmp_path / "gap"), "--timing.host.per-iteration-s", "0.004").output
    assert "No cause stands out" in said
    page = (tmp_path / "gap" / "gap.html").read_text()
    assert all(words in page for words in ("Both over time", "Iterations by shape", "Counts", "TTFT P99"))


KERNELS = {"timing.source": "roofline", "timing.table": None, "replica.num_kv_blocks": 4000,
           "workload.lengths": {"distribution": "lognormal", "prompt_median": 600, "prompt_p90": 1200,
                                "output_median": 60, "output_p90": 120},
           "workload.max_tokens": 2000, "workload.over_long": "truncate"}  # fmt: skip
WRONG = {
    "right": ({}, ""),
    "scheduler": ({"batching.policy": "vllm_v1"}, "scheduler: how prompts and decodes share iterations"),
    "cap": ({"batching.max_sequences": 6}, "batch cap"),
    "KV blocks": ({"replica.num_kv_blocks": 250}, "KV blocks"),
    "clock": ({"timing.clock": 0.5}, "clock in prefill iterations"),
    "sampling": ({"timing.host.decode.per_sequence_s": 1e-3}, "sampling, or host time by the sequence, in decode"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_of_five_wrong_scenarios_each_is_named_first(wrong: str) -> None:
    """A server that does not mix prompts and decodes, beside scenarios that are wrong in one thing each."""
    true = {**KERNELS, "batching.policy": "vllm", "timing.host.per_iteration_s": 0.001, "workload.rate": 14.0,
            "workload.num_requests": 120}  # fmt: skip
    given, first = WRONG[wrong]
    log = recorded_log("five", server(**true))
    causes = explain(server(**{**true, **given}), log).causes
    assert [one.name for one in causes][:1] == [] if not first else causes[0].name.startswith(first)


@pytest.mark.slow
@pytest.mark.filterwarnings("default:gnomon.serving")  # The policy file imports from where things were.
def test_wrong_scenarios_of_a_foreign_engine(reference: Path) -> None:
    """nano-vllm on an H200, at 65 % of its capacity: calibrated, then wrong in one thing each."""
    place = reference / "nano_vllm"
    logs = read_logs([place / "qwen3-8b" / f"qwen3-8b-chat-{name}" for name in ("25.3", "65.3", "65.4")])
    base = load(Scenario, place / "scenario" / "server8.yaml")
    right = calibrate(logs, base).scenario.model_dump(mode="json", exclude_unset=True)
    wrong = {
        "scheduler": ({"batching.policy": "vllm_v1", "batching.file": None, "batching.options": {}}, "scheduler"),
        "cap": ({"batching.options": {"max_num_seqs": 24}}, "batch cap"),
        "KV blocks": ({"replica.num_kv_blocks": 110}, "KV blocks"),
        "clock": ({"timing.clock": 0.5}, "clock in prefill"),
        "sampling": ({"timing.host.decode.per_sequence_s": 6e-5}, "sampling"),
    }
    for given, first in wrong.values():
        assert explain(scenario(build(Scenario, right), **given), logs[1]).causes[0].name.startswith(first)


def test_a_slow_front_end_is_told_from_slow_iterations(tmp_path: Path, cli) -> None:
    run_ = recorded_folder(tmp_path / "slow-front", reply=0.02)
    found = json.loads(cli("explain-gap", str(run_), "--scenario", str(run_ / "scenario.yaml"), "--json").stdout)
    assert [one["name"] for one in found["causes"]] == ["front end or queueing"]


def test_any_recorded_engine_is_verified(tmp_path: Path, cli) -> None:
    run_ = recorded_folder(tmp_path / "engine", per_iteration_s=0.002)
    assert "TPOT" in cli("verify", "engine", str(run_), code=1).output
    settings = json.loads((run_ / "scenario.yaml").read_text())
    settings["timing"]["host"] = {"per_iteration_s": 0.002}
    (run_ / "scenario.yaml").write_text(json.dumps(settings))
    rows = json.loads(cli("verify", "engine", str(run_), "--json").stdout)["runs"]
    assert max(abs(row["error"]) for row in rows) < 1e-6


def test_a_log_without_requests_cannot_be_explained(tmp_path: Path, cli) -> None:
    row = json.dumps({"duration_s": 0.01, "prefill_tokens": 0, "decodes": 4}) + "\n"
    (tmp_path / "steps.jsonl").write_text(row * 10)
    assert "no requests with their stamps" in cli("explain-gap", str(tmp_path / "steps.jsonl"), code=2).output


def test_repeats_as_files_and_steps_beside_requests(tmp_path: Path) -> None:
    row = {"duration_s": 0.01, "prefill_tokens": 0, "decodes": 4, "decode_kv": 400}
    text = "".join(json.dumps(row) + "\n" for _ in range(10))
    for name in ("chat-25.jsonl", "chat-25.2.jsonl", "a/steps.jsonl", "b/steps.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [log.name for log in read_logs([tmp_path / "chat-25.jsonl", tmp_path / "chat-25.2.jsonl"])] == [
        "chat-25", "chat-25.2"]  # fmt: skip
    assert [log.name for log in read_logs([tmp_path / d / "steps.jsonl" for d in "ab"])] == ["a", "b"]
    again = tmp_path / "a" / "chat-25.jsonl"
    again.write_text(text)
    both = read_logs([again, tmp_path / "chat-25.jsonl"])
    assert [log.name for log in both] == ["a/chat-25", f"{tmp_path.name}/chat-25"]
    assert read_log(tmp_path / "a").steps is not None, "a folder's steps.jsonl is read"


def test_files_that_do_not_hold_what_is_needed_say_what_is(tmp_path: Path) -> None:
    (tmp_path / "stage_0_lifecycle_metrics.json").write_text(json.dumps({"load_summary": {}, "successes": {}}))
    with pytest.raises(DataError, match="inference-perf's summary of a stage"):
        read_log(tmp_path / "stage_0_lifecycle_metrics.json")
    (tmp_path / "x.csv").write_text("iteration,took\n1,2\n")
    with pytest.raises(DataError, match=r"duration_s .*prefill_tokens and decodes"):
        read_log(tmp_path / "x.csv")


def test_nothing_impossible_is_drawn() -> None:
    """A share near one is as often above it as below: it stays one."""
    names = ("timing.host.decode.further_share", "timing.clock", "timing.host.per_sequence_s")
    constants = {name: Constant(value=0.99, low=0.5, high=1.0) for name in names}
    about = Provenance(gnomon="1", model="llama-3-8b", device="h200", source="table", loads=())
    known = Calibration(
        format="gnomon-calibration", constants=constants, names=names, spread=((1.0,),) * 3, provenance=about
    )
    assert list(known.drawn(np.array([5.0])).values()) == [1.0, 1.0, 5.99]
    assert list(known.drawn(np.array([-5.0])).values()) == [0.0, 0.0, 0.0]


def test_a_lower_clock_is_told_from_host_time_by_the_token() -> None:
    """Prompts mostly wait for launching; the few that do not are long, and take a fifth longer at this clock."""
    rng, logs = np.random.default_rng(3), []
    for name in ("low", "high"):
        one = steps(rng, 1500, 20, {**TRUTH, "launch": 0.0}, 0.0)
        prompts = one.chunks_squared > 0
        gpu = np.where(prompts, 2.4e-5 * one.tokens, 0.004)
        kernels = Kernels(np.where(prompts, 0.0, 0.004), np.where(prompts, gpu, 0.0), np.zeros(1500))
        taken = 0.002 + np.maximum(gpu * np.where(prompts, 1.2, 1.0), 0.025 * prompts)
        noisy = taken * np.exp(rng.normal(0.0, 0.03, len(taken)))
        logs.append((name, Steps(**{**vars(one), "seconds": noisy}), kernels))
    data = Data(
        [one for _, one, _ in logs], [one for *_, one in logs], [name for name, *_ in logs], [np.ones(1500)] * 2
    )
    forms, clock = with_clock(data, [(), (), ("launch", "token")], 1.0)
    assert clock == pytest.approx(1 / 1.2, abs=0.06) and "launch" in forms[2]
    full = Data(
        data.steps, [Kernels(one.memory, 1.2 * one.compute, one.after) for one in data.kernels], data.loads, data.paces
    )
    assert with_clock(full, [(), (), ("launch",)], 1.0)[1] == 1.0


def test_slow_rounds_are_left_out_where_their_load_has_others() -> None:
    rng = np.random.default_rng(4)
    logs = [Log(name, steps=steps(rng, 400, size, TRUTH, 0.03)) for name, size in
            (("low", 6), ("low.2", 6), ("low.3", 6), ("high", 40), ("high.2", 40))]  # fmt: skip
    for slow in ("low.3", "high.2"):
        [some] = [log.steps for log in logs if log.name == slow]
        assert some is not None
        some.seconds[:] *= 1.5
    found = calibrate(logs, server()).calibration.provenance
    assert [one.name for one in found.loads] == ["low", "low.2", "high"]
    assert any("low.3 (" in note and "were left out" in note for note in found.notes)
    kept = calibrate(logs, server(), leave_out_slow=False).calibration.provenance
    assert len(kept.loads) == 5 and any("part of the constants" in note for note in kept.notes)
    alone = calibrate(logs[:3] + logs[4:], server()).calibration.provenance
    assert [one.name for one in alone.loads] == ["low", "low.2", "high.2"], "high has no other round"
