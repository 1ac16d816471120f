"""The engine that is meant where nobody names one, and what a saved scenario keeps of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gnomon.core.config import build, dump, load
from gnomon.core.errors import ConfigError
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


def test_what_is_no_section_is_not_filled_in() -> None:
    with pytest.raises(ConfigError, match="timing"):
        build(Scenario, {"timing": 5})
