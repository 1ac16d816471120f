"""`gnomon verify disagg`: rows of llm-d become scenarios; medians, orders and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gnomon.core.errors import DataError
from gnomon.verify.disagg import Measured, Predicted, findings, order, read_runs, repeat_spread, scenario_of


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "architecture": "disaggregated", "configuration": "4: 1P-TP4 3D-TP4", "prefill_node_count": 1, "prefill_tp": 4,
        "decode_node_count": 3, "decode_tp": 4,
        "metrics": {"ttft": {"mean": 6000.0}, "tpot": 50.0, "request_rate": 2.0},
        "workload": {"concurrency": 64, "input_tokens": 9999, "output_tokens": 1000},
    }  # fmt: skip
    return base | changes


def test_a_row_becomes_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps([row(), row(architecture="aggregated", configuration="2 TP8")]))
    apart, together = read_runs(path)
    assert (apart.layout, apart.prefill, apart.decode, apart.num_gpus) == ("1P-TP4 3D-TP4", (1, 4), (3, 4), 16)
    assert (together.prefill, together.decode, together.output_tokens_s) == (None, (2, 8), 2000.0)
    setup = scenario_of(apart, {4: 0.005})
    one, other = setup.all_pools()
    assert (one.role, other.role, one.num_replicas, other.num_replicas) == ("both", "both", 1, 3)
    assert other.timing.host and setup.timing.host
    assert other.timing.host.exposed_s == setup.timing.host.exposed_s, "fitted for the aggregated pods only"
    assert (setup.workload.num_requests, setup.router.name) == (640, "llmd")
    prefill, decode = scenario_of(apart, {}, as_labelled=True).all_pools()
    assert (prefill.role, decode.role) == ("prefill", "decode")
    setup = scenario_of(together, {8: 0.005})
    host = setup.all_pools()[0].timing.host
    assert host and setup.timing.host and host.exposed_s == pytest.approx(setup.timing.host.exposed_s + 0.005)
    assert (setup.all_pools()[0].role, setup.router.name) == ("both", "random")


def test_medians_and_order_are_judged() -> None:
    def one(layout: str, prefill: tuple[int, int] | None, measured: float, simulated: float) -> Predicted:
        run = Measured(layout, prefill, (2, 4) if prefill else (4, 4), 64, 100, 10, 1.0, 0.05, measured)
        return Predicted(run, 1.2, 0.051, simulated)

    good = [one("2P-TP4 2D-TP4", (2, 4), 100.0, 104.0), one("4 TP4", None, 90.0, 95.0)]
    assert findings(good, {4: 0.001}, 0.1).failures == []
    assert [pods.name for pods in order(good, 64)] == ["4 TP4 behind the picker", "4 TP4"]
    alike = [*good, one("1P-TP4 3D-TP4", (2, 4), 70.0, 104.0)]
    assert [pods.measured for pods in order(alike, 64)] == [90.0, 85.0], "(100 + 70) / 2 against 90"
    assert repeat_spread([each.measured for each in alike]) == pytest.approx(100 / 70 - 1)
    bad = [one("2P-TP4 2D-TP4", (2, 4), 100.0, 80.0), one("4 TP4", None, 90.0, 95.0)]
    assert [text.split(":")[0] for text in findings(bad, {}, 0.1).failures] == [
        "throughput of the disaggregated layouts", "order at 64 requests",
    ]  # fmt: skip
    # 100 and 90 lie 11 % apart: a measurement that is good to 12 % does not tell them apart.
    assert len(findings(bad, {}, 0.12).failures) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"architecture": "aggregated"}]'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"no file of measured layouts|not valid JSON"):
        read_runs(path)
