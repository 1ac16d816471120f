"""Every request's time, divided: the ledger's entries as a client sees them, and checked to add up.

The ledger knows a request from the moment its scheduler does until its last token. Here the front end comes on top, and
waiting is charged to the router where another replica had nobody waiting in the meantime: there it would have been
served sooner.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml
from gnomon.serving.autoscaling.replicas import UP
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.features import breakdown
from gnomon.serving.run.simulate import Run

Metric = Literal["e2e", "ttft", "tpot"]
METRICS: tuple[Metric, ...] = ("e2e", "ttft", "tpot")


@dataclass(frozen=True)
class Part:
    """One part of a request's time."""

    name: str
    words: str
    """As a row of a table is called."""
    phrase: str
    """As a sentence goes on after "it spent ...": "waiting for KV memory"."""
    group: str
    """The cause it belongs to."""


_WORDS: dict[str, list[str]] = own_yaml(files("gnomon.serving.results") / "parts.yaml")
PARTS = tuple(Part(name, *words) for name, words in _WORDS.items())
assert len(PARTS) == breakdown.NUM_PARTS
NAMES = tuple(part.name for part in PARTS)

CAUSES = {
    "routing": "routing", "iteration": "the iteration under way", "batch cap": "the batch cap",
    "KV memory": "too little KV memory", "prefills": "prefills of others", "policy": "the batching policy's own rule",
    "own prefill": "the length of the prompt itself", "own decode": "the length of the answer itself",
    "batch": "sharing the batch", "pipeline": "pipeline stages", "transfers": "moving the KV cache",
    "host": "the host", "slow replica": "a slow replica", "outages": "outages",
    "adapters": "waiting for a LoRA adapter",
}  # fmt: skip
"""Groups of parts with one cure, in words."""


@dataclass(frozen=True, eq=False)
class Accounts:
    """Where the time of every finished request went. Parts are nanoseconds and add up exactly."""

    run: Run
    ids: Ints
    """The finished requests: the rows below."""
    parts_ns: Ints
    """[row, before or after the first token, part]"""
    e2e_ns: Ints
    """From the client's request to the last token's arrival there."""
    ttft_ns: Ints
    inflicted_ns: Ints
    """By how much each one's prefill delayed the decodes of others, all of them together."""

    @cached_property
    def requests(self) -> Any:
        """The engine's records of the finished requests."""
        return self.run.cluster.requests[self.ids]

    def values_s(self, metric: Metric) -> Floats:
        """A latency of each request; TPOT is NaN for answers of one token."""
        if metric == "ttft":
            return self.ttft_ns / 1e9
        if metric == "e2e":
            return self.e2e_ns / 1e9
        tokens = self.requests.output_tokens - 1
        none = np.full(self.ids.size, np.nan)
        return np.divide((self.e2e_ns - self.ttft_ns) / 1e9, tokens, out=none, where=tokens > 0)

    def parts_s(self, metric: Metric) -> Floats:
        """[row, part]: seconds of each part in a latency; they add up to it (in nanoseconds exactly, for E2E and
        TTFT)."""
        if metric == "e2e":
            return self.parts_ns.sum(axis=1) / 1e9
        if metric == "ttft":
            return self.parts_ns[:, breakdown.BEFORE] / 1e9
        tokens = np.maximum(self.requests.output_tokens - 1, 1)
        return self.parts_ns[:, breakdown.AFTER] / (1e9 * tokens[:, None])

    def row(self, request_id: int) -> int:
        """The row of a request; an error where it has none."""
        at = int(np.searchsorted(self.ids, request_id))
        if at < self.ids.size and self.ids[at] == request_id:
            return at
        count = self.run.cluster.requests.size
        if not 0 <= request_id < count:
            raise ConfigError(f"there is no request {request_id}.", where="request", fix=f"Give 0 to {count - 1}.")
        raise ConfigError(f"request {request_id} did not finish.", where="request", fix="Choose a finished one.")


def accounts(run: Run) -> Accounts:
    """The accounts of a run that was simulated with `explained=True`."""
    assert run.cluster.breakdown.size, "the run was not explained"
    q = run.cluster.requests
    if q.size and max(q.finished_s.max(), q.arrival_s[np.isfinite(q.arrival_s)].max(initial=0.0)) > 9e9:
        raise ConfigError("the run lasts longer than nanoseconds of 64 bits can count.", where="scenario")
    ids = np.flatnonzero(q.status == FINISHED)
    entries, requests = run.cluster.breakdown[ids], q[ids]
    parts = run.cluster.parts_ns[ids]
    arrival, finished = _nanoseconds(requests.arrival_s), _nanoseconds(requests.finished_s)
    first = _nanoseconds(requests.first_token_s)
    served = parts.sum(axis=2)
    assert np.array_equal(served.sum(axis=1), entries.last_ns - entries.first_ns), "the ledger has a gap"
    # What the front end takes: before the scheduler knows of a request, and from each token to the client.
    parts[:, breakdown.BEFORE, breakdown.FRONT_END] = first - arrival - served[:, breakdown.BEFORE]
    parts[:, breakdown.AFTER, breakdown.FRONT_END] = finished - first - served[:, breakdown.AFTER]
    _charge_router(run, ids, parts)
    _settle_negative(parts)
    e2e = finished - arrival
    assert np.array_equal(parts.sum(axis=(1, 2)), e2e), "parts do not add up"
    return Accounts(run, ids, parts, e2e, first - arrival, np.ascontiguousarray(entries.inflicted_ns))


def _nanoseconds(seconds: Any) -> Ints:
    return np.floor(np.asarray(seconds) * 1e9 + 0.5).astype(np.int64)


def _settle_negative(parts: Ints) -> None:
    """Differences of rounded times may be a few nanoseconds below zero, and a batch may be faster than a request alone
    where kernels are chosen by size. The largest part bears it."""
    below = np.minimum(parts, 0)
    owed = below.sum(axis=2)
    rows, phases = np.nonzero(owed)
    if not rows.size:
        return
    parts -= below
    largest = parts[rows, phases].argmax(axis=1)
    parts[rows, phases, largest] += owed[rows, phases]


def _charge_router(run: Run, ids: Ints, parts: Ints) -> None:
    """Move to ROUTING the share of a wait during which another replica had nobody waiting. An iteration under way
    would have been waited for anywhere."""
    q = run.cluster.requests
    takes = np.array([run.pools[pool].role != "decode" for pool in run.pool_of_replica])
    if np.unique(run.cluster.replicas.group_first[takes]).size < 2 or not ids.size:
        return
    waits = parts[:, breakdown.BEFORE, breakdown.BATCH_CAP : breakdown.POLICY + 1]
    total = waits.sum(axis=1)
    delayed = np.flatnonzero(total > 0)
    if not delayed.size:
        return
    at, summed = _somebody_free(q, int(takes.sum()), _closed(run, takes))
    arrival, scheduled = q.arrival_s[ids[delayed]] + q.front_s[ids[delayed]], q.scheduled_s[ids[delayed]]
    overlap = np.interp(scheduled, at, summed) - np.interp(arrival, at, summed)
    whole = np.maximum(scheduled - arrival, 1e-12)
    share = np.clip(overlap / whole, 0.0, 1.0)
    moved = np.floor(waits[delayed] * share[:, None]).astype(np.int64)
    waits[delayed] -= moved
    parts[delayed, breakdown.BEFORE, breakdown.ROUTING] += moved.sum(axis=1)


def prefilled_at(q: Any) -> Ints:
    """The replica in whose queue each request waited, and which computed its prompt."""
    return np.where(q.prefill_replica >= 0, q.prefill_replica, q.replica)


def _closed(run: Run, takes: Any) -> list[tuple[int, float, float]]:
    """The times in which replicas of a fleet that changes took no requests: whose, from when, until when."""
    if run.fleet is None:
        return []
    end_s, found = float(run.cluster.requests.finished_s.max()) + 1.0, []
    for i, one in enumerate(run.fleet.members):
        since_s = 0.0
        changes = sorted((at_s, state) for at_s, who, state in run.fleet.changes if who == i)
        for at_s, state in [*changes, (end_s, UP)]:
            if state == UP and at_s > since_s:
                found += [(r, since_s, at_s) for r in one.ranks if takes[r]]
            since_s = math.inf if state == UP else min(since_s, at_s)
    return found


def _somebody_free(q: Any, num_replicas: int, closed: list[tuple[int, float, float]]) -> tuple[Floats, Floats]:
    """Moments, and up to each the seconds during which at least one replica took requests and had none waiting."""
    known = np.flatnonzero((q.replica >= 0) & (q.scheduled_s >= 0))
    came, went = q.arrival_s[known] + q.front_s[known], q.scheduled_s[known]
    waited = went > came
    where = np.append(prefilled_at(q)[known][waited], [r for r, _, _ in closed]).astype(np.int64)
    replica = np.concatenate([where] * 2)
    came = np.append(came[waited], [from_s for _, from_s, _ in closed])
    at = np.concatenate([came, np.append(went[waited], [to_s for _, _, to_s in closed])])
    step = np.repeat(np.array([1, -1]), where.size)
    order = np.lexsort((-step, at, replica))
    replica, at, step = replica[order], at[order], step[order]
    # The queue length after each event, of its own replica: a running sum that starts over with each of them.
    length = np.cumsum(step)
    began, ended = (length == 1) & (step == 1), length == 0
    moments = np.concatenate([at[began], at[ended]])
    busy = np.concatenate([np.ones(int(began.sum())), -np.ones(int(ended.sum()))])
    order = np.argsort(moments, kind="stable")
    moments, queues = moments[order], np.cumsum(busy[order])
    if not moments.size:
        return np.array([0.0, 1.0]), np.array([0.0, 1.0])
    free = np.where(queues[:-1] < num_replicas, np.diff(moments), 0.0)
    first, last = min(0.0, moments[0]) - 1.0, moments[-1] + 1.0
    return (
        np.concatenate([[first], moments, [last]]),
        np.concatenate([[0.0], moments[0] - first + np.concatenate([[0.0], np.cumsum(free)]),
                        [moments[0] - first + free.sum() + 1.0]]),
    )  # fmt: skip
