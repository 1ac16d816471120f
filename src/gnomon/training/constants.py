"""Constants of training steps: factors measured on a GPU, and rates fitted to published steps, with their sources."""

from functools import cache
from pathlib import Path
from typing import TypeVar

from gnomon.core.config import Config, build
from gnomon.core.text import own_yaml
from gnomon.training.config import Precision

T = TypeVar("T")
FILE = Path(__file__).parent / "data" / "constants.yaml"


class Backward(Config):
    """Seconds of backward kernels over those of the forward; measured on one H200."""

    input_grad: float
    """Product for the input's gradient, over the same FLOPs of a forward."""
    weight_grad: float
    """Product for the weights' gradient."""
    attention: float
    recurrence: float
    elementwise: float


class Eager(Config):
    """Element-wise work of layers that are not compiled, over that of fused kernels; measured on one H200."""

    forward: dict[str, float]
    """By operator; `other` for those that are not named."""
    backward: dict[str, float]
    forward_layer_s: float
    """Launching a layer's kernels one by one: its forward takes no less."""
    backward_layer_s: float


class Loss(Config):
    """Bytes per logit that the loss moves."""

    forward: float
    backward: float


class Release(Config):
    """What a release of Megatron does about experts."""

    expert_layer_s: float = 0.0
    """Routing, counting, sorting and launching of a layer with experts in forward; backward takes twice that."""
    expert_layer_least_s: float = 0.0
    """Launching a layer with experts whose sizes only the GPU knows (dropless): its forward takes no less; its backward
    twice that."""
    exchange: float = 1.0
    """Seconds of the exchange of tokens that show, over those that NVLink takes for it."""
    exchange_far: float = 1.0
    """Seconds of that exchange that show where it crosses nodes, over those of the network."""
    exchange_interleaved: float = 1.0
    """What of either shows with virtual stages, where another micro-batch computes meanwhile."""
    permutation: float = 1.0
    """Rows moved over those of a fused kernel."""
    experts: float = 1.0
    """Rate of grouped products over dense ones."""


class Rates(Config):
    """What a device reaches in training over what the timing source says."""

    products: dict[Precision, float]
    """By number format: clocks that last under full power, and kernels that the library chooses."""
    attention: float = 1.0
    """With Megatron-LM's kernels (cuDNN)."""
    fitted_on: str


class Constants(Config):
    """All of them."""

    backward: Backward
    eager: Eager
    loss: dict[str, Loss]
    """By framework."""
    casts: dict[Precision, float]
    """Bytes that quantising moves per element of a product's input and of its output's gradient."""
    small_heads: float
    """Rate of attention with heads of 64 over those of 128."""
    fa2_rate: dict[str, float]
    """FlashAttention-2's FLOP/s on Hopper and later, forward, by device; `any` for those that are not named."""
    optimizer_bandwidth: float
    """Share of the memory's bandwidth that fused AdamW reaches."""
    adapter_moves: dict[str, float]
    """How often adapters move the elements of an adapted product, by framework."""
    adapter_s: dict[str, float]
    """Launching the adapters of one product in forward, by framework; backward twice that."""
    start_s: dict[str, float]
    """Before the first kernel of a step, by framework: masks, positions, Python."""
    launch_factor: dict[str, float]
    """Launching kernels one by one over that of a DGX H100's host, by device; `any` for those that are not named."""
    launch_layer_s: float
    """Launching a layer's kernels in forward without CUDA graphs (megatron); backward twice that."""
    layer_s: dict[str, float]
    """Gaps between the kernels of a layer in forward, by framework; backward twice that."""
    host_bandwidth: dict[str, float]
    """Bytes per second between a GPU and its host, by device; `any` for those that are not named."""
    beside_rate: float
    """Share of the links' bandwidth that copies reach with few of a GPU's processors, beside passes."""
    beside_impact: float
    """Share of its rate that a pass loses while copies exchange gradients or weights."""
    tensor_impact: float
    """Share of its time by which a tensor-parallel collective lengthens the product beside it."""
    recurrence_rate: float
    """Rate of linear attention over the timing source's."""
    releases: dict[str, Release]
    """By the first release that is so."""
    devices: dict[str, Rates]
    """`any` stands for those of which no step was published."""

    def release(self, name: str) -> Release:
        """What holds for a release: the last entry not after it; the newest where none is given."""
        known = sorted(self.releases)
        return self.releases[max((one for one in known if one <= name), default=known[0]) if name else known[-1]]

    def of(self, table: dict[str, T], device: str) -> T:
        """What a table by device has for it."""
        return table.get(device, table["any"])


@cache
def constants() -> Constants:
    """Those that come with Gnomon."""
    return build(Constants, own_yaml(FILE))
