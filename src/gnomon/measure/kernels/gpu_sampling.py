# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator"
"""Top-k and top-p without sorting, in Triton: the threshold between kept and dropped logits is searched, row by row.

FlashInfer's kernels and vLLM's own from 0.17 on work in this way: a program for each sequence passes over its logits
some times. This one narrows the interval that holds the threshold by four in each pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PASSES = 12
BLOCK = 8192


@triton.jit
def _search(logits, out, k, p, vocabulary, passes: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * vocabulary
    most_k, most_p = tl.load(k + tl.program_id(0)), tl.load(p + tl.program_id(0))
    at = tl.arange(0, block)
    high = -float("inf")
    total = 0.0
    for start in range(0, vocabulary, block):
        x = tl.load(logits + row + start + at, mask=start + at < vocabulary, other=-float("inf"))
        new = tl.maximum(high, tl.max(x))
        total = total * tl.exp(high - new) + tl.sum(tl.exp(x - new))
        high = new
    low, top = high - 60.0, high
    for _ in range(passes):
        step = (top - low) / 4.0
        a, b, c = low + step, low + 2.0 * step, low + 3.0 * step
        mass_a = 0.0
        mass_b = 0.0
        mass_c = 0.0
        count_a = 0
        count_b = 0
        count_c = 0
        for start in range(0, vocabulary, block):
            x = tl.load(logits + row + start + at, mask=start + at < vocabulary, other=-float("inf"))
            e = tl.exp(x - high)
            mass_a += tl.sum(tl.where(x >= a, e, 0.0))
            mass_b += tl.sum(tl.where(x >= b, e, 0.0))
            mass_c += tl.sum(tl.where(x >= c, e, 0.0))
            count_a += tl.sum((x >= a).to(tl.int32))
            count_b += tl.sum((x >= b).to(tl.int32))
            count_c += tl.sum((x >= c).to(tl.int32))
        # The threshold may rise as long as what it keeps has p together, or is more than k tokens.
        is_low_c = (mass_c > most_p * total) | (count_c > most_k)
        is_low_b = (mass_b > most_p * total) | (count_b > most_k)
        is_low_a = (mass_a > most_p * total) | (count_a > most_k)
        top = tl.where(is_low_c, top, tl.where(is_low_b, c, tl.where(is_low_a, b, a)))
        low = tl.where(is_low_c, c, tl.where(is_low_b, b, tl.where(is_low_a, a, low)))
    for start in range(0, vocabulary, block):
        mask = start + at < vocabulary
        x = tl.load(logits + row + start + at, mask=mask, other=-float("inf"))
        tl.store(out + row + start + at, tl.where(x >= low, x, -float("inf")), mask=mask)


def top_k_top_p(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """As `sampling.top_k_top_p`, but p is of all tokens rather than of the k likeliest, and logits that differ by less
    than 60 / 2^24 are not told apart."""
    out = torch.empty_like(logits)
    _search[(logits.shape[0],)](logits, out, k, p, logits.shape[1], passes=PASSES, block=BLOCK, num_warps=32)
    return out
