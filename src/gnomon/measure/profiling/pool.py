"""Random numbers in device memory for the operators, several times the L2 cache."""

from __future__ import annotations

import math

import torch

from gnomon.measure.kernels.elementwise import random_signs

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MOST_COPIES = 8  # Copies of large weights: so many layers of an engine lie in as many places of the memory.

MOST_VIEWS = 100  # As many as there are calls in one graph.


class Pool:
    """Tensors among which calls rotate, to defeat the cache.

    Activations and caches are views of one buffer drawn from a normal distribution. Weights are random signs, each
    copy a tensor of its own as in an engine: as views of one buffer, one product was measured 8 % slower than there.
    """

    def __init__(self, device: torch.device, dtype: str, num_bytes: int = 6 << 30) -> None:
        self.device, self.dtype_name, self.dtype = device, dtype, DTYPES[dtype]
        self._data = torch.empty(num_bytes // self.dtype.itemsize, dtype=self.dtype, device=device)
        for part in self._data.split(1 << 28):
            part.normal_(0.0, 0.5)
        self.cold_bytes = 4 * _l2_bytes(device)
        self._scratch: dict[str, torch.Tensor] = {}
        self._weights: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def weights(self, *size: int) -> list[torch.Tensor]:
        """As `rotating`, but random signs (see `random_signs`), kept until `release`."""
        if size not in self._weights:
            num_bytes = math.prod(size) * self.dtype.itemsize
            copies = max(-(-self.cold_bytes // num_bytes), min(MOST_COPIES, self._data.nbytes // num_bytes), 2)
            self._weights[size] = [
                random_signs(torch.empty(size, dtype=self.dtype, device=self.device), 2.0**-6) for _ in range(copies)
            ]
        return self._weights[size]

    def rotating(self, *size: int) -> list[torch.Tensor]:
        """Distinct random tensors of `size`: two or more, several times the L2 cache unless they are small."""
        elements = math.prod(size)
        aligned = -(-elements // 128) * 128
        wanted = max(2, min(MOST_VIEWS, -(-self.cold_bytes // (aligned * self.dtype.itemsize))))
        fit = self._data.numel() // aligned
        if fit < 1:
            raise MemoryError(f"a tensor of {elements * self.dtype.itemsize >> 20} MiB is larger than the pool")
        return [self._data[i * aligned : i * aligned + elements].view(*size) for i in range(min(wanted, fit))]

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
        self._scratch.clear()
        self._weights.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _l2_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 16
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
