"""The engine that is meant where nobody names one, and what a saved scenario keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon.api.serving import scenario
from gnomon.catalog.model_library import MODELS
from gnomon.core.config import build, dump, load, save
from gnomon.core.errors import ConfigError
from gnomon.report.serving.files import spelled_out
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pools import resolve

OWN = {"policy": "mine", "file": "mine.py"}


@pytest.mark.parametrize(
    ("given", "name"),
    [({}, "vllm"), ({"batching": "sarathi"}, "vllm"), ({"timing": {"source": "roofline"}}, "vllm"),
     ({"engine": "sglang"}, "sglang"), ({"engine": "none"}, None), ({"engine": None}, None),
     ({"engine": {"name": "none"}}, None), ({"timing": {"source": "table"}}, None), ({"batching": OWN}, None)],
)  # fmt: skip
def test_a_real_engine_unless_something_else_describes_the_server(given: dict[str, Any], name: str | None) -> None:
    found = build(Scenario, given)
    assert (found.engine.name if found.engine else None) == name
    assert found.front_end.takes_no_time is (name is None)
    assert build(Scenario, yaml.safe_load(dump(found))) == found, "a saved scenario is the same again"


def test_a_saved_scenario_draws_tokens_as_the_engine_does() -> None:
    """The sampler follows from the engine, whether a scenario says nothing about it or was written in full."""
    short = load(Scenario, None, {"sampling.top_p": 0.9})
    full = build(Scenario, yaml.safe_load(dump(short)))
    assert resolve(full)[0].timing == resolve(short)[0].timing
    capped = load(Scenario, None, {"power.cap_w": 500})
    assert resolve(build(Scenario, yaml.safe_load(dump(capped))))[0].timing.clock == resolve(capped)[0].timing.clock < 1


@pytest.mark.parametrize(
    "changed",
    [{"device": "b200"}, {"device": "a100-80gb"}, {"engine": "sglang"}, {"engine": "none"},
     {"batching.policy": "sarathi"}, {"device": "l40s", "engine": "trtllm"}],
)  # fmt: skip
@pytest.mark.parametrize("pools", [{}, {"pools": [{"num_replicas": 2}, {"device": "gb200"}]}])
def test_a_saved_scenario_on_another_gpu_or_engine_is_what_that_one_does(
    tmp_path: Path, changed: dict[str, Any], pools: dict[str, Any]
) -> None:
    asked = {"model": "qwen3-32b", "engine": {"name": "vllm", "version": "0.11.0"}, "timing": {"dtype": "fp8_block"}}
    asked |= {"batching": {"max_chunk_tokens": 700}} | pools
    first = scenario(asked)
    saved = save(spelled_out(first), tmp_path / "saved.yaml")
    for opened in (saved, first):
        assert _what_runs(scenario(opened, **changed)) == _what_runs(scenario(asked, **changed))


def _what_runs(given: Scenario) -> list[Any]:
    pools = [(one.device_name, one.node, one.batching, one.timing, one.replica) for one in given.all_pools()]
    return [pools, spelled_out(given.model_copy(update={"pools": ()}))]


def test_a_saved_scenario_keeps_what_was_given(tmp_path: Path) -> None:
    saved = save(spelled_out(scenario(batching={"max_sequences": 77})), tmp_path / "saved.yaml")
    assert scenario(saved, gpu="a100-80gb").batching.max_sequences == 77
    by_hand = {"device": "h200", "batching": {"max_batch_tokens": 8192}}
    assert scenario(by_hand, device="a100-80gb").batching.max_batch_tokens == 8192, "not a saved one: it was given"


@pytest.mark.parametrize(
    "wrong",
    [{"pools": 5}, {"pools": [5]}, {"pools": [{"device": 7}]}, {"device": [1]}, {"timing": {"host": {"prefill": 7}}}],
)
def test_mistakes_in_a_saved_scenario_are_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    saved = scenario().model_dump(mode="json")
    saved["timing"]["host"] |= wrong.get("timing", {}).get("host", {})
    (tmp_path / "saved.yaml").write_text(yaml.safe_dump({**saved, **wrong, "timing": saved["timing"]}))
    with pytest.raises(ConfigError, match=r"saved\.yaml:\d+"):
        scenario(tmp_path / "saved.yaml", engine="sglang")


def test_a_pool_with_another_gpu_is_served_as_on_that_gpu() -> None:
    mixed = scenario(
        pools=[{"device": "h200"}, {"device": "l40s"}, {"device": "l40s", "batching": {"max_sequences": 9}}]
    )
    assert [one.batching.max_batch_tokens for one in mixed.all_pools()] == [8192, 2048, 2048]
    assert [one.batching.max_sequences for one in mixed.all_pools()] == [1024, 256, 9]
    given = scenario(batching={"max_batch_tokens": 700}, pools=[{"device": "h200"}, {"device": "l40s"}])
    assert [one.batching.max_batch_tokens for one in given.all_pools()] == [700, 700]


def test_what_is_no_section_is_not_filled_in() -> None:
    with pytest.raises(ConfigError, match="timing"):
        build(Scenario, {"timing": 5})


def test_a_model_in_the_present_folder_is_meant_only_where_it_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    """The engine has settings for models with latent attention."""
    usual = build(Scenario, {"engine": "trtllm"})
    (tmp_path / "config.json").write_text(json.dumps(MODELS["deepseek-v3"].config))
    monkeypatch.chdir(tmp_path)
    assert build(Scenario, {"engine": "trtllm"}) == usual
    assert build(Scenario, {"engine": "trtllm", "model": str(tmp_path)}).timing != usual.timing
