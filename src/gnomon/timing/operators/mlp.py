"""The other half of a layer: a dense MLP, or experts with their router, exchange and shared experts."""

from collections.abc import Iterator
from dataclasses import replace

from gnomon.timing.operators.parts import Parts
from gnomon.timing.operators.work import ACTIVATION_BYTES, Collective, Communication, Experts, Operator


def mlp_operators(parts: Parts) -> Iterator[Operator]:
    m = parts.model
    ffn, ups = m.ffn_size // parts.ranks, m.num_projections - 1
    if not m.parallel_attention:
        yield parts.move("mlp_norm", 4 * m.hidden_size)
    yield parts.gemm("up_proj", ups * ffn, m.hidden_size, "dense_mlp")
    yield parts.move("act", (ups + 1) * ffn)
    yield parts.gemm("down_proj", m.hidden_size, ffn, "dense_mlp")
    yield from _end(parts)
    yield from parts.reduce("mlp_all_reduce")


def expert_operators(parts: Parts) -> Iterator[Operator]:
    """A mixture of experts with its norm, router and communication."""
    m, p = parts.model, parts.parallelism
    yield parts.move("mlp_norm", 4 * m.hidden_size)
    yield parts.gemm("router", m.num_experts, m.hidden_size, "router")
    if m.shared_ffn_size:
        yield from (replace(one, is_beside=True) for one in _shared_experts(parts))
    hidden = m.expert_hidden_size or m.hidden_size
    if m.expert_hidden_size:
        yield parts.gemm("expert_down_proj", hidden, m.hidden_size, "shared_experts")
    is_grouped = p.data_parallel > 1
    to_all = parts.expert_exchange == "all_to_all" or (parts.expert_exchange == "auto" and p.expert_parallel)
    if is_grouped:
        yield _exchange(parts, "expert_dispatch", "all_to_all" if to_all else "all_gather")
    local = m.num_experts // p.num_expert_ranks if p.expert_parallel else m.num_experts
    ffn = m.expert_ffn_size if p.expert_parallel else m.expert_ffn_size // p.num_expert_ranks
    each = (hidden, ffn, m.num_projections, parts.formats["routed_experts"], parts.expert_load)
    work = Experts(m.num_experts, local, m.experts_per_token, *each)
    yield Operator("experts", "token", 1, work, is_shared=is_grouped)
    if is_grouped:
        yield _exchange(parts, "expert_combine", "all_to_all" if to_all else "reduce_scatter")
    if m.expert_hidden_size:
        yield parts.gemm("expert_up_proj", m.hidden_size, hidden, "shared_experts")
    if not is_grouped:
        yield from parts.reduce("mlp_all_reduce")
    yield from _end(parts)


def _shared_experts(parts: Parts) -> Iterator[Operator]:
    m = parts.model
    ffn, ups = m.shared_ffn_size // parts.ranks, m.num_projections - 1
    yield parts.gemm("shared_up_proj", ups * ffn, m.hidden_size, "shared_experts")
    yield parts.move("shared_act", (ups + 1) * ffn)
    yield parts.gemm("shared_down_proj", m.hidden_size, ffn, "shared_experts")


def _exchange(parts: Parts, name: str, collective: Collective) -> Operator:
    """Tokens to their experts and back. By all-to-all each rank sends its own, and all wait for the one with most; what
    is gathered is as much wherever it lies."""
    m, group = parts.model, parts.parallelism.expert_group(parts.stage)
    is_own, ranks = collective == "all_to_all", group.size
    copies = min(m.experts_per_token, ranks) if is_own else 1.0 / ranks if collective == "all_gather" else 1
    work = Communication(collective, group, (m.expert_hidden_size or m.hidden_size) * ACTIVATION_BYTES * copies)
    return Operator(name, "communication", 1, work, is_shared=not is_own)


def _end(parts: Parts) -> Iterator[Operator]:
    if parts.model.post_norm:
        yield parts.move("mlp_post_norm", 4 * parts.model.hidden_size)
    yield parts.move("residual_add", 3 * parts.model.hidden_size, fused=True)
