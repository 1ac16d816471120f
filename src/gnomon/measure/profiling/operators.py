"""Token-level operators as callables on one GPU: GEMMs, elementwise kernels, experts.

Weights rotate among copies past the L2 cache. So does what an elementwise kernel reads from a matrix product: the
weights that stream through the cache meanwhile push it out. What a kernel reads from an elementwise one is still there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnomon.measure.kernels.elementwise import implementation, rotary_table
from gnomon.measure.profiling.pool import Pool
from gnomon.measure.profiling.timer import Call

EPSILON = 1e-5
PAGE_TOKENS = 16
POSITIONS = 8192
TABLE_ROWS = 32_000


FLOPS_PER_S, BYTES_PER_S = 6e14, 3.5e12  # Of a large accelerator; only the number of repeats depends on them.


def expected_s(flops: float, num_bytes: float) -> float:
    """How long a call will take, within a factor of a few."""
    return 2e-6 + max(flops / FLOPS_PER_S, num_bytes / BYTES_PER_S)


def gemm(pool: Pool, m: int, n: int, k: int, *, normal: bool = False) -> tuple[Call, float]:
    """`y[m, n] = x[m, k] w[n, k]^T`, and how long to expect; `normal`: weights drawn from a normal distribution."""
    weights = pool.rotating(n, k) if normal else pool.weights(n, k)
    x, y = pool.fixed("x", m, k), pool.fixed("y", m, n)

    def call(index: int) -> None:
        torch.mm(x, weights[index % len(weights)].t(), out=y)

    item = pool.dtype.itemsize
    return call, expected_s(2.0 * m * n * k, item * (n * k + m * (n + k)))


def elementwise(pool: Pool, operator: str, tokens: int, width: int, head_dim: int) -> tuple[Call, float]:
    moved = 3.0 * pool.dtype.itemsize * tokens * width
    return ELEMENTWISE[operator](pool, tokens, width, head_dim), expected_s(0.0, moved)


def _embedding(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    table = pool.rotating(TABLE_ROWS, width)[0]
    ids = torch.randint(0, TABLE_ROWS, (tokens,), device=pool.device, dtype=torch.int32)
    out = pool.fixed("out", tokens, width)
    return lambda index: torch.index_select(table, 0, ids, out=out)


def _norm(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    xs, out, weight = pool.rotating(tokens, width), pool.fixed("out", tokens, width), pool.fixed("weight", width)
    kernels = implementation(out)
    return lambda index: kernels.norm(xs[index % len(xs)], weight, EPSILON, out)


def _add_norm(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    xs, out, weight = pool.rotating(tokens, width), pool.fixed("out", tokens, width), pool.fixed("weight", width)
    residuals = _copies(pool, tokens, width)
    kernels = implementation(out)
    return lambda index: kernels.add_norm(xs[index % len(xs)], residuals[index % len(residuals)], weight, EPSILON, out)


def _copies(pool: Pool, *size: int) -> list[torch.Tensor]:
    """Tensors to rotate among that are written to; the pool must stay as it is."""
    return [tensor.clone() for tensor in pool.rotating(*size)]


def _qk_norm(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    qkv, weight = _copies(pool, tokens, width), pool.fixed("weight", head_dim)
    kernels = implementation(weight)
    return lambda index: kernels.head_norm(qkv[index % len(qkv)], weight, EPSILON, width // head_dim)


def _rotary(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    qkv = _copies(pool, tokens, width)
    positions = torch.randint(0, POSITIONS, (tokens,), device=pool.device, dtype=torch.int32)
    table = rotary_table(POSITIONS, head_dim, 10_000.0, pool.device)
    kernels = implementation(table)
    return lambda index: kernels.rotary(qkv[index % len(qkv)], positions, table, width // head_dim)


def _kv_write(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    kv_heads = width // 2 // head_dim
    pages = max(tokens // PAGE_TOKENS + 1, pool.cold_bytes // (PAGE_TOKENS * width * pool.dtype.itemsize))
    k_cache = pool.fixed("k_cache", pages, kv_heads, PAGE_TOKENS, head_dim)
    v_cache = pool.fixed("v_cache", pages, kv_heads, PAGE_TOKENS, head_dim)
    slots = torch.randperm(pages * PAGE_TOKENS, device=pool.device)[:tokens].to(torch.int32)
    qkv = pool.fixed("qkv", tokens, 2 * width)  # Queries as wide as keys and values together.
    kernels = implementation(qkv)
    return lambda index: kernels.kv_write(qkv, slots, k_cache, v_cache, width // head_dim)


def _activation(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    gate_up, out = pool.rotating(tokens, 2 * width), pool.fixed("out", tokens, width)
    kernels = implementation(out)
    return lambda index: kernels.activation(gate_up[index % len(gate_up)], out)


def _sampler(pool: Pool, tokens: int, width: int, head_dim: int) -> Call:
    logits, chosen = pool.rotating(tokens, width), pool.fixed("chosen", tokens, dtype=torch.int64)
    return lambda index: torch.argmax(logits[index % len(logits)], -1, out=chosen)


Builder = Callable[[Pool, int, int, int], Call]
ELEMENTWISE: dict[str, Builder] = {
    "embedding": _embedding, "norm": _norm, "add_norm": _add_norm, "qk_norm": _qk_norm, "rotary": _rotary,
    "kv_write": _kv_write, "activation": _activation, "sampler": _sampler,
}  # fmt: skip


def experts(
    pool: Pool, num_experts: int, top_k: int, hidden: int, intermediate: int, tokens: int, seed: int = 0
) -> tuple[Call, float, int]:
    """Gate/up, activation and down of the experts that evenly routed tokens choose; also how many those are."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.rand(tokens, num_experts, generator=generator).topk(top_k, -1).indices
    counts = torch.bincount(choices.flatten(), minlength=num_experts)
    ends = counts.cumsum(0).to(device=pool.device, dtype=torch.int32)
    rows = tokens * top_k
    gate_up = pool.weights(num_experts, 2 * intermediate, hidden)
    down = pool.weights(num_experts, hidden, intermediate)
    x, activated = pool.fixed("x", rows, hidden), pool.fixed("activated", rows, intermediate)
    kernels = implementation(x)
    grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm

    def call(index: int) -> None:
        both = grouped_mm(x, gate_up[index % len(gate_up)].transpose(1, 2), offs=ends)
        kernels.activation(both, activated)
        grouped_mm(activated, down[index % len(down)].transpose(1, 2), offs=ends)

    touched = int((counts > 0).sum())
    weights = 3.0 * touched * hidden * intermediate * pool.dtype.itemsize
    return call, expected_s(6.0 * rows * hidden * intermediate, weights), touched
