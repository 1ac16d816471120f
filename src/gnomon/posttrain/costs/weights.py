"""Weight sync: seconds from the actor's new weights to the rollout engines' having them, by path and topology.

Every tensor is gathered from the actor's layout, sent, and loaded into the engine's: a time for each tensor, longer for
an expert's, which is gathered over the expert-parallel ranks first; and its bytes over the links.
"""

from dataclasses import dataclass

from gnomon import catalog
from gnomon.catalog import Model
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.training.stages import stages_of

WEIGHT_BYTES = 2
"""Of a parameter as it is sent: bf16; verl and NeMo-RL quantise where it arrives."""
DENSE_TENSORS = 10
"""Of a layer: projections, norms and biases; a router or shared experts take the places of others."""


@dataclass(frozen=True)
class Path:
    """One way of syncing weights."""

    tensor_s: float
    """For each dense tensor: gathering, launching, loading."""
    expert_s: float
    """For each tensor of each expert."""
    share: float
    """Of the link's bandwidth, NVLink in a node and the network's beyond."""


PATHS = {
    "nccl": Path(2.0e-4, 6.0e-4, 0.34),
    "checkpoint_engine": Path(5.0e-5, 9.5e-5, 0.64),
    "broadcast": Path(3.3e-5, 3.3e-5, 1.16),
    "rdma": Path(3.3e-5, 3.3e-5, 0.9),
    "shared_memory": Path(2.0e-4, 1.5e-3, 1.0),
    "disk": Path(2.0e-4, 2.0e-4, 1.0),
}
"""nccl and checkpoint_engine: fitted to verl's six measured syncs (7B, 30B-A3B and 235B-A22B on H20); in a node the
whole link is reached. broadcast: one rank sends everything, packed into large buffers that are gathered meanwhile
(NeMo-RL); 1.5 s to load DeepSeek-V3 is measured (its report on refits), the share (42 GB/s, of a port of 50) is fitted
to three asynchronous steps of NeMo-RL on H100. rdma: every node of the actor sends its share over its own links, an
assumption. shared_memory: gathered, converted and handed over where both are on the same GPUs; fitted to five
synchronous steps of NeMo-RL on H100. disk: an assumption."""
DISK_BYTES_S = 5e9
"""Of a shared file system, written once and read by all: an assumption."""


def num_tensors(model: Model) -> tuple[int, int]:
    """Dense tensors and those of experts."""
    kinds = dict(stages_of(model, 1)[0].kinds)
    routed = sum(count for kind, count in kinds.items() if kind[1] == "experts")
    return DENSE_TENSORS * model.num_layers + 3, routed * model.num_experts * model.num_projections


def sync_s(config: Posttrain, model: Model, num_actor: int, num_rollout: int) -> float:
    """One blocking sync to all rollout instances."""
    t, path = config.transitions, PATHS[config.transitions.sync]
    node = catalog.node(config.node) if config.node else catalog.default_node(catalog.device(config.device))
    is_near = num_actor + num_rollout <= node.num_gpus or t.sync == "shared_memory"
    bandwidth = node.link.bandwidth_bytes_s if is_near else path.share * node.network.bandwidth_bytes_s
    if t.sync == "rdma" and not is_near:
        bandwidth *= max(1, num_actor // node.num_gpus)
    if t.sync == "checkpoint_engine" and is_near:  # Every rank sends the part that it holds.
        bandwidth *= min(num_actor, num_rollout)
    if t.sync == "disk":
        bandwidth = DISK_BYTES_S / 2.0
    dense, experts = num_tensors(model)
    moved = model.num_parameters * WEIGHT_BYTES / (t.sync_bandwidth_bytes_s or bandwidth)
    return t.sync_fixed_s + dense * path.tensor_s + experts * path.expert_s + moved
