"""`gnomon simulate` and `gnomon compare` as a user types them."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gnomon.serving.scenario import engine_presets
from gnomon.serving.scenario.engine_presets import engine_names

SMALL = ("--workload.num-requests", "100")


def test_the_default_prints_a_summary(cli: Any) -> None:
    out = cli("simulate", *SMALL).output
    for words in (
        "llama-3-8b on h200",
        "time to first token",
        "p99",
        "100 of 100 finished",
        "per million output tokens",
    ):
        assert words in out


def test_json_is_the_whole_summary(cli: Any) -> None:
    data = json.loads(cli("simulate", *SMALL, "--slo.ttft-s", "0.5", "--json").stdout)
    assert data["requests"]["finished"] == 100
    assert data["scenario"]["slo"]["ttft_s"] == 0.5
    assert data["slo"]["attainment"] > 0


def test_out_writes_the_folder_and_says_where(cli: Any, tmp_path: Path) -> None:
    out = cli("simulate", *SMALL, "--out", str(tmp_path / "run"), "--csv").output
    assert out.rstrip().splitlines()[-1] == f"The report is {tmp_path}/run/report.html; open it in a browser."
    assert (tmp_path / "run" / "requests.csv").is_file()
    again = cli("simulate", str(tmp_path / "run" / "scenario.yaml"), "--json").stdout
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert json.loads(again)["latency"] == saved["latency"]


def test_replicas_are_listed(cli: Any) -> None:
    out = cli("simulate", "--num-replicas", "10", *SMALL).output
    assert "2 more replicas" in out
    assert "routed by round_robin" in out


def test_compare_prints_differences(cli: Any) -> None:
    out = cli(
        "compare", "--vary", "router=round_robin,random", "--num-replicas", "2", "--workload.num-requests", "250"
    ).output
    assert "router=random against router=round_robin" in out
    assert "95 % interval" in out


def test_compare_json(cli: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    words = ("compare", "--vary", "replica.tensor-parallel=1,2", *SMALL, "--json", "--out", folder)
    data = json.loads(cli(*words).stdout)
    assert set(data) == {"baseline", "summaries", "differences"}
    assert (tmp_path / "out" / "comparison.json").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", "--model", "llama-3-9b"), "Did you mean 'llama-3-8b'"),
        (("simulate", "--device", "h1000"), "unknown device"),
        (("simulate", "--batching", "sarathy"), "sarathi"),
        (("simulate", "--router", "fastest"), "unknown router"),
        (("simulate", "--replica.tensor-paralel", "2"), "--replica.tensor-parallel"),
        (("simulate", "--replica.tensor-parallel", "3"), "tensor_parallel"),
        (("simulate", "--model", "llama-3-70b"), "does not fit"),
        (("simulate", "--workload.rate", "-1"), "workload.rate"),
        (("simulate", "--timing.scale", ".inf"), "timing.scale"),
        (("simulate", "--timing.host.per-iteration-s", ".inf"), "timing.host.per_iteration_s"),
        (("simulate", "nowhere.yaml"), "no such file"),
        (("simulate", "--wandb", "x", *SMALL), "[wandb]'"),
        (("simulate", "--csv"), "--out DIR"),
        (("simulate", "--slo.ttft-s", "{p99: 1}"), "slo.ttft_s: here a limit is what each request must meet"),
        (("search", "--slo.ttft-s", "1"), "slo.ttft_s: a limit needs the statistic"),
        (("simulate", "--router.file", "mine.py"), "router: mine.py registers names, but name does not say"),
        (("simulate", "--out", __file__), "is a file"),
        (("compare", "--out", __file__), "is a file"),
        (("compare",), "only one variant"),
        (("compare", "--vary", "router"), "FIELD=A,B"),
        (("compare", "--vary", "batching.polisy=orca,vllm"), "batching.policy"),
        (("simulate", "--gpu", "h100,b200"), "one name here; `gnomon compare --vary` takes several"),
        (("simulate", "--router", "random", "--router.name", "lmetric"), "--router and --router.name say the same"),
        (("simulate", "/dev/null"), "/dev/null: the file holds nothing."),
        (("explain",), "example: gnomon explain runs/demo\n"),
        (("posttrain", "plan"), "example: gnomon posttrain plan examples/posttrain/small.yaml\n"),
        (("convert", "vlm", "vllm serve"), "invalid value for 'TOOL': 'vlm'"),
    ],
)
def test_mistakes_are_explained(cli: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = cli(*words, code=2).output
    assert said.lower() in out.lower()
    assert "Traceback" not in out


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from gnomon.cli.main import main; "
        f"main(['simulate', '--workload.num-requests', '20', '--out', {str(tmp_path)!r}]); "
        "heavy = {'torch', 'ray', 'sklearn', 'optuna', 'dash', 'plotly', 'pandas', 'matplotlib', 'wandb'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_compiles_nothing() -> None:
    code = """
import sys
from gnomon.cli.main import gnomon
for command in ("simulate", "compare", "search", "bench", "time", "pipeline run", "posttrain run"):
    gnomon.main([*command.split(), "--help"], standalone_mode=False)
    loaded = {"numba", "polars", "plotly", "scipy"} & set(sys.modules)
    if loaded:
        sys.exit(f"{command}: {loaded}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_names_the_default(cli: Any) -> None:
    from gnomon.api.serving import DEFAULT_RATE

    assert f"{DEFAULT_RATE:g} requests per second" in " ".join(cli("simulate", "--help").output.split())


@pytest.mark.parametrize("command", ["simulate", "time", "posttrain run"])
def test_help_lists_the_engines_that_there_are(cli: Any, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Nobody writes them by hand: one more is in every text."""
    monkeypatch.setattr(engine_presets, "engine_names", lambda: ["here", "there"])
    assert "here, there" in " ".join(cli(*command.split(), "--help-all").output.split())


def test_help_says_what_a_short_flag_takes_and_how_limits_are_given(cli: Any) -> None:
    shown = " ".join(cli("simulate", "--help").output.split())
    names = ", ".join(engine_names())
    assert f"--engine VALUE {names}; none: kernels only. Short for --engine.name." in shown
    assert "--slo.ttft-s VALUE Seconds to the first token." in shown


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows itself before anything is reported."""
    from gnomon.cli import progress

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress._Bar, "first_s", 0.01)
    shown = threading.Event()
    monkeypatch.setattr(progress._Bar, "show", lambda bar: shown.set())
    with progress.progress("simulating"):
        assert shown.wait(10)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_said_takes_the_place_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start a bar is there; the one inside it counts; a text wipes it, and stands on a line of its own."""
    from gnomon.cli import progress

    terminal = _Terminal()
    monkeypatch.setattr(progress._Bar, "first_s", 3600.0)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    with progress.alive("working"):
        progress._Bar.open[0].show()
        with progress.progress("simulating", compiles=False) as report:
            report(3, 4, "loss 0.5")
            progress._Bar.open[0].show()
            progress._Bar.open[1].show()
        print("done")
        progress._Bar.open[0].show()
    assert sys.stdout is terminal
    drawn = terminal.getvalue().split("\r")
    assert drawn[1].startswith("working  0 s") and len(drawn) == 4
    assert drawn[2].startswith("simulating  " + "━" * 18 + "─" * 6 + "  3 of 4  0 s  loss 0.5")
    assert drawn[3] == "\x1b[Kdone\n", "wiped, and the bar of the start does not come back"


def test_a_line_now_and_then_elsewhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gnomon.cli import progress

    monkeypatch.setattr(progress._Lines, "first_s", 0.01)
    said = threading.Event()
    show = progress._Lines.show
    monkeypatch.setattr(progress._Lines, "show", lambda lines: (show(lines), said.set()))
    with progress.progress("simulating") as report:
        report(500, 1000)
        assert said.wait(10)
    out, err = capsys.readouterr()
    assert "simulating ... 500 of 1,000" in err
    assert out == ""


def test_the_first_run_says_that_it_compiles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnomon import jit
    from gnomon.cli import progress

    monkeypatch.setattr(jit, "is_compiled_already", lambda: False)
    with progress.progress():
        pass
    assert "Compiling" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("simulate", ("--gpu", "--tp", "--pp", "--dp", "--rate", "--requests", "--tensor-parallel")),
        ("compare", ("--gpu", "--tp", "--pp", "--rate", "--requests")),
        ("search", ("--gpu", "--tp", "--pp", "--tensor-parallel")),
        ("time", ("--gpu", "--tp", "--pp", "--dp", "--tensor-parallel")),
        ("train step", ("--gpu", "--tp", "--pp", "--tensor-parallel")),
        ("posttrain run", ("--gpu",)),
        ("bench", ("--gpu",)),
        ("workload show", ("--rate", "--requests")),
    ],
)
def test_short_names_are_the_same_everywhere(cli: Any, command: str, names: tuple[str, ...]) -> None:
    shown = re.split(r"[\s,]+", cli(*command.split(), "--help").output)
    assert set(names) <= set(shown)


def test_short_names_set_what_the_long_ones_do(cli: Any) -> None:
    short = cli("simulate", "--gpu", "h100", "--tp", "2", "--rate", "5", "--requests", "30", "--json").stdout
    long = (
        "--device",
        "h100",
        "--replica.tensor-parallel",
        "2",
        "--workload.rate",
        "5",
        "--workload.num-requests",
        "30",
    )
    assert short == cli("simulate", *long, "--json").stdout
    assert json.loads(short)["scenario"]["replica"]["tensor_parallel"] == 2


def test_help_is_in_sections(cli: Any) -> None:
    usual = cli("simulate", "--help").output
    assert "--replica.tensor-parallel, --tp" in usual and "--replica.prefix-cache" not in usual
    assert "--help-all lists" in usual
    lines = cli("simulate", "--help-all").output.splitlines()
    heads = [line for line in lines if line.startswith("--")]
    assert [head.split(".")[0] for head in heads][:3] == ["--engine", "--replica", "--batching"]
    at = lines.index(next(head for head in heads if head.startswith("--replica")))
    assert "--replica.tensor-parallel, --tp" in lines[at + 1]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("--max-sequences", "--batching.max-sequences"),
        ("--ttft-s", "--slo.ttft-s"),
        ("--tensor-paralel", "--tensor-parallel"),
        ("--workload.rat", "--workload.rate"),
        ("--modl", "--model"),
    ],
)
def test_suggestions_help(cli: Any, wrong: str, meant: str) -> None:
    assert meant in cli("simulate", wrong, "4", code=2).output


def test_an_output_that_a_shell_has_closed_is_no_mistake() -> None:
    command = f"{sys.executable} -m gnomon.cli.main catalog models"
    done = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run(["sh", "-c", f"{command} nothing >&- 2>&-"], check=False).returncode == 2
