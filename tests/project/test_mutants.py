"""Mutation testing: what is changed, and which tests have to notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

mutants = pytest.importorskip("benchmarks.mutants")

TEXT = '''"""Text 1."""
LIMIT: int = 3

def half(n: int, is_exact: bool = False) -> float:
    """Half of 1."""
    if not is_exact and n < LIMIT:
        raise ValueError(f"at least {LIMIT + 1}")
    assert n > 0
    return n / 2.0
'''


def test_operators_constants_and_comparisons_are_changed_and_text_is_not() -> None:
    found = [(one.line, one.before, one.after) for one in mutants.mutants_of("half.py", TEXT)]
    assert sorted(found) == [
        (2, "3", "4"),
        (4, "False", "True"),
        (6, "n < LIMIT", "n <= LIMIT"),
        (6, "not is_exact", "is_exact"),
        (6, "not is_exact and n < LIMIT", "not is_exact or n < LIMIT"),
        (9, "2.0", "4.0"),
        (9, "n / 2.0", "n * 2.0"),
    ]


def test_every_module_with_tests_is_there_and_so_are_the_tests() -> None:
    for module, names in mutants.TESTS.items():
        path = mutants.SOURCES / module
        assert path.is_dir() or path.with_suffix(".py").is_file(), module
        assert len(mutants.tests_of(module)) == len(names) + len(mutants.OUTSIDE_FUNCTIONS), module


def test_a_mutant_meets_the_tests_that_call_its_function_the_quickest_first() -> None:
    here, there = [one for one in mutants.mutants_of("half.py", TEXT) if one.line in (2, 9)][:2]
    assert (here.function, there.function) == ("", "half")
    notes = {
        "test_a.py": {"tests": {"a": {"seconds": 2.0, "calls": ["half.py:half"]}}},
        "test_b.py": {
            "tests": {
                "b": {"seconds": 1.0, "calls": ["half.py:half", "half.py:other"]},
                "c": {"seconds": 0.5, "calls": ["half.py:other"]},
                "d": {"seconds": 0.1, "calls": ["whole.py:half"]},
            }
        },
    }
    files = ("test_a.py", "test_b.py")
    assert [name for _, name in mutants.choose_tests(there, files, notes)] == ["b", "a"]
    assert [name for _, name in mutants.choose_tests(here, files, notes)] == ["c", "b", "a"]
    settings = "tests/recorded/test_recorded_defaults.py"
    notes[settings] = {"tests": {f"{settings}::e": {"seconds": 0.7, "calls": []}}}
    assert [name for _, name in mutants.choose_tests(there, (*files, settings), notes)] == ["b", "a"]
    assert [name for _, name in mutants.choose_tests(here, (*files, settings), notes)] == [
        "c", f"{settings}::e", "b", "a",
    ]  # fmt: skip


def test_the_same_seed_draws_the_same_mutants() -> None:
    one, two, other = (mutants.sample(5, seed, ("timing/communication",)) for seed in (0, 0, 1))
    assert one == two != other


def test_a_function_gets_another_body(tmp_path: Path) -> None:
    """Also where others have imported it already."""
    (tmp_path / "gnomon").mkdir()
    (tmp_path / "gnomon" / "half.py").write_text(TEXT)
    namespace: dict[str, Any] = {}
    exec(compile(TEXT, str(tmp_path / "gnomon" / "half.py"), "exec"), namespace)
    (divided,) = [one for one in mutants.mutants_of("half.py", TEXT) if one.after == "n * 2.0"]
    assert namespace["half"](6) == 3.0
    mutants.apply(divided, tmp_path / "gnomon")
    assert namespace["half"](6) == 12.0


def test_a_mutant_is_known_by_its_function_wherever_it_stands() -> None:
    moved = [one.key for one in mutants.mutants_of("half.py", f"X = 1\n{TEXT}") if one.function]
    assert moved == [one.key for one in mutants.mutants_of("half.py", TEXT) if one.function]
