"""A run in other tools' formats."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gnomon
from gnomon.calibration.request_files import from_aiperf, from_bench
from gnomon.core.errors import UnknownNameError
from gnomon.report.serving.exports import EXPORTS


@pytest.fixture(scope="module")
def run():
    return gnomon.simulate(rate=5, requests=40, seed=1, intervals=False)


def written(run, name, folder):
    (path,) = run.export(name, folder)
    assert [path.name] == list(EXPORTS[name])
    return path.read_text()


def test_llmd_report_is_valid(run, tmp_path, reference):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((reference / "formats" / "llmd_benchmark_report_0.2.1.schema.json").read_text())
    report = json.loads(written(run, "llmd-report", tmp_path))
    jsonschema.validate(report, schema)
    found = report["results"]["request_performance"]["aggregate"]
    ours = run.summary.latency
    assert found["latency"]["time_to_first_token"]["p99"] == pytest.approx(ours.ttft_s.p99)
    assert found["latency"]["inter_token_latency"]["mean"] == pytest.approx(ours.tbt_s.mean)
    assert found["latency"]["inter_token_latency"]["p99"] == pytest.approx(ours.tbt_s.p99)
    assert found["requests"]["total"] == 40
    report["results"]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema)


def keys(data, at=""):
    if not isinstance(data, dict):
        return {at}
    return {at}.union(*(keys(value, f"{at}.{key}") for key, value in data.items()))


def test_inference_perf_has_the_keys_of_its_sample(run, tmp_path, reference):
    sample = json.loads((reference / "formats" / "inference_perf_summary_lifecycle_metrics.json").read_text())
    found = json.loads(written(run, "inference-perf", tmp_path))
    assert keys(found) == keys(sample)
    assert found["successes"]["latency"]["request_latency"]["median"] == pytest.approx(run.summary.latency.e2e_s.p50)


@pytest.mark.parametrize("name", ["aiperf", "vllm-bench"])
def test_what_we_read_comes_back(run, tmp_path, name):
    text = written(run, name, tmp_path)
    if name == "aiperf":
        back = from_aiperf([json.loads(line) for line in text.splitlines()], "here")
    else:
        back = from_bench(json.loads(text), "here")
    q = run.run.cluster.requests
    start = q.arrival_s.min()
    np.testing.assert_allclose(back.requests.arrival_s, q.arrival_s - start, atol=1e-8)
    np.testing.assert_allclose(back.first_token_s, q.first_token_s - start, atol=1e-8)
    np.testing.assert_allclose(back.last_token_s, q.finished_s - start, atol=1e-8)
    assert (back.requests.prompt_tokens == q.prompt_tokens).all()
    assert (back.requests.output_tokens == q.output_tokens).all()


def test_aiperf_has_no_line_where_nothing_is_finished(tmp_path):
    one = gnomon.simulate(requests=1, time_limit_s=1e-6, intervals=False)
    assert written(one, "aiperf", tmp_path) == ""


def test_guidellm_says_milliseconds(run, tmp_path):
    found = json.loads(written(run, "guidellm", tmp_path))["benchmarks"][0]
    ttft = found["metrics"]["time_to_first_token_ms"]["successful"]
    assert ttft["percentiles"]["p99"] == pytest.approx(run.summary.latency.ttft_s.p99 * 1e3)
    assert set(ttft["percentiles"]) == {
        "p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999",
    }  # fmt: skip
    assert len(found["requests"]["successful"]) == 40


def test_an_unknown_format_is_refused(run, cli, tmp_path):
    with pytest.raises(UnknownNameError, match="aiperf"):
        run.export("aiprf", tmp_path)
    assert "there is no folder" in cli("simulate", "--export", "aiperf", code=2).output
