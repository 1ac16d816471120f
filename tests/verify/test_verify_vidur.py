"""Recorded Vidur runs: replayed exactly, and told apart when they are not."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gnomon.core.errors import DataError
from gnomon.verify.vidur import TOLERANCE_S, compare

RUNS = (
    "cl34b_tp2_rr4_sarathi_conv_q12_realatt",
    "l2_70b_tp2pp2_sarathi_uniform_q1_realatt",
    "l2_7b_ft_uniform_q1",
    "l2_7b_lightllm_uniform_q2",
    "l2_7b_orca_uniform_q2",
    "l2_7b_sarathi_fixed_preempt_q8",
    "l2_7b_vllm_fixed_preempt_q8",
    "l3_8b_sarathi_readme_big",
)


@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs_replay_exactly(reference: Path, name: str) -> None:
    found = compare(reference / "vidur" / "runs" / name)
    assert found.first_difference is None
    assert found.largest_stamp_error_s <= TOLERANCE_S
    assert found.num_block_differences == 0 or name == "l2_7b_ft_uniform_q1"
    assert found.num_batches > 2000


SETUP = {
    "model": "meta-llama/Llama-2-7b-hf",
    "device": "a100",
    "network": "a100_pairwise_nvlink",
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "memory_margin_fraction": 0.1,
    "num_replicas": 1,
    "router": "round_robin",
    "scheduler": {
        "name": "vllm",
        "batch_size_cap": 8,
        "block_size": 16,
        "max_tokens_in_batch": 4096,
        "num_blocks": 100,
    },
    "num_kv_blocks": 100,
    "max_tokens": 2048,
}

REQUESTS = [
    ["request_id", "replica_id", "arrived_at_s", "prompt_tokens", "output_tokens", "first_scheduled_at_s",
     "first_token_at_s", "completed_at_s", "num_restarts"],
    [0, 0, 1.0, 32, 2, 1.0, 1.5, 2.0, 0],
    [1, 0, 1.2, 10, 1, 1.5, 1.75, 1.75, 0],
]  # fmt: skip

# The prompt of 0, then that of 1 (prefills first), then the second token of 0.
BATCHES = [
    ["batch_id", "replica_id", "scheduled_at_s", "completed_at_s", "request_ids", "num_tokens",
     "allocated_blocks_after", "stage_times_s"],
    [0, 0, 1.0, 1.5, "0", "32", 2, "0.5"],
    [1, 0, 1.5, 1.75, "1", "10", 2, "0.25"],
    [2, 0, 1.75, 2.0, "0", "1", 0, "0.25"],
]  # fmt: skip


def write_run(folder: Path, requests: list[list[Any]], batches: list[list[Any]], **setup: Any) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({**SETUP, **setup}))
    for name, rows in (("requests", requests), ("batches", batches)):
        with gzip.open(folder / f"{name}.csv.gz", "wt", newline="") as file:
            csv.writer(file).writerows(rows)
    return folder


def test_a_run_written_by_hand_agrees(tmp_path: Path, cli: Any) -> None:
    folder = write_run(tmp_path / "run", REQUESTS, BATCHES)
    assert compare(folder).agrees
    assert json.loads(cli("verify", "vidur", str(folder), "--json").output)["runs"][0]["num_batches"] == 3


def test_random_routing_is_taken_from_the_record(tmp_path: Path) -> None:
    requests = [REQUESTS[0], [0, 1, 1.0, 32, 2, 1.0, 1.5, 2.0, 0], [1, 0, 1.2, 10, 1, 1.2, 1.45, 1.45, 0]]
    batches = [
        BATCHES[0],
        [0, 1, 1.0, 1.5, "0", "32", 2, "0.5"],
        [1, 0, 1.2, 1.45, "1", "10", 0, "0.25"],
        [2, 1, 1.5, 2.0, "0", "1", 0, "0.5"],
    ]
    folder = write_run(tmp_path / "run", requests, batches, num_replicas=2, router="random")
    assert compare(folder).agrees


@pytest.mark.parametrize(
    ("row", "column", "value", "said"),
    [
        (2, 4, "0", r"batch 1 .* was \[0:10\], is \[1:10\]"),
        (3, 5, "2", r"batch 2 .* was \[0:2\], is \[0:1\]"),
    ],
)
def test_the_first_different_batch_is_named(
    tmp_path: Path, cli: Any, row: int, column: int, value: str, said: str
) -> None:
    batches = [list(r) for r in BATCHES]
    batches[row][column] = value
    folder = write_run(tmp_path / "run", REQUESTS, batches)
    assert re.search(said, compare(folder).first_difference or "")
    cli("verify", "vidur", str(folder), code=1)


def test_stamps_and_blocks_off_are_noticed(tmp_path: Path) -> None:
    requests = [list(r) for r in REQUESTS]
    requests[1][7] = 2.001
    late = compare(write_run(tmp_path / "late", requests, BATCHES))
    assert not late.agrees
    assert late.largest_stamp_error_s == pytest.approx(1e-3)
    batches = [list(r) for r in BATCHES]
    batches[1][6] = 3
    assert compare(write_run(tmp_path / "blocks", REQUESTS, batches)).num_block_differences == 1


def test_a_different_number_of_batches_is_noticed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", REQUESTS, BATCHES[:-1])
    assert "2 batches were recorded, 3 replayed" in (compare(folder).first_difference or "")


def test_bad_run_directories_are_explained(tmp_path: Path, cli: Any) -> None:
    cli("verify", "vidur", str(tmp_path / "nowhere"), code=2)
    folder = write_run(tmp_path / "run", REQUESTS, BATCHES)
    with pytest.raises(DataError, match="unknown router 'magic'"):
        compare(write_run(tmp_path / "router", REQUESTS, BATCHES, router="magic"))
    shutil.copy(folder / "requests.csv.gz", folder / "batches.csv.gz")
    with pytest.raises(DataError, match="lacks the columns batch_id"):
        compare(folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json:1"):
        compare(folder)
    (folder / "run.json").write_text("{}")
    with pytest.raises(DataError, match="lacks model"):
        compare(folder)
