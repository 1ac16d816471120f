"""`gnomon pipeline ...` and `gnomon verify pipeline`: every command, its files, its exit codes."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

import gnomon
from conftest import CommandLine
from gnomon.cli.pipeline import STEP, run
from gnomon.pipeline.step import StepConfig

pytest.importorskip("matplotlib")


def run_json(cli: CommandLine, *arguments: str) -> Any:
    output = cli("pipeline", "run", *arguments, "--json").output
    return json.loads(output[output.index("{\n") :])


def test_run_prints_the_study(cli: CommandLine) -> None:
    assert run_json(cli)["total_time"] == pytest.approx(58.902661, abs=1e-6)
    assert "total_time 58.902661" in cli("pipeline", "run").output
    assert run_json(cli, "--tier", "grad_prop=a")["total_time"] == pytest.approx(53.753001, abs=1e-6)
    assert run_json(cli, "--priority", "grad_sync=0")["total_time"] == pytest.approx(52.744108, abs=1e-6)
    assert run_json(cli, "--num_groups", "16")["total_time"] == pytest.approx(108.627229, abs=1e-6)
    assert run_json(cli, "--schedule", "1f1b")["total_time"] == pytest.approx(63.679522, abs=1e-6)
    assert run_json(cli, "--dispatch", "strict")["total_time"] == pytest.approx(63.679522, abs=1e-6)


def test_the_legacy_option_has_no_effect_and_says_so(cli: CommandLine) -> None:
    output = cli("pipeline", "run", "--sync-solo-w", "0.3").output
    assert "no effect" in output
    assert "58.902661" in output


def test_run_writes_pictures(cli: CommandLine, tmp_path: Path) -> None:
    view = ["--view", "dual_channel", "--show-throttling", "--show-completion-time"]
    output = cli("pipeline", "run", *view, "--out", str(tmp_path / "out"), "--what-if", "2").output
    assert "Slowed by their receiver: fwd_prop 4 at stage 0" in output
    assert "times as fast" in " ".join(output.split())
    page = (tmp_path / "out" / "step.html").read_text()
    assert "https://" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "58.9027" in page
    assert (tmp_path / "out" / "step.png").read_bytes().startswith(b"\x89PNG")
    trace = json.loads((tmp_path / "out" / "step.perfetto.json").read_text())["traceEvents"]
    passes = [event for event in trace if event["ph"] == "X" and event["cat"] in ("forward", "backward")]
    assert len(passes) == 2 * 8 * 4
    assert max(event["ts"] + event["dur"] for event in trace if event["ph"] == "X") == pytest.approx(58.902661e6)
    assert {event["pid"] for event in trace} == {0, 1, 2, 3}


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zb-v", "dualpipe"])
def test_run_draws_any_schedule(cli: CommandLine, tmp_path: Path, schedule: str) -> None:
    cli("pipeline", "run", "--schedule", schedule, "-n", "8", "--latency", "0.1", "--out", str(tmp_path))
    assert (tmp_path / "step.html").stat().st_size > 1_000_000


def test_run_reads_costs_and_schedules_from_files(cli: CommandLine, tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text("forward: [1, 1, 2, 1]\ninput_grad: 1\nweight_grad: 1\nsend: 0.1\nstragglers: {0: 1.5}\n")
    cli("pipeline", "convert", "zb-h1", "-n", "8", "-o", str(tmp_path / "s.csv"))
    result = run_json(cli, "--schedule", str(tmp_path / "s.csv"), "--costs", str(costs))
    assert result["schedule"] == "s"
    assert result["total_time"] > 8 * 4


def test_the_example_files_run(cli: CommandLine) -> None:
    folder = Path(__file__).parents[2] / "examples" / "pipeline"
    words = ["--schedule", "zb-h1", "--stages", "4", "-n", "16", "--costs", str(folder / "costs.yaml")]
    assert run_json(cli, *words)["total_time"] > 16 * 28
    assert run_json(cli, "--schedule", str(folder / "overlap.csv"))["schedule"] == "overlap"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0"], "n: Input should be greater than 0"),
        (["--sync-freq", "9"], "more than the 8 micro-batches"),
        (["--priority", "fwd=1"], "no transfer 'fwd'"),
        (["--priority", "fwd_prop"], "is not NAME=VALUE"),
        (["--priority", "fwd_prop=x"], "is not a number"),
        (["--tier", "fwd_prop=ab"], "tier letter"),
        (["--schedule", "zb-h3"], "Did you mean"),
        (["--schedule", "interleaved", "-n", "6"], "multiples of the 4 ranks (given: 6). Choose 4 or 8 micro-batches"),
        (["--schedule", "interleaved", "-n", "3"], "multiples of the 4 ranks (given: 3). Choose 4 micro-batches"),
        (["--schedule", "1f1b", "--dispatch", "greedy"], "order of its own"),
        (["--straggler", "1=2"], "needs a schedule"),
        (["--model", "llama-3-8b"], "gnomon train step --model llama-3-8b"),
        (["--model", "llama-3-8b", "--gpu", "h200", "--tp", "2", "--stages", "8"], "--gpus 16 --tp 2 --pp 8"),
        (["--schedule", "examples/pipeline/overlap.csv", "-n", "9"], "no effect with a schedule from a file"),
        (["--schedule", "zb-h2", "--memory-limit", "5"], "more than the limit of 5"),
        (["--schedule", "zb-v", "--memory-limit", "3"], "zb-v needs 4 activations"),
        (["--memory-limit", "3"], "memory_limit needs a schedule"),
        (["--sync-freq", "0"], "sync_freq: Input should be greater than 0"),
        (["--schedule", "1f1b", "--weight-grad-len", "3"], "longer than the backward"),
    ],
)
def test_mistakes_exit_with_2(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    result = cli("pipeline", "run", *arguments, "--out", str(tmp_path / "out"), code=2)
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_all_in_one_go(cli: CommandLine, tmp_path: Path) -> None:
    configuration = tmp_path / "tiny.json"
    configuration.write_text('{"n": [4], "sync_freq": [1, 2], "prop_len": {"start": 0.5, "stop": 1.0, "step": 0.5}}')
    out = tmp_path / "outputs"
    words = ["-c", str(configuration), "--priority_step", "0.5", "--simulator", "dual_channel", "--out", str(out)]
    cli("pipeline", "all", *words, "--jobs", "1", "--no-show")
    (table,) = (out / "data").iterdir()
    assert re.fullmatch(r"tiny_\d{8}-\d{6}\.csv", table.name)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 4 * 12
    assert {row["p_fwd_prop"] for row in rows} == {"a", "0.0", "0.5", "1.0"}
    pictures = sorted((out / "heatmaps" / table.stem).iterdir())
    assert len(pictures) == 4
    assert "n4_sync_freq1_" in pictures[0].name
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    cli("pipeline", "plot", str(table), "-o", str(tmp_path / "again"))
    assert len(list((tmp_path / "again").iterdir())) == 4


def test_sweep_writes_where_it_is_told(cli: CommandLine, tmp_path: Path) -> None:
    configuration = tmp_path / "tiny.json"
    configuration.write_text('{"n": 3}')
    cli("pipeline", "sweep", "-c", str(configuration), "--step", "0.25", "--output", str(tmp_path / "x.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.json", "x.csv"]


@pytest.mark.parametrize(
    ("text", "step", "message"),
    [
        ('{"n": 3, "colour": 1}', "0.1", "tiny.json:1: unknown key 'colour'"),
        ('{"n": 3}', "0.3", "does not divide 1"),
        ('{"n": [2], "sync_freq": [3]}', "0.1", "nothing to run"),
        ('{"n": 0}', "0.1", "n: Input should be greater than 0"),
        ('{"n": ', "0.1", "tiny.json"),
    ],
)
def test_bad_sweeps_leave_nothing(cli: CommandLine, tmp_path: Path, text: str, step: str, message: str) -> None:
    configuration = tmp_path / "tiny.json"
    configuration.write_text(text)
    out = tmp_path / "outputs"
    for verb in (["sweep", "--output", str(out / "x.csv")], ["all", "--out", str(out)]):
        result = cli("pipeline", *verb, "-c", str(configuration), "--step", step, code=2)
        assert message in result.output
        assert not out.exists()


def test_schedules_and_convert(cli: CommandLine, tmp_path: Path) -> None:
    rows = json.loads(cli("pipeline", "schedules", "--json").output)
    assert {"gpipe", "1f1b", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v"} <= {row["name"] for row in rows}
    text = cli("pipeline", "convert", "1f1b", "--stages", "2", "-n", "2").output
    assert text == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    path = tmp_path / "cycle.csv"
    path.write_text("0B0,0F0\n1F0,1B0\n")
    output = cli("pipeline", "convert", str(path), "-o", str(tmp_path / "out.csv"), code=2).output
    assert "deadlocks" in output
    assert "0F0 (rank 0)" in output
    assert not (tmp_path / "out.csv").exists()


def test_verify_accepts_the_reference(cli: CommandLine, reference: Path) -> None:
    """Those of published tables are gone through in test_pipeline_zoo."""
    files = sorted(str(path) for path in (reference / "pipeline").iterdir() if path.stem != "zero_bubble_tables")
    output = cli("verify", "pipeline", *files).output
    assert output.count("all agree") == 4


def test_verify_notices_a_wrong_value(cli: CommandLine, reference: Path, tmp_path: Path) -> None:
    runs = json.loads((reference / "pipeline" / "single_runs.json").read_text())
    runs[0]["total_time"] += 1e-5
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    assert "1 OFF" in cli("verify", "pipeline", str(tmp_path / "runs.json"), code=1).output
    runs[0]["total_time"] -= 1e-5
    runs[0]["throttled"] = runs[0]["throttled"][1:]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    cli("verify", "pipeline", str(tmp_path / "runs.json"), code=1)

    text = (reference / "pipeline" / "config_1_step0.1.csv").read_text()
    (tmp_path / "sweep.csv").write_text(text.replace("53.5270", "53.5275"))
    cli("verify", "pipeline", str(tmp_path / "sweep.csv"), code=1)

    tables = json.loads((reference / "pipeline" / "zero_bubble_tables.json").read_text())
    tables["table5"][0]["bubble"]["ZB-H1"] += 0.0001
    few = {name: tables[name][:1] if name.startswith("table") else tables[name] for name in tables}
    (tmp_path / "tables.json").write_text(json.dumps(few))
    cli("verify", "pipeline", str(tmp_path / "tables.json"), code=1)


def test_verify_checks_that_a_sweep_is_whole(cli: CommandLine, reference: Path, tmp_path: Path) -> None:
    lines = (reference / "pipeline" / "small_step0.25.csv").read_text().splitlines()
    (tmp_path / "small_step0.25.csv").write_text("\n".join(lines[:-1]) + "\n")
    (tmp_path / "small_config.json").write_text((reference / "pipeline" / "small_config.json").read_text())
    output = cli("verify", "pipeline", str(tmp_path / "small_step0.25.csv"), code=1).output
    assert "1 OFF" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "only configurations here"),
        ("[1]", "x.json"),
        ('{"t": [{"bubble": {"1F1B": 0.1}}]}', "x.json"),
        ("nonsense", "x.json"),
    ],
)
def test_verify_refuses_what_it_cannot_read(cli: CommandLine, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert message in cli("verify", "pipeline", str(path), code=2).output.replace("\n", "")


def test_the_same_in_python(tmp_path: Path) -> None:
    step = gnomon.pipeline(grad_prop="a", what_if=2)
    assert step.summary["total_time"] == pytest.approx(53.753001, abs=1e-6)
    assert step.what_if[0].total_time <= step.run.total_time
    tasks = step.frames["tasks"]
    assert len(tasks.filter(tasks["kind"] == "forward")) == 8 * 4
    assert step.frames["ranks"]["busy"].to_list() == pytest.approx([r["busy"] for r in step.summary["ranks"]])
    assert "Where the time goes" in step._repr_html_()
    assert min(step.priorities(0.5).total_time) <= step.run.total_time
    assert {one.name for one in step.save(tmp_path).iterdir()} == {
        "step.csv", "step.html", "step.json", "step.perfetto.json", "step.png",
    }  # fmt: skip
    again = json.loads((tmp_path / "step.json").read_text())["config"]
    assert gnomon.pipeline(again).summary == step.summary


def test_a_step_is_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text("schedule: zb-h1\nstages: 4\nn: 8\nstragglers: {1: 1.5}\n")
    slow = gnomon.pipeline(path)
    assert slow.step.schedule is not None and slow.step.schedule.num_microbatches == 8
    assert slow.run.total_time > gnomon.pipeline(path, stragglers={}).run.total_time


def test_the_defaults_that_help_tells_are_those_of_a_step() -> None:
    told = {name: default for one in run.params for name in [one.name]
            if name in STEP and (default := re.search(r"\[default: ([\d.]+)\]", one.help or ""))}  # fmt: skip
    assert len(told) >= 9
    for name, default in told.items():
        assert float(default[1]) == StepConfig.model_fields[name].default, name


def test_of_a_weight_and_a_tier_the_tier_counts(cli: CommandLine) -> None:
    both = run_json(cli, "--tier", "grad_prop=a", "--priority", "grad_prop=0.1")
    assert both["total_time"] == pytest.approx(53.753001, abs=1e-6)
