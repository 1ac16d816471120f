"""GPUs: what their data sheets say, and the constants with which the roofline describes them."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from gnomon.catalog.library import DATA, Library
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"]

DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip


class RooflineConstants(Config):
    """How far real kernels stay from a device's data sheet; fitted by `benchmarks/calibrate_roofline.py`."""

    gemm_efficiency: float = Field(0.75, gt=0, le=1.25)
    """Share of the peak FLOP/s that a large, whole-wave matrix multiplication reaches; above 1 where the card clocks
    higher than its data sheet."""
    gemm_bandwidth: float = Field(0.85, gt=0, le=1)
    """Share of the memory bandwidth at which weights stream in."""
    gemm_floor_s: float = Field(5e-6, ge=0)
    """Seconds that a matrix multiplication takes beyond its work: launch, prologue, epilogue."""
    elementwise_bandwidth: float = Field(0.75, gt=0, le=1)
    """Share of the memory bandwidth of norms, activations and copies."""
    cache_bandwidth: float = Field(1.5, gt=0, le=10)
    """Bandwidth of norms, activations and copies whose data fit into the L2 cache, over the memory's."""
    elementwise_floor_s: float = Field(3e-6, ge=0)
    """Seconds of the smallest element-wise kernel."""
    prefill_efficiency: float = Field(0.55, gt=0, le=1.25)
    """Share of the peak FLOP/s that attention over a long prompt reaches."""
    prefill_tile: PositiveInt = 128
    """Prompt rows that one SM takes at a time."""
    decode_bandwidth: float = Field(0.75, gt=0, le=1)
    """Share of the memory bandwidth at which decoding attention reads the KV cache."""
    attention_floor_s: float = Field(8e-6, ge=0)
    """Seconds of the smallest attention kernel."""


class Device(Config):
    """One GPU."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names, e.g. what `nvidia-smi` calls it."""
    vendor_name: str
    """As on the data sheet."""
    peak_flops: dict[Dtype, PositiveFloat]
    """Dense FLOP/s (operations/s for integers) per number format."""
    memory_gb: PositiveFloat
    """Memory as it is sold (and as Vidur counts it, in GiB)."""
    memory_bytes: PositiveInt
    """Memory that a process can see."""
    bandwidth_bytes_s: PositiveFloat
    num_sms: PositiveInt
    l2_bytes: PositiveInt
    price_per_hour: PositiveFloat
    """US dollars per GPU and hour, rented on demand."""
    default_node: str
    """The node in which this device usually comes."""
    roofline: RooflineConstants = RooflineConstants()
    roofline_error: float = Field(0.25, ge=0)
    """Median relative error of the roofline against measured kernels; a guess where nothing was measured."""
    sources: dict[str, str]
    """Where each fact comes from."""

    def flops(self, dtype: str) -> float:
        """Peak dense FLOP/s for multiplications in `dtype`; formats that it only stores are multiplied in bf16."""
        if dtype not in self.peak_flops and DTYPE_BYTES.get(dtype, 4.0) < 2.0:
            dtype = "bf16"
        if dtype not in self.peak_flops:
            known = ", ".join(sorted(self.peak_flops))
            raise ConfigError(f"{self.name} has no {dtype} arithmetic.", fix=f"It has: {known}.")
        return self.peak_flops[dtype]


DEVICES = Library("device", DATA / "devices", Device)


def device(name: str) -> Device:
    """The device called `name`, e.g. "h100", "a100-80gb" or "NVIDIA GeForce RTX 4090"."""
    return DEVICES[name]


def device_names() -> list[str]:
    """Every catalogued device."""
    return DEVICES.names
