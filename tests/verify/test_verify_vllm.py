"""Recorded vLLM servers: reading them, simulating them, and saying how far off the simulation is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon import catalog
from gnomon.calibration.replay import Latencies
from gnomon.core.errors import ConfigError, DataError
from gnomon.verify.vllm import Comparison, compare, device_of, read_recording, scenario_of, shared_prefixes, write_page

META: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "engine_kwargs": {"tensor_parallel_size": 1, "max_num_seqs": 8, "max_num_batched_tokens": 512},
}
ROWS: list[dict[str, Any]] = [
    {"input_toks": 100, "output_toks": 5, "queued_ts": 7.5, "first_token_ts": 7.6, "last_token_ts": 7.8},
    {"input_toks": 40, "output_toks": 1, "queued_ts": 7.0, "first_token_ts": 7.25, "last_token_ts": 7.25},
]

Change = Callable[[dict[str, Any]], None]


def write_run(folder: Path, meta: Any = META, rows: Any = ROWS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(meta if isinstance(meta, str) else json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def derived(reference: Path, source: str, target: Path, change: Change, count: int = 60) -> Path:
    """A run directory like a recorded one, of another server; the stamps are no truth about that one."""
    folder = reference / "vllm" / "runs" / source
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()[:count]]
    return write_run(target, meta, rows)


def simulated(comparison: Comparison) -> dict[str, float]:
    return {error.metric: error.simulated for error in comparison.errors if error.statistic == "mean"}


# Reading.


def test_requests_are_in_order_of_queueing_from_zero(tmp_path: Path) -> None:
    recording = read_recording(write_run(tmp_path / "run"))
    assert recording.requests.arrival_s.tolist() == [0.0, 0.5]
    assert recording.requests.prompt_tokens.tolist() == [40, 100]
    assert recording.last_token_s == pytest.approx([0.25, 0.8])


def test_latencies_leave_out_tpot_of_single_tokens(tmp_path: Path) -> None:
    r = read_recording(write_run(tmp_path / "run"))
    found = Latencies.of(r.requests.arrival_s, r.first_token_s, r.last_token_s, r.requests.output_tokens)
    assert found.ttft == pytest.approx([0.25, 0.1])
    assert found.tpot == pytest.approx([0.05])
    assert found.e2e == pytest.approx([0.25, 0.3])


def test_resolved_options_win_over_given_ones(tmp_path: Path) -> None:
    meta = META | {
        "kv_cache": {"num_gpu_blocks": 100, "block_size": 32, "gpu_memory_utilization": 0.8},
        "resolved_config": {
            "scheduler_config": {"max_num_seqs": 64, "scheduler_reserve_full_isl": False},
            "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
        },
    }
    recording = read_recording(write_run(tmp_path / "rtx4090_x", meta))
    scenario = scenario_of(recording, catalog.model(recording.model), tmp_path, "rtx-4090")
    assert scenario.batching.max_sequences == 64
    assert scenario.batching.max_batch_tokens == 512
    assert scenario.batching.block_size == 32
    assert scenario.batching.options["reserve_full_prompt"] == 0
    assert scenario.replica.num_kv_blocks == 99, "one block is vLLM's null block"
    assert scenario.replica.memory_utilization == 0.8
    assert scenario.timing.graph_sizes == (1, 2, 4)


def test_graphs_are_captured_up_to_twice_the_largest_batch(tmp_path: Path) -> None:
    recording = read_recording(write_run(tmp_path / "run"))
    scenario = scenario_of(recording, catalog.model(recording.model), tmp_path, "rtx-4090")
    assert scenario.timing.graph_sizes == (1, 2, 4, 8, 16)


def test_equal_beginnings_of_prompts_share_hashes() -> None:
    offsets, hashes = shared_prefixes([[1, 2, 3, 4, 5], [1, 2, 9, 4], [], [3, 4, 1, 2]], block_size=2)
    assert offsets.tolist() == [0, 2, 4, 4, 6]
    first, second, third, fourth, fifth, sixth = hashes.tolist()
    assert first == third
    assert len({first, second, fourth, fifth, sixth}) == 5


@pytest.mark.parametrize(
    ("meta", "rows", "message"),
    [
        ("{", ROWS, "not valid JSON"),
        ({"engine_kwargs": {}}, ROWS, "does not name the model"),
        (META, [], "has no requests"),
        (META, [ROWS[0] | {"last_token_ts": None}], r"jsonl:1: last_token_ts is None.*unfinished"),
        (META, [ROWS[0] | {"output_toks": 0}], "output_toks is 0"),
        (META, [ROWS[0] | {"first_token_ts": 1.0}], "not in order"),
        (META, [ROWS[0] | {"prompt_token_ids": [1, 2]}], "prompt_token_ids"),
        (META | {"kv_cache": {"block_size": "x"}}, ROWS, "block_size is 'x'"),
    ],
)
def test_a_broken_run_is_named(tmp_path: Path, meta: Any, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_recording(write_run(tmp_path / "run", meta, rows))


def test_a_missing_folder_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such run directory"):
        read_recording(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"meta.json: no such file"):
        read_recording(tmp_path / "empty")


@pytest.mark.parametrize(("name", "value"), [("max_num_seqs", "many"), ("tensor_parallel_size", 0)])
def test_an_option_that_is_no_number_is_named(tmp_path: Path, name: str, value: Any) -> None:
    recording = read_recording(write_run(tmp_path / "run", META | {"engine_kwargs": {name: value}}))
    with pytest.raises(DataError, match=name):
        scenario_of(recording, catalog.model(recording.model), tmp_path, "rtx-4090")


# Which GPU.


def profiles_of(root: Path, *devices: str) -> Path:
    for device in devices:
        folder = root / device / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp1"
        folder.mkdir(parents=True)
        (folder / "dense.csv").write_text("layer,tokens,time_us\n")
    return root


def test_the_device_is_asked_for_recorded_named_or_the_only_one(tmp_path: Path) -> None:
    model = catalog.model(META["model"])
    both = profiles_of(tmp_path / "both", "RTX4090", "RTXPRO6000")
    named = read_recording(write_run(tmp_path / "rtxpro6000_llama"))
    said = read_recording(
        write_run(tmp_path / "rtxpro6000_y", META | {"hardware": {"device_name": "NVIDIA GeForce RTX 4090"}})
    )
    silent = read_recording(write_run(tmp_path / "run"))
    assert device_of(said, model, both, "RTXPRO6000") == "rtx-pro-6000"
    assert device_of(said, model, both, None) == "rtx-4090"
    assert device_of(named, model, both, None) == "rtx-pro-6000"
    assert device_of(silent, model, profiles_of(tmp_path / "one", "RTX4090"), None) == "rtx-4090"
    with pytest.raises(ConfigError, match=r"--device.*rtx-4090, rtx-pro-6000"):
        device_of(silent, model, both, None)


# Recorded servers.


@pytest.fixture(scope="module")
def tensor_parallel(reference: Path) -> Comparison:
    return compare(reference / "vllm" / "runs" / "rtxpro6000_qwen3-32b", reference / "vllm" / "profiles")


def test_two_gpus_without_kv_counts_are_within_tolerance(tensor_parallel: Comparison) -> None:
    """The run that the PCIe link was fitted to."""
    assert tensor_parallel.device == "rtx-pro-6000"
    assert tensor_parallel.beyond == []
    assert tensor_parallel.recording.peer_errors["e2e", "p99"] == pytest.approx(0.013)


def test_a_server_out_of_memory_is_close_in_the_mean(reference: Path) -> None:
    """Nothing was fitted to this run. Its requests shared prompt beginnings that were not recorded, which moves the
    quantiles further than the tolerances; see docs/vllm-validation.md."""
    found = compare(reference / "vllm" / "runs" / "rtx4090_llama-3.1-8b", reference / "vllm" / "profiles")
    means = {error.metric: error.relative for error in found.errors if error.statistic == "mean"}
    assert means["ttft"] == pytest.approx(0.0, abs=0.03)
    assert means["tpot"] == pytest.approx(0.0, abs=0.015)
    assert means["e2e"] == pytest.approx(0.0, abs=0.03)
    assert found.simulated.cluster.replicas.num_preemptions.sum() > 100


def test_the_page_shows_both_over_time(tensor_parallel: Comparison, tmp_path: Path) -> None:
    text = write_page([tensor_parallel], tmp_path / "page.html").read_text()
    assert text.count('"name":"simulated"') == text.count('"name":"recorded"') == 4
    assert "rtxpro6000_qwen3-32b" in text
    assert "<td class=l>TTFT</td>" in text and "<td class=l>throughput</td>" in text


def test_the_command_prints_errors_and_fails_beyond_tolerance(cli: Any, reference: Path) -> None:
    folder, profiles = reference / "vllm" / "runs" / "rtxpro6000_qwen3-32b", reference / "vllm" / "profiles"
    table = cli("verify", "vllm", str(folder), "--profiles", str(profiles)).output
    assert "peer" in table
    assert "0 pre-emptions" in table
    strict = cli(
        "verify", "vllm", str(folder), "--profiles", str(profiles), "--tolerance-e2e", "1e-9", "--json", code=1
    )
    found = json.loads(strict.stdout)["runs"][0]
    assert found["within"] is False
    assert len(found["errors"]) == 16


def test_the_command_names_a_broken_run(cli: Any, tmp_path: Path) -> None:
    assert "no such run directory" in cli("verify", "vllm", "nowhere", "--profiles", str(tmp_path), code=2).output


# Servers that nobody recorded: they must run, and more hardware must help.


def without_kv_counts(meta: dict[str, Any]) -> None:
    del meta["kv_cache"]
    meta["resolved_config"]["cache_config"]["num_gpu_blocks"] = None


def replicas(meta: dict[str, Any]) -> None:
    meta["resolved_config"]["parallel_config"]["data_parallel_size"] = 2
    meta["kv_cache"]["num_gpu_blocks"] *= 2  # vLLM reports the sum.


def mixture(**options: Any) -> Change:
    def change(meta: dict[str, Any]) -> None:
        meta["model"] = "Qwen/Qwen3-30B-A3B-Instruct-2507"
        meta["engine_kwargs"] |= {"tensor_parallel_size": 1} | options

    return change


def test_kv_blocks_are_planned_when_they_were_not_recorded(reference: Path, tmp_path: Path) -> None:
    run = derived(reference, "rtx4090_llama-3.1-8b", tmp_path / "run", without_kv_counts, count=20)
    found = compare(run, reference / "vllm" / "profiles")
    assert found.simulated.pools[0].num_kv_blocks == pytest.approx(2587, rel=0.02)


def test_replicas_of_a_dense_model_share_the_load(reference: Path, tmp_path: Path) -> None:
    profiles = reference / "vllm" / "profiles"
    one = compare(derived(reference, "rtx4090_llama-3.1-8b", tmp_path / "one", lambda meta: None), profiles)
    two = compare(derived(reference, "rtx4090_llama-3.1-8b", tmp_path / "two", replicas), profiles)
    served = two.simulated.cluster.replicas.num_finished
    assert two.simulated.pools[0].num_kv_blocks == one.simulated.pools[0].num_kv_blocks == 2587
    assert served.sum() == 60
    assert served.min() >= 25
    assert simulated(two)["e2e"] < 0.8 * simulated(one)["e2e"]


def test_experts_over_two_ranks_step_together_and_are_faster(reference: Path, tmp_path: Path) -> None:
    profiles, source = reference / "vllm" / "profiles", "rtxpro6000_qwen3-32b"
    found = {
        name: compare(derived(reference, source, tmp_path / f"rtxpro6000_{name}", mixture(**options)), profiles)
        for name, options in {
            "one": {},
            "spread": {"data_parallel_size": 2, "enable_expert_parallel": True},
            "sliced": {"tensor_parallel_size": 2},
            "whole": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
        }.items()
    }
    tpot = {name: simulated(one)["tpot"] for name, one in found.items()}
    steps = found["spread"].simulated.cluster.replicas.num_iterations
    assert steps[0] == steps[1]
    assert all(tpot["one"] / 2 < tpot[name] < tpot["one"] for name in ("spread", "sliced", "whole"))
    assert tpot["whole"] == pytest.approx(tpot["sliced"], rel=0.1)


def test_prompts_that_begin_alike_are_computed_once(reference: Path, tmp_path: Path) -> None:
    rows = [
        {"input_toks": 512, "output_toks": 4, "queued_ts": float(i), "first_token_ts": i + 0.5, "last_token_ts": i + 1}
        for i in range(3)
    ]
    shared = [row | {"prompt_token_ids": list(range(512))} for row in rows]
    profiles = reference / "vllm" / "profiles"
    apart = compare(write_run(tmp_path / "rtx4090_a", META, rows), profiles).simulated.cluster.requests
    alike = compare(write_run(tmp_path / "rtx4090_b", META, shared), profiles).simulated.cluster.requests
    assert apart.cached_tokens.tolist() == [0, 0, 0]
    assert alike.cached_tokens.tolist() == [0, 496, 496]
    assert np.all((alike.first_token_s - alike.arrival_s)[1:] < 0.6 * (apart.first_token_s - apart.arrival_s)[1:])
