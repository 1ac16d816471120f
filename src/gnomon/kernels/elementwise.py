"""Token-level kernels bound by memory: norms, rotary embedding, KV write, activation."""

from __future__ import annotations

import os
from types import ModuleType

import torch

from gnomon.kernels import plain


def implementation(tensor: torch.Tensor) -> ModuleType:
    """The module whose `norm`, `rotary` ... suit the tensor's device: Triton's on a GPU (or interpreted), else plain."""
    if tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1":
        from gnomon.kernels import gpu_elementwise

        return gpu_elementwise
    return plain


def rotary_table(num_positions: int, head_dim: int, base: float, device: torch.device | str) -> torch.Tensor:
    """[positions, head_dim] float32: cosines, then sines."""
    half = head_dim // 2
    inverse = base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = torch.arange(num_positions, device=device, dtype=torch.float32)[:, None] * inverse[None]
    return torch.cat([angles.cos(), angles.sin()], -1).contiguous()
