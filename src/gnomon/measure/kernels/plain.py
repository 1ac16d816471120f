"""Every kernel in plain PyTorch: the meaning of the Triton versions, and what runs on a CPU."""

from __future__ import annotations

import torch


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    """RMS norm of every row."""
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + epsilon)
    out.copy_((x32 * scale * weight.float()).to(out.dtype))


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor) -> None:
    """`residual += x`, then the RMS norm of it."""
    residual.copy_((residual.float() + x.float()).to(residual.dtype))
    norm(residual, weight, epsilon, out)


def head_norm(qkv: torch.Tensor, weight: torch.Tensor, epsilon: float, num_heads: int) -> None:
    """RMS norm of each of the first `num_heads` heads (queries and keys) of every row, in place."""
    head_dim = weight.numel()
    heads = qkv[:, : num_heads * head_dim].view(qkv.shape[0], num_heads, head_dim)
    normed = torch.empty_like(heads)
    norm(heads, weight, epsilon, normed)
    heads.copy_(normed)


def rotary(qkv: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, num_heads: int) -> None:
    """Rotate each of the first `num_heads` heads of every row by its position, in place.

    `cos_sin` is [positions, head_dim]: cosines in the first half, sines in the second.
    """
    head_dim = cos_sin.shape[1]
    half = head_dim // 2
    heads = qkv[:, : num_heads * head_dim].view(qkv.shape[0], num_heads, head_dim)
    angles = cos_sin[positions.long()].unsqueeze(1)
    cos, sin = angles[..., :half], angles[..., half:]
    first, second = heads[..., :half].float(), heads[..., half:].float()
    heads.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(qkv.dtype))


def kv_write(
    qkv: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, num_heads: int
) -> None:
    """Store keys and values of every row in its slot of the paged cache; a negative slot is padding."""
    _, kv_heads, page, head_dim = k_cache.shape
    kept = slots >= 0
    rows, slots = qkv[kept], slots[kept].long()
    start = num_heads * head_dim
    for cache, offset in ((k_cache, start), (v_cache, start + kv_heads * head_dim)):
        heads = rows[:, offset : offset + kv_heads * head_dim].view(-1, kv_heads, head_dim)
        cache[slots // page, :, slots % page] = heads


def resolve_ids(ids: torch.Tensor, sampled: torch.Tensor, out: torch.Tensor) -> None:
    """Token ids as they are; one below zero, -1 - r, stands for `sampled[r]`."""
    out.copy_(torch.where(ids < 0, sampled[(-1 - ids).clamp(min=0).long()].to(ids.dtype), ids))


def activation(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """SiLU(gate) * up, gate and up lying beside each other."""
    gate, up = gate_up.float().chunk(2, -1)
    out.copy_((torch.nn.functional.silu(gate) * up).to(out.dtype))


def attend(
    qkv: torch.Tensor, rows: range, first_position: int, pages: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor, num_heads: int, out: torch.Tensor,
) -> None:  # fmt: skip
    """Causal attention of consecutive `rows` of one sequence, whose keys and values lie in `pages`."""
    _, kv_heads, page, head_dim = k_cache.shape
    end = first_position + len(rows)
    used = pages[: -(-end // page)].long()
    k = k_cache[used].transpose(1, 2).reshape(-1, kv_heads, head_dim)[:end].float()
    v = v_cache[used].transpose(1, 2).reshape(-1, kv_heads, head_dim)[:end].float()
    q = qkv[rows.start : rows.stop, : num_heads * head_dim].float()
    q = q.view(-1, kv_heads, num_heads // kv_heads, head_dim)
    scores = torch.einsum("tkgd,skd->kgts", q, k) * head_dim**-0.5
    later = torch.arange(end, device=q.device)[None] > torch.arange(first_position, end, device=q.device)[:, None]
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    mixed = torch.einsum("kgts,skd->tkgd", weights, v)
    out[rows.start : rows.stop] = mixed.reshape(len(rows), -1).to(out.dtype)
