"""A simulated cluster that requests are sent to while it runs: send, advance, look, cancel.

It is the cluster of `gnomon simulate`, with its compiled loops. Requests live in a fixed number of records, which are
used in turn; a request that is sent is an event of the calendar, and `advance` lets happen what happens up to a moment.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.jit import function_arguments
from gnomon.serving.engine.calendar import BLOCKS_FREED, REQUEST_ARRIVES, REQUEST_SENT, report_ends, schedule_all
from gnomon.serving.engine.log import new_log
from gnomon.serving.engine.state import FINISHED, IN_FLIGHT, NONE, REJECTED, SHED
from gnomon.serving.features.cancel import cancel, forget_own_keys
from gnomon.serving.features.front_end import is_before_router
from gnomon.serving.run.build import build_cluster
from gnomon.serving.run.driving import OpenCluster
from gnomon.serving.run.simulate import open_cluster, paced
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import bake, resolve
from gnomon.workload import Requests, generate
from gnomon.workload.requests import with_classes

SLOTS = 1 << 16  # Records of requests: more cannot be there at once.
ROOM = 1 << 22  # Hashes of blocks of all requests that are there.


@dataclass(frozen=True)
class Call:
    tokens: Sequence[int]
    """Its prompt, then its answer: what a later prompt may start with."""
    prompt_tokens: int
    adapter: int = NONE
    user_class: int = 0
    session: int = NONE
    replica: int | None = None
    """The replica that must take it; the router chooses if not given."""


class Full(Exception):
    """There is no place for another request."""


class LiveCluster:
    """The cluster of a scenario, at time 0 and empty."""

    def __init__(self, scenario: Scenario, *, slots: int = SLOTS, room: int = ROOM) -> None:
        _check(scenario)
        drawn = with_classes(generate(scenario.workload, scenario.seed))
        self.scenario, self.drawn = scenario, drawn
        self.pools = resolve(scenario, drawn)
        self.max_tokens = min(pool.max_request_tokens for pool in self.pools)
        places = _places(self.pools, drawn, slots, room, self.max_tokens)
        self.times = paced(bake(scenario.model, self.pools, places), scenario)
        cluster = build_cluster(self.pools, places, scenario.seed, None, scenario.lora.max_loaded)
        with function_arguments():
            self.opened: OpenCluster = open_cluster(
                scenario, self.pools, places, cluster, self.times.tables, new_log(64, 64)
            )
        self.cluster, self._block_tokens = cluster, places.prefix_block_tokens
        self.num_adapters = self.opened.env.adapters.load_s.size
        if self.num_adapters:
            report_ends(self.opened.env.calendar, cluster)
        self._blank = cluster.requests[0].copy()
        self._fields = {name: cluster.requests[name].view(np.ndarray) for name in cluster.requests.dtype.names}
        """Of the requests; many records are not to be copied whole."""
        self._room, self._held = Room(room), dict[int, tuple[int, int]]()
        self._next, self._leaving = 0, set[int]()
        noise = scenario.router.length_noise if scenario.router.lengths == "noisy" else 0.0
        self._length_errors = np.exp(noise * stream(scenario.seed, "length predictions").standard_normal(slots))
        # A shared hash is multiplied by the blocks it covers, within 64 bits.
        self._limit = (1 << 62) // int(cluster.replicas.blocks_per_hash.max())
        self._go_on(0.0)  # The first time takes a tenth of a second.

    @property
    def num_live(self) -> int:
        return len(self._held)

    def send(self, now_s: float, asked: Call) -> int:
        """Send a request at `now_s`, which no event may lie behind; returns its number. Raises `Full`."""
        if len(self._held) >= self.cluster.requests.size:
            raise Full("as many requests are there as can be.")
        while self._next in self._held:
            self._next = (self._next + 1) % self.cluster.requests.size
        slot, self._next = self._next, (self._next + 1) % self.cluster.requests.size
        start = (asked.adapter + 1) * 1_000_003
        hashes = block_hashes(asked.tokens, self._block_tokens, start, self._limit)
        first = self._room.take(len(hashes))
        if first is None:
            raise Full("the prompts of the requests that are there take all room.")
        self.cluster.prefix_hashes[first : first + len(hashes)] = hashes
        self._held[slot] = (first, len(hashes))
        request = self.cluster.requests[slot]
        if request.num_preemptions:
            forget_own_keys(self.cluster, slot)
        draw = request.draw
        self.cluster.requests[slot] = self._blank
        request.draw = draw
        request.prompt_tokens = request.prefill_tokens = asked.prompt_tokens
        request.total_tokens = len(asked.tokens)
        request.output_tokens = request.total_tokens - request.prompt_tokens
        request.adapter, request.user_class, request.session = asked.adapter, asked.user_class, asked.session
        request.prefix_first, request.prefix_count = first, len(hashes)
        if asked.replica is not None:
            request.replica, request.num_tries = asked.replica, 1
        env = self.opened.env
        for lengths in (self.opened.fleet.predicted_output, env.decode.predicted_output):
            if lengths.size:
                lengths[slot] = max(1.0, request.output_tokens * self._length_errors[slot])
        request.arrival_s = now_s
        kind = REQUEST_SENT if is_before_router(env.front) else REQUEST_ARRIVES
        schedule_all(env.calendar, kind, np.array([now_s]), np.array([slot]))
        return slot

    def advance(self, now_s: float) -> None:
        self._go_on(now_s)
        if self._leaving:
            self._leave(now_s)
            self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        until_s = math.nextafter(now_s, math.inf)
        self.opened.env.calendar.book.stop_s = until_s
        self.opened.drive(self.cluster.requests.size)
        self.opened.advance(until_s)

    def next_s(self) -> float:
        """When something happens next, if nobody sends anything."""
        calendar = self.opened.env.calendar
        event_s = calendar.events["time_s"][0] if calendar.book["num_events"][0] else math.inf
        return float(min(self.cluster.next_end_s.min(), event_s, calendar.book["next_drain_s"][0]))

    def produced(self, ids: Ints) -> Ints:
        """[request]: output tokens so far."""
        q, processed, prefill = self._fields, self._fields["processed"][ids], self._fields["prefill_tokens"][ids]
        status = q["status"][ids]
        steps = self.cluster.replicas["steps"][np.maximum(q["replica"][ids], 0)]
        is_decoding = processed > prefill
        computed = processed + np.where((status == IN_FLIGHT) & is_decoding, steps - q["joined"][ids], 0)
        tokens = np.where(is_decoding, computed, prefill) - q["prompt_tokens"][ids]
        count = np.where(q["first_token_s"][ids] >= 0.0, np.maximum(tokens, 1), 0)
        return np.where(status == FINISHED, q["output_tokens"][ids], count).astype(np.int64)

    def ended(self, ids: Ints) -> NDArray[np.bool_]:
        status = self._fields["status"][ids]
        return (status == FINISHED) | (status == REJECTED) | (status == SHED)

    def newest_s(self, ids: Ints) -> Floats:
        """[request]: when its newest token came, or when it ended."""
        q, replicas = self._fields, self.cluster.replicas
        r = np.maximum(q["replica"][ids], 0)
        is_decoding = (q["status"][ids] == IN_FLIGHT) & (q["processed"][ids] > q["prefill_tokens"][ids])
        steps = is_decoding & (replicas["steps"][r] > q["joined"][ids])
        newest_s = np.where(steps, replicas["last_step_s"][r], q["last_token_s"][ids])
        return np.where(newest_s >= 0.0, newest_s, q["finished_s"][ids])

    def next_tokens_s(self, ids: Ints) -> Floats:
        """[request]: when the next token of one that decodes comes to its client; inf where that is not known, or it is
        the last."""
        q, replicas = self._fields, self.cluster.replicas
        is_known = (replicas["num_in_flight"] == 1) & (replicas["num_speculative"] == 0)
        is_known &= (replicas["base_reply_s"] == 0.0) & (replicas["message_s"] == 0.0)
        end_s = np.where(is_known, self.cluster.next_end_s[replicas["group_first"]], np.inf)
        is_coming = (q["status"][ids] == IN_FLIGHT) & (q["processed"][ids] > q["prefill_tokens"][ids])
        is_coming &= self.produced(ids) + 1 < q["output_tokens"][ids]
        return np.where(is_coming, end_s[np.maximum(q["replica"][ids], 0)], np.inf)

    def reply_s(self, ids: Ints) -> Floats:
        """[request]: seconds from its newest token to the client."""
        return self.cluster.replicas["reply_s"][np.maximum(self._fields["replica"][ids], 0)]

    def leave(self, request_id: int, now_s: float) -> None:
        """The client of a request has left, with all tokens or before: it ends as soon as the engine can let go of it,
        and its record is free then."""
        self._leaving.add(request_id)
        self._leave(now_s)

    def _leave(self, now_s: float) -> None:
        """End the requests whose clients have left, as far as they are in a replica's hands."""
        for request_id in list(self._leaving):
            if bool(self.ended(np.array([request_id]))[0]):
                self._leaving.discard(request_id)
                self._room.give_back(*self._held.pop(request_id))
            elif cancel(self.cluster, request_id, now_s):
                # Somebody else may have its blocks, and what follows from its end is done then.
                replica = np.array([self.cluster.requests[request_id].replica], np.int64)
                schedule_all(self.opened.env.calendar, BLOCKS_FREED, np.array([now_s]), replica)


def _check(scenario: Scenario) -> None:
    """Refuse what needs to know its requests beforehand."""
    unknown = {"fleet": scenario.fleet is not None, "kv_tiers": scenario.kv_tiers.is_used}
    unknown["tool_cache"] = scenario.tool_cache.is_used
    for section in (name for name, is_given in unknown.items() if is_given):
        fix = "Leave it out, or use gnomon simulate."
        raise ConfigError(f"{section} is simulated, but not served.", where=section, fix=fix)


def _places(pools: list[Pool], drawn: Requests, slots: int, room: int, longest: int) -> Requests:
    """Records for requests to come, each as long as one may be."""
    adapter = np.full(slots if len(drawn.adapter) else 0, NONE, np.int32)
    if len(adapter):
        adapter[-1] = drawn.adapter.max()
    return Requests(
        arrival_s=np.full(slots, np.inf), prompt_tokens=np.full(slots, longest - 1, np.int32),
        output_tokens=np.ones(slots, np.int32), prefix_hashes=np.zeros(room, np.int64),
        prefix_block_tokens=math.lcm(*(pool.batching.block_size for pool in pools)), concurrency=slots, adapter=adapter,
        user_class=np.zeros(slots if drawn.classes else 0, np.int8), classes=drawn.classes,
    )  # fmt: skip


def block_hashes(tokens: Sequence[int], block_tokens: int, start: int, limit: int) -> list[int]:
    """A number for every full block: equal where all tokens up to its end, and `start`, are."""
    hashes, so_far = [], start
    for first in range(0, len(tokens) - block_tokens + 1, block_tokens):
        so_far = hash((so_far, *tokens[first : first + block_tokens]))  # Of whole numbers: the same in every process.
        hashes.append(so_far % limit)
    return hashes


class Room:
    """Places in one array that are lent out as ranges, those that were not used for longest first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._next = 0

    def take(self, count: int) -> int | None:
        """The start of `count` free places in a row, or None."""
        if count == 0:
            return 0
        for first, last in ((self._next, self.size), (0, self.size)):
            start = first
            for taken in self._starts[bisect_left(self._starts, first) :]:
                if taken - start >= count:
                    break
                start = max(start, self._ends[taken])
            if start + count <= last:
                insort(self._starts, start)
                self._ends[start] = self._next = start + count
                return start
        return None

    def give_back(self, start: int, count: int) -> None:
        if count:
            del self._ends[start]
            del self._starts[bisect_left(self._starts, start)]
