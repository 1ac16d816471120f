"""Transfers that share links: senders divide what they can send, receivers push back.

Every place has one link, which sends and receives at its `capacity` at the same time. A sender gives all of it to its
transfers: equally, by the weights of their types, or all to the first of an exclusive tier. A receiver that gets more
than it can take scales what comes in, and what its senders then have left goes to their other transfers.

Any records with these fields will do. A flow has `rank` (who sends), `receiver` (or -1), `type`, `order`, and gets
`share`, `fixed` and `throttled`; a link has `capacity`, and `left`, `ingress`, `first` as scratch. Only links that
active flows use are looked at, so the cost is that of the active flows.
"""

from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import inlined, noinline

NUM_TYPES = 3
NO_TIER = 1 << 30
EPSILON = 1e-9  # Of a link: what does not count as overload; of a weight: what counts as none.

LINK = np.dtype(
    [
        ("capacity", np.float64),  # Units of work a second, in each direction.
        ("left", np.float64),  # Of what it can send.
        ("ingress", np.float64),  # Sum of the shares that come in.
        ("first", np.int64),  # The best candidate of an exclusive tier.
    ],
    align=True,
)


@noinline
def share_links(flows: Any, links: Any, active: Ints, count: int, present: Ints, weights: Floats, tiers: Ints) -> None:
    """Set the share of each of the first `count` active flows. `present` is scratch, [link, type]."""
    for k in range(count):
        flow = flows[active[k]]
        flow.fixed = False
        links[flow.rank].left = links[flow.rank].capacity
    _divide(flows, links, active, count, present, weights, tiers)
    for _ in range(2 * count):
        if not _push_back(flows, links, active, count):
            break
        _divide(flows, links, active, count, present, weights, tiers)


@noinline
def _divide(flows: Any, links: Any, active: Ints, count: int, present: Ints, weights: Floats, tiers: Ints) -> None:
    """Give each sender's `left` capacity to its unfixed flows: exclusive tier, else weights, else equally."""
    for k in range(count):
        rank = flows[active[k]].rank
        links[rank].first = -1
        for kind in range(NUM_TYPES):
            present[rank, kind] = 0
    for k in range(count):
        flow = flows[active[k]]
        if flow.fixed:
            continue
        present[flow.rank, flow.type] += 1
        if tiers[flow.type] != NO_TIER:
            sender = links[flow.rank]
            if sender.first < 0 or _pre_empts(flow, flows[sender.first], tiers):
                sender.first = active[k]
    for k in range(count):
        flow = flows[active[k]]
        if flow.fixed:
            continue
        sender = links[flow.rank]
        if sender.first >= 0:
            flow.share = sender.left if sender.first == active[k] else 0.0
            continue
        total, sharing = 0.0, 0
        for kind in range(NUM_TYPES):
            sharing += present[flow.rank, kind]
            if present[flow.rank, kind] > 0 and weights[kind] > EPSILON:
                total += weights[kind]
        if total == 0.0:
            flow.share = sender.left / sharing
        elif weights[flow.type] > EPSILON:
            flow.share = sender.left * weights[flow.type] / total / present[flow.rank, flow.type]
        else:
            flow.share = 0.0


@inlined
def _pre_empts(one: Any, other: Any, tiers: Ints) -> bool:
    """Whether flow `one` goes before `other`, both of exclusive types."""
    mine, theirs = tiers[one.type], tiers[other.type]
    return mine < theirs or (mine == theirs and one.order < other.order)


@inlined
def _is_overloaded(link: Any) -> bool:
    return link.ingress > link.capacity * (1.0 + EPSILON)


@inlined
def _push_back(flows: Any, links: Any, active: Ints, count: int) -> bool:
    """Let every overloaded receiver scale what comes in and fix it; False when none is overloaded.

    Flows that wait with a share of nothing are fixed too: what their sender has left is for other receivers.
    """
    for k in range(count):
        flow = flows[active[k]]
        links[flow.rank].left = links[flow.rank].capacity
        if flow.receiver >= 0:
            links[flow.receiver].ingress = 0.0
    for k in range(count):
        flow = flows[active[k]]
        if flow.receiver >= 0:
            links[flow.receiver].ingress += flow.share
    overloaded = False
    for k in range(count):
        receiver = flows[active[k]].receiver
        overloaded = overloaded or (receiver >= 0 and _is_overloaded(links[receiver]))
    if not overloaded:
        return False
    for k in range(count):
        flow = flows[active[k]]
        if flow.receiver >= 0 and _is_overloaded(links[flow.receiver]):
            flow.throttled = flow.throttled or flow.share > 0.0
            flow.share = flow.share * links[flow.receiver].capacity / links[flow.receiver].ingress
            flow.fixed = True
        if flow.fixed:
            links[flow.rank].left -= flow.share
    for k in range(count):
        rank = flows[active[k]].rank
        links[rank].left = max(links[rank].left, 0.0)
    return True
