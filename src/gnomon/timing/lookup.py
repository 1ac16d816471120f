"""The one function that tells an iteration's time: plain indexing and linear interpolation in the tables."""

from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.jit import borrow, inlined, jit, noinline
from gnomon.timing.host import WINDOW_S
from gnomon.timing.iteration import POINTS_PER_OCTAVE, SKEW_BINS, IterationTables


class Shape(NamedTuple):
    """What one iteration contains, as far as its time depends on it."""

    tokens: int  # All tokens of the iteration.
    sequences: int  # Requests in the batch (each samples once).
    chunks_squared: float  # Sum of chunk squared over the prefill chunks: they cost as one chunk of its root.
    chunks_kv: float  # Sum of chunk x KV tokens before it.
    decodes: int  # Requests that decode.
    decode_kv: float  # Sum of their KV lengths.
    decode_kv_max: float  # The longest of them.
    decode_tokens: int  # Tokens that they compute: one each, and those drafted before, which are verified.
    prompt_kv: float  # Sum of the KV tokens before the prefill chunks.


@inlined
def _cell(axis: Floats, value: float) -> tuple[int, float]:
    """The cell of a geometric axis that holds `value`, and the fraction of the way through it."""
    if value <= 1.0:
        return 0, value
    cell = int(np.log2(value) * POINTS_PER_OCTAVE) + 1
    cell = min(cell, axis.size - 2)
    return cell, (value - axis[cell]) / (axis[cell + 1] - axis[cell])


@inlined
def _cell_near(axis: Floats, value: float, near: int) -> tuple[int, float]:
    """`_cell`, quicker where the value still lies in the cell `near`."""
    if axis[near] <= value < axis[near + 1]:
        return near, (value - axis[near]) / (axis[near + 1] - axis[near])
    return _cell(axis, value)


@inlined
def _on_plane(table: Floats, i: int, u: float, j: int, v: float) -> float:
    low = table[i, j] + v * (table[i, j + 1] - table[i, j])
    high = table[i + 1, j] + v * (table[i + 1, j + 1] - table[i + 1, j])
    return low + u * (high - low)


@inlined
def _decode_s(tables: IterationTables, stage: int, decodes: int, kv: float, near: int) -> tuple[float, int]:
    cell, fraction = _cell_near(tables.kv_axis, kv, near)
    row = tables.decode_s[stage, decodes]
    return row[cell] + fraction * (row[cell + 1] - row[cell]), cell


@noinline
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


@inlined
def _attention_at(
    tables: IterationTables, stage: int, chunk: float, kv: float, decodes: int, decode_kv: float, near: int
) -> tuple[float, int]:
    if chunk == 0.0:
        return _decode_s(tables, stage, decodes, decode_kv, near)
    if decodes > 0 and tables.mixed_s.shape[1] > 0:
        return _mixed_s(tables, stage, chunk, kv, decodes, decode_kv), near
    c, u = _cell(tables.chunk_axis, chunk)
    k, v = _cell(tables.kv_axis, kv)
    total = _on_plane(tables.prefill_s[stage], c, u, k, v)
    if decodes > 0:
        more, near = _decode_s(tables, stage, decodes, decode_kv, near)
        total += more
    return total, near


@inlined
def attention_near(
    tables: IterationTables, stage: int, shape: Shape, near: tuple[int, int]
) -> tuple[float, tuple[int, int]]:
    """Seconds of attention in one stage, and the cells of the tables in which the decodes' mean and longest KV lie:
    given to the next call, they need not be looked for where they are the same."""
    chunk = np.sqrt(shape.chunks_squared)
    kv = shape.chunks_kv / chunk if chunk > 0.0 else 0.0
    mean = shape.decode_kv / shape.decodes if shape.decodes > 0 else 0.0
    seconds, near_mean = _attention_at(tables, stage, chunk, kv, shape.decodes, mean, near[0])
    near_longest = near[1]
    if tables.skew.shape[1] > 0 and shape.decodes > 1 and shape.decode_kv_max > mean:
        n, w = _cell(tables.decodes_axis, float(shape.decodes))
        skew = tables.skew[stage]
        s = min(int(SKEW_BINS * (1.0 - mean / shape.decode_kv_max)), SKEW_BINS - 1)
        if chunk > 0.0:
            s += SKEW_BINS
        towards_max = skew[n, s] + w * (skew[n + 1, s] - skew[n, s])
        longest, near_longest = _attention_at(
            tables, stage, chunk, kv, shape.decodes, shape.decode_kv_max, near_longest
        )
        seconds += towards_max * (longest - seconds)
    return seconds, (near_mean, near_longest)


@inlined
def attention_s(tables: IterationTables, stage: int, shape: Shape) -> float:
    """Seconds of attention in one stage."""
    return attention_near(tables, stage, shape, (0, 0))[0]


@inlined
def without_attention_s(
    tables: IterationTables, stage: int, tokens: int, sequences: int, decode_tokens: int, group_tokens: int
) -> float:
    """Seconds of all but attention in one stage: what does not depend on how long the sequences are."""
    seconds = tables.token_s[stage, tokens] + tables.sequence_s[stage, sequences]
    if tables.expert_s.shape[1] > 0:
        seconds += tables.expert_s[stage, group_tokens]
    if tables.prompt_s.shape[1] > 0:
        seconds += tables.prompt_s[stage, tokens - decode_tokens]
    return seconds


@noinline
def stage_s(tables: IterationTables, stage: int, shape: Shape, group_tokens: int) -> float:
    """Seconds of one iteration in one pipeline stage, without host time."""
    rest_s = without_attention_s(tables, stage, shape.tokens, shape.sequences, shape.decode_tokens, group_tokens)
    return rest_s + attention_s(tables, stage, shape)


@inlined
def is_beyond_measured(measured: Any, shape: Shape) -> bool:
    """Whether an iteration is larger in some way than the source covers (`IterationTables.measured` of its stage, an
    array or a tuple).

    Decodes are looked up at their mean KV length, so that counts, not the longest.
    """
    chunk = np.sqrt(shape.chunks_squared)
    return bool(
        shape.tokens > measured[0]
        or chunk > measured[1]
        or (shape.decodes > 0 and shape.decode_kv > measured[2] * shape.decodes)
        or shape.decodes > measured[3]
        or (chunk > 0.0 and shape.chunks_kv > measured[4] * chunk)
    )


@inlined
def host_pace(tables: IterationTables, replica: int, at_s: float) -> float:
    """How many times longer a replica's host takes at a moment; hosts are slow at different times."""
    if tables.host_pace.size == 0:
        return 1.0
    return float(tables.host_pace[(int(at_s / WINDOW_S) + 577 * replica) % tables.host_pace.size])


@inlined
def host_times(tables: IterationTables, stage: int, shape: Shape, pace: float = 1.0) -> tuple[float, float]:
    """Of the host's time in one stage, at its pace: what is exposed, and the least that the GPU's part takes because of
    it."""
    phase = 1 if shape.chunks_squared == 0.0 else (0 if shape.decodes == 0 else 2)
    host = tables.host_s[stage, phase]
    sequences = shape.sequences - host[8] * max(0.0, shape.sequences - host[9])
    exposed = host[0] + host[1] * sequences + host[2] * shape.tokens
    hidden = host[3] + host[4] * sequences + host[5] * shape.tokens
    in_graph = (shape.sequences if phase == 1 else shape.tokens) <= host[7]
    waits = (0.0 if in_graph else host[6]) + host[10] * shape.sequences
    return pace * exposed, max(pace * hidden, pace * waits + host[11] * shape.sequences if waits > 0.0 else 0.0)


@inlined
def with_host_s(tables: IterationTables, stage: int, gpu_s: float, shape: Shape) -> float:
    """Add the host's time to an iteration of one stage: what is exposed, and what the GPU waits for."""
    exposed_s, least_s = host_times(tables, stage, shape)
    return exposed_s + max(gpu_s, least_s)


@noinline
def iteration_s(tables: IterationTables, row: int, num_stages: int, shape: Shape, group_tokens: int) -> float:
    """Seconds from the start of one iteration to its end, through all stages (from `row` on), with the host's time."""
    seconds = 0.0
    for stage in range(row, row + num_stages):
        seconds += with_host_s(tables, stage, stage_s(tables, stage, shape, group_tokens), shape)
    return seconds


@jit
def batch_s(tables: IterationTables, num_stages: int, shape: Shape) -> float:
    """`iteration_s` of one replica alone, to be called from Python."""
    return iteration_s(borrow(tables), 0, num_stages, shape, shape.tokens)
