"""Why a simulation differs from a recording: the two side by side, and likely causes with their evidence.

What a scheduler decided otherwise comes before what took longer: batches of another kind or size take other times as
a consequence.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from gnomon.calibration.kernels import Kernels, iterations_of, with_kv
from gnomon.calibration.logs import PHASES, Log, Steps
from gnomon.calibration.replay import Figures, figures, latencies, matched, simulated_latencies
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario

SIZES = (1, 8, 32, 128, 512)  # Edges of the classes of batch sizes.


@dataclass(frozen=True)
class Difference:
    what: str
    recorded: float
    simulated: float

    @property
    def relative(self) -> float:
        return self.simulated / self.recorded - 1.0 if self.recorded else 0.0


@dataclass(frozen=True, eq=False)
class Gap:
    name: str
    figures: Figures
    steps: list[Difference]
    """Mean seconds of iterations by phase and batch size."""
    counts: list[Difference]
    """Iterations, tokens, prompts per iteration, hits."""
    first: dict[str, Any] | None
    """The first request whose first token is off by more than an iteration or two."""
    causes: list[Cause]
    log: Log
    done: Run


def explain(scenario: Scenario, log: Log) -> Gap:
    """Simulate a recorded load and look for what differs."""
    log = with_kv(scenario, log)
    done = matched(scenario, log)
    assert log.stamps is not None
    measured = figures([(log.stamps, done)])
    counts = _count_differences(log, done)
    first = _first_off(log, done)
    steps, causes = [], [*decided_otherwise(log, done, simulated_steps(done))]
    if log.steps is not None and not any(one.name.startswith("scheduler") for one in causes):
        with suppress(ConfigError):  # It allows no iterations as large: that is the cause.
            kernels, ours = iterations_of(scenario, log)
            steps = _step_differences(log.steps, ours)
            causes += taken_longer(log.steps, kernels, ours)
    causes += _front_end_cause(measured, steps)
    return Gap(log.name, measured, steps, counts, first, causes, log, done)


def simulated_steps(done: Run) -> dict[str, Floats]:
    """The iterations of the simulation's first replica and stage."""
    rows = done.log.iterations[: done.log.used[0]]
    rows = rows[(rows["stage"] == 0) & (rows["replica"] == 0)]
    prefill, decodes = rows["prefill_tokens"], rows["decodes"]
    return {
        "start": rows["start_s"].copy(), "seconds": rows["end_s"] - rows["start_s"],
        "sequences": rows["size"].astype(float), "prefill": prefill.astype(float),
        "phase": np.where((prefill > 0) & (decodes > 0), 2, np.where(prefill > 0, 0, 1)),
        "blocks": rows["used_blocks"].astype(float), "waiting": rows["waiting"].astype(float),
    }  # fmt: skip


def _step_differences(steps: Steps, ours: Floats) -> list[Difference]:
    """The same iterations on both sides, by phase and batch size."""
    found = []
    for index, phase in enumerate(PHASES):
        for low, high in zip(SIZES, (*SIZES[1:], 1 << 30), strict=True):
            mine = (steps.phase == index) & (steps.sequences >= low) & (steps.sequences < high)
            if mine.sum() >= 5:
                size = f"{low}" if high - low == 1 else f"{low}–{high - 1}" if high < 1 << 30 else f"{low} and more"
                both = float(steps.seconds[mine].mean()), float(ours[mine].mean())
                found.append(Difference(f"{phase}, {size} sequences", *both))
    return found


def _count_differences(log: Log, done: Run) -> list[Difference]:
    assert log.stamps is not None
    ours, found = simulated_steps(done), []
    q = done.cluster.requests
    if log.steps is not None:
        steps = log.steps
        has_prompt = steps.chunks_squared > 0
        prompts = float(log.stamps.requests.prompt_tokens.sum())
        computed = float((steps.tokens - steps.decodes).sum())
        found += [
            Difference("iterations", len(steps), len(ours["seconds"])),
            *(
                Difference(f"iterations, {phase}", float((steps.phase == i).sum()), float((ours["phase"] == i).sum()))
                for i, phase in enumerate(PHASES)
            ),
            Difference("sequences per iteration", float(steps.sequences.mean()), float(ours["sequences"].mean())),
            Difference("iterations with prompts", float(has_prompt.sum()), float((ours["prefill"] > 0).sum())),
            Difference("prompt tokens computed", computed, float(ours["prefill"].sum())),
            Difference("prompt tokens found in the cache", max(0.0, prompts - computed), float(q.cached_tokens.sum())),
        ]
    recorded, simulated = latencies(log.stamps), simulated_latencies(done)
    found.append(Difference("requests in flight, mean", _in_flight(recorded.e2e, log.stamps.last_token_s),
                            _in_flight(simulated.e2e, q.last_token_s)))  # fmt: skip
    return found


def _in_flight(e2e: Floats, last_s: Floats) -> float:
    return float(e2e.sum() / max(float(last_s.max()), 1e-9))


def _first_off(log: Log, done: Run) -> dict[str, Any] | None:
    """The first request, in order of sending, whose first token is off by more than its neighbours' iterations."""
    assert log.stamps is not None
    if log.stamps.closed_loop:
        return None
    q = done.cluster.requests
    off = q.first_token_s - log.stamps.first_token_s
    usual = 2.0 * float(np.median(simulated_steps(done)["seconds"])) + 3.0 * float(np.median(np.abs(off)))
    late = np.flatnonzero(np.abs(off) > usual)
    if not late.size:
        return None
    i = int(late[0])
    return {
        "request": i,
        "sent_s": float(log.stamps.requests.arrival_s[i]),
        "recorded_first_token_s": float(log.stamps.first_token_s[i]),
        "simulated_first_token_s": float(q.first_token_s[i]),
        "waiting_before": int(np.count_nonzero((q.arrival_s < q.arrival_s[i]) & (q.first_token_s > q.arrival_s[i]))),
    }


def _front_end_cause(measured: Figures, steps: list[Difference]) -> list[Cause]:
    """First tokens that come late although iterations do not: what lies before the scheduler, or behind it."""
    ttft, tpot = measured.error("ttft"), measured.error("tpot") if "tpot" in measured.values else 0.0
    fits = all(abs(one.relative) < 2 * NOTICED for one in steps) if steps else abs(tpot) < NOTICED
    if abs(ttft) < 2 * NOTICED or not fits:
        if not steps and abs(tpot) >= NOTICED:
            recorded, simulated = measured.values["tpot"]["mean"]
            return [_cause("iteration", tpot, recorded=1e3 * recorded, simulated=1e3 * simulated)]
        return []
    recorded, simulated = measured.values["ttft"]["mean"]
    share = (recorded - simulated) / max(measured.values["e2e"]["mean"][0], 1e-9)
    return [_cause("front_end", -share, recorded=1e3 * recorded, simulated=1e3 * simulated)]


NOTICED = 0.02  # Differences of a mean below this share are left alone.
OFTEN = 0.05  # A limit is seen where so many iterations meet it.


@dataclass(frozen=True)
class Cause:
    """What may be behind it, how much of the end-to-end difference it would explain, and what shows it."""

    name: str
    weight: float
    """Share of iterations, or of their time, that differ by it."""
    evidence: str
    try_this: str


CAUSES: dict[str, dict[str, str]] = own_yaml(files("gnomon.calibration") / "causes.yaml")


def _cause(kind: str, weight: float, **facts: Any) -> Cause:
    name, evidence, try_this = (CAUSES[kind][part].format(**facts) for part in ("name", "evidence", "try"))
    return Cause(name, weight, evidence, try_this)


def decided_otherwise(log: Log, done: Run, ours: dict[str, Floats]) -> list[Cause]:
    """Other batches: kinds of iterations, caps, KV blocks, cache hits, admission."""
    assert log.stamps is not None
    if log.steps is None:
        return _without_steps(done)
    steps, found = log.steps, []
    kinds = [[float((phase == i).sum()) for i in range(len(PHASES))] for phase in (steps.phase, ours["phase"])]
    mixed = [one[2] / max(1.0, one[0] + one[2]) for one in kinds]
    if abs(mixed[0] - mixed[1]) > 0.3:
        found.append(_cause("scheduler", mixed[1] - mixed[0], recorded=kinds[0], simulated=kinds[1]))
    full = float(np.mean((ours["blocks"] > 0.9 * done.pools[0].num_kv_blocks) & (ours["waiting"] > 0)))
    if not found:
        found += _cap(steps, ours, full)
    found += _blocks(steps, done, full, has_cap=bool(found))
    prompts = float(log.stamps.requests.prompt_tokens.sum())
    hits = max(0.0, prompts - float((steps.tokens - steps.decodes).sum()))
    here = float(done.cluster.requests.cached_tokens.sum())
    if abs(here - hits) > NOTICED * prompts:
        found.append(_cause("prefix_cache", (here - hits) / prompts, hits=hits, here=here))
    return found


def _cap(steps: Steps, ours: dict[str, Floats], full: float) -> list[Cause]:
    """One side's batches stop at a size that the other's exceed, more often than ours wait for KV."""
    theirs, mine = steps.sequences[steps.decodes > 0].astype(float), ours["sequences"][ours["phase"] > 0]
    if not theirs.size or not mine.size:
        return []
    for limited, other, where in ((mine, theirs, "simulated"), (theirs, mine, "recorded")):
        most, share = float(limited.max()), float(np.mean(limited == limited.max()))
        if share > max(OFTEN, full) and most > 1 and float(other.max()) > 1.1 * most:
            weight, reached = float(mine.max() / theirs.max() - 1.0), float(other.max())
            return [_cause("batch_cap", weight, share=share, where=where, most=most, other=reached)]
    return []


def _blocks(steps: Steps, done: Run, full: float, *, has_cap: bool) -> list[Cause]:
    """KV is short on one side only."""
    lost = int(done.cluster.replicas.num_preemptions.sum())
    theirs = 0.0 if steps.preempted is None else float(steps.preempted.sum())
    if (lost and not theirs) or (full > OFTEN and not has_cap):
        return [_cause("kv_short", -max(full, OFTEN), lost=lost, theirs=theirs, full=full)]
    return [_cause("kv_recorded", 1.0, theirs=theirs)] if theirs and not lost else []


def _without_steps(done: Run) -> list[Cause]:
    lost = int(done.cluster.replicas.num_preemptions.sum())
    return [_cause("kv_simulated", lost / max(1, len(done.cluster.requests)), lost=lost)] if lost else []


def taken_longer(steps: Steps, kernels: Kernels, ours: Floats) -> list[Cause]:
    """Of the same iterations, by phase: what the time that is missing grows with."""
    total, causes = float(steps.felt @ steps.seconds), []
    for index, phase in enumerate(PHASES):
        mine = steps.phase == index
        if mine.sum() < 5:
            continue
        weight, missing = steps.felt[mine], steps.seconds[mine] - ours[mine]
        share = -float(weight @ missing) / total
        if abs(share) * total < NOTICED * float(weight @ steps.seconds[mine]):
            continue
        kind, facts = _grows_with(steps.take(mine), kernels, mine, missing, weight)
        causes.append(_cause(kind, share, phase=phase, **facts))
    return sorted(causes, key=lambda one: -abs(one.weight))


def _grows_with(
    steps: Steps, kernels: Kernels, mine: Any, missing: Floats, weight: Floats
) -> tuple[str, dict[str, Any]]:
    """Which of host, sequences, compute or memory explains most of what is missing, and what is told of it."""
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
    facts: dict[str, Any] = {"shown": shown, "open": open_}
    if best in ("clock", "kernels"):
        facts["factor"] = 1.0 + _slope(columns[best], missing, weight)
    elif best != "host":
        facts["each"] = 1e6 * _slope(columns["sequence"], missing, weight)
    return best, facts


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
