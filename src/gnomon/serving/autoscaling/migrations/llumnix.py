"""Llumnix: even out how long replicas can go on, so that memory is free in one piece where a prompt waits for it."""

import math

from gnomon.serving.autoscaling.migrations import Host, View, migration


def freeness(host: Host) -> float:
    """Blocks that are free, less those that the first prompt in the queue asks for, for each request: how much longer
    the batch can grow. A replica that is to leave has none."""
    if not host.takes_requests:
        return -math.inf
    asked = host.blocks_for(host.next_tokens)
    return (host.free_blocks - asked) / max(1, host.running + (asked > 0))


@migration("llumnix", options={"least": 3.0})
def llumnix(view: View) -> list[tuple[int, int]]:
    """Pair replicas of less freeness than `least` with those of the most; each gives the request of the lowest priority
    and the fewest tokens, where the other one stays above `least` with it."""
    least, moves = view.options["least"], []
    hosts = sorted(view.hosts, key=freeness)
    takers = [host for host in reversed(hosts) if freeness(host) > least]
    givers = [host for host in hosts if takers and freeness(host) < least and host.guests]
    for giver, taker in zip(givers, takers, strict=False):
        guest = min(giver.guests, key=lambda one: (one.priority, one.tokens))
        asked = taker.blocks_for(taker.next_tokens) + taker.blocks_for(guest.tokens)
        if (taker.free_blocks - asked) / (taker.running + 1) > least:
            moves.append((guest.request, taker.replica))
    return moves
