"""Servers: how many GPUs, and the links between them."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from gnomon.catalog.devices import Device
from gnomon.catalog.library import DATA, Library
from gnomon.core.config import Config

Topology = Literal["all_to_all", "pairwise", "pcie"]


class Link(Config):
    """A way for bytes between two GPUs, as collectives experience it."""

    bandwidth_bytes_s: PositiveFloat
    """Bytes per second and GPU in one direction that a large collective reaches (not the data sheet's peak)."""
    latency_s: NonNegativeFloat
    """Seconds of the smallest collective over two GPUs."""
    step_s: NonNegativeFloat = 0.0
    """Further seconds for every GPU beyond two in the group."""


class Node(Config):
    """One server."""

    name: str
    aliases: tuple[str, ...] = ()
    device: str
    num_gpus: PositiveInt
    topology: Topology
    """all_to_all: NVLink between all GPUs; pairwise: NVLink inside each pair, PCIe beyond; pcie: no NVLink."""
    link: Link
    """Between the GPUs that NVLink joins (or all of them, where there is none)."""
    far_link: Link | None = None
    """Between GPUs of different pairs, where the topology is pairwise."""
    send_link: Link | None = None
    """For one GPU sending to one other, where that differs from the collectives' link."""
    network: Link
    """Between nodes, per GPU."""
    network_links: PositiveInt | None = None
    """Links to the network that the GPUs of a node share; one for each GPU if not given."""
    sources: dict[str, str]
    """Where each fact comes from."""


NODES = Library("node", DATA / "nodes", Node)


def node(name: str) -> Node:
    """The node called `name`, e.g. "h100_dgx" or "a100_pairwise_nvlink"."""
    return NODES[name]


def node_names() -> list[str]:
    """Every catalogued node."""
    return NODES.names


def default_node(device: Device) -> Node:
    """The node in which `device` usually comes; groups larger than it cross its network."""
    return NODES[device.default_node]
