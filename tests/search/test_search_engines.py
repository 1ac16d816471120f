"""Searches over engines: each engine's own winner, and a command for each."""

from __future__ import annotations

import pytest

from gnomon.api.search import Search
from gnomon.convert.commands import winning_commands
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.search.config import BatchingSpace
from gnomon.search.evaluate import Record
from gnomon.search.space import candidates, scenario_of
from gnomon.search.study import Found, search
from search_kit import question


def of(*batching: dict[str, object]) -> Found:
    """An answer with these schedulers in this order, each worth less than the one before it."""
    asked = question(space={"device": "h100", "tensor_parallel": 2, "batching": list(batching)})
    ranked = [
        Record(
            one.label, dict(one.overrides), "measured", capacity_per_s=10.0 - place, score=10.0 - place, num_requests=9
        )
        for place, one in enumerate(candidates(asked))
    ]
    return Found(asked, ranked, [])


def test_an_engine_brings_its_scheduler_and_its_preset() -> None:
    asked = question(space={"device": "h100", "batching": [{"engine": "sglang", "max_sequences": 48}]})
    (only,) = candidates(asked)
    assert (only.label, only.engine) == ("h100 TP1 PP1 sglang seqs=48", "sglang")
    scenario = scenario_of(asked, only)
    assert (scenario.engine.name, scenario.batching.policy, scenario.replica.planner) == ("sglang", "sglang", "sglang")


@pytest.mark.parametrize("settings", [{"engine": "sglang"}, {"engine": {"name": "sglang"}}, {"engine.name": "sglang"}])
def test_an_engine_of_all_scenarios_schedules_in_all_of_them(settings: dict[str, object]) -> None:
    apart = {"prefill_replicas": 1, "decode_replicas": 1}
    asked = question(space={"device": "h100", "disaggregated": apart}, settings=settings)
    for one in candidates(asked):
        scenario = scenario_of(asked, one)
        assert one.engine == "sglang" and "sglang" in one.label
        assert [pool.batching.policy for pool in scenario.all_pools()] == ["sglang"] * len(scenario.all_pools())
    other = question(space={"device": "h100", "batching": "orca"}, settings=settings)
    assert [scenario_of(other, one).batching.policy for one in candidates(other)] == ["orca"]
    chosen = question(space={"device": "h100"}, settings={"batching.policy": "sarathi"})
    assert [scenario_of(chosen, one).batching.policy for one in candidates(chosen)] == ["sarathi"]


def test_a_setting_that_the_space_would_override_is_refused() -> None:
    spellings = [{"replica.tensor_parallel": 4}, {"replica": {"pipeline_parallel": 2}}, {"router": "random"},
                 {"router": {"name": "random"}}]  # fmt: skip
    for settings in spellings:
        with pytest.raises(ConfigError, match="has a key of its own in a search"):
            candidates(question(space={"device": "h100"}, settings=settings))
    candidates(question(space={"device": "h100"}, settings={"replica": {"memory_utilization": 0.8}}))


def test_mistakes_about_engines() -> None:
    with pytest.raises(ConfigError, match="sglang schedules by sglang, not by orca"):
        build(BatchingSpace, {"engine": "sglang", "policy": "orca"})
    with pytest.raises(GnomonError, match="unknown engine 'vlm'"):
        build(BatchingSpace, {"engine": "vlm"})
    with pytest.raises(GnomonError, match="engine"):
        build(BatchingSpace, {"engine": ["vllm"]})


def test_every_engine_gets_a_command_and_only_the_simulated_one_without_a_remark() -> None:
    found = winning_commands(of({"engine": "sglang", "max_sequences": 48}))
    assert list(found) == ["sglang", "vllm", "trtllm"]
    assert found["sglang"].startswith("python -m sglang.launch_server")
    for name, title in (("vllm", "vLLM"), ("trtllm", "TensorRT-LLM")):
        first, *rest = found[name].splitlines()
        assert first == f"# Not simulated with {title}: the layout and the limits that were best with SGLang."
        assert "48" in rest[-1] and "2" in rest[-1]


def test_of_several_engines_each_has_the_command_of_its_own_best() -> None:
    found = winning_commands(
        of(
            {"engine": "vllm", "max_sequences": 32},
            {"engine": "vllm", "max_sequences": 33},
            {"engine": "trtllm", "max_sequences": 34},
        )
    )
    assert list(found) == ["vllm", "trtllm", "sglang"]
    assert "--max-num-seqs 32" in found["vllm"]
    assert found["trtllm"].startswith(
        "# The best with TensorRT-LLM: h100 TP2 PP1 trtllm seqs=34, 8 requests/s per $/h (the winner: 10).\n"
    )
    assert "--max_batch_size 34" in found["trtllm"]
    assert found["sglang"].startswith("# Not simulated with SGLang")


def test_a_winner_that_no_engine_has_does_not_hide_the_best_of_those_that_do() -> None:
    found = of({"policy": "orca"}, {"engine": "vllm"})
    assert list(winning_commands(found)) == ["vllm", "sglang", "trtllm"]
    assert winning_commands(found)["vllm"].startswith("# The best with vLLM:")
    assert Search(found).no_command.startswith("no engine schedules as orca does")
    assert winning_commands(of({"policy": "orca"})) == {}


def test_no_engine_is_passed_over_for_another() -> None:
    asked = question(
        space={"device": ["a100", "h100"], "batching": [{"engine": "vllm"}, {"engine": "sglang"}]}, strategy="smart"
    )
    found = search(asked, jobs=1)
    assert {one.candidate.engine for one in found.ranked} == {"vllm", "sglang"}
    commands = winning_commands(found)
    assert not commands["vllm"].startswith("# Not simulated") and not commands["sglang"].startswith("# Not simulated")
