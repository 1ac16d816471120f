"""Policies and routers of one's own, from a file, and the contracts that all of them must keep."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon import extend
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, GnomonError, UnknownNameError
from gnomon.moved import MOVED
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.policies import POLICIES, PolicySpec, batching_policy
from gnomon.serving.policies.lightllm import peak_tokens
from gnomon.serving.routers import ROUTERS, router
from gnomon.serving.scenario.config import BatchingConfig
from own_code_kit import HEADER
from own_code_kit import POLICIES as MISTAKES
from serving_kit import ROUTERS as ROUTER_NAMES
from serving_kit import assert_same, check_invariants, outcome, requests_of, run, scenario

EXAMPLES = Path(__file__).parents[2] / "examples" / "own"


def test_defaults_of_a_policy_are_settings_of_all() -> None:
    def nothing(replica: Any) -> None:
        """Forms no batch."""

    with pytest.raises(UnknownNameError, match="default of a batching policy 'chunk'"):
        batching_policy("own_of_a_test", defaults={"chunk": 3})(nothing)
    assert "own_of_a_test" not in POLICIES


def test_a_policy_from_a_file_keeps_the_contract() -> None:
    own: dict[str, Any] = {"policy": "shortest_first", "file": str(EXAMPLES / "shortest_first.py"), "max_sequences": 4}
    own["parameters"] = [1e6]
    workload = {"rate": 60.0, "num_requests": 200}
    done = run(scenario(batching=own, workload=workload))
    check_invariants(done)
    default = run(scenario(batching={"max_sequences": 4}, workload=workload))
    requests = done.cluster.requests
    short = requests.prompt_tokens < np.median(requests.prompt_tokens)

    def waited(one: Any) -> float:
        chosen = one.cluster.requests[short]
        return float((chosen.scheduled_s - chosen.arrival_s).mean())

    assert waited(done) < 0.8 * waited(default), "short prompts wait less"
    assert "shortest_first" in POLICIES


def test_a_policy_remembers_from_batch_to_batch() -> None:
    """A decodes from 1 s on. B comes then and waits alone for two iterations, to be admitted in the third."""
    own: dict[str, Any] = {"policy": "in_bursts", "file": str(EXAMPLES / "in_bursts.py")}
    own["options"] = {"burst": 2.0, "patience": 2.0}
    timing = {"source": "table", "table": {"per_iteration": 1.0}}
    setup = scenario(batching=own, timing=timing)
    done = run(setup, requests=requests_of([0.0, 0.5], [10, 10], [9, 2]))
    check_invariants(done)
    assert done.cluster.requests.scheduled_s.tolist() == [0.0, 3.0]
    assert done.cluster.policy_memory[0, 0] > 0
    at_once = run(setup, requests=requests_of([0.0, 0.5, 0.6], [10, 10, 10], [9, 2, 2]))
    assert at_once.cluster.requests.scheduled_s.tolist() == [0.0, 1.0, 1.0], "two are a burst"


def test_the_how_to_names_every_trait_of_a_policy() -> None:
    page = (EXAMPLES.parent.parent / "docs" / "how-to" / "add-a-batching-policy.md").read_text(encoding="utf-8")
    assert [one.name for one in fields(PolicySpec) if f"`{one.name}`" not in page] == ["name", "form_batch"]


@pytest.mark.parametrize(
    ("batching", "options"),
    [
        ({"reserve_full_prompt": False}, {"reserve_full_prompt": 0.0}),
        ({"policy": "lightllm", "max_waiting_iterations": 3}, {"max_waiting_iterations": 3.0}),
        ({"policy": "lightllm", "reserve_full_prompt": True}, {}),
        ({"policy": "orca", "max_waiting_iterations": 10}, {}),
    ],
)
def test_settings_of_before_are_options_of_a_policy(batching: dict[str, Any], options: dict[str, float]) -> None:
    assert build(BatchingConfig, batching).options == options


def test_a_setting_of_before_that_the_policy_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is an option of vllm_v1.*options: {reserve_full_prompt: 0}"):
        build(BatchingConfig, {"policy": "sglang", "reserve_full_prompt": False})


def test_a_plain_router_from_a_file_works(cli: Any) -> None:
    file = EXAMPLES / "fastest_replica.py"
    done = run(scenario(num_replicas=3, router={"name": "fastest_replica", "file": str(file)}))
    check_invariants(done)
    assert np.bincount(done.cluster.requests.replica, minlength=3).min() > 0


COMPILED_WITHIN = (
    "prefix_aware", "predicted_latency", "lookahead", "learned", "llmd", "dynamo_kv", "cache_aware", "gateway",
)  # fmt: skip
"""Routers that call functions which only compiled code can call."""


@pytest.mark.parametrize("name", [name for name in ROUTER_NAMES if name not in COMPILED_WITHIN])
def test_a_plain_router_equals_its_compiled_twin(name: str) -> None:
    spec = ROUTERS[name]
    twin = f"plain_{name}"
    if twin not in ROUTERS:
        traits = {"sees_state": spec.sees_state, "memory": spec.memory, "observes": spec.observes}
        router(twin, compiled=False, options=spec.options, **traits)(spec.route)
    workload = {"rate": 80.0, "num_requests": 150}
    compiled = run(scenario(num_replicas=4, router={"name": name}, workload=workload))
    plain = run(scenario(num_replicas=4, router={"name": twin}, workload=workload))
    assert_same(outcome(compiled), outcome(plain))


@pytest.mark.parametrize("name", ROUTER_NAMES)
def test_every_router_serves_everything_on_unequal_replicas(name: str) -> None:
    pools = [{"num_replicas": 2}, {"num_replicas": 3, "replica": {"num_kv_blocks": 100, "max_request_tokens": 500}}]
    done = run(scenario(pools=pools, router={"name": name}, workload={"rate": 60.0, "num_requests": 200}))
    check_invariants(done)
    assert done.cluster.requests.replica.min() >= 0
    assert done.cluster.requests.replica.max() < 5


def test_least_outstanding_balances_better_than_random() -> None:
    workload = {"rate": 100.0, "num_requests": 600}

    def spread(name: str) -> float:
        done = run(scenario(num_replicas=4, router={"name": name}, workload=workload))
        return float((done.cluster.requests.finished_s - done.cluster.requests.arrival_s).mean())

    assert spread("least_outstanding") < spread("random")


def test_names_can_be_taken_only_once() -> None:
    with pytest.raises(GnomonError, match="registered already"):
        batching_policy("vllm_v1")(lambda replica: None)
    assert set(ROUTER_NAMES) <= set(ROUTERS)


def test_own_functions_belong_to_a_module_that_compiled_code_can_find_again() -> None:
    run(scenario(num_replicas=2, router={"name": "fastest_replica", "file": str(EXAMPLES / "fastest_replica.py")}))
    module = sys.modules[ROUTERS["fastest_replica"].route.__module__]
    assert module.__file__ == str((EXAMPLES / "fastest_replica.py").resolve())


def test_files_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        run(scenario(router={"name": "mine", "file": str(tmp_path / "none.py")}))
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        run(scenario(router={"name": "mine", "file": str(broken)}))


def test_a_policy_that_cannot_be_compiled_is_explained(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from gnomon.serving.policies import batching_policy\n\n\n"
        "@batching_policy('broken')\ndef broken(replica):\n    undefined_function(replica)\n"
    )
    with pytest.raises(ConfigError, match=r"own\.py:4: broken cannot be compiled: .*undefined_function"):
        run(scenario(batching={"policy": "broken", "file": str(own)}))


def test_a_policy_that_forgets_its_only_request_is_told(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(HEADER.format(name="forgets_one") + MISTAKES["forgets_the_running"][0])
    setup = scenario(batching={"policy": "forgets_one", "file": str(own), "max_sequences": 16})
    with pytest.raises(ConfigError, match="leaves requests alone for ever"):
        run(setup, requests=requests_of([0.0], [10], [5]))


@pytest.mark.parametrize(
    ("has", "left", "peak"),
    [
        ([10.0], [5.0], 15.0),
        # Longest left first: 5*1 + 10 = 15, then 2*2 + 30 = 34.
        ([10.0, 20.0], [5.0, 2.0], 34.0),
        # 8*1 + 1 = 9, 4*2 + 3 = 11, 1*3 + 6 = 9.
        ([1.0, 2.0, 3.0], [8.0, 4.0, 1.0], 11.0),
        ([7.0], [0.0], 7.0),
    ],
)
def test_lightllm_foretells_the_peak_of_memory(has: list[float], left: list[float], peak: float) -> None:
    plain = getattr(peak_tokens, "py_func", peak_tokens)
    assert plain(np.array(has), np.array(left)) == peak
    # The same by playing it out: everyone gains a token a step and frees its memory when done.
    highest, tokens, to_go = 0.0, np.array(has), np.array(left)
    alive = np.ones(len(has), bool)
    while alive.any():
        highest = max(highest, tokens[alive].sum())
        alive &= to_go > 0
        tokens[alive] += 1
        to_go[alive] -= 1
    assert highest == peak


def test_json_of_the_registry_is_listed(cli: Any) -> None:
    assert json.loads(cli("catalog", "sources", "--json").output)


def test_imports_of_the_release_before_still_work_and_say_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gnomon.serving.verbs", "gnomon.core.jit"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(FutureWarning, match=r"gnomon\.serving\.verbs is now .*batch_operations.*gnomon\.extend"):
        from gnomon.serving.verbs import place
    with pytest.warns(FutureWarning, match=r"gnomon\.core\.jit is now gnomon\.extend"):
        from gnomon.core.jit import inner
    assert (place, inner) == (extend.place, extend.inlined)
    assert all(find_spec(new) for new in MOVED.values())
    with pytest.raises(ModuleNotFoundError):
        import_module("gnomon.serving.never_was")


def test_early_rejection_turns_away_who_would_come_too_late() -> None:
    """An iteration takes a second and has room for one prompt of 1,000 tokens: of six at once on one replica three
    could have their first token within three seconds."""
    early = {
        "name": "early",
        "file": str(EXAMPLES / "early_rejection.py"),
        "options": {"tokens_per_s": 1e3, "ttft_s": 3.0},
    }
    setup = scenario(
        admission=early, engine="none", timing={"source": "table", "table": {"per_iteration": 1.0}},
        batching={"policy": "vllm_v1", "max_batch_tokens": 1000}, slo={"ttft_s": 3.0},
    )  # fmt: skip
    done = run(setup, requests=requests_of([0.0] * 6, [1000] * 6, [1] * 6))
    q = done.cluster.requests
    assert np.flatnonzero(q.status == FINISHED).tolist() == [0, 1, 2]
    assert q.first_token_s[:3].tolist() == [1.0, 2.0, 3.0]
