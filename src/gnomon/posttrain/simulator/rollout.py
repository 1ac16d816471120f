"""Generation on the serving engine: instances that can be emptied and started, sequences that can move.

Every GPU range that could hold an instance is a replica of one cluster; instances that are not there just have no work.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.jit import bound
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.serving.engine.cluster import advance_all
from gnomon.serving.engine.context import Fleet, open_to_all
from gnomon.serving.engine.log import Log, new_log
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.features.migration import submit, withdraw
from gnomon.serving.routers import ROUTERS
from gnomon.serving.run.build import build_cluster
from gnomon.serving.run.compilation import engine_of
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import bake, resolve
from gnomon.timing.iteration import IterationTables
from gnomon.workload import Requests

_LOG_ROWS_EACH, _LOG_GAPS = 8, 1 << 16
"""The log is not looked at here: it only needs room enough to be thinned out seldom."""
_OF_A_REPLICA = (
    "tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel", "memory_utilization", "speculative",
)  # fmt: skip
"""Settings that an instance has as a scenario's replica."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of one step: which group, how long, how much of it an earlier step has generated."""

    group: Ints
    prompt: Ints
    response: Ints
    generated: Ints
    processed: Ints | None = None
    """Tokens whose KV cache is still there; none unless given."""

    def __len__(self) -> int:
        return len(self.group)


@dataclass(eq=False)
class Prompts:
    """Groups that may be generated in a step: those carried over first, then new ones."""

    prompt: Ints
    """[group, sample]"""
    response: Ints
    generated: Ints
    """Tokens that earlier steps have produced."""
    age: Ints
    """[group]: weight updates since the first token."""
    num_carried: int = 0

    @cached_property
    def num_complete(self) -> int:
        """Of those carried over, groups that need only be trained."""
        return int((self.generated >= self.response)[: self.num_carried].all(axis=1).sum())

    def sequences(self, count: int, *, keep_kv: bool = False) -> Sequences:
        """Of the first `count` groups; with `keep_kv` those that have begun go on with their KV cache."""
        prompt, response = self.prompt[:count].ravel(), self.response[:count].ravel()
        generated = self.generated[:count].ravel()
        kept = np.where((generated > 0) & (generated < response), prompt + generated - 1, 0) if keep_kv else None
        return Sequences(np.repeat(np.arange(count), self.prompt.shape[1]), prompt, response, generated, kept)

    def left_over(self, is_trained: NDArray[np.bool_], produced: Ints, *, keep_tokens: bool) -> Prompts:
        """Groups for later steps: submitted ones that were not trained, and carried ones that were not submitted.

        `produced` are the tokens of the submitted groups so far, which only count where they are kept.
        """
        submitted = len(is_trained)
        again = np.flatnonzero(~is_trained)
        waiting = np.arange(submitted, max(submitted, self.num_carried))
        kept = produced[again] if keep_tokens else np.zeros_like(produced[again])
        rows = np.concatenate([again, waiting])
        generated = np.concatenate([kept, self.generated[waiting]])
        age = np.where(generated.sum(axis=1) > 0, self.age[rows] + 1, 0)
        return Prompts(self.prompt[rows], self.response[rows], generated, age, len(rows))

    def without_stale(self, max_lag: int) -> tuple[Prompts, Prompts]:
        """Carried groups that may still be trained, and those that are too old."""
        is_old = self.age > max_lag
        return self._rows(~is_old), self._rows(is_old)

    def _rows(self, chosen: NDArray[np.bool_]) -> Prompts:
        rows = np.flatnonzero(chosen)
        return Prompts(self.prompt[rows], self.response[rows], self.generated[rows], self.age[rows], len(rows))


class Rollouts:
    """All instances of one step, and the sequences on them."""

    def __init__(self, config: Posttrain, num_instances: int, sequences: Sequences) -> None:
        self.sequences = sequences
        self._moves_kv = config.rollout.migration == "kv_transfer"
        pool, tables = _pool_and_tables(
            config.model, config.device, config.node, config.rollout, num_instances, longest(config)
        )
        shares = config.rollout.prefix_cache and config.environment.turns == 1 and sequences.processed is None
        cluster = build_cluster([pool], _requests(sequences, shares=shares), config.seed)
        cluster.requests.prefill_tokens += sequences.generated
        if sequences.processed is not None:
            cluster.requests.processed[:] = sequences.processed
        self._fleet = Fleet(
            cluster, tables, np.zeros((1, 2)), np.zeros(1), np.zeros(8), np.zeros(0), np.zeros(0), *open_to_all(cluster)
        )
        self._engine = engine_of([config.rollout.engine], ROUTERS["round_robin"])
        self._log: Log = new_log(_LOG_ROWS_EACH * pool.num_ranks * config.rollout.pipeline_parallel, _LOG_GAPS)
        self._ranks = config.rollout.data_parallel
        self.instance_of = np.full(len(sequences), -1, np.int64)
        self._requests = cluster.requests.view(np.ndarray)
        self._replicas = cluster.replicas.view(np.ndarray)
        state = (self._fleet, self._engine, self._log)
        self._advance = bound(advance_all, *state, 0.0)
        self._submit = bound(submit, *state, self.instance_of, self.instance_of, 0.0)

    def submit(self, ids: Ints, instances: Ints, now: float) -> None:
        """Queue sequence `ids[i]` at `instances[i]`; everything before `now` has happened."""
        if not ids.size:
            return
        self.instance_of[ids] = instances
        ranks = instances * self._ranks
        if self._ranks > 1:  # Each goes to the data-parallel rank of its instance that has the fewest.
            load = self._replicas["num_outstanding"].copy()
            for i, first in enumerate(ranks.tolist()):
                ranks[i] += load[first : first + self._ranks].argmin()
                load[ranks[i]] += 1
        order = np.argsort(ranks, kind="stable")
        self._submit(self._fleet, self._engine, self._log, ids[order], ranks[order], now)

    def advance(self, until: float) -> None:
        self._advance(self._fleet, self._engine, self._log, until)

    def withdraw(self, instance: int, now: float) -> tuple[Ints, float]:
        """Empty an instance at its next batch boundary: its unfinished sequences, and when that is."""
        ids, stop = withdraw(self._fleet, self._engine, self._log, instance * self._ranks, now)
        if self._moves_kv:
            started = ids[Rollouts.generated(self, ids) > 0]
            # All KV but that of the newest token comes along.
            self._requests["processed"][started] = self._requests["prefill_tokens"][started] - 1
        self.instance_of[ids] = -1
        return ids, stop

    @property
    def finished_s(self) -> Floats:
        """When each sequence was complete; inf where it is not yet."""
        return np.where(self._requests["status"] == FINISHED, self._requests["finished_s"], np.inf)

    @property
    def num_finished(self) -> int:
        return int(self._replicas["num_finished"].sum())

    def generated(self, ids: Ints) -> Ints:
        """Tokens produced for withdrawn sequences, in this step and before."""
        return np.asarray(self._requests["prefill_tokens"][ids] - self._requests["prompt_tokens"][ids])

    @property
    def seats(self) -> Ints:
        """The instance that each sequence is or was last on; -1 where it has left."""
        return self.instance_of

    @property
    def unfinished(self) -> Ints:
        """Sequences that each instance runs or has waiting."""
        return np.asarray(self._replicas["num_outstanding"].reshape(-1, self._ranks).sum(axis=1))

    @property
    def kv_use(self) -> Floats:
        free = self._replicas["free_blocks"] / self._replicas["num_blocks"]
        return np.asarray(1.0 - free.reshape(-1, self._ranks).mean(axis=1))

    @property
    def next_event_s(self) -> float:
        """The next end of a batch anywhere; inf when nothing runs."""
        return float(self._replicas["next_end_s"].min())

    @property
    def busy_s(self) -> Floats:
        """Seconds in which each instance computed; its ranks step together."""
        return np.asarray(self._replicas["busy_s"].reshape(-1, self._ranks).max(axis=1))

    @property
    def num_preemptions(self) -> int:
        return int(self._replicas["num_preemptions"].sum())


def longest(config: Posttrain) -> int:
    """Tokens of the longest sequence, with what tools add."""
    environment = config.environment
    return config.lengths.max_prompt + config.lengths.max_response + (environment.turns - 1) * environment.tool_tokens


def check_memory(config: Posttrain) -> None:
    """Refuse a rollout instance whose KV cache does not hold the longest sequence."""
    pool, _ = _pool_and_tables(config.model, config.device, config.node, config.rollout, 1, longest(config))
    room = pool.num_kv_blocks * pool.batching.block_size
    if room < longest(config):
        raise ConfigError(
            f"the KV cache of an instance holds {room:,} tokens, the longest sequence has {longest(config):,}.",
            where="rollout.tensor_parallel",
            fix=f"Use {2 * config.rollout.tensor_parallel}, or set lengths.max_response to"
            f" {max(1, room - config.lengths.max_prompt)}.",
        )


@lru_cache(maxsize=32)
def _pool_and_tables(
    model: str, device: str, node: str | None, rollout: Any, num_instances: int, longest: int
) -> tuple[Pool, IterationTables]:
    given = {
        "model": model,
        "device": device,
        "node": node,
        "num_replicas": num_instances,
        "engine": rollout.preset,
        "replica": {**{name: getattr(rollout, name) for name in _OF_A_REPLICA}, "max_request_tokens": longest},
        "batching": {
            "policy": rollout.engine,
            "max_sequences": rollout.max_running_requests,
            "prefix_cache": rollout.prefix_cache,
            "overlap": False,
        },
        "timing": {"scale": 1.0 / rollout.efficiency, "dtype": rollout.dtype, "kv_dtype": rollout.kv_dtype},
    }
    host = rollout.host.model_dump(exclude_none=True)
    if rollout.preset is None or host:
        given["timing"]["host"] = host
    scenario = build(Scenario, given)
    pool = resolve(scenario)[0]
    # The tables cover the longest sequence, whatever is drawn, so that they are baked once.
    cap = pool.max_in_batch
    widest = Sequences(*(np.full(cap, value, np.int64) for value in (0, 1, longest - 1, 0)))
    return pool, bake(model, [pool], _requests(widest)).tables


def _requests(sequences: Sequences, *, shares: bool = False) -> Requests:
    """As the engine takes them; where a group `shares` its prompt, with the hashes of its blocks."""
    made = Requests(np.zeros(len(sequences)), sequences.prompt.astype(np.int32), sequences.response.astype(np.int32))
    if not shares:
        return made
    blocks = sequences.prompt // made.prefix_block_tokens
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    return replace(made, prefix_offsets=offsets, prefix_hashes=np.repeat(sequences.group + 1, blocks) << 20 | place)


class PromptQueue:
    """Groups that no instance has yet, in the order in which they are handed out."""

    def __init__(self, rollouts: Rollouts, ids: Ints, config: Posttrain, *, longest_first: bool) -> None:
        """`ids` are the sequences to generate; only a clairvoyant can take the longest groups first."""
        sequences = rollouts.sequences
        self._rollouts, self._cap = rollouts, config.rollout.max_running
        self._in_flight, self._deals_groups = config.algorithm.in_flight, config.rollout.deal == "groups"
        groups, first = np.unique(sequences.group[ids], return_index=True)
        parts = np.split(ids, first[1:])
        order = np.arange(len(groups))
        if longest_first:
            left = sequences.response - sequences.generated
            order = np.argsort([-int(left[part].sum()) for part in parts], kind="stable")
        self._waiting = deque(parts[i] for i in order)
        self._running: list[Ints] = []
        self.num_sequences = len(ids)
        """Sequences that no instance has yet."""

    def __len__(self) -> int:
        return len(self._waiting)

    def feed(self, instances: list[int], now: float) -> None:
        """Hand out groups until every instance has as many sequences as it runs, or as many groups are being generated
        as may be; everything before `now` has happened."""
        load, room = self._rollouts.unfinished[instances].copy(), math.inf
        if self._in_flight is not None:
            is_done = np.isfinite(self._rollouts.finished_s)
            self._running = [part for part in self._running if not is_done[part].all()]
            room = self._in_flight - len(self._running)
        parts, targets = [], []
        while self._waiting and room > 0 and load.min(initial=self._cap) < self._cap:
            part = self._waiting.popleft()
            room -= 1
            for some in [part] if self._deals_groups else np.split(part, len(part)):
                least = int(load.argmin())
                load[least] += len(some)
                targets.append(np.full(len(some), instances[least]))
            self.num_sequences -= len(part)
            parts.append(part)
        if parts:
            self._running += parts
            self._rollouts.submit(np.concatenate(parts), np.concatenate(targets), now)

    def clear(self) -> None:
        self._waiting.clear()
        self.num_sequences = 0
