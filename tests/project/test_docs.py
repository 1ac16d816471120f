"""What the README and the how-to pages show works as it stands there."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from serving_kit import check_invariants, run, scenario

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def readme_commands() -> list[str]:
    """The commands of the README's first table that can be run as they are."""
    found = re.findall(r"\| `(gnomon [^`]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"))
    return [command for command in found if "trace.csv" not in command and "verify" not in command]


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_python_of_the_readme_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {})
    assert "shape" in capsys.readouterr().out


def test_there_are_commands_to_check() -> None:
    assert len(readme_commands()) >= 5


def test_examples_that_are_named_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {name for page in pages for name in re.findall(r"examples/[a-z]+/\w+\.\w+", page.read_text("utf-8"))}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.fixture(params=[80, 200])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal of so many columns."""
    monkeypatch.setattr("gnomon.cli.printing.terminal_width", lambda: request.param)
    return int(request.param)


def check_width(output: str, width: int) -> None:
    wide = [line for line in output.splitlines() if len(line) > width and " " in line.strip()[: width // 2]]
    assert not wide, f"wider than {width} columns: {wide}"


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in readme_commands() if one.split()[1] not in ("ui", "convert")])
def test_the_commands_of_the_readme_run_as_written(
    command: str, width: int, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder as a fresh clone is, at the width of a terminal."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    if "runs/demo" in command or "runs/main" in command:
        cli("simulate", "--out", command.split()[-1])
    (tmp_path / "scenario.yaml").write_text("model: llama-3-8b\n")
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if command in line)
    code = 1 if "exit code 1" in row else 0  # A goal that is missed, as the row says.
    check_width(cli(*shlex.split(command)[1:], code=code).output, width)


@pytest.mark.parametrize("command", readme_commands())
def test_the_commands_of_the_readme_run(command: str, cli: Any, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    if words[0] in ("simulate", "compare", "capacity"):
        words += ["--workload.num-requests", "60", "--out", str(tmp_path / "run")]
    if words[0] in ("search", "posttrain"):
        words = [*words[:-1], "--help"]
    if words[0] in ("route", "ui", "explain", "check"):
        words.append("--help")
    if words[0] == "pipeline":
        words += ["--out", str(tmp_path / "run")]
    if words[0] == "convert":
        words[-1] = "vllm serve meta-llama/Meta-Llama-3-8B --tensor-parallel-size 2"
        words += ["--device", "h100"]
    assert cli(*words).output


def test_the_readmes_show_the_same_commands() -> None:
    english, chinese = (
        re.findall(r"`(gnomon [^`]+)`", (ROOT / p).read_text()) for p in ("README.md", "README.zh-CN.md")
    )
    assert english == chinese


@pytest.mark.parametrize(
    ("page", "changes"),
    [
        ("docs/how-to/add-a-batching-policy.md", {"batching": {"policy": "one_by_one"}}),
        ("docs/how-to/add-a-router.md", {"router": {"name": "most_free_blocks"}, "num_replicas": 3}),
    ],
)
def test_what_the_how_to_pages_show_keeps_the_contract(page: str, changes: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(blocks(page, "python")[0])
    runpy.run_path(str(file))
    done = run(scenario(**changes, workload={"num_requests": 20}))
    check_invariants(done)
    if "batching" in changes:
        assert done.log.iterations[: done.log.used[0]]["size"].max() == 1


def test_the_drawing_of_the_rooms_is_true_to_the_code() -> None:
    """Every module and data file that docs/architecture.md names is there, and every name it says a module has."""
    sources = ROOT / "src" / "gnomon"
    modules = {path.relative_to(sources).with_suffix("").as_posix(): path for path in sources.rglob("*.py")}
    modules |= {name.removesuffix("/__init__"): path for name, path in modules.items() if name.endswith("/__init__")}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:[/.][A-Za-z_]+)+)`", text)) - {"pyproject.toml", "state.max_running"}
    named |= set(
        re.findall(r"^ +((?:scenario|run|engine|results|timing|workload|api|report)/[a-z_]+)", text, re.MULTILINE)
    )
    assert len(named) > 25
    for one in named:
        if one.endswith(".yaml"):
            assert (sources / one).is_file(), one
            continue
        whole = one.replace(".", "/")
        if any(name == whole or name.endswith(f"/{whole}") for name in modules):
            continue
        module, _, thing = one.rpartition(".")
        found = [path for name, path in modules.items() if f"/{name}".endswith(f"/{module.replace('.', '/')}")]
        text_of = "\n".join(path.read_text(encoding="utf-8") for path in found)
        assert re.search(rf"\b{thing}\b", text_of), one
    drawn = re.findall(r"^ {10,}([a-z]+(?: {5,}[a-z]+)?) {5,}\w", text.split("```")[1], re.MULTILINE)
    rooms = {room for line in drawn for room in line.split()}
    folders = {path.parent.name for path in sources.glob("*/__init__.py")} - {"measure"}
    assert rooms == folders


def test_every_question_goes_from_a_command_to_a_decision() -> None:
    """Each question of the home page has a page with a command that is there, and what follows from its answer."""
    from gnomon.cli.main import COMMANDS

    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "questions").glob("*.md")}
    assert set(re.findall(r"\(questions/([\w-]+\.md)\)", home)) == set(pages)
    for name, text in pages.items():
        commands = re.findall(r"^gnomon ([\w-]+)", text, re.MULTILINE)
        assert commands and set(commands) <= set(COMMANDS), name
        assert "**Decision.**" in text, name


def test_the_glossary_has_the_words_of_cards_and_columns() -> None:
    from gnomon.report.serving.page import TERMS
    from gnomon.search.slo import WORDS

    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    short = {text.partition(":")[0] for text in TERMS.values()} & {"TTFT", "TPOT", "E2E"}
    for word in {*short, *(one for one in WORDS.values() if one.isupper()), "capacity", "KV cache", "MFU", "goodput"}:
        assert re.search(rf"^\| (?:[^|]*\b)?{word}\b", glossary, re.MULTILINE), word


def test_a_notebook_becomes_a_page() -> None:
    module = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))
    nbformat = pytest.importorskip("nbformat")
    new = nbformat.v4
    figure = {"application/vnd.plotly.v1+json": {"data": [{"y": [1, 2]}], "layout": {"title": "</script>"}}}
    outputs = [
        new.new_output("display_data", data=figure),
        new.new_output("execute_result", data={"text/html": "<table>\n\n<tr></tr></table>", "text/plain": "x"}),
        new.new_output("stream", text="1 < 2"),
    ]
    cells = [new.new_markdown_cell("# Why?"), new.new_code_cell("result", outputs=outputs)]
    page = module["as_markdown"](new.new_notebook(cells=cells))
    assert "# Why?" in page and "```python\nresult\n```" in page and "<pre>1 &lt; 2</pre>" in page
    assert "<div><table> <tr></tr></table></div>" in page, "an empty line would end the HTML"
    assert page.count("</script>") == 2, "what a figure says does not end its script"
