from __future__ import annotations

import json
from pathlib import Path

import pytest

import gnomon
from conftest import CommandLine
from gnomon.api.posttrain import compare_policies

SMALL = str(Path(__file__).parents[2] / "examples" / "posttrain" / "small.yaml")


def test_run_writes_pictures_and_a_recording_that_replays(cli: CommandLine, tmp_path: Path) -> None:
    out = cli("posttrain", "run", SMALL, "--out", str(tmp_path), "--record").output
    assert "elastic on 8 GPUs" in out
    page = (tmp_path / "timeline.html").read_text()
    assert "Plotly.newPlot" in page and "mini-batch" in page and "https://cdn" not in page.split("<script>")[0]
    trace = json.loads((tmp_path / "timeline.perfetto.json").read_text())["traceEvents"]
    assert {event["ph"] for event in trace} == {"X", "M", "C"}
    recording = str(tmp_path / "decisions.jsonl")
    lines = cli("posttrain", "decide", "--policy", "elastic", "--check", recording).output.splitlines()
    assert len(lines) == len(Path(recording).read_text().splitlines())
    cli("posttrain", "decide", "--policy", "disaggregated", "--check", recording, code=1)
    again = cli("posttrain", "run", str(tmp_path / "config.yaml"), "--json")
    assert json.loads(again.output)["policy"] == "elastic"


def test_compare_prints_regret(cli: CommandLine) -> None:
    rows = json.loads(cli("posttrain", "compare", SMALL, "--num-steps", "1", "--json").output)["policies"]
    assert [row["policy"] for row in rows][-1] == "oracle" and rows[-1]["regret"] == 0.0
    assert all(row["regret"] >= 0 for row in rows)


@pytest.mark.slow
def test_a_plan_names_mode_split_and_flags(cli: CommandLine) -> None:
    found = json.loads(cli("posttrain", "plan", SMALL, "--json").output)
    rows = found["plans"]
    assert {row["mode"] for row in rows} == {"colocated", "disaggregated", "one step off", "asynchronous"}
    assert [row["samples/s"] for row in rows] == sorted((row["samples/s"] for row in rows), reverse=True)
    assert max(row["lag"] for row in rows) <= 1 and any("staleness_threshold" in flag for flag in found["verl"])
    synchronous = json.loads(cli("posttrain", "plan", SMALL, "--max-lag", "0", "--json").output)["plans"]
    assert {row["lag"] for row in synchronous} == {0}


def test_sweep_and_calibrate(cli: CommandLine, tmp_path: Path) -> None:
    rows = json.loads(
        cli("posttrain", "sweep", SMALL, "--nodes", "1,2", "--policies", "elastic", "--num-steps", "1", "--json").output
    )["sizes"]
    assert [row["GPUs"] for row in rows] == [8, 16]
    file = tmp_path / "calibrated.yaml"
    found = cli("posttrain", "calibrate", SMALL, "--actor-s", "30", "--num-steps", "1", "--out", str(file), "--json")
    actor = json.loads(found.output)["components"][-1]
    assert actor["simulated s"] == pytest.approx(30, rel=1e-3)
    assert "efficiency" in file.read_text()


def test_verify_says_what_is_a_gate(cli: CommandLine) -> None:
    rows = json.loads(cli("verify", "posttrain", "--only", "E", "--json").output)["checks"]
    assert [row["ours"] for row in rows[:3]] == [32, 80, 16] and all(row["ok"] for row in rows[:3])
    cli("verify", "posttrain", "--only", "X", code=2)


@pytest.mark.slow
def test_published_stage_seconds_at_unseen_scales(cli: CommandLine) -> None:
    rows = json.loads(cli("verify", "posttrain", "--only", "B", "--json").output)["checks"]
    gates = [row for row in rows if row["source"] == "B" and row["role"] == "gate"]
    assert len(gates) == 6 and all(abs(row["error"]) <= 0.10 for row in gates)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "nowhere.yaml"),
        ("run", SMALL, "--algorithm.n-minibatches", "5"),
        ("run", SMALL, "--policy", "elastc"),
        ("plan", SMALL, "--max-lag", "-1"),
        ("run", SMALL, "--algorithm.mode", "sync", "--algorithm.staleness", "0.5"),
        ("sweep", SMALL, "--nodes", "two"),
        ("sweep", SMALL, "--nodes", "0"),
        ("calibrate", SMALL),
        ("decide", "--policy", "elastic", "--option", "gamma"),
    ],
)
def test_mistakes_are_one_paragraph(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    output = cli("posttrain", *arguments, code=2).output
    assert output.startswith("gnomon: ") and "Traceback" not in output


def test_the_same_in_python(tmp_path: Path) -> None:
    run = gnomon.posttrain(SMALL, num_steps=1)
    assert run.summary["step_s"] == pytest.approx(run.frames["steps"]["seconds"][0])
    assert "elastic on 8 GPUs" in run._repr_html_()
    assert run.figures["allocation"].layout.xaxis.range[1] == pytest.approx(run.record.duration_s)
    assert gnomon.posttrain(run.save(tmp_path) / "config.yaml").summary == run.summary
    compared = compare_policies(SMALL, policies=["elastic", "disaggregated"], with_oracle=False, num_steps=1)
    assert compared.summary[0]["step s"] == pytest.approx(run.summary["step_s"])
    assert compared.summary[1]["ratio"] == 1.0


def test_elastic_wins_in_the_small_example_and_equal_digits_are_explained() -> None:
    names = ["colocated", "disaggregated", "elastic", "payback"]
    compared = compare_policies(SMALL, policies=names, with_oracle=False)
    steps = {row["policy"]: row["step s"] for row in compared.summary}
    assert min(steps, key=lambda name: steps[name]) == "elastic" and steps["elastic"] < 0.9 * steps["disaggregated"]
    assert steps["payback"] == steps["disaggregated"]
    assert compared.to_dict()["notes"] == ["payback moved no GPU here, which gives the digits of disaggregated."]


def test_causes_have_one_name_everywhere(tmp_path: Path) -> None:
    """The record, the terminal, the page and the documentation."""
    from gnomon.posttrain.record import CAUSES
    from gnomon.report.posttrain import figures as timeline
    from gnomon.report.posttrain import text

    assert tuple(timeline.CAUSES) == CAUSES == tuple(name for name, _ in timeline.CAUSES.values())
    assert text.SHARES[1:] == CAUSES and tuple(text._IDLE) == CAUSES[1:]
    told = (Path(__file__).parents[2] / "docs" / "posttrain.md").read_text(encoding="utf-8")
    assert all(f"**{cause}**" in told for cause in CAUSES[1:])
