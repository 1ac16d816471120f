"""Likely causes of a difference, each with what shows it.

What a scheduler decided otherwise comes before what took longer: batches of another kind or size take other times as
a consequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.calibration.kernels import Kernels
from gnomon.calibration.logs import PHASES, Log, Steps
from gnomon.core.arrays import Floats
from gnomon.serving.run.simulate import Run

NOTICED = 0.02
"""Differences of a mean below this share are left alone."""
OFTEN = 0.05
"""A limit is seen where so many iterations meet it."""


@dataclass(frozen=True)
class Cause:
    """What may be behind it, how much of the end-to-end difference it would explain, and what shows it."""

    name: str
    weight: float
    """Share of iterations, or of their time, that differ by it."""
    evidence: str
    try_this: str


def decided_otherwise(log: Log, done: Run, ours: dict[str, Floats]) -> list[Cause]:
    """Other batches: kinds of iterations, caps, KV blocks, cache hits, admission."""
    assert log.stamps is not None
    if log.steps is None:
        return _without_steps(done, ours)
    steps, found = log.steps, []
    kinds = [[float((phase == i).sum()) for i in range(len(PHASES))] for phase in (steps.phase, ours["phase"])]
    mixed = [one[2] / max(1.0, one[0] + one[2]) for one in kinds]
    if abs(mixed[0] - mixed[1]) > 0.3:
        words = [f"{one[0]:,.0f} of prompts alone and {one[2]:,.0f} mixed" for one in kinds]
        found.append(Cause(
            "scheduler: how prompts and decodes share iterations", mixed[1] - mixed[0],
            f"iterations recorded: {words[0]}; simulated: {words[1]}",
            "Set batching.policy (or batching.file) as the server schedules.",
        ))  # fmt: skip
    if not found:
        found += _cap(steps, ours)
    found += _blocks(steps, done, ours, has_cap=bool(found))
    prompts = float(log.stamps.requests.prompt_tokens.sum())
    hits = max(0.0, prompts - float((steps.tokens - steps.decodes).sum()))
    here = float(done.cluster.requests.cached_tokens.sum())
    if abs(here - hits) > NOTICED * prompts:
        found.append(Cause(
            "prefix cache", (here - hits) / prompts,
            f"{hits:,.0f} prompt tokens were found in the server's cache, {here:,.0f} in ours",
            "Record prompt_token_ids, or set batching.prefix_cache as the server has it.",
        ))  # fmt: skip
    return found


def _cap(steps: Steps, ours: dict[str, Floats]) -> list[Cause]:
    """One side's batches stop at a size that the other's exceed."""
    theirs, mine = steps.sequences[steps.decodes > 0].astype(float), ours["sequences"][ours["phase"] > 0]
    if not theirs.size or not mine.size:
        return []
    for limited, other, where in ((mine, theirs, "simulated"), (theirs, mine, "recorded")):
        most, share = float(limited.max()), float(np.mean(limited == limited.max()))
        if share > OFTEN and most > 1 and float(other.max()) > 1.1 * most:
            return [Cause(
                "batch cap", float(mine.max() / theirs.max() - 1.0),
                f"{share:.0%} of the {where} batches with decodes have {most:,.0f} sequences and none has more; "
                f"those of the other side reach {other.max():,.0f}",
                "Set batching.max_sequences (or the policy's own cap) as the server had it.",
            )]  # fmt: skip
    return []


def _blocks(steps: Steps, done: Run, ours: dict[str, Floats], *, has_cap: bool) -> list[Cause]:
    """KV is short on one side only."""
    lost, theirs = int(done.cluster.replicas.num_preemptions.sum()), 0.0
    if steps.preempted is not None:
        theirs = float(steps.preempted.sum())
    full = float(np.mean((ours["blocks"] > 0.9 * done.pools[0].num_kv_blocks) & (ours["waiting"] > 0)))
    fix = "Set replica.num_kv_blocks to what the server reports at its start."
    if (lost and not theirs) or (full > OFTEN and not has_cap):
        words = f"{lost:,} pre-emptions in the simulation, {theirs:,.0f} recorded; {full:.0%} of its iterations have "
        return [Cause("KV blocks", -max(full, OFTEN), words + "requests waiting while KV is full", fix)]
    if theirs and not lost:
        return [Cause("KV blocks", 1.0, f"{theirs:,.0f} pre-emptions recorded, none in the simulation", fix)]
    return []


def _without_steps(done: Run, ours: dict[str, Floats]) -> list[Cause]:
    lost = int(done.cluster.replicas.num_preemptions.sum())
    if not lost:
        return []
    return [Cause(
        "KV blocks", lost / max(1, len(done.cluster.requests)),
        f"{lost:,} pre-emptions in the simulation: KV is short there",
        "Set replica.num_kv_blocks to what the server reports at its start.",
    )]  # fmt: skip


def taken_longer(steps: Steps, kernels: Kernels | None, ours: Floats) -> list[Cause]:
    """Of the same iterations, by phase: what the time that is missing grows with."""
    assert kernels is not None
    total, causes = float(steps.felt @ steps.seconds), []
    for index, phase in enumerate(PHASES):
        mine = steps.phase == index
        if mine.sum() < 5:
            continue
        weight, missing = steps.felt[mine], steps.seconds[mine] - ours[mine]
        share = -float(weight @ missing) / total
        if abs(share) * total < NOTICED * float(weight @ steps.seconds[mine]):
            continue
        name, evidence, fix = _grows_with(phase, steps.take(mine), kernels, mine, missing, weight)
        causes.append(Cause(name, share, evidence, fix))
    return sorted(causes, key=lambda one: -abs(one.weight))


def _grows_with(
    phase: str, steps: Steps, kernels: Kernels, mine: Any, missing: Floats, weight: Floats
) -> tuple[str, str, str]:
    """Which of host, sequences, compute or memory explains most of what is missing in a phase."""
    compute, memory = kernels.compute[mine], kernels.memory[mine]
    waits = steps.seconds - missing > 1.2 * (compute + memory) + 1e-3  # Ours waits for the host: kernels do not show.
    columns = {
        "host": np.ones(len(missing)),
        "sequence": steps.sequences.astype(float),
        "clock": np.where(waits, 0.0, compute),
        "kernels": np.where(waits, 0.0, memory + compute),
    }
    left = {name: _left(column, missing, weight) for name, column in columns.items()}
    best = min(left, key=lambda name: left[name])
    mean = 1e3 * float(np.average(missing, weights=weight))
    shown = f"{mean:+z.2f} ms per iteration in the mean, over the same batches"
    if steps.gpu_s is not None:
        own = float(np.average(steps.gpu_s - compute - memory, weights=weight))
        shown += f"; the GPU took {1e3 * own:+z.2f} ms of it"
        on_gpu = abs(own) > 0.5 * abs(1e-3 * mean)
        best = {"host": "kernels", "sequence": "sampling"}.get(best, best) if on_gpu else "host"
    open_ = "" if steps.gpu_s is not None else " The log has no GPU times (gpu_s) that would tell host from GPU."
    match best:
        case "clock":
            factor = 1.0 + _slope(columns["clock"], missing, weight)
            return (f"clock in {phase} iterations", f"{shown}: compute-bound kernels take {factor:.2f} times as long",
                    "Set timing.clock as the GPU ran (gnomon calibrate fits it).")  # fmt: skip
        case "kernels":
            factor = 1.0 + _slope(columns["kernels"], missing, weight)
            return (f"kernels of {phase} iterations", f"{shown}: kernels take {factor:.2f} times as long",
                    "Use kernels of this GPU (gnomon profile all), or gnomon calibrate --kernel-scale.")  # fmt: skip
        case "sequence" | "sampling":
            each = 1e6 * _slope(columns["sequence"], missing, weight)
            name = "sampling" if best == "sampling" else "sampling, or host time by the sequence,"
            return (f"{name} in {phase} iterations", f"{shown}: {each:+z.1f} µs per sequence",
                    f"Set sampling as the server samples; gnomon calibrate fits what is left.{open_}")  # fmt: skip
        case _:
            return (f"host time of {phase} iterations", f"{shown}, whatever the batch",
                    f"gnomon calibrate fits it from this log.{open_}")  # fmt: skip


def _slope(column: Floats, missing: Floats, weight: Floats) -> float:
    """The factor that leaves the least absolute error: the weighted median of what is missing over the column."""
    some = column > 0
    if not some.any():
        return 0.0
    ratio, size = missing[some] / column[some], (weight * column)[some]
    order = np.argsort(ratio)
    reached = np.cumsum(size[order])
    return float(ratio[order][np.searchsorted(reached, 0.5 * reached[-1])])


def _left(column: Floats, missing: Floats, weight: Floats) -> float:
    return float(weight @ np.abs(missing - _slope(column, missing, weight) * column))
