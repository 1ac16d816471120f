"""The communication-priority study against its pins and the reference runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnomon.pipeline.study import Study, simulate

PINS: list[tuple[dict[str, Any], float]] = [
    ({}, 58.902661),
    ({"sync_freq": 2}, 61.960031),
    ({"sync_freq": 4}, 62.945324),
    ({"fwd_prop": "a"}, 59.629445),
    ({"grad_prop": "a"}, 53.753001),
    ({"grad_sync": "a"}, 64.364020),
    ({"grad_sync": 0.0}, 52.744108),
    ({"fwd_impact": 0.0, "bwd_impact": 0.0}, 57.0),
    ({"n": 16}, 108.627229),
    ({"dispatch": "strict"}, 63.679522),
    ({"dispatch": "strict", "sync_freq": 2}, 63.018316),
    ({"dispatch": "strict", "sync_freq": 4}, 67.294778),
]


@pytest.mark.parametrize(("given", "expected"), PINS)
def test_pins(given: dict[str, Any], expected: float) -> None:
    assert simulate(Study(**given)).total_time == pytest.approx(expected, abs=1e-6)


SILENT = {"prop_len": 0.0, "sync_base_len": 0.0, "fwd_len": 1.0, "bwd_len": 2.0, "dispatch": "strict"}


@pytest.mark.parametrize(("stages", "n", "expected"), [(8, 16, 69), (8, 32, 117), (6, 12, 51)])
def test_strict_without_communication(stages: int, n: int, expected: float) -> None:
    assert simulate(Study(stages=stages, n=n, **SILENT)).total_time == pytest.approx(expected, abs=1e-6)


def test_reference_runs(reference: Path) -> None:
    for run in json.loads((reference / "pipeline" / "single_runs.json").read_text()):
        lengths, tiers, weights = run["lengths"], run["tiers"], run["priorities"]
        study = Study(
            n=run["n"],
            stages=run["num_gpus"],
            fwd_len=lengths["forward"],
            bwd_len=lengths["backward"],
            prop_len=lengths["fwd_prop"],
            sync_base_len=lengths["grad_sync"],
            fwd_impact=run["fwd_impact"],
            bwd_impact=run["bwd_impact"],
            sync_freq=run["sync_freq"],
            ideal=run["is_ideal"],
            **{kind: tiers[kind] or weights[kind] for kind in tiers},
        )
        result = simulate(study)
        assert result.total_time == pytest.approx(run["total_time"], abs=1e-6)
        assert sorted(str(task) for task in result.throttled) == run["throttled"]
