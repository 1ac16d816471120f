"""Files and folders are whole or not there, also on a full disk and when the writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnomon.core.errors import ConfigError
from gnomon.core.files import folder_written_whole, write_text, written_whole

OURS = ("a", "b", "[0-9]-*")


def fill(folder: Path, text: str, *names: str) -> None:
    with folder_written_whole(folder, OURS) as new:
        for name in names or ("a", "b"):
            write_text(new / name, text)


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    fill(tmp_path / "run", "old", "a", "b", "1-x/a")
    fill(tmp_path / "run", "new", "a")
    assert content(tmp_path) == {"run/a": "new"}
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    fill(tmp_path / "run", "old")

    def fail() -> None:
        with folder_written_whole(tmp_path / "run", OURS) as new:
            write_text(new / "a", "half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert content(tmp_path) == {"run/a": "old", "run/b": "old"}


def test_nothing_of_others_is_deleted(tmp_path: Path) -> None:
    write_text(tmp_path / "run" / "notes.txt", "mine")
    with pytest.raises(ConfigError, match=r"run: holds notes\.txt, which is not of a run"):
        fill(tmp_path / "run", "new")
    assert content(tmp_path) == {"run/notes.txt": "mine"}


def test_a_folder_that_must_stay_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    fill(here, "old", "a", "b")
    monkeypatch.chdir(here)
    fill(Path("."), "new", "a")
    assert content(tmp_path) == {"here/a": "new"}
    assert Path.cwd().samefile(here)


def test_a_folder_in_which_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        fill(tmp_path / "file" / "run", "x")
    with pytest.raises(ConfigError, match="cannot be written"):
        fill(tmp_path / "file", "x")


FULL_DISK = """
import resource, sys
sys.dont_write_bytecode = True  # Python keeps a module that was cut off.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
from pathlib import Path
import polars as pl
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text, written_whole
folder = Path(sys.argv[1])
frame = pl.DataFrame({"x": list(range(100_000))})
for name, write in {"csv": frame.write_csv, "parquet": frame.write_parquet, "text": None}.items():
    try:
        if write is None:
            write_text(folder / name, "x" * 5000)
        else:
            with written_whole(folder / name) as temporary:
                write(temporary)
    except ConfigError as error:
        print(name, "cannot be written" in str(error))
print(list(folder.iterdir()))
"""


def test_a_full_disk_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["csv True", "parquet True", "text True", "[]"], done.stderr


WRITER = """
import sys
from pathlib import Path
from gnomon.core.files import folder_written_whole, write_text
print("ready", flush=True)
for number in range(10**9):
    with folder_written_whole(sys.argv[1], ("*.txt",)) as new:
        for name in range(5):
            write_text(new / f"{name}.txt", str(number) * 2000)
"""


def test_a_killed_writer_leaves_a_whole_folder_or_none(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for attempt in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(run)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.02 + 0.013 * attempt)
            writer.send_signal(signal.SIGKILL)
        texts = set(content(run).values()) if run.exists() else set()
        assert len(texts) <= 1
        assert not run.exists() or len(list(run.iterdir())) == 5


def test_a_file_of_a_long_name_is_refused_not_crashed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"), written_whole(tmp_path / ("x" * 300)) as temporary:
        temporary.write_text("x")


def test_a_folder_named_in_letters_that_the_locale_lacks(tmp_path: Path) -> None:
    """Polars took no such path: TypeError, with everything simulated and nothing written."""
    folder = tmp_path / "папка"
    simulate = ("simulate", "--workload.num-requests", "5", "--timing.source", "table", "--timing.table.per-iteration",
             "0.01", "--no-intervals", "--csv", "--out", str(folder))  # fmt: skip
    again = ("workload", "show", "--workload.trace", str(folder / "requests.csv"))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line in (simulate, again):
        words = [sys.executable, "-c", "import sys; from gnomon.cli.main import main; main(sys.argv[1:])", *line]
        done = subprocess.run(words, env={**os.environ, **plain}, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "requests.parquet").is_file()
