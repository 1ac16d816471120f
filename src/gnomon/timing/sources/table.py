"""The source `table`: the seconds themselves, written in the scenario.

It has no operators; it fills the engine's tables directly. Queueing theory can then be checked on the real engine:
with `per_token: 0.001` and outputs of one token, a request is served in a millisecond per prompt token.
"""

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.timing.config import TableConfig
from gnomon.timing.iteration import SKEW_BINS, IterationTables, geometric_axis
from gnomon.timing.sources import Context, Source, timing_source


@timing_source(
    "table", about="explicit seconds per token, sequence and iteration, given in the scenario", gives_iterations=True
)
def _no_operators(context: Context) -> Source:
    raise ConfigError("the source 'table' has no operators: it gives whole iterations.", where="timing.source")


def given_tables(
    table: TableConfig | None, num_stages: int, *, max_tokens: int, max_sequences: int, max_kv_tokens: int,
    host_s: Floats, work: Floats,
) -> IterationTables:  # fmt: skip
    """The user's seconds as iteration tables, the same for every pipeline stage."""
    if table is None:
        fix = "For example: timing: {source: table, table: {per_token: 1.0e-5, per_iteration: 0.002}}."
        raise ConfigError("the source 'table' needs the seconds themselves.", where="timing.table", fix=fix)
    chunk_axis, kv_axis = geometric_axis(max_tokens), geometric_axis(max_kv_tokens)
    sequences = np.arange(max_sequences + 1.0)
    tokens = curve(table.per_token, max_tokens, "timing.table.per_token")
    tokens[1:] += table.per_iteration
    prefill = np.repeat(table.per_prefill_token * chunk_axis[:, None], kv_axis.size, axis=1)
    decode = sequences[:, None] * (table.per_decode + table.per_decode_kv_token * kv_axis)

    def staged(one: Floats) -> Floats:
        return each_stage(one, num_stages)

    return IterationTables(
        token_s=staged(tokens), expert_s=staged(np.zeros(0)), prompt_s=staged(np.zeros(0)),
        sequence_s=staged(curve(table.per_sequence, max_sequences, "timing.table.per_sequence")),
        prefill_s=staged(prefill), decode_s=staged(decode), mixed_s=staged(np.zeros((0, 0, 0, 0))),
        chunk_axis=chunk_axis, kv_axis=kv_axis, decodes_axis=geometric_axis(max_sequences),
        skew=staged(np.zeros((0, 2 * SKEW_BINS))), host_s=host_s, measured=staged(np.full(5, np.inf)),
        work=staged(work),
    )  # fmt: skip


def each_stage(one: Floats, num_stages: int) -> Floats:
    return np.repeat(one[None], num_stages, axis=0)


def curve(given: float | tuple[float, ...], maximum: int, where: str) -> Floats:
    """Seconds at 0..maximum: a slope, (constant, slope), or listed values that go on in a straight line."""
    at = np.arange(maximum + 1.0)
    if isinstance(given, float | int):
        seconds = at * given
    elif len(given) < 2:
        raise ConfigError("a list of seconds needs two values or more.", where=where)
    elif len(given) == 2:
        seconds = given[0] + given[1] * at
        seconds[0] = 0.0
    else:
        listed = np.array(given)
        beyond = np.maximum(at - (listed.size - 1), 0.0)
        seconds = np.interp(at, np.arange(listed.size), listed) + beyond * (listed[-1] - listed[-2])
    if seconds.min() < 0:
        raise ConfigError("seconds cannot be negative.", where=where)
    return seconds
