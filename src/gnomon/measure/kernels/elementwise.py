"""Token-level kernels bound by memory: norms, rotary embedding, KV write, activation."""

from __future__ import annotations

import os
from types import ModuleType

import torch

from gnomon.measure.kernels import plain


def implementation(tensor: torch.Tensor) -> ModuleType:
    """The module whose `norm`, `rotary` ... suit the tensor: Triton's on a GPU (or interpreted), else the plain one."""
    if tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1":
        from gnomon.measure.kernels import gpu_elementwise

        return gpu_elementwise
    return plain


def rotary_table(num_positions: int, head_dim: int, base: float, device: torch.device | str) -> torch.Tensor:
    """[positions, head_dim] float32: cosines, then sines."""
    half = head_dim // 2
    inverse = base ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = torch.arange(num_positions, device=device, dtype=torch.float32)[:, None] * inverse[None]
    return torch.cat([angles.cos(), angles.sin()], -1).contiguous()


def random_signs(weights: torch.Tensor, scale: float) -> torch.Tensor:
    """Fill with +scale and -scale at random, in place.

    A matrix product takes as long whatever the weights are, but draws less power with these than with normally
    distributed ones, so that a power-capped GPU keeps its clock: what is measured does not depend on what ran before.
    """
    flat = weights.view(-1)
    for part in flat.split(1 << 28):
        part.bernoulli_(0.5).sub_(0.5).mul_(2.0 * scale)
    return weights
