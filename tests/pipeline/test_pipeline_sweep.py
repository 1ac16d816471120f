"""Sweeps of the priority study: grids, CSV, reference rows, resuming, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.core import config
from gnomon.core.errors import ConfigError, DataError
from gnomon.pipeline import sweeps
from gnomon.pipeline.study import Study, simulate
from gnomon.pipeline.sweeps import COLUMNS, SweepConfig, priority_grid, read_csv, sweep
from gnomon.verify.pipeline import verify


def test_the_grid_has_88_cells() -> None:
    grid = priority_grid(0.1)
    assert len(grid) == 66 + 11 + 11
    assert len(set(grid)) == 88
    for cell in grid:
        weights = [value for value in cell if not isinstance(value, str)]
        assert sum(weights) == pytest.approx(1.0)
        assert all(value == round(value, 1) for value in weights)


@pytest.mark.parametrize("step", [0.3, 0.0, -0.5, 2.0, 0.15, float("nan")])
def test_a_step_must_divide_one(step: float) -> None:
    with pytest.raises(ConfigError, match="does not divide 1"):
        priority_grid(step)


@pytest.mark.parametrize(
    ("name", "configuration", "step"),
    [("config_1_step0.1.csv", "config_1.json", 0.1), ("small_step0.25.csv", "small_config.json", 0.25)],
)
def test_reference_sweeps(reference: Path, tmp_path: Path, name: str, configuration: str, step: float) -> None:
    """Our CSV is the reference's, byte for byte; and `verify` agrees row by row."""
    folder = reference / "pipeline"
    done = sweep(config.load(SweepConfig, folder / configuration), step=step, jobs=1)
    written = done.write(tmp_path / "sweep.csv")
    assert written.read_text().split() == (folder / name).read_text().split()
    checks = verify(folder / name)
    assert len(checks) == done.totals.size + 2
    assert all(check.ok for check in checks)


def test_a_sweep_is_its_single_runs() -> None:
    done = sweep(SweepConfig(n=(3, 5), sync_freq=(1, 4), prop_len=0.7), step=0.5, jobs=1)
    assert len(done.studies) == 3  # sync_freq 4 does not go with n 3.
    for row, study in enumerate(done.studies):
        for column, (fwd, grad, sync) in enumerate(done.grid):
            single = study.model_copy(update={"fwd_prop": fwd, "grad_prop": grad, "grad_sync": sync})
            assert done.totals[row, column] == simulate(Study(**single.model_dump()), record=False).total_time


@pytest.mark.parametrize(("most", "sizes"), [(24, [2, 1]), (23, [1, 1, 1]), (1, [1, 1, 1]), (100, [3])])
def test_configurations_go_to_workers_in_chunks(most: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has 12 runs, one for every cell of this grid; a chunk has as many as fit, but one at least."""
    told: list[float] = []
    monkeypatch.setattr(sweeps, "RUNS_PER_CHUNK", most)
    sweep(SweepConfig(n=(2, 3, 4)), step=0.5, jobs=1, progress=told.append)
    assert told == [12 * size for size in sizes]


def test_ranges_include_both_ends() -> None:
    given = {"prop_len": {"start": 0.1, "stop": 0.7, "step": 0.2}, "n": {"start": 2, "stop": 4, "step": 1}}
    studies = config.build(SweepConfig, given).studies()
    assert sorted({study.prop_len for study in studies}) == [0.1, 0.3, 0.5, 0.7]
    assert [study.n for study in studies] == [2] * 4 + [3] * 4 + [4] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prop_length": 1.0}, "unknown key 'prop_length'.*Did you mean 'prop_len'"),
        ({"n": 0}, "n: Input should be greater than 0"),
        ({"n": []}, "n is an empty list"),
        ({"n": [4], "sync_freq": [5, 6]}, "more than n in every combination"),
        ({"prop_len": {"start": 1.0, "stop": 2.0, "step": 0.3}}, "not reached"),
        ({"prop_len": {"start": 2.0, "stop": 1.0, "step": 0.5}}, "stop >= start"),
        ({"fwd_impact": [0.1, 3.0]}, "fwd_impact: Input should be less than or equal to 1"),
        ({"bwd_len": [1.0, -2.0]}, "bwd_len: Input should be greater than or equal to 0"),
        ({"sync_freq": {"start": 0, "stop": 2, "step": 1}}, "sync_freq: Input should be greater than 0"),
        ({"n": {"start": 1, "stop": 2, "step": 0.5}}, "whole"),
        ({"stages": 0}, "stages: Input should be greater than 0"),
    ],
)
def test_bad_configurations(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(given))
    with pytest.raises(ConfigError, match=message):
        config.load(SweepConfig, path)


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "RUNS_PER_CHUNK", 12)  # Two configurations at a time.
    settings = SweepConfig(prop_len=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0))
    whole = sweep(settings, step=0.5, jobs=1)

    def stop_after_two_chunks(runs: float) -> None:
        stops.append(runs)
        if len(stops) == 2:
            raise KeyboardInterrupt

    stops: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        sweep(settings, step=0.5, jobs=1, workspace=tmp_path, progress=stop_after_two_chunks)
    kept = list(tmp_path.rglob("*.npy"))
    assert len(kept) == 2

    ran: list[int] = []
    original = sweeps.run_chunk

    def counted(grid: Any, studies: Any) -> Any:
        ran.append(len(studies))
        return original(grid, studies)

    monkeypatch.setattr(sweeps, "run_chunk", counted)
    told: list[float] = []
    again = sweep(settings, step=0.5, jobs=1, workspace=tmp_path, progress=told.append)
    assert sum(ran) == 6 - 2 * 1 * (12 // len(again.grid))
    assert sum(told) == whole.totals.size
    assert np.array_equal(again.totals, whole.totals)
    assert list(tmp_path.iterdir()) == []


def test_processes_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "RUNS_PER_CHUNK", 24)
    settings = SweepConfig(prop_len=tuple(np.linspace(0.5, 1.5, 8).round(3).tolist()))
    assert np.array_equal(sweep(settings, step=0.5, jobs=2).totals, sweep(settings, step=0.5, jobs=1).totals)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "not a sweep CSV"),
        (",".join(COLUMNS) + "\n", "no row"),
        (",".join(COLUMNS) + "\n1,2,3\n", ":2: 3 cells instead of 12"),
        (",".join(COLUMNS) + "\n8,1,1,2,1,2,0.2,0.2,x1,0.5,0.5,50\n", ":2: could not convert"),
    ],
)
def test_broken_csv(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_csv(path)
