"""A search on a real local Ray cluster: the same bytes as on local processes, also when a worker is killed, or when it
is stopped by Ctrl-C and goes on."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]

# Each runs in a process of its own: Ray leaves threads, warnings and handlers behind.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from ray.cluster_utils import Cluster
from gnomon.search.study import search
from search_kit import QUICK, question

folder, mode = Path(sys.argv[1]), sys.argv[2]
asked = question(strategy="exhaustive", effort=QUICK | {"min_requests": 2000, "max_requests": 8000})
killed, stopped = [], []

def ancestors(pid):
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def busy_workers():
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.joinpath("cmdline").read_bytes().startswith(b"ray::_attempt"):
                if os.getpid() in ancestors(int(entry.name)):
                    yield int(entry.name)
        except (OSError, ValueError):
            pass

def on_progress(done, total):
    if mode == "stop" and not stopped and 0 < done < total:
        stopped.append(done)
        os.kill(os.getpid(), signal.SIGINT)
    if mode == "kill" and not killed and done < total:
        for pid in busy_workers():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            return

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80_000_000})
try:
    try:
        far = search(asked, results=folder / "ray.jsonl", ray=cluster.address, on_progress=on_progress)
    except KeyboardInterrupt:
        kept = len((folder / "ray.jsonl").read_text().splitlines())
        far = search(asked, results=folder / "ray.jsonl", ray=cluster.address)
        print("went on from", kept, "of", len((folder / "ray.jsonl").read_text().splitlines()))
finally:
    import ray
    ray.shutdown()
    cluster.shutdown()
near = search(asked, results=folder / "local.jsonl", jobs=2)
print("same", far == near and (folder / "ray.jsonl").read_bytes() == (folder / "local.jsonl").read_bytes())
print("killed", len(killed))
"""


@pytest.mark.usefixtures("signals_end")
@pytest.mark.parametrize("mode", ["calm", "kill", "stop"])
def test_the_same_bytes_on_a_cluster(tmp_path: Path, mode: str) -> None:
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), mode],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "same True" in done.stdout
    assert f"killed {int(mode == 'kill')}" in done.stdout
    if mode == "stop":
        kept, whole = (int(word) for word in re.findall(r"went on from (\d+) of (\d+)", done.stdout)[0])
        assert 1 < kept < whole  # The first line is the question.
