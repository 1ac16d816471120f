"""`gnomon search` and `gnomon bench`: what is printed, written and said about mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import gnomon
from conftest import CommandLine
from gnomon.api.search import finished_search
from gnomon.core.errors import ConfigError
from search_kit import QUICK, TABLE, question


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "question.yaml"
    path.write_text(yaml.safe_dump(question().model_dump(mode="json")))
    return path


def test_a_search_leaves_everything_in_its_folder(cli: CommandLine, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = cli("search", str(file), "--out", str(out), "--jobs", "1").stdout
    assert "that tie: a100 TP1 PP1" in shown
    assert "No command: no engine schedules as sarathi does." in shown
    assert "passed over on a100" in shown or "passed over" not in shown
    assert "12 configurations" in shown
    names = {path.name for path in out.iterdir()}
    commands = {"best.vllm.sh", "best.sglang.sh", "best.trtllm.sh"}
    assert names == {"results.jsonl", "report.html", "ranking.csv", "search.yaml", "best.yaml"} | commands
    assert (out / "best.vllm.sh").read_text().startswith("# The best with vLLM:")
    assert (out / "best.sglang.sh").read_text().startswith("# Not simulated with SGLang:")
    page = (out / "report.html").read_text()
    assert "Best deployment: a100 TP1 PP1" in page
    assert "ttft_front" in page and "Plotly.newPlot" in page
    assert (
        "<b>a100 TP1 PP1"
        in json.loads(page.split("const figures = ")[1].split(";\n")[0])["ttft_front"]["data"][1]["text"][0]
    )
    # The winner's scenario runs as it stands, and meets the SLO that it was chosen for.
    summary = json.loads(cli("simulate", str(out / "best.yaml"), "--json").output)
    assert summary["latency"]["ttft_s"]["p90"] <= 0.5
    assert summary["latency"]["tbt_s"]["p99"] <= 0.1
    # The whole question can be asked again from what was written, and is answered from the results.
    again = cli("search", str(out / "search.yaml"), "--out", str(out), "--jobs", "1").stdout
    assert again == shown


def test_json(cli: CommandLine, file: Path, tmp_path: Path) -> None:
    command = ("search", str(file), "--out", str(tmp_path / "out"), "--jobs", "1", "--json", "--strategy", "exhaustive")
    answer = json.loads(cli(*command).stdout)
    assert len(answer["ranked"]) == 12
    assert answer["best"] == answer["ranked"][0]
    assert answer["best_scenario"]["workload"]["rate"] == answer["best"]["capacity_per_s"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--slo.tbt-s", "{p50: 0.0001}"), 1, "No configuration meets the SLO"),
        (("--space.tensor-parallel", "[]"), 2, "the space is empty"),
        (("--space.device", "[h1000]"), 2, "unknown device"),
        (("--model", "llama-2-70b", "--space.tensor-parallel", "1"), 1, "does not fit"),
        (("--objective", "cost"), 2, "load"),
    ],
)
def test_no_answer(cli: CommandLine, file: Path, tmp_path: Path, arguments: Any, code: int, says: str) -> None:
    result = cli("search", str(file), "--out", str(tmp_path / "out"), "--jobs", "1", *arguments, code=code)
    assert says in result.output


def test_an_unknown_key_is_named_with_its_line(cli: CommandLine, file: Path) -> None:
    file.write_text("model: llama-2-7b\nspaces: {}\n")
    assert "question.yaml:2: unknown key 'spaces'. Did you mean 'space'?" in cli("search", str(file), code=2).output


def test_results_of_another_search_need_a_word(cli: CommandLine, file: Path, tmp_path: Path) -> None:
    base = ("search", str(file), "--out", str(tmp_path / "out"), "--jobs", "1")
    cli(*base)
    assert "--fresh" in cli(*base, "--seed", "1", code=2).output
    cli(*base, "--seed", "1", "--fresh")


def test_the_matrix_of_workloads(cli: CommandLine, tmp_path: Path) -> None:
    def lengths(prompt: int, output: int) -> dict[str, Any]:
        return {"lengths": {"distribution": "fixed", "prompt": prompt, "output": output}}

    file, out = tmp_path / "matrix.yaml", tmp_path / "out"
    asked = {
        "model": "llama-2-7b",
        "workloads": {"reading": lengths(2000, 2), "writing": lengths(10, 100)},
        # A small budget stretches prompts; a large one stretches the gaps between tokens.
        "slo": {"ttft_s": {"p90": 1.0}, "tbt_s": {"p99": 0.05}},
        "space": {"batching": [{"policy": "sarathi", "max_batch_tokens": [256, 4096]}]},
        "settings": TABLE,
        "effort": QUICK,
    }
    file.write_text(yaml.safe_dump(asked))
    shown = cli("search", str(file), "--out", str(out), "--jobs", "1").stdout
    assert "Best per workload" in shown
    assert "chosen for" in shown
    matrix = json.loads((out / "matrix.json").read_text())
    own = [one for one in matrix["worth_elsewhere"] if one["chosen_for"] == one["used_for"]]
    assert [one["share_of_best"] for one in own] == [1.0, 1.0]
    assert (out / "llama-2-7b--reading" / "report.html").exists()
    assert cli("search", str(file), "--out", str(out), "--jobs", "1").stdout == shown
    told: list[tuple[int, int]] = []
    gnomon.search(file, folder=out, jobs=1, on_progress=lambda *done: told.append(done))
    assert told == sorted(told) and told[-1][0] == told[-1][1] > 0


def test_bench_is_reproducible(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    suite = {"models": "llama-2-7b", "workloads": ["chat-1m", "azure-code"], "policies": ["vllm_v1", "sarathi"],
             "settings": TABLE, "effort": QUICK}  # fmt: skip
    file.write_text(yaml.safe_dump(suite))
    tables = [cli("bench", str(file), "--jobs", "1", "--json").stdout for _ in range(2)]
    assert tables[0] == tables[1]
    rows = json.loads(tables[0])["rows"]
    pairs = [(row["workload"], row["policy"]) for row in rows]
    assert pairs == [(w, p) for w in ("chat-1m", "azure-code") for p in ("vllm_v1", "sarathi")]
    assert all(row["capacity_per_s"] > 0 for row in rows)
    assert "azure-code" in cli("bench", str(file), "--jobs", "1").output


@pytest.mark.usefixtures("signals_end")
def test_ctrl_c_keeps_what_was_found(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["search", str(file), "--out", str(out), "--jobs", "2", "--strategy", "exhaustive"]
    longer = ["--effort.min-requests", "4000", "--effort.max-requests", "64000"]
    code = f"from gnomon.cli.main import main; main({words + longer!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    results = out / "results.jsonl"
    for _ in range(1200):
        if results.exists() and results.read_bytes().count(b"\n") > 1:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "The same command goes on from there" in errors
    assert all(json.loads(line) for line in results.read_text().splitlines())


def test_the_same_in_python(tmp_path: Path) -> None:
    found = gnomon.search(question(), jobs=1, folder=tmp_path)
    assert found.best is found.summary is found.found.ranked[0]
    assert found.frames["ranking"]["configuration"][0] == found.best.label
    assert found.scenario().workload.rate == found.best.capacity_per_s
    assert found.figures["ttft_front"].data[0].name == "best of those measured"
    assert "that tie: a100 TP1 PP1" in found._repr_html_()
    with pytest.raises(ConfigError, match="no place 99 in the ranking"):
        found.scenario(99)
    found.save(tmp_path)
    assert finished_search(tmp_path).to_dict() == found.to_dict()
