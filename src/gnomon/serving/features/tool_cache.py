"""The KV of agents' calls while their tools run: held for the call to come, or forgotten after a while.

Without it blocks stay in the prefix cache until something else needs them. With `keep_s` those of a call that others
wait for are held, so that nothing else can take them, until all of those have arrived or so many seconds have passed.
With `expire_s` blocks that no request has used for so long are not found any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.jit import feature, noinline
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.calendar import CACHE_EXPIRES, KV_LET_GO, Calendar, schedule
from gnomon.serving.engine.state import NONE, NOT_ARRIVED, Cluster, replica_view
from gnomon.workload import Requests

if TYPE_CHECKING:
    from gnomon.serving.scenario.config import ToolCacheConfig

# Entries of `ToolCache.settings`; 0 where it is not given.
KEEP_S, EXPIRE_S = range(2)


class ToolCache(NamedTuple):
    """What is held and when blocks were used; all of size 0 where nothing is asked for."""

    settings: Floats
    parent_first: Ints  # [request + 1]: where the calls that a request waits for start among `parents`.
    parents: Ints
    held: Ints  # [request]: leading blocks of an ended call that are held.
    used_s: Floats  # [replica, block]: when a request that used it ended last.


def open_tool_cache(config: ToolCacheConfig, requests: Requests, cluster: Cluster) -> ToolCache:
    """Nothing is held yet."""
    nothing = np.zeros(0, np.int64)
    if not config.is_used:
        return ToolCache(np.zeros(0), nothing, nothing, nothing, np.zeros((0, 0)))
    if not len(requests.parents):
        what = "no request of the workload waits for another: there are no tools to wait for."
        raise ConfigError(what, where="tool_cache", fix="Give workload.agents or a trace of sessions, or leave it out.")
    if not cluster.replicas.prefix_cache.all():
        raise ConfigError("there is no prefix cache.", where="tool_cache", fix="Set batching.prefix_cache.")
    return ToolCache(
        np.array([config.keep_s or 0.0, config.expire_s or 0.0]), requests.parent_offsets.astype(np.int64),
        requests.parents.astype(np.int64), np.zeros(len(requests), np.int64), np.zeros(cluster.block_key.shape),
    )  # fmt: skip


@feature
def note_end(
    cluster: Cluster, cache: ToolCache, calendar: Calendar, dependent_first: Ints, dependents: Ints, call: int,
    now: float,
) -> None:  # fmt: skip
    """A call has ended: its blocks are held for those that wait for it, and will expire."""
    if cache.settings.size == 0:
        return
    request = cluster.requests[call]
    replica = replica_view(cluster, request.replica)
    count = 0
    while count < request.keyed_blocks:
        block = prefix_cache.find(replica, prefix_cache.key_of(replica, call, count))
        if block == NONE:
            break
        cache.used_s[request.replica, block] = now
        count += 1
    if count > 0 and cache.settings[EXPIRE_S] > 0.0:
        schedule(calendar, now + cache.settings[EXPIRE_S], CACHE_EXPIRES, call)
    if count == 0 or cache.settings[KEEP_S] == 0.0 or not _is_waited_for(cluster, dependent_first, dependents, call):
        return
    for position in range(count):
        prefix_cache.share(replica, prefix_cache.find(replica, prefix_cache.key_of(replica, call, position)))
    state = replica.state
    state.num_held += 1
    state.peak_blocks = max(state.peak_blocks, state.num_blocks - state.free_blocks)
    cache.held[call] = count
    schedule(calendar, now + cache.settings[KEEP_S], KV_LET_GO, call)


@noinline
def _is_waited_for(cluster: Cluster, dependent_first: Ints, dependents: Ints, call: int) -> bool:
    """Whether a request that waits for this call has not arrived."""
    for i in range(dependent_first[call], dependent_first[call + 1]):
        if cluster.requests[dependents[i]].status == NOT_ARRIVED:
            return True
    return False


@feature
def note_arrival(
    cluster: Cluster, cache: ToolCache, calendar: Calendar, dependent_first: Ints, dependents: Ints, call: int,
    now: float,
) -> None:  # fmt: skip
    """A call has arrived: what was held for it alone need not be held any longer."""
    if cache.settings.size == 0:
        return
    for i in range(cache.parent_first[call], cache.parent_first[call + 1]):
        parent = cache.parents[i]
        if cache.held[parent] > 0 and not _is_waited_for(cluster, dependent_first, dependents, parent):
            schedule(calendar, now, KV_LET_GO, parent)


@feature
def let_go_held(cluster: Cluster, cache: ToolCache, call: int) -> None:
    """The blocks of a call are held no more: they are as those of any other that has ended, and the newest."""
    replica = replica_view(cluster, cluster.requests[call].replica)
    for position in range(cache.held[call] - 1, -1, -1):
        prefix_cache.release(replica, prefix_cache.find(replica, prefix_cache.key_of(replica, call, position)))
    cache.held[call] = 0
    replica.state.num_held -= 1


@feature
def expire(cluster: Cluster, cache: ToolCache, call: int, now: float) -> None:
    """Forget the blocks of a call that nobody holds and that no other has used since."""
    request = cluster.requests[call]
    replica = replica_view(cluster, request.replica)
    for position in range(request.keyed_blocks):
        block = prefix_cache.find(replica, prefix_cache.key_of(replica, call, position))
        if block == NONE or replica.block_users[block] > 0:
            continue
        if cache.used_s[request.replica, block] + cache.settings[EXPIRE_S] <= now:
            prefix_cache.forget(replica, block)


def forget_held(cluster: Cluster, cache: ToolCache, r: int) -> None:
    """Replica `r` has died, and what it held is lost."""
    if cache.held.size:
        cache.held[cluster.requests.replica == r] = 0
        cache.used_s[r] = 0.0
