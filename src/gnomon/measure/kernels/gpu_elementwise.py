# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
"""Token-level kernels bound by memory, in Triton. `gnomon.measure.kernels.plain` says what each computes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _norm_kernel(x, residual, weight, out, width, epsilon, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    value = tl.load(x + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        kept = tl.load(residual + row * width + columns, mask=mask, other=0.0)
        rounded = (value + kept.to(tl.float32)).to(kept.dtype)
        tl.store(residual + row * width + columns, rounded, mask=mask)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + epsilon)
    normed = value * scale * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _head_norm_kernel(qkv, weight, row_stride, num_heads, epsilon, DIM: tl.constexpr, HEADS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, DIM)
    at = qkv + row * row_stride + heads[:, None] * DIM + columns[None, :]
    mask = (heads < num_heads)[:, None] & (columns < DIM)[None, :]
    value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / DIM + epsilon)
    normed = value * scale[:, None] * tl.load(weight + columns).to(tl.float32)[None, :]
    tl.store(at, normed.to(qkv.dtype.element_ty), mask=mask)


@triton.jit
def _rotary_kernel(qkv, positions, cos_sin, row_stride, num_heads, HALF: tl.constexpr, HEADS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, HALF)
    position = tl.load(positions + row).to(tl.int64)
    cos = tl.load(cos_sin + position * 2 * HALF + columns)[None, :]
    sin = tl.load(cos_sin + position * 2 * HALF + HALF + columns)[None, :]
    at = qkv + row * row_stride + heads[:, None] * 2 * HALF + columns[None, :]
    mask = (heads < num_heads)[:, None] & (columns < HALF)[None, :]
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, (first * cos - second * sin).to(qkv.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (second * cos + first * sin).to(qkv.dtype.element_ty), mask=mask)


@triton.jit
def _kv_write_kernel(
    qkv, slots, k_cache, v_cache, row_stride, k_start, kv_heads, PAGE: tl.constexpr, DIM: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, DIM)
    mask = (heads < kv_heads)[:, None] & (columns < DIM)[None, :]
    source = qkv + row * row_stride + k_start + heads[:, None] * DIM + columns[None, :]
    target = ((slot // PAGE) * kv_heads + heads[:, None]) * PAGE * DIM + (slot % PAGE) * DIM + columns[None, :]
    tl.store(k_cache + target, tl.load(source, mask=mask), mask=mask)
    tl.store(v_cache + target, tl.load(source + kv_heads * DIM, mask=mask), mask=mask)


@triton.jit
def _activation_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _resolve_ids_kernel(ids, sampled, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    given = tl.load(ids + at, mask=mask, other=0)
    row = tl.where(given < 0, -1 - given, 0)
    newest = tl.load(sampled + row, mask=mask & (given < 0), other=0)
    tl.store(out + at, tl.where(given < 0, newest.to(tl.int32), given), mask=mask)


HEADS_PER_PROGRAM = 8


def _norm_warps(block: int) -> int:
    return 4 if block <= 2048 else 8 if block <= 4096 else 16


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    block = triton.next_power_of_2(x.shape[1])
    _norm_kernel[(x.shape[0],)](
        x, x, weight, out, x.shape[1], epsilon, HAS_RESIDUAL=False, BLOCK=block, num_warps=_norm_warps(block)
    )


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    block = triton.next_power_of_2(x.shape[1])
    _norm_kernel[(x.shape[0],)](
        x, residual, weight, out, x.shape[1], epsilon, HAS_RESIDUAL=True, BLOCK=block, num_warps=_norm_warps(block)
    )


def head_norm(qkv: torch.Tensor, weight: torch.Tensor, epsilon: float, num_heads: int) -> None:
    grid = (qkv.shape[0], triton.cdiv(num_heads, HEADS_PER_PROGRAM))
    _head_norm_kernel[grid](qkv, weight, qkv.stride(0), num_heads, epsilon, DIM=weight.numel(), HEADS=HEADS_PER_PROGRAM)


def rotary(qkv: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, num_heads: int) -> None:
    grid = (qkv.shape[0], triton.cdiv(num_heads, HEADS_PER_PROGRAM))
    _rotary_kernel[grid](
        qkv, positions, cos_sin, qkv.stride(0), num_heads, HALF=cos_sin.shape[1] // 2, HEADS=HEADS_PER_PROGRAM
    )


def kv_write(
    qkv: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, num_heads: int
) -> None:
    """A row of `qkv` holds `num_heads` queries, keys and values; a cache is [pages, kv_heads, page, head_dim]."""
    _, kv_heads, page, dim = k_cache.shape
    grid = (qkv.shape[0], triton.cdiv(kv_heads, HEADS_PER_PROGRAM))
    _kv_write_kernel[grid](
        qkv, slots, k_cache, v_cache, qkv.stride(0), num_heads * dim, kv_heads, PAGE=page, DIM=dim,
        HEADS=HEADS_PER_PROGRAM,
    )  # fmt: skip


def activation(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    width = out.shape[1]
    block = min(1024, triton.next_power_of_2(width))
    _activation_kernel[(gate_up.shape[0], triton.cdiv(width, block))](gate_up, out, width, BLOCK=block)


def resolve_ids(ids: torch.Tensor, sampled: torch.Tensor, out: torch.Tensor) -> None:
    _resolve_ids_kernel[(triton.cdiv(ids.numel(), 256),)](ids, sampled, out, ids.numel(), BLOCK=256)
