"""The life of every replica of a fleet, and the record of it."""

from dataclasses import dataclass, field

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.scenario.pool import Pool

OFF, STARTING, UP, DRAINING, DOWN = range(5)
STATES = ("off", "starting", "up", "draining", "down")
PAID = (STARTING, UP, DRAINING)  # States in which a replica's GPUs are paid for: not while it is off or being repaired.


@dataclass(frozen=True)
class Replica:
    """One replica: the ranks that come and go together."""

    pool: int
    ranks: range


@dataclass
class Replicas:
    """Who is in which state, since when, and all changes so far."""

    members: list[Replica]
    state: Ints
    """[replica]: OFF, STARTING, UP, DRAINING or DOWN."""
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, replica, new state), in order of time but for drains, which are noticed late."""
    dead: set[int] = field(default_factory=set)
    """Those that have died and nobody has noticed."""

    def __post_init__(self) -> None:
        self.since = np.zeros(len(self.members))
        """[replica]: when it came into its state."""
        self.pool = np.array([one.pool for one in self.members], np.int64)
        self.replica_of = np.array([i for i, one in enumerate(self.members) for _ in one.ranks], np.int64)
        """[rank]: its replica."""

    def change(self, now_s: float, replica: int, state: int) -> None:
        """A replica is in another state from `now_s` on."""
        self.state[replica], self.since[replica] = state, now_s
        self.changes.append((now_s, replica, state))

    def of(self, pool: int, *states: int) -> list[int]:
        """The replicas of a pool that are in one of these states."""
        is_one = np.zeros(len(STATES), bool)
        is_one[list(states)] = True
        return np.flatnonzero((self.pool == pool) & is_one[self.state]).tolist()

    def taking_requests(self) -> Ints:
        """The ranks that a router may choose: those of replicas that are up, or whose death nobody has noticed."""
        is_open = self.state == UP
        is_open[list(self.dead)] = True
        return np.flatnonzero(is_open[self.replica_of])


def replicas_of(pools: list[Pool], up: list[int]) -> Replicas:
    """The places for replicas of every pool; the first `up[pool]` of each are up."""
    members, states, rank = [], [], 0
    for place, pool in enumerate(pools):
        size = pool.replica.data_parallel
        for number in range(pool.num_replicas):
            members.append(Replica(place, range(rank, rank + size)))
            states.append(UP if number < up[place] else OFF)
            rank += size
    fleet = Replicas(members, np.array(states, np.int64))
    fleet.changes = [(0.0, i, state) for i, state in enumerate(states) if state != OFF]
    return fleet


@dataclass(frozen=True)
class History:
    """How many replicas were in which state, and what it comes to."""

    time_s: Floats
    """When something changed, from 0 on."""
    counts: Ints
    """[time, pool, state]: replicas from that time on."""
    seconds: Floats
    """[replica, state]: time spent."""


def history(members: list[Replica], changes: list[tuple[float, int, int]], end_s: float) -> History:
    """Replicas by state over time, up to `end_s`."""
    pools = 1 + max(one.pool for one in members)
    ordered = sorted(changes, key=lambda change: change[0])
    now = np.zeros(len(members), np.int64)
    since = np.zeros(len(members))
    seconds = np.zeros((len(members), len(STATES)))
    count = np.zeros((pools, len(STATES)), np.int64)
    for one in members:
        count[one.pool, OFF] += 1
    times, counts = [0.0], [count.copy()]
    for at_s, replica, state in ordered:
        at = min(at_s, end_s)
        seconds[replica, now[replica]] += at - since[replica]
        pool = members[replica].pool
        count[pool, now[replica]] -= 1
        count[pool, state] += 1
        now[replica], since[replica] = state, at
        if at == times[-1]:
            counts[-1] = count.copy()
        else:
            times.append(at)
            counts.append(count.copy())
    for replica in range(len(members)):
        seconds[replica, now[replica]] += end_s - since[replica]
    return History(np.array(times), np.array(counts), seconds)


SAMPLES = (
    "time_s", "ready", "starting", "draining", "down", "desired", "waiting", "running", "finished", "output_tokens",
    "busy_s", "flops", "bytes",
)  # fmt: skip
"""Columns of a sample of one pool; the last five add up from the start of the run."""


@dataclass(frozen=True, eq=False)
class FleetRecord:
    """The record of a fleet that changed."""

    controller: str
    members: list[Replica]
    changes: list[tuple[float, int, int]]
    """(time, replica, new state)."""
    decisions: list[list[tuple[float, int]]]
    """Of each pool: (time, replicas wanted) whenever that changed."""
    cold_start: list[dict[str, float]]
    """Of each pool: the seconds of each part of a cold start."""
    rates: list[dict[int, float]]
    """Of each pool: requests per second that so many replicas serve within the SLO; empty where nobody asked."""
    failures: int
    lost: list[tuple[float, int, int]]
    """(time, replica, requests that were sent again) of each replica that was lost."""
    samples: Floats
    """[sample, pool, column of `SAMPLES`]."""
    sees_future: bool
    """The controller knew the arrivals to come."""
    warnings: list[str]
    gave_up: bool
    """Requests waited for a replica that nobody started."""
    moved: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, request, replica) of each request that left for another one while it decoded."""
    switches: int = 0
    """Replicas that went from one pool to another."""

    @property
    def retries(self) -> int:
        """Requests that were sent again after a failure."""
        return sum(count for _, _, count in self.lost)

    def column(self, name: str) -> Floats:
        """[sample, pool]: one column of the samples."""
        return self.samples[:, :, SAMPLES.index(name)]
