"""The recorders beside the docs write what `gnomon verify` reads.

The programs that they record are not installed here: stand-ins have the attributes that the recorders look at.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace as Some

import pytest

from gnomon.convert import convert
from gnomon.verify.vidur import compare, read_run
from gnomon.verify.vllm import read_recording

FOLDER = Path(__file__).parents[2] / "examples" / "recorders"


def recorder(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_recorded_vllm_engine_is_read(tmp_path):
    pytest.importorskip("torch")
    vllm = recorder("record_vllm")
    load = vllm.drawn(rate=2.0, count=5, prompt=20, output=8, seed=3)
    assert load == vllm.drawn(2.0, 5, 20, 8, 3) and len(load) == 5
    lines = []
    for at_s, prompt, output in load:
        stamps = Some(queued_ts=100.0 + at_s, first_token_ts=100.5 + at_s, last_token_ts=101.0 + at_s)
        lines.append(vllm.line_of(prompt, Some(metrics=stamps, outputs=[Some(token_ids=[7] * output)])))
    cache = Some(block_size=16, enable_prefix_caching=True, num_gpu_blocks=900)
    config = Some(cache_config=cache, scheduler_config=Some(max_num_seqs=64, max_num_batched_tokens=2048))
    meta = vllm.meta_of("meta-llama/Llama-3.1-8B", {"max_num_seqs": 64}, config)
    vllm.write(tmp_path, meta, lines[::-1], [[100.0, 1, 0, 3.0, 20, 0]])
    found = read_recording(tmp_path)
    assert found.model == "meta-llama/Llama-3.1-8B" and found.whole("max_num_seqs", 1, "scheduler_config") == 64
    assert found.requests.prompt_tokens.tolist() == [len(prompt) for _, prompt, _ in load]
    assert found.requests.output_tokens.tolist() == [output for _, _, output in load]
    assert found.series is not None and found.series["running"].to_list() == [1]


def test_a_recorded_vidur_run_is_replayed(tmp_path):
    """One request of 3 prompt and 2 output tokens, in one batch of 1 s for its prompt and one of 0.5 s."""
    vidur = recorder("record_vidur")
    request = Some(
        id=0, num_prefill_tokens=3, num_decode_tokens=2, arrived_at=0.25, _scheduled_at=0.25,
        _prefill_completed_at=1.25, _completed_at=1.75, num_restarts=0,
    )  # fmt: skip
    found = vidur.Recorder([request])
    for number, (start, seconds, tokens, blocks) in enumerate([(0.25, 1.0, 3, 1), (1.25, 0.5, 1, 0)]):
        batch = Some(id=number, request_ids=[0], num_tokens=[tokens], scheduled_at=start, completed_at=start + seconds)
        found.stage_ended(Some(_batch=batch, _batch_stage=Some(execution_time=seconds)), None)
        scheduler = Some(get_replica_scheduler=lambda _, used=blocks: Some(_allocation_map={0: used}))
        found.batch_ended(Some(_batch=batch, _replica_id=0), scheduler)
    batching = {"batch_size_cap": 8, "block_size": 16, "watermark_blocks_fraction": 0.01, "chunk_size": 512}
    setup = {
        "model": "llama-2-7b", "device": "a100", "network": "a100_dgx", "tensor_parallel": 1, "pipeline_parallel": 1,
        "memory_margin_fraction": 0.1, "num_replicas": 1, "router": "round_robin", "num_kv_blocks": 100,
        "max_tokens": 4096, "scheduler": {**batching, "num_blocks": None, "name": "sarathi"},
    }  # fmt: skip
    found.write(tmp_path, setup)
    assert read_run(tmp_path).batches["stage_times_s"].to_list() == ["1.0", "0.5"]
    assert compare(tmp_path).agrees


def test_the_eight_runs_of_vidur_have_flags_that_vidur_knows(tmp_path):
    """The script is run with a stand-in for Python that writes its arguments down: every command converts."""
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\nshift\necho "$RECORD $*" >> commands\n')
    stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", FOLDER / "record_vidur_runs.sh"], cwd=tmp_path, env=environment, check=True, timeout=30)
    commands = (tmp_path / "commands").read_text().splitlines()
    policies = set()
    for line in commands:
        record, flags = line.split(" ", 1)
        assert record.startswith("runs/")
        converted = convert("vidur", f"python -m vidur.main {flags}")
        policies.add(converted.scenario.batching.policy)
    assert len(commands) == 8
    assert policies == {"faster_transformer", "orca", "lightllm", "vllm", "sarathi"}


@pytest.mark.parametrize(
    ("name", "first"),
    [("DualPipeV", "0F0,0F1,0F2,0F3"), ("ZBVZeroBubble", "0F0,0F1,0F2,0F3"), ("GPipe", "0F0,0F1,0F2,0F3")],
)
def test_schedules_of_pytorch_are_valid(tmp_path, cli, name, first):
    pytest.importorskip("torch")
    rows = recorder("pytorch_schedule").order_of(name, 4, 10)
    assert len(rows) == 4 and ",".join(rows[0]).startswith(first)
    path = tmp_path / "schedule.csv"
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    assert "all agree" in cli("verify", "pipeline", str(path)).output
    path.write_text("".join(",".join(row[1:]) + "\n" for row in rows))
    cli("verify", "pipeline", str(path), code=1)
