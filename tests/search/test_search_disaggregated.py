"""Aggregated and disaggregated layouts in one search: the space, the bound, the winner's commands."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gnomon.convert.commands import dynamo_layout, server_command
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.report.search.files import front_drawers as drawers
from gnomon.search.capacity import rate_bound
from gnomon.search.config import SearchConfig
from gnomon.search.evaluate import Record
from gnomon.search.space import candidates, pools_of, scenario_of
from gnomon.search.study import Found
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import run
from gnomon.workload import generate
from serving_kit import TABLE

SPACE: dict[str, Any] = {
    "device": "a100",
    "tensor_parallel": [1, 2],
    "disaggregated": {
        "prefill_replicas": [1, 2], "decode_replicas": [1, 2], "decode_tensor_parallel": [1, 2], "num_gpus": [3],
    },
}  # fmt: skip


def question(**changes: Any) -> SearchConfig:
    lengths = {"distribution": "fixed", "prompt": 200, "output": 50}
    base = {
        "model": "llama-2-7b",
        "settings": {"timing": TABLE},
        "workload": {"rate": 5.0, "num_requests": 300, "lengths": lengths},
        "slo": {"ttft_s": {"p90": 2.0}},
        "space": SPACE,
    }
    return build(SearchConfig, base | changes)


def test_both_kinds_of_layouts_are_in_the_space() -> None:
    labels = [one.label for one in candidates(question())]
    assert [label for label in labels if "P-TP" in label] == [
        "a100 1P-TP1 1D-TP2 vllm_v1 round_robin", "a100 1P-TP1 2D-TP1 vllm_v1 round_robin",
        "a100 2P-TP1 1D-TP1 vllm_v1 round_robin",
    ]  # fmt: skip
    assert len(labels) == 5


def test_a_layout_becomes_pools() -> None:
    prefill, decode = pools_of("2P-TP4 1D-TP8")
    assert prefill == {"role": "prefill", "num_replicas": 2, "replica": {"tensor_parallel": 4}}
    assert decode == {"role": "decode", "num_replicas": 1, "replica": {"tensor_parallel": 8}}


def test_the_bound_is_above_what_a_layout_serves_and_is_the_narrower_sides() -> None:
    search = question()
    for one in candidates(search):
        setup = scenario_of(search, one)
        requests = generate(setup.workload, 0)
        served = summarize(run(setup, requests=requests)).throughput.requests_per_s
        assert served <= rate_bound(setup, requests)
    lopsided = scenario_of(search, next(one for one in candidates(search) if "2P-TP1 1D" in one.label))
    requests = generate(lopsided.workload, 0)
    more = lopsided.model_copy(
        update={"pools": (lopsided.pools[0].model_copy(update={"num_replicas": 8}), lopsided.pools[1])}
    )
    assert rate_bound(more, requests) == rate_bound(lopsided, requests), "decode limits both"


def test_the_winner_as_commands_of_vllm_and_a_layout_of_dynamo() -> None:
    search = question(settings={"timing": {"dtype": "bf16"}})
    setup = scenario_of(search, next(one for one in candidates(search) if "1P-TP1 1D-TP2" in one.label))
    engine, text = server_command(setup)
    assert engine == "vllm"
    prefill, decode = [line for line in text.splitlines() if line.startswith("vllm serve")]
    assert "NixlConnector" in prefill and "--tensor-parallel-size" not in prefill
    assert "--tensor-parallel-size 2" in decode
    services = dynamo_layout(setup)["spec"]["services"]
    prefill, decode = services["VllmPrefillWorker"], services["VllmDecodeWorker"]
    assert (prefill["replicas"], prefill["componentType"], prefill["subComponentType"]) == (1, "worker", "prefill")
    assert decode["resources"]["limits"]["gpu"] == "2"
    container = prefill["extraPodSpec"]["mainContainer"]
    assert container["command"] == ["python3", "-m", "dynamo.vllm"]
    assert container["args"][-2:] == ["--disaggregation-mode", "prefill"]
    known = {"componentType", "subComponentType", "replicas", "resources", "extraPodSpec"}
    assert all(set(one) <= known for one in services.values()), "fields of the published schema"
    before, written = text.split("<<'EOF'\n")
    assert "vllm serve" not in before, "a script that has started a server writes nothing after it"
    written = written.split("\nEOF\n")[0]
    assert yaml.safe_load(written)["kind"] == "DynamoGraphDeployment"


def test_the_front_tells_layouts_apart_from_others() -> None:
    search = question()
    both = [one for one in candidates(search) if one.label.startswith(("a100 TP2", "a100 1P-TP1 1D-TP2"))]
    ranked = [
        Record(one.label, dict(one.overrides), "measured", capacity_per_s=9.0 - place, score=9.0 - place, num_gpus=3,
               cost_per_hour=1.0, figures={"ttft_s p90": 1.0, "tbt_s p99": 0.1})
        for place, one in enumerate(both)
    ]  # fmt: skip
    for draw in drawers(Found(search, ranked, [])).values():
        figure = draw()
        shown = {one["name"]: one["customdata"] for one in figure["data"] if one["mode"] == "markers"}
        assert shown == {"a100 vllm_v1": [0], "a100 vllm_v1, prefill and decode apart": [1]}


def test_counting_out_copies_is_refused() -> None:
    with pytest.raises(ConfigError, match="counts copies"):
        candidates(question(objective="cost", load=5.0))
