"""`gnomon profile own`: shapes in, seconds out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import CommandLine
from gnomon.measure.profiling import bundle, own

KERNELS = """
CALLS = []

def gemm(dtype, m, n, k):
    CALLS.append(m)
    return [1e-6 + 1e-13 * m * n * k] * 5

def attention(dtype, heads, kv_heads, head_dim, chunk, kv, decodes, decode_kv):
    return 1e-6 + 1e-12 * heads * head_dim * (chunk * (kv + chunk / 2) + decodes * decode_kv)
"""


def test_a_python_file_becomes_a_bundle_that_is_used(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    out = tmp_path / "bundle"
    words = ["profile", "own", str(tmp_path / "kernels.py"), "--device", "h200", "--out", str(out)]
    assert "rows in gemm.csv.gz" in cli(*words).output
    rows = bundle.read_rows(out)
    assert rows["gemm"]["bf16", 64, 6144, 4096][0] == pytest.approx(1e-6 + 1e-13 * 64 * 6144 * 4096, rel=1e-4)
    said = json.loads(cli("time", "--decode", "64", "--source", "profile", "--path", str(out), "--json").output)
    text = json.dumps(said)
    assert "qkv_proj" in text
    assert "no " in cli("simulate", "--timing.source", "profile", "--timing.path", str(out),
                        "--workload.num-requests", "20", "--no-intervals", "--engine", "none").output  # fmt: skip
    before = (out / "journal.jsonl").read_text()
    cli(*words)  # Everything is known: nothing is timed again.
    assert (out / "journal.jsonl").read_text() == before


def test_another_language_takes_the_plan_and_gives_answers(tmp_path: Path, cli: CommandLine) -> None:
    plan, answers = tmp_path / "plan.jsonl", tmp_path / "answers.jsonl"
    assert "shapes in" in cli("profile", "own", "--only", "gemm", "--plan", str(plan)).output
    asked = [json.loads(line) for line in plan.read_text().splitlines()]
    assert {one["file"] for one in asked} == {"gemm"} and len(asked) > 50
    answers.write_text("".join(json.dumps(one | {"seconds": 1e-5}) + "\n" for one in asked))
    cli("profile", "own", "--answers", str(answers), "--device", "h200", "--out", str(tmp_path / "bundle"))
    assert len(bundle.read_rows(tmp_path / "bundle")["gemm"]) == len({own._key(one) for one in asked})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "defines none of"),
        ("def gemm(dtype, m, n, k): return 12", "is no time of a kernel") ,
        ("def gemm(dtype, m, n, k): return -1e-5", "is no time of a kernel"),
        ("def gemm(): return 1e-5", "TypeError"),
        ("def gemm(", "SyntaxError"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_told(code: str, message: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "kernels.py").write_text(code.replace("return 12", "return 1200"))
    words = ["profile", "own", str(tmp_path / "kernels.py"), "--device", "h200", "--out", str(tmp_path / "b")]
    assert message in cli(*words, code=2).output


def test_one_way_at_a_time(cli: CommandLine, tmp_path: Path) -> None:
    assert "give one of" in cli("profile", "own", code=2).output
    (tmp_path / "a.jsonl").write_text('{"file": "gemm"}\n')
    words = ["profile", "own", "--answers", str(tmp_path / "a.jsonl"), "--device", "h200", "--out", str(tmp_path / "b")]
    assert "line 1 has no file or no seconds" in cli(*words, code=2).output
