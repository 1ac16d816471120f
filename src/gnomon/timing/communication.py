"""Seconds of collectives by bytes, group size and node topology: a latency and a ring's share of the bandwidth.

`num_bytes` is what one rank contributes: the whole tensor for all_reduce and send_recv, the rank's own part for
all_gather, the whole input for reduce_scatter, all outgoing tokens for all_to_all.
"""

from __future__ import annotations

import numpy as np

from gnomon.catalog.nodes import Link, Node
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Collective, Communication


def collective_s(collective: Collective, num_bytes: Floats, num_ranks: int, node: Node, stride: int = 1) -> Floats:
    """Seconds of one collective among `num_ranks` GPUs, each `stride` away from the next."""
    if num_ranks <= 1:
        return np.zeros_like(num_bytes)
    link = node.link_for(num_ranks * stride)
    if collective == "send_recv":
        return _transfer_s(num_bytes, node.send_link if node.send_link and link is node.link else link)
    if collective == "all_reduce" and num_ranks > node.num_gpus:
        return _across_nodes_s(num_bytes, num_ranks, node)
    return _latency_s(link, num_ranks) + _ring_share(collective, num_ranks) * num_bytes / link.bandwidth_bytes_s


def communication_s(work: Communication, num_bytes: Floats, node: Node) -> Floats:
    """Seconds of an operator's collective."""
    return collective_s(work.collective, num_bytes, work.num_ranks, node, work.stride)


def _latency_s(link: Link, num_ranks: int) -> float:
    return link.latency_s + link.step_s * (num_ranks - 2)


def _transfer_s(num_bytes: Floats, link: Link) -> Floats:
    return link.latency_s + num_bytes / link.bandwidth_bytes_s


def _ring_share(collective: Collective, num_ranks: int) -> float:
    """How many times a rank's bytes pass its link."""
    others = (num_ranks - 1) / num_ranks
    return {
        "all_reduce": 2.0 * others,
        "reduce_scatter": others,
        "all_to_all": others,
        "all_gather": num_ranks - 1.0,
        "send_recv": 1.0,
    }[collective]


def _across_nodes_s(num_bytes: Floats, num_ranks: int, node: Node) -> Floats:
    """Reduce-scatter inside each node, all-reduce of the slices between nodes, all-gather inside."""
    inside, num_nodes = node.num_gpus, -(-num_ranks // node.num_gpus)
    slices = num_bytes / inside
    total = _latency_s(node.network, num_nodes) + _ring_share("all_reduce", num_nodes) * slices / (
        node.network.bandwidth_bytes_s
    )
    if inside > 1:
        total = total + collective_s("reduce_scatter", num_bytes, inside, node)
        total = total + collective_s("all_gather", slices, inside, node)
    return total
