# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
"""Attention over a paged KV cache, in Triton: prefill chunks and split-KV decode.

Both kernels are persistent: a fixed number of programs walks a work list that lies in device memory
(`gnomon.measure.kernels.work`). A captured CUDA graph therefore serves every batch, and a kernel's time depends on the
work alone, not on how large a grid was captured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from gnomon.measure.kernels.work import ROWS_PER_TILE

NEGATIVE: tl.constexpr = tl.constexpr(-1.0e30)


class Launch(NamedTuple):
    """How a kernel is cut up: rows and keys per tile, warps, pipeline stages, programs per multiprocessor."""

    rows: int
    keys: int
    warps: int
    stages: int
    programs: int


# The fastest of nine each on an H200 (prefill of 2,048: 298 TFLOP/s; decode of 64 x 4,096: 4.2 TB/s).
PREFILL = Launch(rows=ROWS_PER_TILE, keys=128, warps=8, stages=3, programs=1)
DECODE = Launch(rows=16, keys=64, warps=2, stages=4, programs=4)


@triton.jit
def _keys_of(table, positions, end, page_stride, PAGE: tl.constexpr, DIM: tl.constexpr):
    """Offsets in the cache of the rows of `positions`, for one KV head; past the end they point at page 0."""
    page = tl.load(table + positions // PAGE, mask=positions < end, other=0).to(tl.int64)
    return page * page_stride + (positions % PAGE) * DIM


@triton.jit
def _step(q, k_at, v_at, offsets, best, total, mixed, visible, scale, MASKED: tl.constexpr, DIM: tl.constexpr):
    """One tile of keys: online softmax in base 2."""
    columns = tl.arange(0, DIM)
    k = tl.load(k_at + offsets[:, None] + columns[None, :])
    scores = tl.dot(q, tl.trans(k)) * scale
    if MASKED:
        scores = tl.where(visible, scores, NEGATIVE)
    higher = tl.maximum(best, tl.max(scores, 1))
    weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    v = tl.load(v_at + offsets[:, None] + columns[None, :])
    mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None])
    return higher, total, mixed


@triton.jit(do_not_specialize=["kv_heads"])
def _prefill_kernel(
    qkv, out, k_cache, v_cache, tables, items, counts, row_stride, out_stride, table_stride, kv_heads, scale,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    work = tl.load(counts + 1) * kv_heads
    page_stride = kv_heads.to(tl.int64) * PAGE * DIM
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    rounds = tl.cdiv(work, programs)
    for turn in range(rounds):
        # Items come longest first; every second round runs backwards, so that each program gets its fair share.
        lane = tl.program_id(0) if turn % 2 == 0 else programs - 1 - tl.program_id(0)
        unit = turn * programs + lane
        if unit < work:
            item = items + (unit // kv_heads) * 4
            head = unit % kv_heads
            first_row = tl.load(item).to(tl.int64)
            table = tables + tl.load(item + 1).to(tl.int64) * table_stride
            first = tl.load(item + 2)
            count = tl.load(item + 3)
            token = rows // GROUP
            valid = token < count
            position = first + token
            q_at = (first_row + token) * row_stride + (head * GROUP + rows % GROUP) * DIM
            q = tl.load(qkv + q_at[:, None] + columns[None, :], mask=valid[:, None], other=0.0)
            k_at = k_cache + head * PAGE * DIM
            v_at = v_cache + head * PAGE * DIM
            best = tl.full([ROWS], NEGATIVE, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            mixed = tl.zeros([ROWS, DIM], tl.float32)
            end = first + count
            seen_by_all = ((first + 1) // KEYS) * KEYS
            for start in range(0, seen_by_all, KEYS):
                keys = start + tl.arange(0, KEYS)
                offsets = _keys_of(table, keys, end, page_stride, PAGE, DIM)
                best, total, mixed = _step(q, k_at, v_at, offsets, best, total, mixed, keys, scale, False, DIM)
            for start in range(seen_by_all, end, KEYS):
                keys = start + tl.arange(0, KEYS)
                offsets = _keys_of(table, keys, end, page_stride, PAGE, DIM)
                visible = keys[None, :] <= position[:, None]
                best, total, mixed = _step(q, k_at, v_at, offsets, best, total, mixed, visible, scale, True, DIM)
            result = mixed / total[:, None]
            out_at = (first_row + token) * out_stride + (head * GROUP + rows % GROUP) * DIM
            tl.store(out + out_at[:, None] + columns[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["kv_heads"])
def _decode_kernel(
    qkv, out, k_cache, v_cache, tables, items, counts, part, part_lse, row_stride, out_stride, table_stride, kv_heads,
    scale, GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    work = tl.load(counts) * kv_heads
    page_stride = kv_heads.to(tl.int64) * PAGE * DIM
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    valid = rows < GROUP
    for unit in range(tl.program_id(0), work, tl.num_programs(0)):
        index = unit // kv_heads
        item = items + index * 5
        head = unit % kv_heads
        row = tl.load(item).to(tl.int64)
        table = tables + tl.load(item + 1).to(tl.int64) * table_stride
        first = tl.load(item + 2)
        end = tl.load(item + 3)
        slot = tl.load(item + 4)
        q_at = row * row_stride + (head * GROUP + rows) * DIM
        q = tl.load(qkv + q_at[:, None] + columns[None, :], mask=valid[:, None], other=0.0)
        k_at = k_cache + head * PAGE * DIM
        v_at = v_cache + head * PAGE * DIM
        best = tl.full([ROWS], NEGATIVE, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, DIM], tl.float32)
        for start in range(first, end, KEYS):
            keys = start + tl.arange(0, KEYS)
            offsets = _keys_of(table, keys, end, page_stride, PAGE, DIM)
            visible = (keys < end)[None, :]
            best, total, mixed = _step(q, k_at, v_at, offsets, best, total, mixed, visible, scale, True, DIM)
        result = mixed / total[:, None]
        if slot < 0:  # The only part of its sequence: nothing to combine.
            out_at = row * out_stride + (head * GROUP + rows) * DIM
            tl.store(out + out_at[:, None] + columns[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
        else:
            part_at = (slot * kv_heads + head) * GROUP + rows
            tl.store(part_lse + part_at, best + tl.log2(total), mask=valid)
            tl.store(part + part_at[:, None] * DIM + columns[None, :], result, mask=valid[:, None])


@triton.jit(do_not_specialize=["kv_heads"])
def _combine_kernel(
    out, part, part_lse, splits, counts, out_stride, kv_heads, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    work = tl.load(counts + 2) * kv_heads
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    valid = rows < GROUP
    for unit in range(tl.program_id(0), work, tl.num_programs(0)):
        split = splits + (unit // kv_heads) * 3
        head = unit % kv_heads
        row = tl.load(split).to(tl.int64)
        first_slot = tl.load(split + 1)
        num_slots = tl.load(split + 2)
        best = tl.full([ROWS], NEGATIVE, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, DIM], tl.float32)
        for slot in range(first_slot, first_slot + num_slots):
            at = (slot * kv_heads + head) * GROUP + rows
            lse = tl.load(part_lse + at, mask=valid, other=0.0)
            value = tl.load(part + at[:, None] * DIM + columns[None, :], mask=valid[:, None], other=0.0)
            higher = tl.maximum(best, lse)
            weight = tl.exp2(lse - higher)
            shrink = tl.exp2(best - higher)
            total = total * shrink + weight
            mixed = mixed * shrink[:, None] + value * weight[:, None]
            best = higher
        out_at = row * out_stride + (head * GROUP + rows) * DIM
        result = mixed / total[:, None]
        tl.store(out + out_at[:, None] + columns[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])


_LOG2_E = 1.4426950408889634


def prefill(
    qkv: torch.Tensor, out: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: torch.Tensor,
    items: torch.Tensor, counts: torch.Tensor, launch: Launch = PREFILL,
) -> None:  # fmt: skip
    """Attention of the prefill chunks in the work list."""
    _, kv_heads, page, dim = k_cache.shape
    group = out.shape[1] // dim // kv_heads
    _prefill_kernel[(programs(launch, qkv.device),)](
        qkv, out, k_cache, v_cache, tables, items, counts, qkv.stride(0), out.stride(0), tables.stride(0), kv_heads,
        dim**-0.5 * _LOG2_E, GROUP=group, ROWS=launch.rows, KEYS=launch.keys, PAGE=page, DIM=dim,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


def decode(
    qkv: torch.Tensor, out: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, tables: torch.Tensor,
    items: torch.Tensor, splits: torch.Tensor, counts: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor,
    launch: Launch = DECODE,
) -> None:  # fmt: skip
    """Attention of the decodes in the work list: parts of sequences, then their combination."""
    _, kv_heads, page, dim = k_cache.shape
    group = out.shape[1] // dim // kv_heads
    rows = max(launch.rows, triton.next_power_of_2(group))
    _decode_kernel[(programs(launch, qkv.device),)](
        qkv, out, k_cache, v_cache, tables, items, counts, part, part_lse, qkv.stride(0), out.stride(0),
        tables.stride(0), kv_heads, dim**-0.5 * _LOG2_E, GROUP=group, ROWS=rows, KEYS=launch.keys, PAGE=page, DIM=dim,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
    _combine_kernel[(4 * programs(launch, qkv.device),)](
        out, part, part_lse, splits, counts, out.stride(0), kv_heads,
        GROUP=group, ROWS=triton.next_power_of_2(group), DIM=dim, num_warps=2,
    )  # fmt: skip


def programs(launch: Launch, device: torch.device) -> int:
    """Programs that fill the GPU."""
    if device.type != "cuda":
        return 3  # Interpreted, in a test: few enough to loop, more than one to share the work.
    return launch.programs * int(torch.cuda.get_device_properties(device).multi_processor_count)
