"""Choosing the next token of every sequence, step by step as engines do it, in PyTorch and Triton.

Logits are [sequences, vocabulary]. Each function is what one setting of a request adds: `penalties` and `top_k_top_p`
change the logits, `random` chooses, `logprobs` reports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def random(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """A token by its probability: the largest probability over an exponential draw."""
    logits = logits.float().div_(temperature[:, None])
    probabilities = logits.softmax(-1, dtype=torch.float32)
    draws = torch.empty_like(probabilities).exponential_()
    return probabilities.div_(draws).argmax(-1)


def top_k_top_p(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    """Without all but the k likeliest tokens, and of those the fewest that have p together, by sorting."""
    ascending, index = logits.sort(-1)
    if k is not None:
        least = ascending.gather(-1, (ascending.shape[-1] - k)[:, None])
        ascending.masked_fill_(ascending < least, -torch.inf)
    if p is not None:
        cumulated = ascending.softmax(-1).cumsum(-1)
        rare = cumulated <= 1.0 - p[:, None]
        rare[:, -1] = False
        ascending.masked_fill_(rare, -torch.inf)
    return ascending.scatter(-1, index, ascending)


def top_k(logits: torch.Tensor, k: torch.Tensor, most: int) -> torch.Tensor:
    """Without all but the k likeliest tokens, at most `most` of any sequence: needs no sorting."""
    likeliest = logits.topk(most, -1).values
    least = likeliest.gather(-1, (k - 1)[:, None])
    return logits.masked_fill_(logits < least, -torch.inf)


def penalties(
    logits: torch.Tensor, prompts: torch.Tensor, outputs: torch.Tensor, repetition: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    """Less likely what was said before: words of prompts and outputs counted anew (padding is the vocabulary's size),
    then the repetition penalty, and frequency and presence penalties (`other`)."""
    counts = [_counts(ids, logits.shape[-1]) for ids in (prompts, outputs)]
    seen = (counts[0] > 0) | (counts[1] > 0)
    factor = torch.where(seen, repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    logits -= other[:, None] * counts[1]
    logits -= other[:, None] * (counts[1] > 0)
    return logits


def _counts(ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    counts = torch.zeros(ids.shape[0], vocabulary + 1, dtype=torch.int64, device=ids.device)
    return counts.scatter_add_(1, ids, torch.ones_like(ids))[:, :vocabulary]


def logprobs(logits: torch.Tensor, chosen: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the chosen token and of the `count` likeliest, and the chosen one's rank."""
    logs = logits.log_softmax(-1, dtype=torch.float32)
    likeliest = logs.topk(count, -1).values
    own = logs.gather(-1, chosen[:, None])
    return torch.cat([own, likeliest], 1), (logs >= own).sum(-1)


def padded(lists: Sequence[Sequence[int]], padding: int, *, pinned: bool) -> torch.Tensor:
    """Lists of different lengths as one array on the host: what penalties cost there in every step."""
    array = np.full((len(lists), max(map(len, lists))), padding, np.int64)
    for row, one in enumerate(lists):
        array[row, : len(one)] = one
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if pinned else tensor
