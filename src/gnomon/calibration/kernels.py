"""The GPU's part of recorded iterations, from the same tables that a simulation reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnomon import catalog
from gnomon.calibration.logs import Columns, Log, Steps
from gnomon.catalog import Model
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.jit import jit
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pools import bake, resolve
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, stage_s, with_host_s
from gnomon.workload import Requests, generate

LOW_CLOCK = 0.5
CHOOSING = 11  # Column of the host's times: choosing the token of one sequence.


@dataclass(frozen=True, eq=False)
class Kernels(Columns):
    """Seconds of iterations on the GPU: scale x (memory + compute / clock)."""

    memory: Floats
    compute: Floats
    """What grows as the clock falls."""
    after: Floats
    """Of both, choosing tokens: it begins when all before it is launched."""

    def seconds(self, scale: float = 1.0, clock: float = 1.0) -> Floats:
        return scale * (self.memory + self.compute / clock)


@jit
def _shape(row: Floats) -> Shape:
    decodes = int(row[4])
    return Shape(int(row[0]), int(row[1]), row[2], row[3], decodes, row[5], row[6], decodes, 0.0)


@jit
def _stage_s(tables: IterationTables, rows: Floats, out: Floats) -> None:
    for i in range(rows.shape[0]):
        out[i] = stage_s(tables, 0, _shape(rows[i]), int(rows[i][0]))


@jit
def _iteration_s(tables: IterationTables, rows: Floats, gpu: Floats, out: Floats) -> None:
    for i in range(rows.shape[0]):
        out[i] = with_host_s(tables, 0, gpu[i], _shape(rows[i]))


def kernel_seconds(scenario: Scenario, log: Log) -> Floats:
    """The GPU's part of a log's iterations, at the scenario's own clock and factor."""
    assert log.steps is not None
    out = np.empty(len(log.steps))
    _stage_s(_tables(scenario, [log], scenario.timing.clock), _rows(log.steps), out)
    return scenario.timing.scale * out


def iterations_of(scenario: Scenario, log: Log) -> tuple[Kernels, Floats]:
    """What a scenario makes of recorded iterations: the GPU's part at its clock and scale, and all of it."""
    assert log.steps is not None
    timing = scenario.timing
    at_one = kernels_of(scenario, [log])[log.name]
    own = Kernels(timing.scale * at_one.memory, timing.scale * at_one.compute / timing.clock, at_one.after)
    rows, out = _rows(log.steps), np.empty(len(log.steps))
    _iteration_s(_tables(scenario, [log], 1.0), rows, own.seconds(), out)
    host = timing.host
    usual = 1.0 if host is None else 1.0 + host.slow_share * (host.slow_factor - 1.0)
    return own, own.seconds() + usual * (out - own.seconds())


def kernels_of(scenario: Scenario, logs: list[Log]) -> dict[str, Kernels]:
    """The GPU's part of every log's iterations, at full clock and factor one."""
    if len(scenario.all_pools()) > 1 or scenario.replica.pipeline_parallel > 1:
        what = "iterations of pipelines and of pools cannot be calibrated."
        raise ConfigError(what, where="scenario", fix="Calibrate one replica without pipeline stages.")
    full, slow = (_tables(scenario, logs, clock) for clock in (1.0, LOW_CLOCK))
    found = {}
    for log in logs:
        assert log.steps is not None
        rows = _rows(log.steps)
        fast_s, slow_s = np.empty(len(rows)), np.empty(len(rows))
        _stage_s(full, rows, fast_s)
        _stage_s(slow, rows, slow_s)
        compute = np.maximum(0.0, slow_s - fast_s) / (1.0 / LOW_CLOCK - 1.0)
        each = full.host_s[0, log.steps.phase, CHOOSING]
        found[log.name] = Kernels(fast_s - compute, compute, each * log.steps.sequences)
    return found


def with_kv(scenario: Scenario, log: Log) -> Log:
    """A log whose decodes' KV is unknown, with the mean of the scenario's requests (half their output done)."""
    if log.steps is None or log.steps.knows_kv:
        return log
    requests = log.stamps.requests if log.stamps else generate(scenario.workload, scenario.seed)
    mean = float(requests.prompt_tokens.mean() + 0.5 * requests.output_tokens.mean())
    kv = np.asarray(log.steps.decodes * mean, np.float64)
    return replace(log, steps=replace(log.steps, decode_kv=kv, decode_kv_max=np.full(len(kv), mean)))


def _tables(scenario: Scenario, logs: list[Log], clock: float) -> IterationTables:
    timing = scenario.timing.model_copy(update={"clock": clock, "scale": 1.0})
    [pool] = resolve(scenario.model_copy(update={"timing": timing}))
    steps = [log.steps for log in logs if log.steps is not None]
    longest = max(float(one.decode_kv_max.max()) for one in steps)
    most_tokens, most_seqs = (max(int(getattr(one, name).max()) for one in steps) for name in ("tokens", "sequences"))
    requests = _as_long(max(longest, 16.0), most_seqs, catalog.model(scenario.model))
    allowed, cap = pool.max_iteration_tokens(requests), pool.max_in_batch
    if most_tokens > allowed or most_seqs > cap:
        what = (
            f"the log has iterations of {most_tokens:,} tokens and {most_seqs:,} sequences; the scenario allows "
            f"{allowed:,} and {cap:,}."
        )
        raise ConfigError(what, where="batching", fix="Set max_batch_tokens and max_sequences as the server had them.")
    return bake(scenario.model, [pool], requests).tables


def _as_long(tokens: float, count: int, model: Model) -> Requests:
    """As many requests, and as long, as tables are needed for."""
    longest = min(int(tokens) + 1, model.max_context_tokens)
    return Requests(np.zeros(count), np.full(count, max(1, longest - 1), np.int32), np.ones(count, np.int32))


def _rows(steps: Steps) -> Floats:
    names = ("tokens", "sequences", "chunks_squared", "chunks_kv", "decodes", "decode_kv", "decode_kv_max")
    return np.ascontiguousarray(np.stack([getattr(steps, name).astype(np.float64) for name in names], 1))
