"""Compiled code on disk: damaged, full, read-only, or without a place to be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gnomon.jit import ENABLED, borrow, feature, jit

pytestmark = pytest.mark.skipif(not ENABLED, reason="nothing is compiled under GNOMON_JIT=0")

PROGRAM = """
import resource, sys
sys.dont_write_bytecode = True  # Python keeps a module that was cut off.
if len(sys.argv) > 1:  # A file may not grow: as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from gnomon.jit import compiled, jit

@jit
def add(a, b):
    return a + b

@compiled("float64(float64)")
def twice(x):
    return 2 * x

@compiled("float64(float64)")
def thrice(x):
    return 3 * x

values = add(1, 2), twice.ctypes(3.0), thrice.ctypes(3.0)
print(*values, sum(add._cache_hits.values()) + twice.cache_hits + thrice.cache_hits)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program, and the cache that it left."""
    folder = tmp_path_factory.mktemp("warm")
    path, home = folder / "program.py", folder / "cache"
    path.write_text(PROGRAM)
    run(path, GNOMON_CACHE=str(home))
    return path, home


def run(program: Path, *words: str, **changes: str | None) -> tuple[str, str]:
    environment = {**os.environ, **{k: v for k, v in changes.items() if v is not None}}
    for name in (k for k, v in changes.items() if v is None):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(program), *words], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_code_is_found_again_and_said_nothing(program: Path, tmp_path: Path) -> None:
    home = str(tmp_path / "cache")
    assert run(program, GNOMON_CACHE=home) == ("3 6.0 9.0 0", "")
    assert run(program, GNOMON_CACHE=home) == ("3 6.0 9.0 3", "")


def test_of_two_that_start_together_one_compiles_each_function(program: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "GNOMON_CACHE": str(tmp_path / "cache")}
    both = [subprocess.Popen([sys.executable, str(program)], env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate(timeout=120)[0].decode().rpartition(" ") for one in both]
    assert [values for values, *_ in said] == ["3 6.0 9.0"] * 2
    assert sum(int(found) for *_, found in said) == 3


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damaged_code_is_compiled_again_and_the_folder_named(
    warm: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    """One function's file is empty, another's cut off, and in the third's a bit has changed."""
    program, kept = warm
    home = tmp_path / "cache"
    shutil.copytree(kept, home)
    for name in ("add", "twice", "thrice"):
        (file,) = home.rglob(f"*.{name}-*.{suffix}")
        content = file.read_bytes()
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
        file.write_bytes({"add": b"", "twice": content[:middle], "thrice": changed}[name])
    output, said = run(program, GNOMON_CACHE=str(home))
    assert output in ("3 6.0 9.0 0", "3 6.0 9.0 1")[: 1 + (suffix == "nbi")]
    assert "compiling it again" in said and str(home) in said
    assert run(program, GNOMON_CACHE=str(home)) == ("3 6.0 9.0 3", "")


def test_a_full_disk_compiles_in_memory_and_says_so_once(program: Path, tmp_path: Path) -> None:
    output, said = run(program, "64", GNOMON_CACHE=str(tmp_path / "cache"))
    assert output == "3 6.0 9.0 0"
    assert said.count("compiled code cannot be kept") == 1
    assert "GNOMON_CACHE" in said


def test_without_a_place_a_temporary_folder_or_memory_serves(program: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    output, said = run(program, GNOMON_CACHE=None, XDG_CACHE_HOME=None, HOME=str(blocked), TMPDIR=str(temporary))
    assert output == "3 6.0 9.0 0"
    assert f"kept in {temporary}/gnomon-{os.getuid()}" in said
    assert (temporary / f"gnomon-{os.getuid()}").stat().st_mode & 0o077 == 0
    again, _ = run(program, GNOMON_CACHE=str(blocked / "x"), TMPDIR=str(temporary))
    assert again == "3 6.0 9.0 3"
    (temporary / f"gnomon-{os.getuid()}").chmod(0o777)  # Anybody could have put code there.
    assert "in memory only" in run(program, GNOMON_CACHE=str(blocked / "x"), TMPDIR=str(temporary))[1]


def test_a_read_only_folder_with_code_in_it_is_used(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnomon.core import cache_folder

    home = tmp_path / "cache"
    run(program, GNOMON_CACHE=str(home))
    monkeypatch.setenv("GNOMON_CACHE", str(home))
    monkeypatch.setattr(cache_folder, "_can_be_used", lambda folder: folder != home)
    assert cache_folder.cache_home.__wrapped__() == home
    for folder in home.iterdir():
        folder.rename(home / "compiled-other")
    assert cache_folder.cache_home.__wrapped__() != home


def test_no_name_and_no_home_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnomon.core import cache_folder

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("GNOMON_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    other = cache_folder.cache_home.__wrapped__()
    assert other is not None and other.is_relative_to(tempfile.gettempdir())


def test_writers_side_by_side_never_write_each_others_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both looked at the index before either wrote to it: whichever index stays, it names the code of its own key."""
    from gnomon.jit.compiled_code import _CheckedFiles

    first, second = (_CheckedFiles(str(tmp_path), "module.add-7", "stamp") for _ in range(2))
    with monkeypatch.context() as together:
        together.setattr(_CheckedFiles, "_load_index", lambda self: {})
        first.save("integers", "code for integers")
        index = (tmp_path / "module.add-7.nbi").read_bytes()
        second.save("floats", "code for floats")
    assert second.load("floats") == "code for floats"
    (tmp_path / "module.add-7.nbi").write_bytes(index)
    assert first.load("integers") == "code for integers"


def test_a_feature_is_compiled_only_for_runs_that_use_it() -> None:
    """Of a bundle that has no features, a call of one does nothing; nothing of it is compiled."""
    assert whole(WithFeatures(np.array([1, 2])), 5) == (8, True)
    assert whole(WithoutFeatures(np.array([1, 2])), 5) == ((0, False) if ENABLED else (8, True))
    if ENABLED and not whole.stats.cache_hits:
        assert len(summed.dispatcher.overloads) == len(is_large.dispatcher.overloads) == 1
        assert len(summed.dispatcher.left_out.overloads) == 1


class WithFeatures(NamedTuple):
    values: Any


class WithoutFeatures(WithFeatures):
    has_no_features = True


@feature
def summed(bundle: WithFeatures, more: int) -> int:
    return bundle.values[0] + bundle.values[1] + more


@feature
def is_large(bundle: WithFeatures) -> bool:
    return bundle.values[1] > 1


@jit
def whole(bundle: WithFeatures, more: int) -> tuple[int, bool]:
    lent = borrow(bundle)
    return summed(lent, more), is_large(lent)


def test_functions_can_be_passed_where_nothing_was_compiled() -> None:
    """With all code on disk Numba does not read in by itself what knows the type of a function's address."""
    code = "import sys, gnomon.jit as jit\nwith jit.function_arguments(): print(NAME in sys.modules)"
    code = code.replace("NAME", "'numba.experimental.function_type'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True" or os.environ.get("GNOMON_JIT") == "0", done.stderr


def test_numbas_extensions_are_looked_for_only_where_something_is_compiled(program: Path, tmp_path: Path) -> None:
    with program.open("a") as file:
        file.write("from numba.core import entrypoints\nprint(entrypoints._already_initialized)")
    home = str(tmp_path / "cache")
    assert [run(program, GNOMON_CACHE=home)[0].split()[-1] for _ in range(2)] == ["True", "False"]
