"""llm-d's endpoint picker: a weighted sum of scores between 0 and 1, of metrics that are an iteration and 50 ms old.

After llm-d's inference scheduler and the Gateway API inference extension (September 2025). The queue's score is 1 for
the shortest and 0 for the longest queue, that of memory the share of KV blocks not in use, that of prefixes 1 for the
replica that holds most of the prompt and 0 for one that holds nothing. Ties are drawn. `llmd_estimated` knows prefixes
by guess.
"""

import math

from gnomon.jit import inlined
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.state import replica_view
from gnomon.serving.routers import Fleet, router

WAITING, KV_USED, SCORE = range(3)
SEEN = 3  # Numbers of memory per replica: requests that wait and share of KV in use, as last reported; and the score.


@inlined
def look(fleet: Fleet, request_id: int, interval_s: float) -> None:
    """Let replicas report anew where their last reports are `interval_s` old: as of the end of their last iteration,
    without what has arrived since it began."""
    replicas, seen = fleet.cluster.replicas, fleet.memory
    now, due = fleet.cluster.requests[request_id].arrival_s, seen.size - 1
    if now < seen[due]:
        return
    seen[due] = now + interval_s
    for r in range(replicas.size):
        seen[SEEN * r + WAITING] = replicas[r].reported_waiting
        seen[SEEN * r + KV_USED] = 1.0 - replicas[r].reported_free / max(1, replicas[r].num_blocks)


@inlined
def score_load(fleet: Fleet, queue: float, kv: float) -> None:
    """Set the scores to those of queues and memory."""
    seen, most, fewest = fleet.memory, 0.0, math.inf
    for i in range(fleet.candidates.size):
        waiting = seen[SEEN * fleet.candidates[i] + WAITING]
        most, fewest = max(most, waiting), min(fewest, waiting)
    for i in range(fleet.candidates.size):
        at = SEEN * fleet.candidates[i]
        short = (most - seen[at + WAITING]) / (most - fewest) if most > fewest else 1.0
        seen[at + SCORE] = queue * short + kv * (1.0 - seen[at + KV_USED])


@inlined
def pick(fleet: Fleet, request_id: int) -> int:
    """The highest score; one of those that have it, by lot."""
    best, ties = -math.inf, 0
    for i in range(fleet.candidates.size):
        score = fleet.memory[SEEN * fleet.candidates[i] + SCORE]
        ties = 1 if score > best else ties + (1 if score == best else 0)
        best = max(best, score)
    nth = int(fleet.draws[request_id, 0] * ties)
    chosen = fleet.candidates[0]
    for i in range(fleet.candidates.size):
        if fleet.memory[SEEN * fleet.candidates[i] + SCORE] == best:
            if nth == 0:
                chosen = fleet.candidates[i]
            nth -= 1
    return chosen


@inlined
def score_active(fleet: Fleet, active: float) -> None:
    """Add the score of requests in flight, which the picker counts itself: 1 for none, 0 for who has the most."""
    replicas, most = fleet.cluster.replicas, 0
    for i in range(fleet.candidates.size):
        state = replicas[fleet.candidates[i]]
        most = max(most, state.num_outstanding + state.num_coming)
    for i in range(fleet.candidates.size):
        state = replicas[fleet.candidates[i]]
        share = (state.num_outstanding + state.num_coming) / most if most > 0 else 0.0
        fleet.memory[SEEN * fleet.candidates[i] + SCORE] += active * (1.0 - share)


@router(
    "llmd", options={"queue": 1.0, "kv": 1.0, "prefix": 1.0, "report_interval_s": 0.05, "active": 0.0}, memory=SEEN,
    draws=True,
)  # fmt: skip
def llmd(fleet: Fleet, request_id: int) -> int:
    """Weights `queue` x short queue + `kv` x free memory + `prefix` x what the prefix cache holds now + `active` x few
    requests in flight."""
    look(fleet, request_id, fleet.parameters[3])
    score_load(fleet, fleet.parameters[0], fleet.parameters[1])
    if fleet.parameters[4] > 0.0:
        score_active(fleet, fleet.parameters[4])
    if fleet.parameters[2] == 0.0 or fleet.cluster.requests[request_id].prefix_count == 0:
        return pick(fleet, request_id)
    most, least = 0, 1 << 60
    for i in range(fleet.candidates.size):
        hits = prefix_cache.count_hits(replica_view(fleet.cluster, fleet.candidates[i]), request_id)
        if hits > 0:
            most, least = max(most, hits), min(least, hits)
    for i in range(fleet.candidates.size):
        r = fleet.candidates[i]
        hits = prefix_cache.count_hits(replica_view(fleet.cluster, r), request_id)
        if hits > 0:
            held = (hits - least) / (most - least) if most > least else 1.0
            fleet.memory[SEEN * r + SCORE] += fleet.parameters[2] * held
    return pick(fleet, request_id)
