"""Kernels of one's own for `gnomon profile own`: here PyTorch's matrix product and its fused attention.

gnomon profile own examples/own_kernels.py --models llama-3-8b --device h200 --out my-engine
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
REPEATS = 7


def seconds(call) -> list[float]:
    """Repeats of one call on the GPU's clock, after a warm-up."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e-3)
    return times


def gemm(dtype: str, m: int, n: int, k: int) -> list[float]:
    x, w = (torch.randn(*size, device="cuda", dtype=DTYPES[dtype]) for size in ((m, k), (k, n)))
    return seconds(lambda: torch.mm(x, w))


def attention(
    dtype: str, heads: int, kv_heads: int, head_dim: int, chunk: int, kv: int, decodes: int, decode_kv: int
) -> list[float]:
    """A chunk of one prompt after `kv` tokens, or decodes of `decode_kv` tokens each: never both here."""
    batch, queries, keys = (1, chunk, chunk + kv) if chunk else (decodes, 1, decode_kv)

    def tokens(count: int, num_heads: int) -> torch.Tensor:
        return torch.randn(batch, num_heads, count, head_dim, device="cuda", dtype=DTYPES[dtype])

    q, k, v = tokens(queries, heads), tokens(keys, kv_heads), tokens(keys, kv_heads)
    causal = bool(chunk) and kv == 0
    return seconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads))
