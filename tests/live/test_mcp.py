"""`gnomon mcp`: questions as tools."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("mcp", reason="the mcp package is not installed")

from gnomon.api.mcp import server
from search_kit import QUICK, TABLE, question


def call(made, name, **given):
    found = asyncio.run(made.call_tool(name, given))
    content = found.content if hasattr(found, "content") else found[0]
    return [json.loads(one.text) for one in content], found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return server(tmp_path_factory.mktemp("reports"))


def test_tools_have_typed_inputs(made):
    tools = {one.name: one for one in asyncio.run(made.list_tools())}
    assert set(tools) == {"simulate_serving", "compare_serving", "time_iteration", "list_catalog", "search_deployment"}
    schema = getattr(tools["simulate_serving"], "input_schema", None) or tools["simulate_serving"].inputSchema
    assert schema["properties"]["replicas"]["minimum"] == 1
    assert all(one.description for one in tools.values())


def test_an_answer_says_what_it_rests_on(made):
    (told,), _ = call(made, "simulate_serving", rate=3.0, requests=60)
    assert told["ttft_s"]["p99"] > 0 and told["intervals_90"]
    assert told["times_are"].split()[0] in ("measured", "estimated", "calibrated")
    assert "report" not in told


def test_an_iteration_and_the_catalog(made):
    (told,), _ = call(made, "time_iteration", decodes=8)
    assert told["seconds"] > 0 and len(told["slowest"]) == 5
    (known,), _ = call(made, "list_catalog")
    assert "llama-3-8b" in known["models"] and "h100" in known["gpus"]


def test_a_search_answers_with_the_best_and_its_command(made, monkeypatch):
    """The real search of a question whose iterations take explicit times, so that it is quick."""
    from gnomon.api import search as searching

    real = searching.search
    quick = {"settings": TABLE, "effort": QUICK, "workload": question().workload}
    monkeypatch.setattr(searching, "search", lambda given: real(given | quick, jobs=1))
    (told,), _ = call(made, "search_deployment", model="llama-2-7b", gpus=["a100", "h100"], tensor_parallel=[1])
    assert told["requests_per_s"] > 0 and told["gpus"] == 1 and told["commands"]
    assert list(told["ranking"][0]) == [told["best"]]
    (told,), _ = call(made, "search_deployment", model="llama-2-7b", gpus=["a100"], ttft_p90_s=1e-6)
    assert told["best"] is None
    with pytest.raises(Exception, match="a100"):
        call(made, "search_deployment", model="llama-2-7b", gpus=["a1000"])


def test_a_mistake_is_answered_with_what_would_be_right(made):
    with pytest.raises(Exception, match="llama-3-8b"):
        call(made, "simulate_serving", model="lama-3-8b")
