"""One function over many items: order, failures, processes, Ctrl-C, Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnomon.core.errors import GnomonError, MissingExtraError
from gnomon.core.parallel import map_ordered


def square(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    if number == 4:
        raise GnomonError("four", fix="Use five.")
    return number * number


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_in_order_and_failures_as_values(jobs: int) -> None:
    outcomes = list(map_ordered(square, range(6), jobs=jobs))
    assert [outcome.index for outcome in outcomes] == list(range(6))
    assert [outcome.value for outcome in outcomes] == [0, 1, 4, None, None, 25]
    assert outcomes[3].error == "ValueError: three"
    assert "raise ValueError" in (outcomes[3].details or "")
    assert outcomes[4].error == "four Use five."
    assert outcomes[5].unwrap() == 25
    with pytest.raises(GnomonError, match="item 3 failed: ValueError: three"):
        outcomes[3].unwrap()


def test_items_are_taken_only_as_needed() -> None:
    taken: list[int] = []

    def items():  # type: ignore[no-untyped-def]
        for number in range(1000):
            taken.append(number)
            yield number

    outcomes = map_ordered(abs, items(), jobs=2)
    assert next(outcomes).value == 0
    assert len(taken) <= 16
    outcomes.close()  # type: ignore[attr-defined]


SLEEPER = """
import time
from gnomon.core.parallel import map_ordered
if __name__ == "__main__":
    print("ready", flush=True)
    for _ in map_ordered(time.sleep, [60] * 4, jobs=2):
        pass
"""


def group_is_gone(group: int) -> bool:
    """Whether every process of the group ends within some seconds (not the minute they would sleep)."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.usefixtures("signals_end")
def test_ctrl_c_stops_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert group_is_gone(process.pid)


HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_ray_is_an_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        list(map_ordered(square, [1], ray="local"))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")
def test_ray() -> None:
    program = (
        "from gnomon.core.parallel import map_ordered\n"
        "from gnomon.pipeline.sweeps import run_chunk\n"
        "from gnomon.pipeline.study import Study\n"
        "from gnomon.pipeline.sweeps import priority_grid\n"
        "from functools import partial\n"
        "run, chunks = partial(run_chunk, priority_grid(0.5)), [[Study(sync_freq=k)] for k in (1, 2)]\n"
        "near = [o.unwrap().tolist() for o in map_ordered(run, chunks, jobs=1)]\n"
        "far = [o.unwrap().tolist() for o in map_ordered(run, chunks, ray='local')]\n"
        "print(near == far)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip().endswith("True")
