"""One iteration, operator by operator: seconds, work, and what limits each."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.timing.operators import Operator, mixed_attention
from gnomon.timing.source_registry import traits_of
from gnomon.timing.timer import Timer, axis_of, message_bytes

Limit = Literal["compute", "memory", "network", "latency"]


@dataclass(frozen=True)
class Batch:
    """What one iteration holds: a chunk of a prompt, and equal decodes."""

    prefill: int = 0
    """Prompt tokens in the chunk."""
    prefill_kv: int = 0
    """KV tokens before the chunk."""
    decode: int = 0
    """Sequences that decode one token each."""
    kv: int = 0
    """KV tokens of each decoding sequence."""

    def __post_init__(self) -> None:
        for name in ("prefill", "prefill_kv", "decode", "kv"):
            if getattr(self, name) < 0:
                raise ConfigError(f"must not be negative, got {getattr(self, name)}.", where=name.replace("_", "-"))
        if self.tokens == 0:
            raise ConfigError("an iteration needs tokens.", fix="Give a prefill chunk, some decodes, or both.")

    @property
    def tokens(self) -> int:
        return self.prefill + self.decode

    @property
    def sequences(self) -> int:
        return self.decode + (1 if self.prefill else 0)


@dataclass(frozen=True)
class OperatorTime:
    """All calls of one operator in one iteration, on one rank."""

    name: str
    calls: int
    seconds: float
    flops: float
    bytes: float
    mfu: float
    """FLOPs over what the peak would do in that time."""
    limit: Limit
    provenance: str = ""
    """Where its time comes from: "measured in vllm 0.24.0", "roofline", ..."""


def breakdown(timer: Timer, batch: Batch) -> list[OperatorTime]:
    """The operators of one iteration in order of execution; pipeline stages add up."""
    device = timer.context.device
    peak = device.flops(timer.context.dtype)
    rows: dict[str, OperatorTime] = {}
    for operator, sizes, share in _calls(timer, batch):
        before = rows.get(operator.name)
        calls = operator.count + (before.calls if before else 0)
        seconds = share * operator.count * float(timer.seconds(operator, *sizes)[0])
        seconds += before.seconds if before else 0.0
        flops = operator.count * float(operator.flops(*sizes)[0]) + (before.flops if before else 0.0)
        moved = operator.count * float(operator.bytes(*sizes)[0]) + (before.bytes if before else 0.0)
        if seconds > 0.0:
            mfu = flops / (peak * seconds)
            limit = _limit(operator, seconds, flops / peak, moved / device.bandwidth_bytes_s)
            origin = timer.provenance(operator)
            rows[operator.name] = OperatorTime(operator.name, calls, seconds, flops, moved, mfu, limit, origin)
    return list(rows.values())


def total(times: list[OperatorTime]) -> OperatorTime:
    """The whole iteration; what limits its longest operator limits it."""
    seconds, flops = sum(t.seconds for t in times), sum(t.flops for t in times)
    longest = max(times, key=lambda t: t.seconds)
    peak_s = sum(t.mfu * t.seconds for t in times)
    moved = sum(t.bytes for t in times if t.limit != "network")
    return OperatorTime("total", sum(t.calls for t in times), seconds, flops, moved, peak_s / seconds, longest.limit)


NINE_OF_TEN = 1.645  # Standard deviations to either side that hold nine of ten cases of a normal distribution.


def server_error(timer: Timer, batch: Batch) -> float:
    """How far a server's iteration is from this one in nine of ten cases: by its kernels, and by all else."""
    beside, _ = traits_of(timer.source.name).errors(timer.context)
    return NINE_OF_TEN * math.hypot(expected_error(timer, batch), beside)


def expected_error(timer: Timer, batch: Batch) -> float:
    """The source's relative error for one iteration: operators' errors weighted by time, all of one sign."""
    seconds, wrong_s = expected_s(timer, batch)
    return wrong_s / seconds if seconds > 0.0 else 0.0


def expected_s(timer: Timer, batch: Batch) -> tuple[float, float]:
    """Seconds of one iteration, and how many of them may be wrong by the errors that the source states."""
    seconds = wrong_s = 0.0
    for operator, sizes, share in _calls(timer, batch):
        each = share * operator.count * float(timer.seconds(operator, *sizes)[0])
        seconds += each
        wrong_s += each * timer.uncertainty(operator)
    return seconds, wrong_s


def _calls(timer: Timer, batch: Batch) -> list[tuple[Operator, tuple[Floats, ...], float]]:
    """Every operator of every stage with its sizes and the share of its time that nothing hides; a chunk and decodes in
    one kernel where that was measured."""
    calls = []
    for stage in range(timer.context.parallelism.pipeline_parallel):
        operators = timer.operators(stage)
        mixed = mixed_attention(operators)
        exposed = float(timer.exposed(operators, np.array([float(batch.tokens)]))[0])
        is_mixed = bool(mixed and batch.prefill and batch.decode and timer.has_mixed_attention(mixed))
        for one in operators:
            if one.kind == "attention_prefill" and mixed and is_mixed:
                calls.append((mixed, _arrays(batch.prefill, batch.prefill_kv, batch.decode, batch.kv), 1.0))
            elif one.kind == "attention_prefill" and batch.prefill:
                calls.append((one, _arrays(batch.prefill, batch.prefill_kv), 1.0))
            elif one.kind == "attention_decode" and batch.decode and not is_mixed:
                calls.append((one, _arrays(batch.decode, batch.kv), 1.0))
            elif not one.kind.startswith("attention") and (rows := _rows(timer, one, batch)):
                calls.append((one, _arrays(rows * message_bytes(one)), exposed if one.is_beside else 1.0))
    return calls


def _rows(timer: Timer, operator: Operator, batch: Batch) -> int:
    rows = {
        "token": batch.tokens, "shared": batch.tokens * timer.context.parallelism.data_parallel,
        "prompt_token": batch.prefill, "decode": batch.decode, "sequence": batch.sequences,
    }  # fmt: skip
    return rows[axis_of(operator)]


def _arrays(*sizes: float) -> tuple[Floats, ...]:
    return tuple(np.array([float(size)]) for size in sizes)


def _limit(operator: Operator, seconds: float, compute_s: float, memory_s: float) -> Limit:
    """The resource that is busiest; "latency" where none is busy for even a quarter of the time."""
    if operator.kind == "communication":
        return "network"
    if max(compute_s, memory_s) < 0.25 * seconds:
        return "latency"
    return "compute" if compute_s > memory_s else "memory"
