"""Seconds of collectives by bytes, and by where the group lies: latencies, and shares of the links' bandwidths.

`num_bytes` is what one rank contributes: the whole tensor for all_reduce and send_recv, the rank's own part for
all_gather, the whole input for reduce_scatter, all outgoing tokens for all_to_all.
"""

import numpy as np

from gnomon.catalog.nodes import Link, Node
from gnomon.catalog.topology import Group
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Collective

NCCL_S = 13e-6
"""Seconds of NCCL's small collectives inside a node, before and after the network (nccl-tests' tables in public
repositories: an all-reduce of 1 to 64 KiB over eight H100 takes 13 microseconds, over two such nodes 45 to 48). What a
node's link says is that of engines' own kernels, which do not span nodes."""


def collective_s(collective: Collective, num_bytes: Floats, group: Group, node: Node) -> Floats:
    if group.size <= 1:
        return np.zeros_like(num_bytes)
    at = group.on(node)
    if collective == "send_recv":
        return at.transfer.latency_s + num_bytes / at.transfer.bandwidth_bytes_s
    if at.num_nodes == 1:
        return _ring_s(collective, num_bytes, at.per_node, at.inside)
    # Inside the nodes and between them, one after the other; every rank's network link carries its own slice.
    nodes, inside, network = at.num_nodes, at.per_node, at.between
    link = at.inside.model_copy(update={"latency_s": max(at.inside.latency_s, NCCL_S)})
    if collective == "all_to_all":  # What stays in the node, and what leaves it.
        here = _ring_s(collective, num_bytes / nodes, inside, link)
        return here + _ring_s(collective, num_bytes, nodes, network)
    if collective == "all_gather":
        gathered = _ring_s(collective, num_bytes, nodes, network)
        return gathered + _ring_s(collective, nodes * num_bytes, inside, link)
    slices = num_bytes / inside
    total = _ring_s("reduce_scatter", num_bytes, inside, link) + _ring_s(collective, slices, nodes, network)
    return total + _ring_s("all_gather", slices, inside, link) if collective == "all_reduce" else total


def _ring_s(collective: Collective, num_bytes: Floats, num_ranks: int, link: Link) -> Floats:
    """Over one kind of link; nothing for a rank alone."""
    if num_ranks == 1:
        return np.zeros_like(num_bytes)
    latency_s = link.latency_s + link.step_s * (num_ranks - 2)
    return latency_s + _ring_share(collective, num_ranks) * num_bytes / link.bandwidth_bytes_s


def _ring_share(collective: Collective, num_ranks: int) -> float:
    """How many times a rank's bytes pass its link."""
    others = (num_ranks - 1) / num_ranks
    return {"all_reduce": 2.0 * others, "reduce_scatter": others, "all_to_all": others, "all_gather": num_ranks - 1.0}[
        collective
    ]
