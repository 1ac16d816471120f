"""`python -m benchmarks.kernels`: every Triton kernel against its plain version, on this machine's GPU."""

from __future__ import annotations

import sys

import numpy as np
import torch

from gnomon.measure.kernels import elementwise, plain
from gnomon.measure.kernels.attention import PagedAttention
from gnomon.measure.kernels.work import Layout, WorkList

Sequences = list[tuple[int, int]]
"""(tokens, KV tokens before them) of each sequence."""


def attention_error(
    heads: int, kv_heads: int, sequences: Sequences, *, head_dim: int, dtype: torch.dtype, device: str, page: int = 16
) -> float:
    """Relative error of one attention call over `sequences`; the output is poisoned before."""
    rng = np.random.default_rng(len(sequences))
    rows = np.array([tokens for tokens, _ in sequences], np.int32)
    position = np.array([kv for _, kv in sequences], np.int32)
    first_row = (np.cumsum(rows) - rows).astype(np.int32)
    width = int(-(-(rows + position).max() // page)) + 1
    pages = width * len(sequences) + 3
    order = rng.permutation(pages)[: width * len(sequences)].reshape(len(sequences), width)
    tables = torch.tensor(order, dtype=torch.int32, device=device)
    k_cache = torch.randn(pages, kv_heads, page, head_dim, device=device).to(dtype)
    v_cache = torch.randn(pages, kv_heads, page, head_dim, device=device).to(dtype)
    qkv = torch.randn(int(rows.sum()), (heads + 2 * kv_heads) * head_dim, device=device).to(dtype)
    out = torch.full((len(qkv), heads * head_dim), float("nan"), device=device, dtype=dtype)
    layout = Layout(len(rows), len(rows), len(qkv), heads, kv_heads)
    work = np.zeros(layout.size, np.int32)
    WorkList(layout, work).fill(first_row, rows, position, np.arange(len(rows), dtype=np.int32))
    attention = PagedAttention(layout, head_dim, torch.from_numpy(work).to(device))
    attention(qkv, k_cache, v_cache, tables, out)
    expected = torch.empty_like(out)
    for index, (tokens, kv) in enumerate(sequences):
        mine = range(int(first_row[index]), int(first_row[index]) + tokens)
        plain.attend(qkv, mine, kv, tables[index], k_cache, v_cache, heads, expected)
    return relative_error(out, expected)


def elementwise_errors(dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of every elementwise kernel."""
    tokens, heads, kv_heads, dim, page = 37, 12, 4, 128, 16

    def rand(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device).to(dtype)

    gpu = elementwise.implementation(rand(1))
    qkv, wide, residual, narrow = (
        rand(tokens, (heads + 2 * kv_heads) * dim), rand(tokens, 5120), rand(tokens, 5120), rand(5120),
    )  # fmt: skip
    positions = torch.randint(0, 500, (tokens,), device=device, dtype=torch.int32)
    slots = torch.randperm(8 * page, device=device)[:tokens].to(torch.int32)
    slots[3] = -1
    table = elementwise.rotary_table(500, dim, 1e4, device)
    errors = {}

    def compare(name: str, *arguments: object, results: tuple[torch.Tensor, ...]) -> None:
        before = [result.clone() for result in results]
        getattr(gpu, name)(*arguments)
        mine = [result.clone() for result in results]
        for result, old in zip(results, before, strict=True):
            result.copy_(old)
        getattr(plain, name)(*arguments)
        errors[name] = max(relative_error(a, b) for a, b in zip(mine, results, strict=True))

    out, half = torch.empty_like(wide), rand(tokens, 2560)
    compare("norm", wide, narrow, 1e-5, out, results=(out,))
    compare("add_norm", wide, residual, narrow, 1e-5, out, results=(out, residual))
    compare("activation", wide, half, results=(half,))
    compare("head_norm", qkv, rand(dim), 1e-5, heads + kv_heads, results=(qkv,))
    compare("rotary", qkv, positions, table, heads + kv_heads, results=(qkv,))
    k_cache, v_cache = rand(8, kv_heads, page, dim), rand(8, kv_heads, page, dim)
    compare("kv_write", qkv, slots, k_cache, v_cache, heads, results=(k_cache, v_cache))
    ids = torch.randint(-30, 30, (tokens,), device=device, dtype=torch.int32)
    sampled, resolved = torch.randint(0, 999, (30,), device=device), torch.empty_like(ids)
    compare("resolve_ids", ids, sampled, resolved, results=(resolved,))
    return errors


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected; NaN if anything was left unwritten."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def main() -> int:
    """Print every error; exit code 1 if one is beyond bf16's rounding."""
    if not torch.cuda.is_available():
        print("benchmarks.kernels: needs a GPU (PyTorch sees none)", file=sys.stderr)
        return 2
    mixed: Sequences = [(1, 0), (1, 17), (300, 0), (1, 5000), (77, 1000), (1, 255), (1, 256), (128, 128)]
    errors = elementwise_errors(torch.bfloat16, "cuda")
    for heads, kv_heads in ((32, 8), (64, 8), (8, 8), (28, 4), (5, 1), (40, 8)):
        key = f"attention {heads}/{kv_heads}"
        errors[key] = attention_error(heads, kv_heads, mixed, head_dim=128, dtype=torch.bfloat16, device="cuda")
    for name, error in errors.items():
        print(f"{name:20} {error:.2e}")
    return 0 if all(error < 1e-2 for error in errors.values()) else 1  # NaN compares false.


if __name__ == "__main__":
    sys.exit(main())
