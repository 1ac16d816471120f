"""What the operators of every layer are made of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gnomon.catalog.models import Model
from gnomon.catalog.parallelism import Parallelism
from gnomon.catalog.quantization import Quantization, WeightGroup
from gnomon.timing.operators.work import ACTIVATION_BYTES, Communication, Elementwise, Gemm, Kind, Operator

Exchange = Literal["auto", "all_to_all", "all_gather"]


@dataclass(frozen=True)
class Parts:
    """A model under a parallelism in its number formats; counts of operators are per layer."""

    model: Model
    parallelism: Parallelism
    stage: int
    formats: Quantization
    kv_dtype: str
    expert_load: str
    expert_exchange: Exchange

    @property
    def ranks(self) -> int:
        """GPUs that share every layer."""
        return self.parallelism.tensor_parallel

    def gemm(self, name: str, n: int, k: int, group: WeightGroup, kind: Kind = "token") -> Operator:
        return Operator(name, kind, 1, Gemm(n, k, self.formats[group]))

    def move(self, name: str, elements: float, *, fused: bool = False) -> Operator:
        """A kernel that reads and writes so many 16-bit elements per token."""
        return Operator(name, "token", 1, Elementwise(elements * ACTIVATION_BYTES), is_fused=fused)

    def reduce(self, name: str, bytes_each: float | None = None) -> Iterator[Operator]:
        """The all-reduce after a half of a layer, or of fewer bytes per token."""
        if self.ranks > 1:
            hidden = self.model.hidden_size * ACTIVATION_BYTES
            group = self.parallelism.tensor_group(self.stage)
            yield Operator(name, "communication", 1, Communication("all_reduce", group, bytes_each or hidden))

    def quantize(self, name: str, width: int, group: WeightGroup) -> Iterator[Operator]:
        """Writing FP8 where no norm or activation before the product does it: two bytes in, one out."""
        if self.formats[group].name == "fp8":
            yield self.move(name, 1.5 * width)
