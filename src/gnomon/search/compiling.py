"""Compile once in the parent, so that workers find the code on disk."""

from typing import Any

from gnomon.core.config import load
from gnomon.search.config import SearchConfig
from gnomon.search.space import scheduler_of
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario

_SMALL = {
    "model": "llama-2-7b",
    "device": "a100",
    "timing": {"source": "table", "table": {"per_iteration": 0.01}},
    "workload": {"num_requests": 2, "lengths": {"distribution": "fixed", "prompt": 8, "output": 2}},
}


def compile_for(search: SearchConfig) -> None:
    """Run two requests under every policy and router of the space."""

    def own(section: str) -> dict[str, Any]:
        return {key: value for key, value in search.settings.items() if key == f"{section}.file"}

    for policy in {scheduler_of(search, one)[1] for one in search.space.batching}:
        run(load(Scenario, None, {**_SMALL, **own("batching"), "batching.policy": policy}))
    for router in search.space.router:
        run(load(Scenario, None, {**_SMALL, **own("router"), "router.name": router, "num_replicas": 2}))
