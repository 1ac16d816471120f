"""Random numbers in device memory that operators share: larger than the L2 cache, filled once."""

from __future__ import annotations

import math

import torch

from gnomon.kernels.elementwise import random_signs

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Pool:
    """Views of one large random buffer; rotating among them defeats the cache.

    Activations and caches are drawn from a normal distribution, weights are random signs.
    """

    def __init__(self, device: torch.device, dtype: str, num_bytes: int = 6 << 30) -> None:
        self.device, self.dtype_name, self.dtype = device, dtype, DTYPES[dtype]
        self._data = torch.empty(num_bytes // self.dtype.itemsize, dtype=self.dtype, device=device)
        for part in self._data.split(1 << 28):
            part.normal_(0.0, 0.5)
        self._weights = random_signs(torch.empty_like(self._data), 2.0**-6)
        self.cold_bytes = 4 * _l2_bytes(device)
        self._scratch: dict[str, torch.Tensor] = {}

    def weights(self, *size: int) -> list[torch.Tensor]:
        """As `rotating`, but random signs (see `random_signs`)."""
        return self._views(self._weights, *size)

    def rotating(self, *size: int) -> list[torch.Tensor]:
        """Distinct random tensors of `size`, together several times the L2 cache (at least two)."""
        return self._views(self._data, *size)

    def _views(self, data: torch.Tensor, *size: int) -> list[torch.Tensor]:
        elements = math.prod(size)
        aligned = -(-elements // 128) * 128
        wanted = max(2, -(-self.cold_bytes // (aligned * self.dtype.itemsize)))
        fit = data.numel() // aligned
        if fit < 1:
            raise MemoryError(f"a tensor of {elements * self.dtype.itemsize >> 20} MiB is larger than the pool")
        return [data[i * aligned : i * aligned + elements].view(*size) for i in range(min(wanted, fit))]

    def fixed(self, name: str, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A named work buffer that keeps its place (and its warmth in the cache) between calls."""
        kind, elements = dtype or self.dtype, math.prod(size)
        held = self._scratch.get(name)
        if held is None or held.numel() < elements or held.dtype != kind:
            held = torch.empty(elements, dtype=kind, device=self.device)
            if kind.is_floating_point:
                held.normal_(0.0, 0.5)
            self._scratch[name] = held
        return held[:elements].view(*size)

    def release(self) -> None:
        """Drop the work buffers."""
        self._scratch.clear()


def _l2_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 16
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
