"""Contract tests for users' own batching policies and routers: small runs that would go wrong if a rule is broken."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.core.user_files import load_user_file, plain
from gnomon.serving.engine.state import REJECTED
from gnomon.serving.policies import POLICIES
from gnomon.serving.routers import ROUTERS
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario

# Every token and request costs something, so that batches of different content take different times.
_TIMES = {"per_iteration": 0.01, "per_token": 1e-4, "per_sequence": 3e-4, "per_prefill_token": 1e-5}
_ALL_MEMBERS = 1_000_000


@dataclass(frozen=True)
class Finding:
    """One test of one function."""

    kind: str
    name: str
    test: str
    passed: bool
    message: str = ""
    """Why it failed."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def check_file(path: str | Path) -> Iterator[Finding]:
    """Run the contract tests on every policy and router that a Python file registers."""
    load_user_file(path)
    file = str(Path(path).resolve())
    policies = [name for name in POLICIES.own if _file_of(POLICIES[name].form_batch) == file]
    routers = [name for name in ROUTERS.own if _file_of(ROUTERS[name].route) == file]
    if not policies and not routers:
        what = "it registers no batching policy and no router."
        raise ConfigError(what, where=file, fix='Put @batching_policy("name") or @router("name") above the function.')
    for name in policies:
        yield from _tested("batching policy", name, _policy_tests(name))
    for name in routers:
        yield from _tested("router", name, _router_tests(name))


def _file_of(function: Any) -> str:
    return str(plain(function).__code__.co_filename)


def _tested(kind: str, name: str, tests: dict[str, Callable[[], str]]) -> Iterator[Finding]:
    """Run tests one by one; after one that could not be compiled the others would say the same."""
    for test, attempt in tests.items():
        try:
            message = attempt()
        except GnomonError as error:
            message = str(error)
        yield Finding(kind, name, test, not message, message)
        if "cannot be compiled" in message:
            return


def _run(lengths: tuple[int, int] = (200, 60), rate: float = 20.0, count: int = 60, **parts: Any) -> Callable[..., Run]:
    """A small run; `parts` are sections of the scenario."""
    prompt, output = lengths
    drawn = {"distribution": "uniform", "prompt": [1, prompt], "output": [1, output]}
    workload = {"rate": rate, "num_requests": count, "lengths": drawn, **parts.pop("workload", {})}
    timing = {"source": "table", "table": _TIMES}
    scenario = build(Scenario, {"model": "llama-2-7b", "timing": timing, "workload": workload, **parts})
    return lambda **how: run(scenario, **how)


def _serves_all(once: Callable[..., Run]) -> str:
    """Whether every request got its answer, although each fits."""
    status = once().cluster.requests.status
    rejected = int(np.count_nonzero(status == REJECTED))
    text = f"{rejected} of {status.size} requests were left waiting on an empty replica, until rejected."
    return text if rejected else ""


def _does_not_break(once: Callable[..., Run]) -> str:
    once()
    return ""


def _says_the_same_twice(once: Callable[..., Run], **how: Any) -> str:
    """Whether a second run, perhaps run in another way, has the same times."""
    first, second = once(), once(**how)
    if np.array_equal(first.cluster.requests.finished_s, second.cluster.requests.finished_s):
        return ""
    if how:
        return "decodes that step together come at other times than one by one: do not set state.steppable."
    return "two runs of the same scenario differ."


def _policy_tests(name: str) -> dict[str, Callable[[], str]]:
    def own(**settings: Any) -> dict[str, Any]:
        return {"batching": {"policy": name, **settings}}

    small: dict[str, Any] = {"num_kv_blocks": 40, "max_request_tokens": 300}
    tiny: dict[str, Any] = {"num_kv_blocks": 30}
    chunked = own(max_batch_tokens=512)
    tests = {
        "a light load": lambda: _serves_all(_run(rate=5.0, **own())),
        "one request at a time": lambda: _serves_all(_run(rate=50.0, **own(max_sequences=1))),
        "a queue longer than the batch cap": lambda: _serves_all(_run(rate=2000.0, **own(max_sequences=8))),
        "prompts longer than the token budget": lambda: _serves_all(_run((3000, 20), count=20, **chunked)),
        "little memory": lambda: _does_not_break(_run(rate=2000.0, replica=small, **own())),
        "requests larger than all memory": lambda: _does_not_break(_run((900, 900), count=20, replica=tiny, **own())),
        "the same twice": lambda: _says_the_same_twice(_run(rate=200.0, **own())),
        "decodes one by one": lambda: _says_the_same_twice(_run(rate=200.0, **own()), keep_members=_ALL_MEMBERS),
    }
    if POLICIES[name].has_stages:
        staged = {"pipeline_parallel": 2}
        tests["two pipeline stages"] = lambda: _serves_all(_run(rate=200.0, replica=staged, **own(max_sequences=16)))
    return tests


def _router_tests(name: str) -> dict[str, Callable[[], str]]:
    chosen: dict[str, Any] = {"router": {"name": name}}
    fixed = {"distribution": "fixed", "prompt": 30, "output": 20}
    sessions = {"lengths": fixed, "sessions": {"num_active": 5, "turns": 4}}
    pools = [{"num_replicas": 2}, {"num_replicas": 1, "replica": {"num_kv_blocks": 100, "max_request_tokens": 300}}]
    return {
        "one replica": lambda: _serves_all(_run(**chosen)),
        "four replicas": lambda: _serves_all(_run(num_replicas=4, **chosen)),
        "a long queue": lambda: _serves_all(_run(rate=2000.0, num_replicas=3, **chosen)),
        "unequal replicas": lambda: _does_not_break(_run(pools=pools, **chosen)),
        "conversations": lambda: _serves_all(_run(num_replicas=3, workload=sessions, **chosen)),
        "the same twice": lambda: _says_the_same_twice(_run(rate=200.0, num_replicas=4, **chosen)),
    }
