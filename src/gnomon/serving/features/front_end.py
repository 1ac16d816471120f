"""The front end of a server: what lies between its scheduler and the client, so that latencies are as a client sees
them.

A request is parsed and tokenised before the scheduler knows of it, one after another (per worker): of a burst, the last
prompt waits for all others. With several workers a short prompt overtakes a long one. Tokens are detokenised and sent
in messages, also one after another.

One front end stands before the router, as in one server with several ranks, or each replica has its own behind the
router, as servers behind a load balancer do. Then a router chooses while the requests it has sent are still tokenised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.jit import inlined
from gnomon.serving.engine.state import Cluster

if TYPE_CHECKING:
    from gnomon.serving.scenario.config import FrontEndConfig

# The array that the loops carry: seconds per request, per prompt token, workers of a replica's own front end (0 where
# one stands before the router), then when each worker is free; of a replica's own, from the place of its first rank on.
_PER_REPLICA, _WORKERS = 2, 3


@inlined
def is_per_replica(front: Floats) -> bool:
    """Whether requests are taken in behind the router."""
    return front[_PER_REPLICA] > 0.0


@inlined
def is_before_router(front: Floats) -> bool:
    """Whether requests are taken in before the router, and that takes time."""
    return not is_per_replica(front) and (front[0] > 0.0 or front[1] > 0.0)


@inlined
def leaves_front_end(front: Floats, sent_s: float, prompt_tokens: int) -> float:
    """When a request that comes to what stands before the router at `sent_s` has passed. Ask in order of time."""
    return _pass(front, _WORKERS, front.size, sent_s, prompt_tokens)


@inlined
def leaves_replica_front_end(front: Floats, group: int, sent_s: float, prompt_tokens: int) -> float:
    """When a request that the router sends to the replica whose first rank is `group` reaches its scheduler."""
    first = _WORKERS + group * int(front[_PER_REPLICA])
    return _pass(front, first, first + int(front[_PER_REPLICA]), sent_s, prompt_tokens)


@inlined
def _pass(front: Floats, first: int, last: int, sent_s: float, prompt_tokens: int) -> float:
    """Let the worker that is free first, of `first` to `last`, take a request in."""
    worker = first
    for i in range(first + 1, last):
        if front[i] < front[worker]:
            worker = i
    front[worker] = max(sent_s, front[worker]) + front[0] + front[1] * prompt_tokens
    return front[worker]


def open_front_end(config: FrontEndConfig, cluster: Cluster, num_replicas: int) -> Floats:
    """A front end with so many replicas behind it, idle."""
    places = cluster.replicas.size if config.per_replica else num_replicas
    front = np.zeros(_WORKERS + config.workers * places)
    front[:_PER_REPLICA] = config.per_request_s, config.per_prompt_token_s
    if config.per_replica and front.any():
        front[_PER_REPLICA] = config.workers
    cluster.replicas.reply_s = cluster.replicas.base_reply_s = config.reply_s
    cluster.replicas.message_s = config.per_message_s
    cluster.replicas.stream_interval = config.stream_interval
    return front


def forget_front_end(front: Floats, group: int) -> None:
    """The replica whose first rank is `group` has died with all that its front end was to take in."""
    workers = int(front[_PER_REPLICA])
    front[_WORKERS + group * workers : _WORKERS + (group + 1) * workers] = 0.0


def as_client_sees(cluster: Cluster) -> None:
    """Turn the stamps of the requests from the scheduler's clock to the client's."""
    q = cluster.requests
    q.arrival_s -= q.front_s
    q.first_token_s += np.where(q.first_token_s >= 0, q.first_reply_s, 0.0)
    for stamp in ("last_token_s", "finished_s"):
        q[stamp] += np.where(q.finished_s >= 0, q.last_reply_s, 0.0)
