"""Groups of ranks laid on nodes: which GPUs communicate, and which links their bytes cross."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.catalog.nodes import Link, Node


@dataclass(frozen=True)
class Group:
    """Ranks that take part in one collective, or the two ends of a transfer.

    Ranks number the GPUs of a cluster, node after node; a replica or a pipeline starts at the first GPU of a node.
    """

    ranks: range
    copies: int = 1
    """Groups that do the same at the same time, each one rank further on; the slowest counts."""

    @classmethod
    def spread(cls, num_ranks: int, per_node: int, node: Node) -> Group:
        """A group that has `per_node` ranks on each of its nodes, side by side where that is all of them."""
        step = 1 if num_ranks == per_node else node.num_gpus // per_node
        return cls(range(0, num_ranks * step, step))

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    def on(self, node: Node) -> Layout:
        """The group (of all copies the one that has the longest way) laid on nodes like `node`."""
        layouts = [_lay([rank + shift for rank in self.ranks], self.copies, node) for shift in range(self.copies)]
        return max(layouts, key=lambda at: (at.num_nodes, -at.per_node, at.is_across_pairs))


@dataclass(frozen=True)
class Layout:
    """A group's place: how many nodes, and the links inside and between them."""

    node: Node
    num_nodes: int
    per_node: int
    """The group's ranks on each of its nodes; the fewest, where they differ: their links share what leaves a node."""
    is_across_pairs: bool
    """Ranks of one node lie in different NVLink pairs."""
    num_sharing: float
    """GPUs that send over one network link at the same time."""

    @property
    def inside(self) -> Link:
        """The slowest link between the group's ranks in one node."""
        if not self.is_across_pairs:
            return self.node.link
        assert self.node.far_link is not None, f"{self.node.name}: a pairwise node names its far_link"
        return self.node.far_link

    @property
    def between(self) -> Link:
        """The way of one rank's bytes to another node."""
        network = self.node.network
        return network.model_copy(update={"bandwidth_bytes_s": network.bandwidth_bytes_s / self.num_sharing})

    @property
    def transfer(self) -> Link:
        """What a message from the first rank to the last one crosses."""
        if self.num_nodes > 1:
            return self.between
        return self.inside if self.is_across_pairs else self.node.send_link or self.node.link


def _lay(ranks: list[int], copies: int, node: Node) -> Layout:
    members: dict[int, list[int]] = {}
    for rank in ranks:
        members.setdefault(rank // node.num_gpus, []).append(rank % node.num_gpus)
    is_pairwise = node.topology == "pairwise"
    across_pairs = is_pairwise and any(len({gpu // 2 for gpu in gpus}) > 1 for gpus in members.values())
    counts = [len(gpus) for gpus in members.values()]
    num_sending = min(max(counts) * copies, node.num_gpus)
    num_sharing = max(1.0, num_sending / (node.network_links or node.num_gpus))
    return Layout(node, len(members), min(counts), across_pairs, num_sharing)
