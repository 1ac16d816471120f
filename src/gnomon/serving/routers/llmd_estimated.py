"""llm-d's endpoint picker with the estimated prefix scorer: it remembers where it sent which prefixes, and never learns
what replicas have evicted."""

from collections import OrderedDict
from weakref import finalize

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.routers import Fleet, router
from gnomon.serving.routers.llmd import KV_USED, SEEN, WAITING

Index = OrderedDict[int, None]  # Hashes of prefixes that were sent to a replica, the oldest first.
_indices: dict[int, list[Index]] = {}  # By run: the identity of the router's memory, as long as that lives.


def _indices_of(fleet: Fleet) -> list[Index]:
    run = id(fleet.memory)
    if run not in _indices:
        _indices[run] = [OrderedDict() for _ in range(fleet.cluster.replicas.size)]
        finalize(fleet.memory, _indices.pop, run)
    return _indices[run]


def _look(fleet: Fleet, now: float, interval_s: float) -> None:
    """`llmd.look` for all replicas at once."""
    replicas, seen, due = fleet.cluster.replicas, fleet.memory, fleet.memory.size - 1
    if now >= seen[due]:
        seen[due] = now + interval_s
        seen[WAITING : SEEN * replicas.size : SEEN] = replicas.reported_waiting
        seen[KV_USED : SEEN * replicas.size : SEEN] = 1.0 - replicas.reported_free / np.maximum(1, replicas.num_blocks)


def _load_scores(fleet: Fleet, queue: float, kv: float) -> Floats:
    """`llmd.score_load` of the candidates."""
    waiting, used = (fleet.memory[SEEN * fleet.candidates + of] for of in (WAITING, KV_USED))
    spread = waiting.max() - waiting.min()
    short = (waiting.max() - waiting) / spread if spread > 0.0 else 1.0
    scores: Floats = queue * short + kv * (1.0 - used)
    return scores


@router(
    "llmd_estimated", memory=SEEN, draws=True, compiled=False,
    options={
        "queue": 1.0, "kv": 1.0, "prefix": 1.0, "report_interval_s": 0.05, "index_tokens": 500_000.0,
        "depth_tokens": 4096.0,
    },
)  # fmt: skip
def llmd_estimated(fleet: Fleet, request_id: int) -> int:
    """As `llmd`, with prefixes as they were sent: at most `index_tokens` of each replica, the oldest forgotten first,
    and the first `depth_tokens` of a prompt (31,250 and 256 blocks of 64 characters, four to a token)."""
    queue, kv, prefix, interval_s, index_tokens, depth_tokens = fleet.parameters[:6].tolist()
    request, indices = fleet.cluster.requests[request_id], _indices_of(fleet)
    _look(fleet, float(request.arrival_s), interval_s)
    scores = _load_scores(fleet, queue, kv)
    replica = fleet.cluster.replicas[fleet.candidates[0]]
    tokens = max(1, int(replica.block_size * replica.blocks_per_hash))
    depth = min(int(request.prefix_count), int(depth_tokens) // tokens)
    first = int(request.prefix_first)
    hashes = fleet.cluster.prefix_hashes[first : first + depth].tolist()
    for i, r in enumerate(fleet.candidates.tolist() if hashes else ()):
        scores[i] += prefix * next((found for found, one in enumerate(hashes) if one not in indices[r]), depth) / depth
    best = np.flatnonzero(scores == scores.max())
    chosen = int(fleet.candidates[best[int(fleet.draws[request_id, 0] * best.size)]])
    for one in hashes:
        indices[chosen][one] = None
        indices[chosen].move_to_end(one)
    while len(indices[chosen]) > index_tokens // tokens:
        indices[chosen].popitem(last=False)
    return chosen
