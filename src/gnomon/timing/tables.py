"""What a compiled engine reads: the seconds of one iteration as dense arrays, and the one function that reads them.

Every timing source is baked into an `IterationTables` once; the engine then needs plain indexing and linear
interpolation only. Pipeline stages may differ (the first embeds, the last has the head), hence the leading
`stage` axis. Attention is per stage too, i.e. already multiplied by the layers of that stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnomon.core.jit import jit

Floats = NDArray[np.float64]


class IterationTables(NamedTuple):
    """The seconds of one iteration, by what is in the batch. All arrays are float64 and C-contiguous."""

    token_s: Floats
    """[stage, tokens]: everything that depends on the number of tokens: projections, norms, MLP, tensor-parallel
    communication, sending activations on. Index = tokens in the iteration, exact, 0..max_tokens."""
    expert_s: Floats
    """[stage, group tokens]: experts shared by a data-parallel group in lockstep; shape [stage, 0] when the experts
    are inside `token_s`."""
    sequence_s: Floats
    """[stage, sequences]: head and sampler."""
    prefill_s: Floats
    """[stage, chunk axis, kv axis]: attention of prefill chunks."""
    decode_s: Floats
    """[stage, sequences, kv axis]: attention of decodes; sequences exact, kv = mean KV length."""
    mixed_s: Floats
    """[stage, chunk, kv before the chunk, decodes, kv of decodes] on the axes below when the source measured mixed
    batches, else size 0 in the second axis: prefill and decode times then add."""
    chunk_axis: Floats
    """Grid of chunk sizes: 0, then geometric from 1 with `POINTS_PER_OCTAVE` points per octave."""
    kv_axis: Floats
    """Grid of KV lengths, same form."""
    decodes_axis: Floats
    """Grid of decode counts for `mixed_s`, same form."""
    skew: Floats
    """[stage, decodes axis, skew bin]: how far the time of a skewed batch lies from that at its mean KV length towards
    that at its maximum; size 0 in the second axis where not measured. `SKEW_BINS` equal bins of 1 - mean/max over
    [0, 1] for decodes alone, then as many for decodes beside a chunk of a prompt."""
    host_s: Floats
    """[stage, 3]: host seconds per iteration, host seconds per sequence, and 1.0 where they hide behind the GPU's work
    (asynchronous scheduling: an iteration takes the longer of the two) else 0.0 (they add). Only stage 0 is read."""
    measured: Floats
    """[stage, 4]: the largest tokens, chunk, KV length and decodes that the source covers (inf for a formula). Beyond
    them the tables hold an extrapolation by the roofline's shape; engines count such iterations and say so."""
    work: Floats
    """[stage, 8]: of the whole replica (all stages and ranks), repeated for every stage: FLOPs per token, per query-key
    pair, per sequence (head); bytes of weights read per iteration, KV bytes per token; peak FLOP/s, bytes/s; spare."""


def blank(num_stages: int) -> IterationTables:
    """Tables in which nothing takes any time: where times are replayed, and as an example of the arrays' types."""
    ndim = {"prefill_s": 3, "decode_s": 3, "mixed_s": 5, "skew": 3}
    axes = {"chunk_axis", "kv_axis", "decodes_axis"}
    shapes = [
        (1,) if name in axes else (num_stages, *(1,) * (ndim.get(name, 2) - 1)) for name in IterationTables._fields
    ]
    tables = IterationTables(*(np.zeros(shape) for shape in shapes))
    return tables._replace(work=np.zeros((num_stages, 8)), measured=np.full((num_stages, 4), np.inf))


def stack(kinds: list[IterationTables]) -> IterationTables:
    """The tables of several kinds of replica one below the other: a kind's stages start at the sum of those before.

    All must have been baked with the same maxima, so that they share their axes. The arrays are writable, whatever
    they were: compiled code tells the two apart.
    """
    if len(kinds) == 1:
        return IterationTables(*(np.require(array, np.float64, ["C", "W"]) for array in kinds[0]))
    assert all(k.token_s.shape[1:] == kinds[0].token_s.shape[1:] for k in kinds), "baked with different maxima"
    with_mixed = [_with_mixed(k) for k in kinds] if any(k.mixed_s.shape[1] for k in kinds) else kinds
    with_skew = [_with_skew(k) for k in with_mixed] if any(k.skew.shape[1] for k in kinds) else with_mixed
    with_experts = [_with_experts(k) for k in with_skew] if any(k.expert_s.shape[1] for k in kinds) else with_skew
    axes = {"chunk_axis", "kv_axis", "decodes_axis"}
    columns = {
        name: getattr(kinds[0], name) if name in axes else np.concatenate([getattr(k, name) for k in with_experts])
        for name in IterationTables._fields
    }
    return IterationTables(**columns)


def _with_mixed(tables: IterationTables) -> IterationTables:
    """Spell out that prefill and decode times add, beside a kind for which mixed batches were measured."""
    if tables.mixed_s.shape[1]:
        return tables
    counts = np.minimum(np.rint(tables.decodes_axis).astype(int), tables.decode_s.shape[1] - 1)
    return tables._replace(
        mixed_s=np.ascontiguousarray(
            tables.prefill_s[:, :, :, None, None] + tables.decode_s[:, counts][:, None, None, :, :]
        )
    )


def _with_skew(tables: IterationTables) -> IterationTables:
    if tables.skew.shape[1]:
        return tables
    return tables._replace(skew=np.zeros((tables.token_s.shape[0], tables.decodes_axis.size, 2 * SKEW_BINS)))


def _with_experts(tables: IterationTables) -> IterationTables:
    if tables.expert_s.shape[1]:
        return tables
    return tables._replace(expert_s=np.zeros_like(tables.token_s))


class Shape(NamedTuple):
    """What one iteration contains, as far as its time depends on it."""

    tokens: int
    """All tokens of the iteration."""
    sequences: int
    """Requests in the batch (each samples once)."""
    chunks_squared: float
    """Sum of chunk squared over the prefill chunks: they cost as one chunk of its root."""
    chunks_kv: float
    """Sum of chunk x KV tokens before it."""
    decodes: int
    """Requests that decode."""
    decode_kv: float
    """Sum of their KV lengths."""
    decode_kv_max: float
    """The longest of them."""


POINTS_PER_OCTAVE = 2
SKEW_BINS = 8


def geometric_axis(maximum: float) -> Floats:
    """0, 1, then `POINTS_PER_OCTAVE` points per octave up to at least `maximum`."""
    steps = int(np.ceil(np.log2(max(maximum, 2.0)) * POINTS_PER_OCTAVE))
    return np.concatenate([[0.0], 2.0 ** (np.arange(steps + 1) / POINTS_PER_OCTAVE)])


@jit
def _cell(axis: Floats, value: float) -> tuple[int, float]:
    """The cell of a geometric axis that holds `value`, and the fraction of the way through it."""
    if value <= 1.0:
        return 0, value
    cell = int(np.log2(value) * POINTS_PER_OCTAVE) + 1
    cell = min(cell, axis.size - 2)
    return cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])


@jit
def _on_plane(table: Floats, i: int, u: float, j: int, v: float) -> float:
    low = table[i, j] + v * (table[i, j + 1] - table[i, j])
    high = table[i + 1, j] + v * (table[i + 1, j + 1] - table[i + 1, j])
    return low + u * (high - low)


@jit
def _decode_s(tables: IterationTables, stage: int, decodes: int, kv: float) -> float:
    cell, fraction = _cell(tables.kv_axis, kv)
    row = tables.decode_s[stage, decodes]
    return row[cell] + fraction * (row[cell + 1] - row[cell])


@jit
def _mixed_s(tables: IterationTables, stage: int, chunk: float, kv: float, decodes: int, decode_kv: float) -> float:
    c, u = _cell(tables.chunk_axis, chunk)
    k, v = _cell(tables.kv_axis, kv)
    n, w = _cell(tables.decodes_axis, float(decodes))
    d, x = _cell(tables.kv_axis, decode_kv)
    table = tables.mixed_s[stage]
    total = 0.0
    for a in range(2):
        for b in range(2):
            weight = (u if a else 1.0 - u) * (v if b else 1.0 - v)
            if weight != 0.0:
                total += weight * _on_plane(table[c + a, k + b], n, w, d, x)
    return total


@jit
def _attention_at(
    tables: IterationTables, stage: int, chunk: float, kv: float, decodes: int, decode_kv: float
) -> float:
    if chunk == 0.0:
        return _decode_s(tables, stage, decodes, decode_kv)
    if decodes > 0 and tables.mixed_s.shape[1] > 0:
        return _mixed_s(tables, stage, chunk, kv, decodes, decode_kv)
    c, u = _cell(tables.chunk_axis, chunk)
    k, v = _cell(tables.kv_axis, kv)
    total = _on_plane(tables.prefill_s[stage], c, u, k, v)
    if decodes > 0:
        total += _decode_s(tables, stage, decodes, decode_kv)
    return total


@jit
def attention_s(tables: IterationTables, stage: int, shape: Shape) -> float:
    """Seconds of attention in one stage."""
    chunk = np.sqrt(shape.chunks_squared)
    kv = shape.chunks_kv / chunk if chunk > 0.0 else 0.0
    mean = shape.decode_kv / shape.decodes if shape.decodes > 0 else 0.0
    seconds = _attention_at(tables, stage, chunk, kv, shape.decodes, mean)
    if tables.skew.shape[1] > 0 and shape.decodes > 1 and shape.decode_kv_max > mean:
        n, w = _cell(tables.decodes_axis, float(shape.decodes))
        skew = tables.skew[stage]
        s = min(int(SKEW_BINS * (1.0 - mean / shape.decode_kv_max)), SKEW_BINS - 1)
        if chunk > 0.0:
            s += SKEW_BINS
        towards_max = skew[n, s] + w * (skew[n + 1, s] - skew[n, s])
        longest = _attention_at(tables, stage, chunk, kv, shape.decodes, shape.decode_kv_max)
        seconds += towards_max * (longest - seconds)
    return seconds


@jit
def stage_s(tables: IterationTables, stage: int, shape: Shape, group_tokens: int) -> float:
    """Seconds of one iteration in one pipeline stage, without host time."""
    seconds = tables.token_s[stage, shape.tokens] + tables.sequence_s[stage, shape.sequences]
    if tables.expert_s.shape[1] > 0:
        seconds += tables.expert_s[stage, group_tokens]
    return seconds + attention_s(tables, stage, shape)


@jit
def with_host_s(tables: IterationTables, stage: int, gpu_s: float, sequences: int) -> float:
    """Add the host's time to an iteration of a (first) stage, exposed or hidden."""
    host = tables.host_s[stage, 0] + tables.host_s[stage, 1] * sequences
    return max(gpu_s, host) if tables.host_s[stage, 2] > 0.0 else gpu_s + host
