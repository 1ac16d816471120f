"""Tables on a terminal: nothing is lost, whatever the width."""

from __future__ import annotations

import pytest
from click import unstyle

from gnomon.cli.printing import UNLIMITED, laid_out
from gnomon.report.blocks import Table

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
