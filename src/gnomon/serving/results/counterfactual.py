"""What would be if: the same requests on a deployment with one thing changed, really simulated.

Advice changes what an operator can change; a bottleneck is found by making one resource free at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.serving.policies import UNBOUNDED
from gnomon.serving.results.metrics import summarize
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.timing.source_registry import SOURCES

_MOST_BLOCKS, _MOST_SEQUENCES, _MOST_TOKENS = 2**31 - 1, 65_536, 2**22
"""What a scenario may say (`gnomon.core.sizes`)."""
ADVISED_ROUTER = "least_outstanding"

Edit = Callable[[Pool], Mapping[str, Any] | None]
"""The dotted settings that change for one pool; None where there is nothing to change."""


@dataclass(frozen=True)
class Change:
    """One thing that could be different."""

    name: str
    words: str
    edit: Edit
    pool: int | None = None
    """One more replica of this one."""
    router: str | None = None
    needs: str = ""
    """What it takes, where that is not dollars."""


@dataclass(frozen=True)
class Outcome:
    """What a change did."""

    change: Change
    scenario: Scenario
    """Simulating it gives the summary below."""
    summary: Summary

    def figure(self, metric: str, statistic: str) -> float | None:
        """A latency in seconds, e.g. e2e's p99."""
        value: float | None = getattr(getattr(self.summary.latency, f"{metric}_s"), statistic)
        return value


def changed(scenario: Scenario, pools: list[Pool], change: Change) -> Scenario | None:
    """The scenario with a change made; None where it would be the same."""
    data = scenario.model_dump(mode="json", exclude_unset=True)
    data.pop("engine", None)  # Its settings stand in the sections already.
    edits = [change.edit(pool) for pool in pools]
    if not any(edits) and change.pool is None and change.router in (None, scenario.router.name):
        return None
    places = data["pools"] if scenario.pools else [data]
    for place, edit in zip(places, edits, strict=True):
        for name, value in (edit or {}).items():
            section, _, field = name.partition(".")
            place[section] = {**_section(place.get(section)), field: value}
    if change.pool is not None:
        places[change.pool]["num_replicas"] = pools[change.pool].num_replicas + 1
    if change.router is not None:
        data["router"] = change.router
    return build(Scenario, data)


def _section(given: Any) -> dict[str, Any]:
    return dict(given) if isinstance(given, Mapping) else {}


def advice(done: Run) -> list[Change]:
    """What an operator could do about this deployment."""
    tokens, sequences = (
        {getattr(pool.batching, name) for pool in done.pools} for name in ("max_batch_tokens", "max_sequences")
    )
    changes = [
        Change("kv", "10 % more KV memory", lambda k: {"replica.num_kv_blocks": _blocks(1.1 * k.num_kv_blocks)},
               needs="memory: fewer weights, a smaller KV format, a larger GPU"),
        Change("chunk_half", f"half the token budget{_each(tokens, 0.5)}", lambda k: _budget(k, 0.5)),
        Change("chunk_double", f"twice the token budget{_each(tokens, 2.0)}", lambda k: _budget(k, 2.0)),
        Change("cap_half", f"half the batch cap{_each(sequences, 0.5)}", lambda k: _cap(k, 0.5)),
        Change("cap_double", f"twice the batch cap{_each(sequences, 2.0)}", lambda k: _cap(k, 2.0)),
        *(_one_more(done.pools, number) for number in range(len(done.pools))),
        Change("prefix_cache", "prefix caching", lambda k: {"batching.prefix_cache": True}
               if k.policy.has_prefix_cache and not k.batching.prefix_cache else None),
    ]  # fmt: skip
    if sum(pool.num_ranks for pool in done.pools) > 1:
        changes.append(Change("router", f"the router {ADVISED_ROUTER}", lambda k: None, router=ADVISED_ROUTER))
    return changes


def _each(values: set[int], factor: float) -> str:
    """The number after the change, where it is the same in every pool."""
    return f" ({max(1, int(factor * min(values))):,})" if len(values) == 1 else " of every pool"


def _one_more(pools: list[Pool], number: int) -> Change:
    """One more replica, and of which pool where there are several."""
    if len(pools) == 1:
        return Change("replica", "one more replica", lambda k: None, pool=0)
    pool = pools[number]
    what = f"one more {pool.role} replica" if pool.role != "both" else "one more replica"
    return Change(f"replica_{number}", f"{what} of pool {number} ({pool.device.name})", lambda k: None, pool=number)


def limits(done: Run) -> list[Change]:
    """Everything that may be a bottleneck, each without a price."""
    requests = done.requests
    total = int(requests.total_tokens.sum())
    changes = []
    if not any(SOURCES[pool.timing.source].gives_iterations for pool in done.pools):
        changes += [
            Change("compute", "arithmetic", lambda k: {"timing.free": ("compute",)}),
            Change("memory", "memory bandwidth", lambda k: {"timing.free": ("memory",)}),
        ]
        if any(pool.replica.num_gpus > 1 for pool in done.pools):
            changes.append(Change("network", "the network", lambda k: {"timing.free": ("network",)}))

    def all_blocks(pool: Pool) -> Mapping[str, Any]:
        enough = total // pool.batching.block_size + 2 * len(requests)
        return {"replica.num_kv_blocks": _blocks(min(16 * pool.num_kv_blocks, max(enough, pool.num_kv_blocks)))}

    changes.append(Change("kv", "KV capacity", all_blocks))
    if done.tables.host_s.any():
        changes.append(Change("host", "the host", lambda k: {"timing.host": {}}))
    changes.append(Change("cap", "the batch cap", lambda k: _cap(k, 8.0)))
    return changes


def _blocks(count: float) -> int:
    return min(int(np.ceil(count)), _MOST_BLOCKS)


def _budget(pool: Pool, factor: float) -> Mapping[str, Any] | None:
    if not pool.policy.chunks_prompts or pool.token_budget == UNBOUNDED:
        return None
    tokens = max(pool.batching.block_size, int(factor * pool.batching.max_batch_tokens))
    return {"batching.max_batch_tokens": min(tokens, _MOST_TOKENS)}


def _cap(pool: Pool, factor: float) -> Mapping[str, Any]:
    return {"batching.max_sequences": min(max(1, int(factor * pool.batching.max_sequences)), _MOST_SEQUENCES)}


def outcomes(done: Run, changes: list[Change], on_progress: Callable[[int, int], None]) -> Iterator[Outcome]:
    """Simulate each change on the same requests; what cannot be simulated (does not fit, or is refused) is left out."""
    # Warm-up requests are not among those of a run any more: the scenario makes them again.
    requests = None if done.scenario.workload.warmup_requests else done.requests
    for number, change in enumerate(changes):
        on_progress(number, len(changes))
        try:
            scenario = changed(done.scenario, done.pools, change)
            if scenario is not None and scenario != done.scenario:
                yield Outcome(change, scenario, summarize(run(scenario, requests=requests)))
        except GnomonError:
            continue
    on_progress(len(changes), len(changes))
