"""Workers end with their parent; a Ray cluster that is not there is said at once."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gnomon.core import parallel
from gnomon.core.errors import GnomonError
from gnomon.core.parallel import _check_answers, map_ordered

PARENT = """
import os, sys, time
from gnomon.core.parallel import map_ordered

def slow(number):
    print(os.getpid(), flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass

if __name__ == "__main__":
    list(map_ordered(slow, range(4), jobs=2))
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.usefixtures("signals_end")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_alive(pid) for pid in workers)
        os.kill(parent.pid, number)
        parent.communicate(timeout=30)  # It returns only when nobody holds the pipes open.
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in workers)


def dies_once(path: str) -> int:
    """Kill the worker the first time."""
    marker = Path(path)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def always_dies(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    outcomes = list(map_ordered(dies_once, [str(tmp_path / name) for name in "ab"], jobs=2))
    assert [one.error for one in outcomes] == [None, None]


def test_an_item_that_always_kills_its_worker_is_given_up() -> None:
    (outcome,) = map_ordered(always_dies, [0], jobs=2)
    assert "its worker died" in (outcome.error or "")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "no Ray cluster answers: Connection refused"),
        ("ray://127.0.0.1:9", "no Ray cluster answers: Connection refused"),
        ("nowhere.invalid:6379", "no Ray cluster answers"),
        ("nonsense", "not the address of a Ray cluster"),
        ("host:port", "not the address of a Ray cluster"),
        ("127.0.0.1:99999999", "no Ray cluster answers"),
    ],
)
def test_a_dead_ray_address_fails_at_once(address: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(GnomonError, match=message):
        _check_answers(address)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_listener_that_is_not_ray_is_refused(says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.init` would wait for it for ever."""
    monkeypatch.setattr(parallel, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=_answer_once, args=(server, says), daemon=True)
        answering.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(GnomonError, match=r"no Ray cluster answers: (timed out|what listens there is not Ray)"):
            parallel._check_answers(address)
        answering.join(10)


def _answer_once(server: socket.socket, says: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(says)
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            while connection.recv(1024):
                pass


def test_no_ray_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(GnomonError, match="auto: no Ray cluster answers: none is running on this machine"):
        _check_answers("auto")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_a_dead_ray_address_is_one_sentence_on_the_command_line(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = tmp_path / "sweep.json"
    config.write_text((Path(__file__).parents[2] / "examples/pipeline/sweep.json").read_text())
    result = cli("pipeline", "sweep", "-c", str(config), "--step", "0.5", "--ray", "127.0.0.1:9", code=2)
    assert "no Ray cluster answers" in result.output


def test_workers_multiply_matrices_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    parallel._Pool(2).stop()
    assert os.environ.pop("OPENBLAS_NUM_THREADS") == "1"
