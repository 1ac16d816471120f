"""What would be if: the same requests on a deployment with one thing changed, really simulated.

Advice changes what an operator can change; a bottleneck is found by making one resource free at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from gnomon.timing.host import HostConfig
from gnomon.timing.operators import SamplerConfig
from gnomon.timing.source_registry import SOURCES

_MOST_BLOCKS, _MOST_SEQUENCES = 2**31 - 1, 65_536  # What a scenario may say (`gnomon.core.sizes`).
MIN_GAIN, MIN_MISSED = 0.01, 0.01
"""Of a latency, and of requests that miss the SLO, below which nothing is to be gained."""
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
"""Token budgets that are tried: smaller ones keep the tokens of others coming, larger ones prefill more at once."""
DEGREES = (1, 2, 4, 8, 16)

Edit = Callable[[Pool], Mapping[str, Any] | None]
"""The dotted settings that change for one pool; None where there is nothing to change."""


@dataclass(frozen=True)
class Change:
    """One thing that could be different."""

    name: str
    words: str
    edit: Edit = lambda _: None
    replicas: Mapping[int, int] = field(default_factory=dict)
    """Replicas of a pool, by its place, where their number changes."""
    router: str | None = None
    needs: str = ""
    """What it takes, where that is not dollars."""
    group: str = ""
    """Of changes of one group only the best is told."""


@dataclass(frozen=True)
class Outcome:
    """What a change did."""

    change: Change
    scenario: Scenario
    """Simulating it gives the summary below."""
    summary: Summary

    def figure(self, metric: str, statistic: str) -> float | None:
        """A latency in seconds, e.g. e2e's p99."""
        return getattr(getattr(self.summary.latency, f"{metric}_s"), statistic)


def changed(scenario: Scenario, pools: list[Pool], change: Change) -> Scenario | None:
    """The scenario with a change made; None where it would be the same."""
    data = scenario.model_dump(mode="json", exclude_unset=True)
    edits = [change.edit(pool) for pool in pools]
    if not any(edits) and not change.replicas and change.router in (None, scenario.router.name):
        return None
    places = data["pools"] if scenario.pools else [data]
    for place, edit in zip(places, edits, strict=True):
        for name, value in (edit or {}).items():
            section, _, field = name.partition(".")
            given = place.get(section)
            place[section] = {**(given if isinstance(given, Mapping) else {}), field: value}
    for number, count in change.replicas.items():
        places[number]["num_replicas"] = count
    if change.router is not None:
        data["router"] = change.router
    return build(Scenario, data)


def advice(done: Run) -> list[Change]:
    """What an operator could do about this deployment."""
    pools = done.pools
    sequences = {pool.batching.max_sequences for pool in pools}
    changes = [
        *(Change(f"budget_{tokens}", f"a token budget of {tokens:,}", partial(_budget, tokens=tokens), group="budget")
          for tokens in BUDGETS),
        Change("cap_half", f"half the batch cap{_each(sequences, 0.5)}", lambda k: _cap(k, 0.5), group="cap"),
        Change("cap_double", f"twice the batch cap{_each(sequences, 2.0)}", lambda k: _cap(k, 2.0), group="cap"),
        Change("prefix_cache", "prefix caching", lambda k: {"batching.prefix_cache": True}
               if k.policy.has_prefix_cache and not k.batching.prefix_cache else None),
        *_layouts(done),
        *(_one_more(pools, number) for number in range(len(pools))),
        Change("kv", "10 % more KV memory", lambda k: {"replica.num_kv_blocks": _blocks(1.1 * k.num_kv_blocks)},
               needs="memory: fewer weights, a smaller KV format, a larger GPU"),
        Change("kv_dtype", "KV in FP8", lambda k: {"timing.kv_dtype": "fp8"} if k.timing.kv_dtype != "fp8" else None,
               needs="a check of the answers: they are rounded more"),
    ]  # fmt: skip
    if sum(pool.num_ranks for pool in pools) > 1:
        routers = ("least_outstanding", *(("prefix_aware",) if len(done.requests.prefix_hashes) else ()))
        changes += [Change(f"router_{name}", f"the router {name}", router=name, group="router") for name in routers]
    return changes


def _layouts(done: Run) -> Iterator[Change]:
    """The same GPUs as fewer, larger replicas, or as more and smaller ones."""
    pool = done.pools[0]
    own = done.scenario.replica
    if len(done.pools) > 1 or own.data_parallel > 1 or own.num_kv_blocks is not None or done.scenario.fleet is not None:
        return
    gpus = pool.num_replicas * own.tensor_parallel
    for degree in DEGREES:
        if degree != own.tensor_parallel and gpus % degree == 0:
            count = gpus // degree
            words = f"the same GPUs as {count} x TP{degree}" if count > 1 else f"the same GPUs as one TP{degree}"
            edit = partial(_with_degree, degree=degree)
            yield Change(f"tp_{degree}", words, edit, replicas={0: count}, group="layout")


def _with_degree(_: Pool, degree: int) -> Mapping[str, Any]:
    return {"replica.tensor_parallel": degree}


def _each(values: set[int], factor: float) -> str:
    """The number after the change, where it is the same in every pool."""
    return f" ({max(1, int(factor * min(values))):,})" if len(values) == 1 else " of every pool"


def _one_more(pools: list[Pool], number: int) -> Change:
    """One more replica, and of which pool where there are several."""
    pool = pools[number]
    more = {number: pool.num_replicas + 1}
    if len(pools) == 1:
        return Change("replica", "one more replica", replicas=more)
    what = f"one more {pool.role} replica" if pool.role != "both" else "one more replica"
    return Change(f"replica_{number}", f"{what} of pool {number} ({pool.device.name})", replicas=more)


def gain(before: Summary, one: Outcome, metric: str, statistic: str) -> float:
    """Share of the latency that a change takes away."""
    was = getattr(getattr(before.latency, f"{metric}_s"), statistic)
    now = one.figure(metric, statistic)
    return 1.0 - now / was if was and now is not None else 0.0


def ranked(before: Summary, outcomes: Sequence[Outcome], metric: str, statistic: str) -> list[Outcome]:
    """The best of every group: first those that cost nothing, then by what a dollar buys, then those that take
    something else; last what does not help. Where an SLO is missed, what counts is the share of misses that goes."""
    missed = 1.0 - before.slo.attainment if before.slo is not None else 0.0

    def worth(one: Outcome) -> float:
        if missed > MIN_MISSED and one.summary.slo is not None:
            return 1.0 - (1.0 - one.summary.slo.attainment) / missed
        return gain(before, one, metric, statistic)

    def place(one: Outcome) -> tuple[bool, int, float]:
        dollars = one.summary.cost.per_hour - before.cost.per_hour
        kind = 2 if one.change.needs else 1 if dollars > 0.005 else 0
        return worth(one) < MIN_GAIN, kind, -worth(one) / (dollars if kind == 1 else 1.0)

    best: dict[str, Outcome] = {}
    for one in outcomes:
        key = one.change.group or one.change.name
        if key not in best or worth(one) > worth(best[key]):
            best[key] = one
    return sorted(best.values(), key=place)


def limits(done: Run) -> list[Change]:
    """Everything that may be a bottleneck, each without a price."""
    requests = done.requests
    total = int(requests.total_tokens.sum())
    changes = []
    if not any(SOURCES[pool.timing.source].gives_iterations for pool in done.pools):
        changes.append(Change("compute", "arithmetic", lambda k: {"timing.free": ("compute",)}))
        changes.append(Change("memory", "memory bandwidth", lambda k: {"timing.free": ("memory",)}))
        if any(pool.replica.num_gpus > 1 for pool in done.pools):
            changes.append(Change("network", "the network", lambda k: {"timing.free": ("network",)}))
        if any(pool.timing.sampler != SamplerConfig() for pool in done.pools):
            changes.append(Change("sampling", "sampling", lambda k: {"timing.free": ("sampling",)}))

    def all_blocks(pool: Pool) -> Mapping[str, Any]:
        enough = total // pool.batching.block_size + 2 * len(requests)
        return {"replica.num_kv_blocks": _blocks(min(16 * pool.num_kv_blocks, max(enough, pool.num_kv_blocks)))}

    changes.append(Change("kv", "KV capacity", all_blocks))
    if done.tables.host_s.any():
        changes.append(Change("host", "the host", lambda k: {"timing.host": HostConfig().model_dump()}))
    changes.append(Change("cap", "the batch cap", lambda k: _cap(k, 8.0)))
    return changes


def _blocks(count: float) -> int:
    return min(int(np.ceil(count)), _MOST_BLOCKS)


def _budget(pool: Pool, tokens: int) -> Mapping[str, Any] | None:
    if not pool.policy.chunks_prompts or pool.token_budget == UNBOUNDED or tokens == pool.batching.max_batch_tokens:
        return None
    return {"batching.max_batch_tokens": tokens}


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
