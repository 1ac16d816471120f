"""Runs under Vidur's names: time inside and between batches by hand, and the files that a user gets."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import gnomon
from gnomon.report.serving.exports import batch_metrics, chrome_trace, request_metrics
from gnomon.report.serving.operators import operator_frame
from gnomon.serving.run.simulate import run
from serving_kit import requests_of, scenario


@pytest.fixture(scope="module")
def paused():
    """A second per token, prefills first: the second prompt (4 to 7 s) comes between the first answer's tokens."""
    setup = scenario(
        timing={"source": "table", "table": {"per_token": 1.0}}, batching={"policy": "vllm", "max_batch_tokens": 64}
    )
    return run(setup, requests=requests_of([0.0, 1.0], [4, 3], [3, 1]), keep_members=100, explained=True)


def test_execution_is_inside_of_batches_and_preemption_between_them(paused):
    rows = pl.read_csv(io.StringIO(request_metrics(paused)))
    by_hand = {
        "request_e2e_time": [9.0, 6.0], "request_scheduling_delay": [0.0, 3.0], "request_execution_time": [6.0, 3.0],
        "request_model_execution_time": [6.0, 3.0], "request_preemption_time": [3.0, 0.0],
        "request_execution_plus_preemption_time": [9.0, 3.0], "prefill_e2e_time": [4.0, 6.0],
        "prefill_time_execution_plus_preemption_normalized": [1.0, 1.0], "request_e2e_time_normalized": [3.0, 6.0],
        "decode_time_execution_plus_preemption_normalized": [5 / 3, 0.0], "request_inter_arrival_delay": [0.0, 1.0],
        "request_num_tokens": [7, 4], "request_pd_ratio": [4 / 3, 3.0], "request_num_restarts": [0, 0],
    }  # fmt: skip
    for name, values in by_hand.items():
        assert rows[name].to_list() == pytest.approx(values), name


def test_batches_and_their_trace(paused):
    rows = pl.read_csv(io.StringIO(batch_metrics(paused)))
    assert rows["batch_execution_time"].to_list() == pytest.approx([4.0, 3.0, 1.0, 1.0])
    assert rows["batch_num_prefill_tokens"].to_list() == [4, 3, 0, 0]
    assert rows["batch_num_decode_tokens"].to_list() == [0, 0, 1, 1]
    events = json.loads(chrome_trace(paused))["traceEvents"]
    assert [(e["ts"], e["dur"], e["tid"], e["args"]["request_ids"]) for e in events] == [
        (0, 4_000_000, 0, [0]), (4_000_000, 3_000_000, 0, [1]), (7_000_000, 1_000_000, 0, [0]),
        (8_000_000, 1_000_000, 0, [0]),
    ]  # fmt: skip
    assert [e["args"]["num_decode_tokens"] for e in events] == [0, 0, 1, 1]


def test_the_export_runs_once_more_and_says_what_the_report_says(tmp_path: Path):
    result = gnomon.simulate(rate=20.0, requests=60, intervals=False)
    files = result.export("vidur", tmp_path)
    assert [file.name for file in files] == ["request_metrics.csv", "batch_metrics.csv", "chrome_trace.json"]
    rows = pl.read_csv(files[0])
    assert rows["prefill_e2e_time"].mean() == pytest.approx(result.summary.latency.ttft_s.mean)
    assert rows["request_scheduling_delay"].mean() == pytest.approx(result.summary.latency.scheduling_delay_s.mean)
    assert (rows["request_preemption_time"] < 0.5 * rows["request_execution_time"]).all()


def test_operators_vary_from_batch_to_batch():
    done = gnomon.simulate(rate=10.0, requests=40, intervals=False).run
    rows = operator_frame(done).filter(pl.col("iteration") == "decode")
    assert rows.height and (rows["p50_s"] <= rows["p90_s"]).all() and (rows["p90_s"] <= rows["max_s"]).all()
    attention = rows.filter(pl.col("operator").str.contains("attention"))
    assert (attention["max_s"] > attention["p50_s"]).any(), "contexts differ"
    log = done.log.iterations[: done.log.used[0]]
    assert np.unique(log["decode_kv"]).size > 1
