"""Groups of ranks laid on nodes: which links their collectives and transfers cross, and what that takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import get_args

import numpy as np
import pytest

from gnomon import catalog
from gnomon.catalog import Group, Parallelism
from gnomon.timing import Context, Timer, TimingConfig
from gnomon.timing.communication import collective_s
from gnomon.timing.operators import Collective, Communication, stage_operators

GB = np.array([1e9])
COLLECTIVES = get_args(Collective)
DGX, PAIRS = catalog.node("h100_dgx"), catalog.node("a100_pairwise_nvlink")


def seconds(collective: str, group: Group, node: catalog.Node = DGX, num_bytes: float = 1e9) -> float:
    return float(collective_s(collective, np.array([num_bytes]), group, node)[0])  # type: ignore[arg-type]


def strided(ranks: int, stride: int) -> Group:
    return Group(range(0, ranks * stride, stride))


def evenly(groups: Iterable[Group], node: catalog.Node) -> list[Group]:
    """Those with as many ranks on each of their nodes: else the node with the fewest holds up the others."""
    return [one for one in groups if one.size == one.on(node).num_nodes * one.on(node).per_node]


# Where a group lies.


@pytest.mark.parametrize(
    ("ranks", "nodes", "per_node"),
    [
        (range(8), 1, 8),
        (range(16), 2, 8),
        (range(6, 10), 2, 2),  # The last two GPUs of a node and the first two of the next.
        (range(0, 64, 8), 8, 1),
        (range(0, 16, 4), 2, 2),
        (range(12), 2, 4),  # The node with the fewest ranks has the fewest links.
    ],
)
def test_nodes_and_ranks_on_each(ranks: range, nodes: int, per_node: int) -> None:
    at = Group(ranks).on(DGX)
    assert (at.num_nodes, at.per_node) == (nodes, per_node)


@pytest.mark.parametrize(
    ("ranks", "link"),
    [
        (range(2), PAIRS.link),
        (range(2, 4), PAIRS.link),
        (range(1, 3), PAIRS.far_link),
        (range(0, 4, 2), PAIRS.far_link),
    ],
)
def test_pairs_are_joined_by_nvlink_and_to_each_other_by_pcie(ranks: range, link: catalog.Link) -> None:
    assert Group(ranks).on(PAIRS).inside == link
    assert seconds("all_reduce", Group(ranks), PAIRS) == pytest.approx(link.latency_s + 1e9 / link.bandwidth_bytes_s)


def test_a_transfer_takes_the_link_between_its_two_ends() -> None:
    assert PAIRS.send_link is not None and PAIRS.far_link is not None
    ways = [(1, PAIRS.send_link), (2, PAIRS.far_link), (4, PAIRS.network)]
    for distance, link in ways:
        taken = seconds("send_recv", Group(range(0, distance + 1, distance)), PAIRS)
        assert taken == pytest.approx(link.latency_s + 1e9 / link.bandwidth_bytes_s)


def test_the_slowest_of_the_copies_counts() -> None:
    # Ranks 0-2 send to 3-5, 3-5 to 6-8, of which the last lies in the next node, 6-8 to 9-11.
    stages = [Parallelism(tensor_parallel=3, pipeline_parallel=4).handover_group(stage).on(DGX) for stage in range(3)]
    assert [at.num_nodes for at in stages] == [1, 2, 2]


def test_gpus_that_share_a_network_link_share_its_bandwidth() -> None:
    shared = catalog.node("a100_dgx")
    assert shared.network_links == 1
    own = shared.model_copy(update={"network_links": None})
    alone, together = Group(range(0, 9, 8)), Group(range(0, 9, 8), copies=8)
    assert (
        seconds("send_recv", alone, shared) == seconds("send_recv", alone, own) == seconds("send_recv", together, own)
    )
    assert seconds("send_recv", together, shared) == pytest.approx(29e-6 + 8 * 1e9 / 7.8e9)


# What a collective takes.


def test_an_all_reduce_between_nodes_by_hand() -> None:
    """8 ranks a node: reduce-scatter inside, an eighth between the nodes, all-gather inside."""
    inside = 20e-6 + 2e-6 * 6 + 7 / 8 * 1e9 / 320e9
    between = 19e-6 + 2 * 1 / 2 * (1e9 / 8) / 36e9
    assert seconds("all_reduce", Group(range(16))) == pytest.approx(2 * inside + between)
    ring = 19e-6 + 3e-6 * 6 + 2 * 7 / 8 * 1e9 / 36e9
    assert seconds("all_reduce", strided(8, 8)) == pytest.approx(ring)
    assert ring == pytest.approx(48.6e-3, rel=0.01)


def test_other_collectives_between_nodes_by_hand() -> None:
    group = Group(range(16))
    inside, between = 20e-6 + 2e-6 * 6, 19e-6
    scattered = inside + 7 / 8 * 1e9 / 320e9 + between + 1 / 2 * (1e9 / 8) / 36e9
    assert seconds("reduce_scatter", group) == pytest.approx(scattered)
    gathered = between + 1e9 / 36e9 + inside + 7 * 2e9 / 320e9
    assert seconds("all_gather", group) == pytest.approx(gathered)
    exchanged = inside + 7 / 8 * 0.5e9 / 320e9 + between + 1 / 2 * 1e9 / 36e9
    assert seconds("all_to_all", group) == pytest.approx(exchanged)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_between_nodes_too() -> None:
    group = Group(range(16))
    both = seconds("reduce_scatter", group) + seconds("all_gather", group, num_bytes=1e9 / 16)
    assert seconds("all_reduce", group) == pytest.approx(both, rel=0.01)


@pytest.mark.parametrize("node", catalog.node_names())
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_bytes_take_longer(collective: str, node: str) -> None:
    server = catalog.node(node)
    sizes = np.geomspace(1e3, 1e10, 20)
    for ranks, stride in itertools.product((2, 4, 8, 16, 32), (1, 2, 4, 8)):
        taken = collective_s(collective, sizes, strided(ranks, stride), server)  # type: ignore[arg-type]
        assert (np.diff(taken) > 0).all()


@pytest.mark.parametrize("node", catalog.node_names())
@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("num_bytes", [1e3, 1e6, 1e9])
def test_more_ranks_at_the_same_stride_take_longer(node: str, stride: int, num_bytes: float) -> None:
    server = catalog.node(node)
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        groups = evenly((strided(ranks, stride) for ranks in (1, 2, 4, 8, 16, 32, 64)), server)
        taken = [seconds(collective, group, server, num_bytes) for group in groups]
        assert taken == sorted(taken), collective


@pytest.mark.parametrize("node", catalog.node_names())
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_large_messages_of_ranks_farther_apart_take_longer(collective: str, node: str) -> None:
    server = catalog.node(node)
    if server.network_links:
        pytest.skip("more nodes bring more links")
    for ranks in (2, 4, 8, 16) if collective != "send_recv" else (2,):
        groups = evenly((strided(ranks, stride) for stride in (1, 2, 4, 8, 16)), server)
        taken = [seconds(collective, group, server) for group in groups]
        assert all(later >= before * (1 - 1e-9) for before, later in itertools.pairwise(taken)), ranks


# Where operators put their groups.


def test_stages_lie_one_behind_the_other() -> None:
    cut = Parallelism(tensor_parallel=4, data_parallel=2, pipeline_parallel=3)
    assert cut.tensor_group(2) == Group(range(16, 20))
    assert cut.expert_group(1) == Group(range(8, 16))
    assert cut.handover_group(1) == Group(range(8, 17, 8), copies=8)


def test_only_the_hand_over_between_nodes_crosses_the_network() -> None:
    model, device = catalog.model("llama-3-70b"), catalog.device("h100")
    cut = Parallelism(tensor_parallel=4, pipeline_parallel=4)
    timer = Timer(Context(model, device, DGX, cut, TimingConfig(source="roofline")))
    taken = []
    for stage in range(3):
        send = stage_operators(model, cut, stage)[-1]
        assert isinstance(send.work, Communication)
        taken.append(float(timer.seconds(send, np.array([send.work.bytes_each * 8192]))[0]))
    message = 8192 * 8192 * 2
    assert taken == pytest.approx([7.6e-6 + message / 358e9, 19e-6 + message / 36e9, 7.6e-6 + message / 358e9])


def test_old_names_of_the_nodes_with_pairs() -> None:
    assert catalog.node("a100_pair_nvlink") == PAIRS
    assert catalog.node("h100_pair_nvlink") == catalog.node("h100_pairwise_nvlink")


def test_a_small_all_reduce_of_two_nodes_takes_what_nccl_takes() -> None:
    """13 microseconds inside, 19 of the network, 13 inside; 45 to 48 were measured over two nodes of eight H100. Over
    one GPU of each node there is no inside."""
    two = catalog.node("h100_hgx")
    assert seconds("all_reduce", Group(range(16)), two, 8192.0) == pytest.approx(46.5e-6, rel=0.06)
    assert seconds("all_reduce", Group(range(0, 16, 8)), two, 8192.0) == pytest.approx(19e-6, rel=0.1)
    assert seconds("all_reduce", Group(range(8)), two, 8192.0) < 7e-6, "an engine's own kernel stays in the node"
