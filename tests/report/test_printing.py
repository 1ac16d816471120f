"""Tables on a terminal: nothing is lost, whatever the width."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from gnomon.cli import printing
from gnomon.cli.printing import UNLIMITED, continued, laid_out
from gnomon.core.errors import GnomonError
from gnomon.report.blocks import Card, Command, Facts, Html, Line, Plot, Section, Table, link, without
from gnomon.report.page import html_of, notebook_html, write_page

ROWS = [
    {
        "run": f"run {i}",
        "requests": 1234 * i,
        "clock": f"{i}.25 GHz",
        "note": "a few words about it " * 3,
        "e2e": -0.125,
    }
    for i in (1, 2)
]
CELLS = [f"{1234:,}", f"{2468:,}", "1.25 GHz", "2.25 GHz", "-0.125", "run 1", "run 2"]


@pytest.mark.parametrize("width", [40, 60, 80, 120, UNLIMITED])
def test_no_cell_is_cut_and_no_line_is_too_long(width: int) -> None:
    text = unstyle(laid_out(Table(ROWS, title="Runs " * 20, caption="What it means. " * 10), width))
    assert all(cell in text for cell in CELLS)
    assert max(map(len, text.splitlines())) <= width
    assert text.split().count("words") == 6


def test_every_part_has_the_names() -> None:
    rows = [{"name": f"n{i}", **{f"column {j}": 1000 * i + j for j in range(12)}} for i in range(3)]
    text = unstyle(laid_out(Table(rows), 40))
    assert text.count("n2") > 1
    assert all(f"{1000 * i + j:,}" in text.split() for i in range(3) for j in range(12))


def test_every_part_has_what_tells_the_rows_apart() -> None:
    rows = [{"operator": op, "estimator": how, "mean": 1.25, "median": 2.5} for op in "ab" for how in ("grid", "line")]
    head, _, *first = unstyle(laid_out(Table(rows, caption="In %."), 28)).split("\n")
    assert (head, first[1]) == ("operator  estimator  mean", "a         line       1.25")
    assert first[4:] == [
        "", "operator  estimator  median", "─" * 27, "a         grid          2.5", "a         line          2.5",
        "b         grid          2.5", "b         line          2.5", "In %.", "",
    ]  # fmt: skip
    narrow = unstyle(laid_out(Table(rows), 25)).split("\n")  # No room for both beside a column: the first alone.
    assert narrow[0] == "operator  estimator  mean" and narrow[7] == "operator  median"


def test_what_would_be_right_is_a_paragraph_of_its_own_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    error = GnomonError("no such file.", where="a.yaml", fix="Check the path of it.")
    assert printing.complaint(error) == "gnomon: a.yaml: no such file. Check the path of it."
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "24")
    assert printing.complaint(error) == "gnomon: a.yaml: no such\n  file.\n  Check the path of it."


def test_numbers_are_to_the_right_and_nothing_is_padded() -> None:
    text = unstyle(laid_out(Table([{"a": "x", "b": 5}, {"a": "long name", "b": 1000}]), UNLIMITED))
    head, _, first, second = text.splitlines()
    assert (head, first, second) == ("a              b", "x              5", "long name  1,000")


def test_a_column_of_numbers_may_have_gaps_and_units() -> None:
    table = Table([{"a": "x", "b": None, "c": "+1.5 ms", "d": "yes"}, {"a": "y", "b": 3, "c": "−2 s", "d": "no"}])
    assert [table.is_left(name) for name in table.columns] == [True, False, False, True]


def test_numbers_of_several_words_are_not_wrapped() -> None:
    rows = [{"figure": f"latency {i}", "95 % interval": f"+{i}.234 ms to +{i}.567 ms", "n": 10} for i in range(2)]
    text = unstyle(laid_out(Table(rows), 36))
    assert "+0.234 ms to +0.567 ms" in text and "+1.234 ms to +1.567 ms" in text
    assert max(map(len, text.splitlines())) <= 36


def test_words_are_wrapped_at_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(printing, "terminal_width", lambda: 40)
    note = Line("the quick brown fox jumps over the lazy dog and away", "note")
    printing.print_blocks([note, Facts([("short", "one two three four five six seven"), ("longer", "x")])])
    assert capsys.readouterr().out == (
        "Note: the quick brown fox jumps over the\n  lazy dog and away\n"
        "short   one two three four five six\n        seven\nlonger  x\n"
    )


def test_what_only_a_page_shows_is_not_printed(capsys: Any) -> None:
    shown = [Card("cost", "$1"), Plot("ttft", dict), Command("With vLLM", "vllm serve x")]
    printing.print_blocks([Section("How", shown), Command("two", "a\nb")])
    assert capsys.readouterr().out == "How\nWith vLLM: vllm serve x\ntwo:\na\nb\n"


def test_blocks_as_html_are_escaped_and_side_by_side() -> None:
    table = Table([{"name": "<b>", "n": 1}], "T & U", "small")
    html = html_of(
        [Card("a", "<1>", tip="why"), Card("b", "2"), Section("S", [Plot("p", dict), Plot("q", dict), table])]
    )
    assert html.count("<div class=cards>") == 1 and html.count("class='plots'") == 1
    assert "&lt;1&gt;" in html and 'data-tip="why"' in html and "<td class=l>&lt;b&gt;</td><td>1</td>" in html
    assert "<h3>T &amp; U</h3>" in html and "<p class=more>small</p>" in html
    said = [Section("nothing", [Table([])]), Line("well", "warning")]
    assert html_of(said) == "<p class=warning>well</p>"
    assert notebook_html([*said, Plot("p", dict)]) == "<p><b>Warning:</b> well</p>"


def test_what_is_left_of_a_section() -> None:
    blocks = [Section("gone", [Plot("p", dict)]), Section("kept", [Plot("q", dict), Line("well")]), Card("a", "1")]
    assert without(blocks, Plot, Card) == [Section("kept", [Line("well")])]
    assert without(blocks, Html) == blocks


def test_a_cell_may_lead_somewhere_and_a_page_has_boxes(tmp_path: Path) -> None:
    table = Table([{"run": link("a & b", "/runs?run=a&b='c'"), "s": 1}])
    assert "<a href='/runs?run=a&amp;b=&#x27;c&#x27;'>a &amp; b</a>" in html_of([table])
    page = write_page(tmp_path / "page.html", "t", [Line("first"), table, Facts([("a", "1")])]).read_text()
    assert "<p class=why>first</p><section><div class=scroll" in page, "tables stand in a box, lines do not"
    assert page.count("<section>") == 1


def test_a_comment_goes_on_as_a_comment() -> None:
    text = continued("# Not simulated with this engine: the layout that was best.\nserve --one 1 --two 2 --three 3", 30)
    comments, command = text.partition("serve")[0].splitlines(), text[text.index("serve") :].splitlines()
    assert len(comments) == 3 and all(line.startswith("# ") for line in comments) and "\\" not in "".join(comments)
    assert all(line.endswith(" \\") for line in command[:-1]) and not command[-1].endswith("\\")


def test_a_command_has_a_button_that_copies_it() -> None:
    html = html_of([Command("TensorRT-LLM", "a < b")])
    assert 'data-copy=copy-tensorrt-llm aria-label="Copy TensorRT-LLM"' in html
    assert "<pre id=copy-tensorrt-llm tabindex=0>a &lt; b</pre>" in html


def test_a_page_refuses_numbers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        write_page(tmp_path / "page.html", "t", [Plot("p", lambda: {"data": [float("nan")]})])
    assert not (tmp_path / "page.html").exists()
