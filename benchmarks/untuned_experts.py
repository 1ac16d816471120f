"""How much longer experts take with the tiles that vLLM's Triton kernel has by default than with tuned ones.

python benchmarks/untuned_experts.py SECONDS     # a GPU with PyTorch and Triton; nothing else of Gnomon

vLLM has files of tuned tiles by experts of a rank, width and GPU. For a shape without one it takes (up to 0.11, bf16)
16 x 32 x 64 up to as many tokens as the rank has experts, beyond that 64 x 64 x 32. Here both products of a layer run
with these and with a choice of good tiles, the fastest of which stands for tuned ones; microseconds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import triton
import triton.language as tl

Tile = tuple[int, int, int, int, int, int]
"""Rows, columns, depth, rows side by side, warps, stages."""
FEW: Tile = (16, 32, 64, 1, 4, 3)
MANY: Tile = (64, 64, 32, 8, 4, 3)
TUNED: list[Tile] = [
    (16, 64, 64, 1, 4, 5), (16, 64, 128, 1, 4, 3), (16, 128, 128, 1, 8, 3), (32, 128, 64, 1, 4, 4),
    (64, 128, 64, 1, 4, 3), (64, 128, 64, 16, 8, 3), (128, 128, 64, 16, 8, 3), (128, 256, 64, 16, 8, 4),
]  # fmt: skip
SHAPES = {
    "qwen3-30b": (128, 128, 8, 2048, 768),
    "qwen3-30b ep2": (128, 64, 8, 2048, 768),
    "qwen3-235b ep4": (128, 32, 8, 4096, 1536),
    "qwen3-235b ep8": (128, 16, 8, 4096, 1536),
    "llama-4-scout ep4": (16, 4, 1, 5120, 8192),
    "llama-4-scout ep8": (16, 2, 1, 5120, 8192),
}
"""Experts, those of the rank, choices of a token, width, and width of an expert."""
TOKENS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)


@triton.jit  # type: ignore[untyped-decorator]
def grouped(  # type: ignore[no-untyped-def]
    a, b, c, ids, experts, weights, N, K, num_rows, per_token: tl.constexpr, stride_a, stride_e, stride_n, stride_c,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """c[row] = a[row // per_token] @ b[expert of the block]'; blocks of experts elsewhere become zeros."""
    block = tl.program_id(0)
    in_group = GROUP * tl.cdiv(N, BN)
    first = (block // in_group) * GROUP
    size = min(tl.cdiv(num_rows, BM) - first, GROUP)
    pm, pn = first + (block % in_group) % size, (block % in_group) // size
    row = tl.load(ids + pm * BM + tl.arange(0, BM)).to(tl.int64)
    columns = pn * BN + tl.arange(0, BN).to(tl.int64)
    at = c + row[:, None] * stride_c + columns[None, :]
    inside = (row[:, None] >= 0) & (columns[None, :] < N)
    expert = tl.load(experts + pm).to(tl.int64)
    if expert == -1:
        tl.store(at, tl.zeros((BM, BN), dtype=tl.bfloat16), mask=inside)
        return
    depth = tl.arange(0, BK)
    pa = a + (row[:, None] // per_token * stride_a + depth[None, :])
    pb = b + expert * stride_e + (depth[:, None] + (columns % N)[None, :] * stride_n)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = K - k * BK
        x = tl.load(pa, mask=(row[:, None] >= 0) & (depth[None, :] < left), other=0.0)
        total += tl.dot(x, tl.load(pb, mask=depth[:, None] < left, other=0.0))
        pa += BK
        pb += BK
    if WEIGHTED:
        total *= tl.load(weights + row, mask=row >= 0, other=0.0)[:, None]
    tl.store(at, total.to(tl.bfloat16), mask=inside)


def blocks_of(choice: torch.Tensor, local: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows sorted by expert, each expert's padded (-1) to whole blocks, and every block's expert (-1: elsewhere)."""
    flat, order, experts = choice.flatten(), [], []
    for expert in flat.unique().tolist():
        mine = (flat == expert).nonzero().flatten()
        padding = -len(mine) % rows
        order.append(torch.cat([mine, torch.full((padding,), -1)]))
        experts += [expert if expert < local else -1] * ((len(mine) + padding) // rows)
    return torch.cat(order).int().cuda(), torch.tensor(experts, dtype=torch.int32).cuda()


def microseconds(tile: Tile, choice: torch.Tensor, up: torch.Tensor, down: torch.Tensor, hidden: torch.Tensor) -> Any:
    """Both products of a layer inside a CUDA graph, and what the first one gave."""
    rows, columns, depth, group, warps, stages = tile
    ids, experts = blocks_of(choice, len(up), rows)
    count, per_token = choice.numel(), choice.shape[1]
    middle = torch.zeros(count, up.shape[1], dtype=torch.bfloat16, device="cuda")
    inner = torch.randn(count, down.shape[2], device="cuda").bfloat16()
    out = torch.zeros(count, down.shape[1], dtype=torch.bfloat16, device="cuda")
    weights = torch.rand(count, device="cuda")

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, share: int, weighted: bool) -> None:
        grid = (triton.cdiv(len(ids), rows) * triton.cdiv(b.shape[1], columns),)
        grouped[grid](
            a, b, c, ids, experts, weights, b.shape[1], b.shape[2], len(ids), share,
            a.stride(0), b.stride(0), b.stride(1), c.stride(0),
            rows, columns, depth, group, weighted, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def layer() -> None:
        product(hidden, up, middle, per_token, False)
        product(inner, down, out, 1, True)

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            layer()
    graph.replay()
    best = float("inf")
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 200.0 * start.elapsed_time(end))
    return round(best, 1), middle.float()


def main(limit_s: float) -> None:
    """Every shape at every number of tokens, until the time is over."""
    torch.manual_seed(0)
    begun = time.monotonic()
    print("shape,tokens,touched,few,many,tuned,tile")
    for name, (num_experts, local, per_token, width, inner) in SHAPES.items():
        up = (torch.randn(local, 2 * inner, width, device="cuda") / width**0.5).bfloat16()
        down = (torch.randn(local, width, inner, device="cuda") / inner**0.5).bfloat16()
        for tokens in TOKENS:
            if time.monotonic() - begun > limit_s:
                return
            choice = torch.rand(tokens, num_experts).argsort(1)[:, :per_token]
            hidden, each = torch.randn(tokens, width, device="cuda").bfloat16(), tokens * per_token / num_experts
            found = {tile: microseconds(tile, choice, up, down, hidden) for tile in (FEW, MANY)}
            for tile in TUNED:
                if (tile[0] > 16 or each < 64) and (tile[0] < 128 or each >= 8):
                    found[tile] = microseconds(tile, choice, up, down, hidden)
                    assert (found[tile][1] - found[FEW][1]).abs().max() < 0.1, f"{tile} gives something else"
            best = min(TUNED, key=lambda tile: found[tile][0] if tile in found else float("inf"))
            touched = int((choice.unique() < local).sum())
            times = ",".join(str(found[tile][0]) for tile in (FEW, MANY, best))
            print(f"{name},{tokens},{touched},{times},{' '.join(map(str, best))}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 300.0)
