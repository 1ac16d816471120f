"""The run folder: every file is there, whole, says what the summary says, and runs again."""

from __future__ import annotations

import gzip
import itertools
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from gnomon.api.serving import simulate
from gnomon.report.perfetto import Lanes
from gnomon.report.serving.compare import warnings
from gnomon.report.serving.figures import distribution, levels, rates
from gnomon.report.serving.files import write_run
from gnomon.report.serving.text import policy_words, title, workload_words
from gnomon.report.serving.trace import write_trace
from serving_results import chat, one_server, pipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = pipeline()
    return result.save(tmp_path_factory.mktemp("runs") / "new" / "run", ("csv", "events", "operators"))


def test_all_files_are_there(folder: Path) -> None:
    names = ("requests", "iterations", "operators", "operators_over_time")
    tables = {f"{name}.{kind}" for name in names for kind in ("parquet", "csv")}
    others = {"scenario.yaml", "summary.json", "report.html", "trace.json.gz", "events.json"}
    assert {path.name for path in folder.iterdir()} == tables | others


def test_extras_only_on_request(tmp_path: Path) -> None:
    write_run(pipeline().run, pipeline().summary, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "scenario.yaml", "summary.json", "report.html", "trace.json.gz", "requests.parquet", "iterations.parquet",
    }  # fmt: skip


def test_the_scenario_runs_again_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = simulate(folder / "scenario.yaml").save(tmp_path)
    for name in ("summary.json", "requests.parquet", "iterations.parquet", "trace.json.gz", "scenario.yaml"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_scenario_says_what_was_left_to_custom(tmp_path: Path) -> None:
    text = (chat().save(tmp_path) / "scenario.yaml").read_text()
    assert "max_batch_tokens: 8192" in text
    assert "node: h100_hgx" in text


def test_the_summary_is_plain_json(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("intervals")["latency.ttft_s.p99"]["low"] > 0
    assert summary == json.loads(json.dumps(pipeline().summary.to_dict()))
    assert summary["latency"]["ttft_s"]["p99"] > summary["latency"]["ttft_s"]["p50"] > 0


def test_the_tables_hold_every_request_and_iteration(folder: Path) -> None:
    requests, iterations = (pl.read_parquet(folder / f"{name}.parquet") for name in ("requests", "iterations"))
    assert len(requests) == 400
    assert requests["status"].cast(pl.String).unique().to_list() == ["finished"]
    assert (requests["arrival_s"] <= requests["scheduled_s"]).all()
    assert (requests["scheduled_s"] < requests["first_token_s"]).all()
    assert len(iterations.filter(pl.col("stage") == 0)) == pipeline().summary.iterations.count
    assert iterations.filter(pl.col("stage") == 1)["replica"].unique().to_list() == [0]
    computed = iterations.filter(pl.col("stage") == 0)["tokens"].sum()
    assert computed == sum(replica.tokens for replica in pipeline().summary.replicas)
    assert pl.read_csv(folder / "requests.csv").columns == requests.columns


def test_what_did_not_happen_is_null() -> None:
    frame = one_server(12.0, 300, time_limit_s=10.0).requests
    status = pl.col("status").cast(pl.String)
    waiting = frame.filter(status == "waiting")
    assert len(waiting)
    for column in ("scheduled_s", "ttft_s", "e2e_s"):
        assert waiting[column].null_count() == len(waiting)
    assert frame.filter(status == "not_arrived")["replica"].null_count() > 0
    assert frame["tpot_s"].null_count() == len(frame), "one output token has no TPOT"


def test_the_trace_has_a_lane_per_replica_and_stage(folder: Path) -> None:
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    slow, requests = ({lane for lane in named if lane[0] in processes} for processes in ({3}, {4, 5, 6}))
    assert named - slow - requests == {(0, 0), (0, 1), (1, 0), (2, 0)} and len(slow) == 20 and requests
    waits = [e["args"] for e in events if e["pid"] == 3 and e["name"] == "decode"]
    assert all(args["decode_alone_ms"] > 0 for args in waits)
    slices = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in slices} == named
    assert len([e for e in slices if e["pid"] < 3]) == len(pipeline().iterations)
    assert {e["name"] for e in slices} <= {"waiting", "prefill", "decode", "mixed"}
    for lane in named:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == lane)
        assert all(end <= start + 0.01 for (_, end), (start, _) in itertools.pairwise(mine)), "they overlap"
    assert {e["name"] for e in events if e["ph"] == "C"} == {"KV blocks", "waiting requests"}
    assert trace["otherData"]["what"] == "every iteration"


def test_the_trace_has_every_requests_slices(folder: Path) -> None:
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    mine: dict[int, dict[str, Any]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] > 3:
            mine.setdefault(event["args"]["request"], {})[event["name"]] = event
    for row in pipeline().requests.iter_rows(named=True):
        found = mine[row["request"]]
        assert found["prefill"]["pid"] - 4 == row["replica"]
        assert ("decode" in found) == (row["output_tokens"] > 1)
        if "decode" in found:
            assert found["prefill"]["ts"] + found["prefill"]["dur"] == found["decode"]["ts"]
        first = min(event["ts"] for event in found.values())
        assert first == pytest.approx(1e6 * row["arrival_s"], abs=1)
        assert sum(event["dur"] for event in found.values()) == pytest.approx(1e6 * row["e2e_s"], abs=2)


def test_a_huge_trace_is_cut_and_says_so(tmp_path: Path) -> None:
    path = write_trace(pipeline().run, tmp_path / "trace.json", max_rows=100)
    trace = json.loads(path.read_text())
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] < 3]
    assert 0 < len(slices) <= 100
    assert f"{len(slices)} of {len(pipeline().iterations):,} rows" in trace["otherData"]["what"]


def test_the_report_needs_nothing_but_itself(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    own = page.replace(page[page.index("<script>") : page.index("</script>")], "")  # plotly.js itself
    assert "http://" not in own
    assert "https://" not in own
    assert "src=" not in own
    assert "@PLOTLY@" not in page
    for name in ("ttft", "tbt", "tpot", "e2e", "queue", "rates", "tokens", "kv", "batch_size"):
        assert f"<div id={name} class=plot>" in own
    assert "llama-3-8b on 2 x h100 (PP 2) + 2 replicas of a100-80gb" in own


def test_the_report_shows_what_the_summary_says(tmp_path: Path) -> None:
    from gnomon.core import units

    result = one_server(12.0, 1000)
    page = (result.save(tmp_path) / "report.html").read_text()
    p99 = result.summary.latency.ttft_s.p99
    assert p99 is not None
    assert f"P99 {units.seconds(p99)}" in page
    assert "class=warning>Saturated: " in page


def test_a_run_in_which_nothing_finished_has_a_report(tmp_path: Path) -> None:
    lengths = {"distribution": "fixed", "prompt": 1000, "output": 10}
    result = simulate(**{"replica.num_kv_blocks": 0, "workload": {"num_requests": 5, "lengths": lengths}})
    page = (result.save(tmp_path, ("operators", "events")) / "report.html").read_text()
    assert "nothing finished" in page
    events = json.loads((tmp_path / "events.json").read_text())
    assert {event["event"] for event in events} == {"arrival", "queued", "rejected"}


def test_events_are_in_order_and_complete(folder: Path) -> None:
    events = json.loads((folder / "events.json").read_text())
    times = [event["time_s"] for event in events]
    assert times == sorted(times)
    mine = [event["event"] for event in events if event["request"] == 17]
    assert mine == ["arrival", "queued", "scheduled", "chunk", "first_token", "finished"]
    assert sum(event["event"] != "chunk" for event in events) == 5 * 400


def test_operators_over_time_are_those_of_the_iterations_of_that_time(folder: Path) -> None:
    whole, parts = (pl.read_parquet(folder / f"{name}.parquet") for name in ("operators", "operators_over_time"))
    assert parts["start_s"].n_unique() == 20 and (parts["end_s"] > parts["start_s"]).all()
    key = ["kind", "iteration", "operator"]
    summed = parts.group_by(key).agg(pl.col("num_iterations").sum())
    both = whole.join(summed, on=key, suffix="_parts")
    assert len(both) == len(whole) and (both["num_iterations"] == both["num_iterations_parts"]).all()


def test_operator_times_add_up_to_an_iteration(folder: Path) -> None:
    """The mean decode of a replica takes about as long as its operators: they are the same model."""
    operators, iterations = (pl.read_parquet(folder / f"{name}.parquet") for name in ("operators", "iterations"))
    decode = operators.filter((pl.col("kind") == 1) & (pl.col("iteration") == "decode"))
    assert {"attention_decode"} <= set(decode["operator"]) or any("attention" in name for name in decode["operator"])
    rows = iterations.filter((pl.col("replica") > 0) & (pl.col("prefill_tokens") == 0))
    assert decode["num_iterations"][0] == len(rows)
    assert decode["seconds"].sum() == pytest.approx(rows["duration_s"].mean(), rel=0.05)


def test_distribution_functions_rise_to_one() -> None:
    frame = chat().requests
    curve = distribution(frame["ttft_s"].to_numpy())
    assert curve.y[-1] == 1.0
    assert (curve.x[1:] >= curve.x[:-1]).all()
    assert curve.x[-1] == frame["ttft_s"].max()


def test_time_series_count_every_token_and_request() -> None:
    result = chat()
    span = (result.requests["arrival_s"].min(), result.requests["finished_s"].max())
    series, full = rates(result.run, *span), levels(result.run, *span)
    width = series.middle_s[1] - series.middle_s[0]
    assert series.output_tokens_per_s.sum() * width == pytest.approx(result.requests["output_tokens"].sum())
    assert series.prompt_tokens_per_s.sum() * width == pytest.approx(result.requests["prompt_tokens"].sum())
    assert series.finished_per_s.sum() * width == pytest.approx(600)
    assert full.running[-1] == full.waiting[-1] == 0
    assert full.kv_max.max() <= result.summary.utilization.kv_peak


def test_a_scenario_in_words() -> None:
    scenario = pipeline().scenario
    assert title(scenario) == "llama-3-8b on 2 x h100 (PP 2) + 2 replicas of a100-80gb"
    assert policy_words(scenario) == "engine vllm, batching vllm_v1, routed by least_outstanding"
    assert workload_words(scenario) == "400 requests of chat-1m, poisson arrivals, 20 per second"


def test_weights_and_biases_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from gnomon.core.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="\\[wandb\\]"):
        chat().log_to_wandb("test")


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    where = chat().log_to_wandb("gnomon-test")
    assert str(tmp_path) in where
    assert list(tmp_path.rglob("*.wandb"))


def test_what_is_logged_is_every_number() -> None:
    from gnomon.report.serving.files import flat, series_rows

    figures = dict(flat(chat().summary.to_dict()))
    assert figures["latency.ttft_s.p99"] == chat().summary.latency.ttft_s.p99
    assert figures["utilization.mfu"] == chat().summary.utilization.mfu
    rows = series_rows(chat().run, chat().summary)
    assert set(rows[0]) >= {"time_s", "waiting", "running", "kv_mean", "output_tokens_per_s"}


def test_slices_of_one_lane_never_overlap(folder: Path) -> None:
    """Perfetto drops a slice that begins before its neighbour has ended."""
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert isinstance(event["ts"], int) and isinstance(event["dur"], int)
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len({lane for lane in lanes if lane[0] <= 3}) == 4 + 20  # Replicas' stages, and the slowest requests.
    for slices in lanes.values():
        slices.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(slices))


def test_notes_on_single_operators_are_one_line() -> None:
    from gnomon.report.serving.text import _most_important

    first = "Weights are in fp8, the checkpoint's own precision (timing.dtype: auto)."
    other = "roofline has these iterations take 0.77 times as long as silicon; the stated errors do not explain that."
    details = ["silicon: left out points.", "silicon has no latent_norm: taken from the roofline.",
               "silicon is extrapolated by the roofline's shape beyond its range: sampler."]  # fmt: skip
    assert _most_important([first, *details, other])[:2] == [first, other]
    assert _most_important([first, *details, other])[2].startswith("3 more on single operators")
    assert _most_important([first, details[0]]) == [first, details[0]]


def test_variants_that_warn_of_the_same_have_one_line() -> None:
    class Said:
        def __init__(self, *texts: str) -> None:
            self.warnings = texts

    many = {"a": Said("28 of 1,900 iterations (1.5%) are extrapolated."), "b": Said("Saturated."), "c": Said()}
    many |= {"d": Said("1,178 of 17,975 iterations (6.6%) are extrapolated.", "Saturated at 3 requests.")}
    assert warnings(many) == [  # type: ignore[arg-type]
        "d (and 1 more alike): 1,178 of 17,975 iterations (6.6%) are extrapolated.",
        "b: Saturated.",
        "d: Saturated at 3 requests.",
    ]


def test_lanes_of_a_trace_are_the_first_that_are_free() -> None:
    rng = np.random.default_rng(0)
    starts = np.sort(rng.integers(0, 40, 200)).astype(float)
    ends = starts + rng.integers(0, 9, 200)
    lanes, busy_until = Lanes(), [-1.0] * 200
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first = next(lane for lane, until in enumerate(busy_until) if until <= start)
        busy_until[first] = end
        assert lanes.take(start, end) == first
    assert lanes.count == sum(until >= 0 for until in busy_until)
