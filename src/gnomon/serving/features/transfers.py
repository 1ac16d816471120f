"""KV on its way, from one replica to another or from another tier, over links that transfers share fairly.

Each replica has a link of its own (its GPUs' NICs, or NVLink), of a capacity in bytes a second for each direction, and
so has each place that KV is loaded from (`features.tiers`). Shares change only when a transfer starts or ends; in
between, everything moves at a constant rate (`gnomon.timing.fair_share`, which pipelines use, too).
"""

from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import borrow, feature, inlined, jit, noinline
from gnomon.serving.engine.calendar import NEVER, Calendar
from gnomon.serving.engine.state import NONE
from gnomon.timing.fair_share import LINK, NO_TIER, NUM_TYPES, share_links

TRANSFER = np.dtype(
    [
        ("rank", np.int64),  # the link that sends: of a replica, or behind those, of another tier
        ("receiver", np.int64),  # or NONE, for a load from another tier
        ("type", np.int64),
        ("order", np.int64),
        ("remaining", np.float64),  # bytes
        ("share", np.float64),  # bytes a second, now
        ("fixed", np.bool_),
        ("throttled", np.bool_),
        ("bytes", np.float64),  # that moved over the link
        ("num_with", np.int64),  # transfers of KV that was computed in the same batch, this one included
        ("copied", np.int64),  # tokens whose KV was copied while the request still ran
        ("start_s", np.float64),
        ("end_s", np.float64),
    ],
    align=True,
)


class Transfers(NamedTuple):
    """Every request's transfer, the links, and what they are like."""

    flows: Any
    """[request] `TRANSFER` records; size 0 where nothing moves. A request's KV is loaded before it can move on."""
    links: Any  # [link] `LINK` records: first those of the replicas.
    active: Ints  # The transfers under way: the first `book.num_active` entries.
    present: Ints  # Scratch.
    weights: Floats
    tiers: Ints
    bytes_per_token: Floats  # [replica]: KV that a replica takes in for a token.
    settings: Floats  # [7]: `LATENCY_S` ...


LATENCY_S, HOP_S, TIMEOUT_S, OVERLAP, LAST_PART, IS_DOWN, PREFILLS_AGAIN = range(7)
"""Of `settings`: from a transfer's last byte to its use; from the end of a prefill to its start; how long a prefilled
request waits for blocks; whether it moves layer by layer while it is computed; the share of a prompt's KV that the last
layer has; whether nothing moves between replicas now; and whether KV is never moved, but prefilled again."""


def new_transfers(num_requests: int, num_replicas: int, num_links: int) -> Transfers:
    """Nothing under way, links without capacity."""
    return Transfers(
        np.zeros(num_requests, TRANSFER).view(np.recarray), np.zeros(num_links, LINK).view(np.recarray),
        np.zeros(num_requests, np.int64), np.zeros((num_links, NUM_TYPES), np.int64), np.zeros(NUM_TYPES),
        np.full(NUM_TYPES, NO_TIER, np.int64), np.zeros(num_replicas), np.zeros(7),
    )  # fmt: skip


@feature
def start_transfer(
    transfers: Transfers, book: Any, r: int, sender: int, receiver: int, num_bytes: float, ahead_s: float, now: float
) -> None:
    """Let request `r`'s KV move from now on. Layer by layer, as much has moved already as its share of the link can
    take in the `ahead_s` seconds in which it was computed, but for its last layer: KV that was computed in the same
    batch moved at the same time."""
    flow = transfers.flows[r]
    flow.rank, flow.receiver, flow.order = sender, receiver, r
    flow.bytes, flow.remaining, flow.start_s = num_bytes, num_bytes, now
    if transfers.settings[OVERLAP] != 0.0:
        rate = min(transfers.links[sender].capacity / flow.num_with, transfers.links[receiver].capacity)
        flow.remaining = max(num_bytes * transfers.settings[LAST_PART], num_bytes - rate * ahead_s)
    _start(transfers, book, r, now)


@noinline
def start_load(transfers: Transfers, book: Any, r: int, link: int, num_bytes: float, now: float) -> None:
    """Let so many bytes for request `r` come over a link of another tier from now on."""
    flow = transfers.flows[r]
    flow.rank, flow.receiver, flow.order = link, NONE, r
    flow.bytes, flow.remaining, flow.start_s = num_bytes, num_bytes, now
    _start(transfers, book, r, now)


@feature
def switch_links(transfers: Transfers, book: Any, is_down: int, now: float) -> None:
    """From now on nothing moves between replicas, or it does again."""
    _move(transfers, book, now)
    transfers.settings[IS_DOWN] = is_down
    _share(transfers, book, now)


@noinline
def load_s(transfers: Transfers, book: Any, link: int, num_bytes: float, now: float) -> float:
    """Seconds that so many bytes would take over a link of another tier if nothing else came: by then each of those
    under way has got as many, or all that it needs."""
    _move(transfers, book, now)
    total = num_bytes
    for k in range(book.num_active):
        flow = transfers.flows[transfers.active[k]]
        if flow.rank == link:
            total += min(flow.remaining, num_bytes)
    return total / transfers.links[link].capacity


@inlined
def _start(transfers: Transfers, book: Any, r: int, now: float) -> None:
    _move(transfers, book, now)
    transfers.active[book.num_active] = r
    book.num_active += 1
    _share(transfers, book, now)


@feature
def end_transfer(transfers: Transfers, book: Any) -> int:
    """Take out the transfer that has sent everything first (`book.next_drain_s`); returns its request."""
    now, r = book.next_drain_s, book.next_drained
    stop_transfer(transfers, book, r, now)
    transfers.flows[r].end_s = now
    transfers.flows[r].remaining = 0.0
    return r


@noinline
def stop_transfer(transfers: Transfers, book: Any, r: int, now: float) -> None:
    """Request `r`'s KV does not move any further."""
    _move(transfers, book, now)
    kept = 0
    for k in range(book.num_active):
        if transfers.active[k] != r:
            transfers.active[kept] = transfers.active[k]
            kept += 1
    book.num_active = kept
    _share(transfers, book, now)


@jit
def share_again(transfers: Transfers, calendar: Calendar, now: float) -> None:
    """Divide the links anew, because one of them has changed."""
    lent, book = borrow(transfers), borrow(calendar).book[0]
    _move(lent, book, now)
    _share(lent, book, now)


@inlined
def _move(transfers: Transfers, book: Any, now: float) -> None:
    """Everything under way moves up to `now`."""
    elapsed = now - book.shared_s
    for k in range(book.num_active):
        flow = transfers.flows[transfers.active[k]]
        flow.remaining = max(0.0, flow.remaining - elapsed * flow.share)
    book.shared_s = now


@noinline
def _share(transfers: Transfers, book: Any, now: float) -> None:
    """Divide the links among the transfers under way, and find the one that ends first."""
    share_links(
        transfers.flows, transfers.links, transfers.active, book.num_active, transfers.present, transfers.weights,
        transfers.tiers,
    )  # fmt: skip
    book.next_drain_s, book.next_drained = NEVER, NONE
    for k in range(book.num_active):
        flow = transfers.flows[transfers.active[k]]
        if flow.receiver != NONE and transfers.settings[IS_DOWN] != 0.0:
            flow.share = 0.0
            continue
        end_s = now + flow.remaining / flow.share if flow.remaining > 0.0 else now
        if end_s < book.next_drain_s:
            book.next_drain_s, book.next_drained = end_s, transfers.active[k]
