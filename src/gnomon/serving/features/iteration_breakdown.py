"""The time of one iteration, divided: what a decode in it would take alone, and what the others cost it.

All seconds come from the tables that gave the iteration its time (`gnomon.timing.lookup`): it is looked up again
without its prefills, with empty contexts, for one request alone.
"""

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.jit import borrow, inlined, jit, noinline
from gnomon.serving.engine.state import Cluster
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, stage_s

# Columns of `Cluster.flight_ns`: alone with an empty context; for prefills, other decodes, contexts (its own included);
# not in the batch; between stages; for the host; for a slow replica or rank.
(ALONE, PREFILLS, BATCH, CONTEXTS, TURN, BETWEEN_STAGES, ON_HOST, SLOWER) = range(8)
NUM_COLUMNS = 8


@inlined
def nanoseconds(seconds: float) -> int:
    """A moment as a whole number of nanoseconds: differences of those add up exactly."""
    return int(np.floor(seconds * 1e9 + 0.5))


@inlined
def gpu_s(tables: IterationTables, row: int, num_stages: int, shape: Shape, group_tokens: int) -> float:
    """Seconds of an iteration in all stages, without host time. A loop over one stage would cost as much as two: its
    logarithms are taken before it is known who needs them."""
    if num_stages == 1:
        return stage_s(tables, row, shape, group_tokens)
    return _all_stages_s(tables, row, num_stages, shape, group_tokens)


@noinline
def _all_stages_s(tables: IterationTables, row: int, num_stages: int, shape: Shape, group_tokens: int) -> float:
    seconds = 0.0
    for stage in range(num_stages):
        seconds += stage_s(tables, row + stage, shape, group_tokens)
    return seconds


@inlined
def divide(
    cluster: Cluster, tables: IterationTables, r: int, position: int, shape: Shape, group_tokens: int, row: int,
    num_stages: int,
) -> None:  # fmt: skip
    """Fill in the columns of a batch in flight. Its time is held against a replica whose tables start at `row`."""
    state, flight, columns = cluster.replicas[r], cluster.flights[r, position], cluster.flight_ns[r, position]
    own_s, host_s, busy_s, between_ns = flight.gpu_s, flight.host_s, flight.end_s - flight.start_s, 0
    if state.num_stages > 1:
        total_s, busy_s = busy_s, 0.0
        for stage in range(state.num_stages):
            busy_s += cluster.stage_end_s[r, position, stage] - cluster.stage_start_s[r, position, stage]
        between_ns = max(0, nanoseconds(total_s - busy_s))
    there_s = reference_s(tables, state.row, own_s, row, num_stages, shape, group_tokens)
    decodes_s = there_s
    if shape.decodes > 0 and shape.chunks_squared > 0.0:
        tokens = shape.decode_tokens
        only = Shape(tokens, tokens, 0.0, 0.0, shape.decodes, shape.decode_kv, shape.decode_kv_max, tokens, 0.0)
        decodes_s = min(there_s, gpu_s(tables, row, num_stages, only, tokens))
    whole_ns = nanoseconds(flight.end_s) - nanoseconds(flight.start_s)
    alone_ns = cluster.floor_ns[row, 1]
    prefills_ns = nanoseconds(there_s - decodes_s)
    batch_ns = cluster.floor_ns[row, shape.decodes] - alone_ns if shape.decodes > 0 else 0
    host_ns, slower = nanoseconds(host_s), slower_ns(cluster, r, row, busy_s, there_s, host_s)
    columns[ALONE] = alone_ns
    columns[PREFILLS] = prefills_ns
    columns[BATCH] = batch_ns
    columns[CONTEXTS] = whole_ns - alone_ns - prefills_ns - batch_ns - between_ns - host_ns - slower
    columns[TURN] = 0
    columns[BETWEEN_STAGES] = between_ns
    columns[ON_HOST] = host_ns
    columns[SLOWER] = slower


@inlined
def reference_s(
    tables: IterationTables, own_row: int, own_s: float, row: int, num_stages: int, shape: Shape, group_tokens: int
) -> float:
    """What an iteration of `own_s` takes, at most as long, on the replica that it is held against."""
    return own_s if row == own_row else min(own_s, gpu_s(tables, row, num_stages, shape, group_tokens))


@inlined
def slower_ns(cluster: Cluster, r: int, row: int, busy_s: float, there_s: float, host_s: float) -> int:
    """What an iteration takes more than `there_s` and the host's time: its replica is of a slower kind, is slowed down,
    or waits for others of its group."""
    state = cluster.replicas[r]
    if row == state.row and state.slowdown == 0.0 and state.group_size == 1:
        return 0
    return max(0, nanoseconds(busy_s - there_s - host_s))


@jit
def tabulate(tables: IterationTables, row: int, num_stages: int, per_decode: int, floor_ns: Ints, sums: Ints) -> None:
    """Fill in what decodes of one kind of replica take: `Cluster.floor_ns` and `Cluster.context_ns`, one row each."""
    lent = borrow(tables)
    for decodes in range(1, floor_ns.size):
        tokens = decodes * per_decode
        if tokens < lent.token_s.shape[1] and tokens < lent.sequence_s.shape[1]:
            shape = Shape(tokens, tokens, 0.0, 0.0, decodes, 0.0, 0.0, tokens, 0.0)
            floor_ns[decodes] = nanoseconds(gpu_s(lent, row, num_stages, shape, tokens))
        else:
            floor_ns[decodes] = floor_ns[decodes - 1]
    for kv in range(sums.size - 1):
        shape = Shape(per_decode, per_decode, 0.0, 0.0, 1, float(kv), float(kv), per_decode, 0.0)
        sums[kv + 1] = sums[kv] + nanoseconds(gpu_s(lent, row, num_stages, shape, per_decode)) - floor_ns[1]
