"""A function that is called in a copy of the process: its value comes back, or it is called here."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gnomon.core import processes
from gnomon.core.processes import beside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies of a process are made on Linux alone")


@pytest.fixture(autouse=True)
def can_copy(monkeypatch):
    """As in a command of two cores that has not needed Polars yet."""
    monkeypatch.setattr(processes, "default_jobs", lambda: 2)
    monkeypatch.delitem(sys.modules, "polars", raising=False)


def children() -> set[str]:
    """Of this process; other tests may have left some."""
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


def test_the_value_comes_from_another_process():
    found = beside(lambda: (os.getpid(), list(range(100_000))))()
    assert found[0] != os.getpid()
    assert found[1] == list(range(100_000))


def test_it_works_while_this_process_goes_on():
    wait = beside(time.monotonic)
    time.sleep(0.5)
    now = time.monotonic()
    assert wait() < now, "it was called before anybody waited for it"


def test_an_error_is_raised_here_and_said_once(capfd):
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        beside(fail)()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(0), lambda: sys.exit(0)]
)
def test_where_the_copy_ends_without_a_value_it_is_called_here(end):
    here = os.getpid()
    assert beside(lambda: end() if os.getpid() != here else "value")() == "value"


def test_what_cannot_be_sent_is_made_here():
    assert beside(lambda: lambda: 7)()() == 7


@pytest.mark.parametrize("why", ["polars", "one core", "no fork"])
def test_where_there_can_be_no_copy_it_is_called_here_and_late(why, monkeypatch):
    called = []
    if why == "polars":
        monkeypatch.setitem(sys.modules, "polars", None)
    elif why == "one core":
        monkeypatch.setattr(processes, "default_jobs", lambda: 1)
    else:
        monkeypatch.setattr(os, "fork", lambda: (_ for _ in ()).throw(OSError("no memory")))
    value = beside(lambda: called.append(os.getpid()))
    assert called == []
    value()
    assert called == [os.getpid()]


@pytest.mark.usefixtures("signals_end")
def test_ctrl_c_ends_both_and_leaves_nothing():
    before = children()
    wait = beside(lambda: time.sleep(12))
    assert len(children() - before) == 1
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - began < 10
    assert children() <= before


def test_what_was_there_before_a_copy_is_not_looked_through_again():
    made = [[] for _ in range(20_000)]
    beside(lambda: None)()
    young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
    assert not young & {id(one) for one in made}
    assert gc.get_freeze_count() == 0


def test_freed_memory_is_kept_and_products_of_matrices_have_no_threads():
    program = """
import os, resource
from gnomon.core import processes
processes.spin_no_threads()
processes.keep_freed_memory()
import numpy as np
np.ones((300, 300)) @ np.ones((300, 300))
print(len(os.listdir("/proc/self/task")))
np.ones(3_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    threads, faults = map(int, done.stdout.split())
    assert threads == 1
    assert faults < 2_000  # Twenty times 8 MB anew would be 40,000 pages.
