"""LoRA adapters: which of them a replica has loaded, and who waits for one.

A replica has a fixed number of slots (vLLM's `max_loras`). A request whose adapter is in a slot goes on at once; else
the adapter is loaded into the slot that was not in use for longest, one load after another; where all slots are in use,
the request waits in line for one to be left. An adapter is in use from the arrival of a request with it to the end of
the last one. The more adapters are in use, the longer iterations take.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import feature, inlined
from gnomon.serving.engine.calendar import NEVER
from gnomon.serving.engine.state import NONE, Cluster

# A place for one LoRA adapter in a replica.
ADAPTER_SLOT = np.dtype(
    [
        ("adapter", np.int64),  # or NONE
        ("num_users", np.int64),  # requests with it that have come and not ended
        ("used_s", np.float64),  # when one came or ended last
        ("ready_s", np.float64),  # when it is loaded
    ],
    align=True,
)

NUM_IN_LINE, FIRST_IN_LINE, LAST_IN_LINE = range(3)
FOUND, LOADED, WAITED = range(3)


class Adapters(NamedTuple):
    """The adapters of a run and what replicas do about them, beside their slots (`Cluster.adapter_slots`)."""

    load_s: Floats  # [adapter]: seconds to load it; size 0 where there are none.
    free_s: Floats  # [replica]: when all its loads so far are done.
    line: Ints  # [replica, 3]: requests that wait for a slot, as a list: `NUM_IN_LINE` ...
    counts: Ints  # [replica, 3]: requests that found their adapter, loads, and requests that waited for a slot.
    slowdown: Floats  # [adapters in use]: how much longer an iteration takes, as a share; the last goes on.


@dataclass(frozen=True)
class AdapterFigures:
    """Requests that asked for an adapter, by what they found."""

    requests: int
    found: float
    """Share of them whose adapter was loaded, or being loaded, when they came to their replica."""
    loads: int
    waited: float
    """Share of them that waited for a slot, because all were in use."""


def adapter_figures(adapters: Adapters) -> AdapterFigures:
    """The figures of a run."""
    found, loads, waited = (int(one) for one in adapters.counts.sum(axis=0))
    asked = max(1, found + loads)
    return AdapterFigures(found + loads, found / asked, loads, waited / asked)


def new_adapters(load_s: Floats, slowdown: Floats, num_replicas: int) -> Adapters:
    """Nothing loaded, nobody in line."""
    line = np.full((num_replicas, 3), NONE, np.int64)
    line[:, NUM_IN_LINE] = 0
    return Adapters(load_s, np.zeros(num_replicas), line, np.zeros((num_replicas, 3), np.int64), slowdown)


def new_slots(num_replicas: int, count: int) -> Any:
    """Empty slots."""
    slots = np.zeros((num_replicas, count), ADAPTER_SLOT).view(np.recarray)
    slots.adapter = NONE
    return slots


@inlined
def slot_of(cluster: Cluster, r: int, adapter: int) -> int:
    """The slot in which replica `r` has an adapter, or NONE."""
    for slot in range(cluster.adapter_slots.shape[1]):
        if cluster.adapter_slots[r, slot].adapter == adapter:
            return slot
    return NONE


@inlined
def _unused_for_longest(cluster: Cluster, r: int) -> int:
    """The slot to load into: an empty one, else that of the adapter that was not in use for longest; NONE where all
    are in use."""
    best = NONE
    for slot in range(cluster.adapter_slots.shape[1]):
        one = cluster.adapter_slots[r, slot]
        if one.adapter == NONE:
            return slot
        if one.num_users == 0 and (best == NONE or one.used_s < cluster.adapter_slots[r, best].used_s):
            best = slot
    return best


@inlined
def _note_in_use(cluster: Cluster, adapters: Adapters, r: int) -> None:
    """From the next iteration on replica `r` is as slow as the adapters in use make it."""
    in_use, state = 0, cluster.replicas[r]
    for slot in range(cluster.adapter_slots.shape[1]):
        in_use += 1 if cluster.adapter_slots[r, slot].num_users > 0 else 0
    state.adapting = adapters.slowdown[min(in_use, adapters.slowdown.size - 1)]
    state.slowdown = (1.0 + state.straggling) * (1.0 + state.adapting) - 1.0


@feature
def take_adapter(cluster: Cluster, adapters: Adapters, r: int, request_id: int, now: float) -> float:
    """A request that has come to replica `r` asks for its adapter; returns when that is loaded, or NEVER where no slot
    can be had yet."""
    adapter = cluster.requests[request_id].adapter
    slot = slot_of(cluster, r, adapter)
    if slot == NONE:
        slot = _unused_for_longest(cluster, r)
        if slot == NONE:
            return NEVER
        start_s = max(now, adapters.free_s[r])
        adapters.free_s[r] = start_s + adapters.load_s[adapter]
        adapters.counts[r, LOADED] += 1
        cluster.adapter_slots[r, slot].adapter = adapter
        cluster.adapter_slots[r, slot].num_users = 0
        cluster.adapter_slots[r, slot].ready_s = adapters.free_s[r]
    else:
        adapters.counts[r, FOUND] += 1
    one = cluster.adapter_slots[r, slot]
    one.num_users += 1
    one.used_s = now
    _note_in_use(cluster, adapters, r)
    return max(now, one.ready_s)


@feature
def leave_adapter(cluster: Cluster, adapters: Adapters, r: int, request_id: int, now: float) -> None:
    """A request has ended in replica `r`: it does not use its adapter any longer."""
    one = cluster.adapter_slots[r, slot_of(cluster, r, cluster.requests[request_id].adapter)]
    one.num_users -= 1
    one.used_s = now
    _note_in_use(cluster, adapters, r)


@feature
def wait_in_line(cluster: Cluster, adapters: Adapters, r: int, request_id: int) -> None:
    """A request waits for a slot of replica `r`, behind the others that do."""
    line = adapters.line[r]
    cluster.requests[request_id].next_waiting = NONE
    if line[NUM_IN_LINE] == 0:
        line[FIRST_IN_LINE] = request_id
    else:
        cluster.requests[line[LAST_IN_LINE]].next_waiting = request_id
    line[LAST_IN_LINE] = request_id
    line[NUM_IN_LINE] += 1
    adapters.counts[r, WAITED] += 1


@feature
def next_in_line(cluster: Cluster, adapters: Adapters, r: int, now: float) -> float:
    """When the first request that waits for a slot of replica `r` has its adapter, if it can have a slot now; else
    NEVER. The caller takes it out with `leave_line`."""
    if adapters.line[r, NUM_IN_LINE] == 0:
        return NEVER
    return take_adapter(cluster, adapters, r, adapters.line[r, FIRST_IN_LINE], now)


@feature
def leave_line(cluster: Cluster, adapters: Adapters, r: int) -> int:
    """Take the first request out of the line."""
    line = adapters.line[r]
    request_id = line[FIRST_IN_LINE]
    line[FIRST_IN_LINE] = cluster.requests[request_id].next_waiting
    line[NUM_IN_LINE] -= 1
    return request_id


def forget_adapters(adapters: Adapters, r: int) -> None:
    """Replica `r` is gone: nothing is being loaded, nobody waits."""
    adapters.free_s[r], adapters.line[r] = 0.0, (0, NONE, NONE)
