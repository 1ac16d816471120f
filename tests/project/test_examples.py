"""Every example runs and shows what its first lines promise."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnomon
from gnomon.api.serving import Simulation, scenario, simulate

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "examples" / "serving").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def few(name: str, num_requests: int = 200, **overrides: Any) -> Simulation:
    """An example with fewer requests."""
    return simulate(ROOT / "examples" / "serving" / name, **{"workload.num_requests": num_requests, **overrides})


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    summary = few(path.name).summary
    assert summary.requests.offered == 200
    assert summary.requests.finished > 0
    assert summary.requests.rejected == summary.requests.too_long == 0
    assert summary.utilization.busy > 0


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_command_in_its_first_lines_is_right(path: Path, cli: Any, tmp_path: Path) -> None:
    (line,) = [text for text in path.read_text().splitlines() if text.startswith("#   gnomon ")]
    words = shlex.split(line.removeprefix("#   gnomon "))
    assert f"examples/serving/{path.name}" in words
    if "--out" in words:
        words[words.index("--out") + 1] = str(tmp_path)
    cli(*words, "--workload.num-requests", "30", "--no-intervals")


def test_there_are_enough_and_each_is_told_apart() -> None:
    assert len(SCENARIOS) >= 8
    assert len({scenario(path).model_dump_json() for path in SCENARIOS}) == len(SCENARIOS)


def test_prefix_caching_saves_prefill() -> None:
    cached, not_cached = (
        few("mooncake_prefix_cache.yaml"),
        few("mooncake_prefix_cache.yaml", batching__prefix_cache=False),
    )
    assert (cached.summary.prefix_hit_rate or 0) > 0.5
    assert cached.requests["cached_tokens"].sum() > 0
    assert (cached.summary.latency.ttft_s.mean or 1) < (not_cached.summary.latency.ttft_s.mean or 0)


def test_the_pipeline_has_bubbles() -> None:
    assert few("llama3_70b_tp4_pp2.yaml").summary.utilization.bubble


def test_the_overload_is_called_one() -> None:
    summary = few("overload.yaml", 3000).summary
    assert any(text.startswith("Saturated") for text in summary.warnings)
    assert summary.requests.unfinished > 0


def test_faster_gpus_of_the_fleet_finish_more() -> None:
    uses = few("heterogeneous_fleet.yaml", 2000).summary.replicas
    finished = {device: sum(use.finished for use in uses if use.device == device) for device in ("h100", "l40s")}
    assert finished["h100"] > 1.5 * finished["l40s"]


def test_the_closed_loop_keeps_its_users() -> None:
    frame = few("closed_loop.yaml", 500).requests
    for at in (20.0, 40.0):
        in_system = ((frame["arrival_s"] <= at) & (frame["finished_s"] > at)).sum()
        assert 0 < in_system <= 64


def test_speculation_saves_decodes() -> None:
    """Five drafts, each accepted with 0.7 after the one before: (1 - 0.7^6) / 0.3 = 2.94 tokens per decode."""
    drafted = few("speculative_decoding.yaml")
    with_drafts = drafted.summary
    tokens = (drafted.requests["output_tokens"] - 1).sum()
    # A request's last decode may have more tokens than it needs.
    assert 2.7 < tokens / drafted.iterations["decodes"].sum() < 2.94
    without = few("speculative_decoding.yaml", replica__speculative=None).summary
    assert (with_drafts.latency.tpot_s.mean or 1) < (without.latency.tpot_s.mean or 0)


def test_every_request_of_the_queue_waits_as_lindley_says() -> None:
    """W[i+1] = max(0, W[i] + 0.1 s - gap[i]), in closed form: the walk minus its running minimum."""
    frame = few("queue_md1.yaml", 20_000).requests
    walk = np.cumsum(np.concatenate([[0.0], 0.1 - np.diff(frame["arrival_s"].to_numpy())]))
    waits = walk - np.minimum.accumulate(walk)
    assert waits.max() > 1.0
    assert np.abs(frame["scheduling_delay_s"].to_numpy() - waits).max() < 1e-9


def test_experts_step_together() -> None:
    iterations = {use.iterations for use in few("moe_expert_parallel.yaml").summary.replicas}
    assert len(iterations) == 1


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def test_every_question_has_a_notebook() -> None:
    questions = {"simulate", "compare", "search", "pipeline", "posttrain", "route", "time", "verify"}
    assert {path.stem for path in NOTEBOOKS} == questions
    assert all(callable(getattr(gnomon, name)) for name in questions)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One for all notebooks: starting it and importing everything takes longer than most of them."""
    manager = pytest.importorskip("jupyter_client").AsyncKernelManager(kernel_name="python3")
    yield manager
    if manager.has_kernel:
        pytest.importorskip("nbclient").util.run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.filterwarnings("default")  # Jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, kernel: Any) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "saved without outputs"
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = nbclient.NotebookClient(notebook, timeout=300, km=kernel)
    client.execute()
    client.kc.stop_channels()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("<table" in one.get("text/html", "") for one in shown), "a result shows itself"
    assert any(name in shown[-1]["text/plain"] for name in (".html", ".json")), "saved to a folder"
