"""Constants of training steps: factors measured on a GPU, and rates fitted to published steps, with their sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from pydantic import Field

from gnomon.core.config import Config, build
from gnomon.training.config import Precision

RATES: dict[Precision, float] = {"bf16": 0.85, "fp8": 0.8, "mxfp8": 0.75, "nvfp4": 0.5}
CASTS: dict[Precision, float] = {"bf16": 0.0, "fp8": 6.0, "mxfp8": 4.0, "nvfp4": 5.0}
FILE = Path(__file__).parent / "data" / "constants.yaml"


class Backward(Config):
    """Seconds of backward kernels over those of the forward; measured on one H200."""

    input_grad: float = 1.0
    """Product for the input's gradient."""
    weight_grad: float = 1.0
    """Product for the weights' gradient."""
    attention: float = 2.5
    recurrence: float = 2.5
    elementwise: float = 2.0
    experts: float = 2.0


class Rates(Config):
    """What a device reaches in training over what the timing source says."""

    products: dict[Precision, float] = RATES
    """By the number format of the products: sustained clocks under full power, and kernels chosen by the library."""
    experts: dict[Precision, float] = RATES
    """The same of grouped products, over dense ones."""
    attention: float = 1.0
    elementwise: float = 1.0
    fitted_on: str = "nothing: those of no device in particular"


class Constants(Config):
    """All of them."""

    backward: Backward = Backward()
    casts: dict[Precision, float] = CASTS
    """Bytes that quantising moves per element of a product's input and of its output's gradient."""
    optimizer_bandwidth: float = 0.55
    """Share of the memory's bandwidth that fused AdamW reaches."""
    devices: dict[str, Rates] = Field(default_factory=dict)

    def rates(self, device: str) -> Rates:
        """Of a device."""
        return self.devices.get(device, Rates())


@cache
def constants() -> Constants:
    """Those that come with Gnomon."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return build(Constants, data)
