"""Why a simulation differs from a recording: the two side by side, and likely causes with their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.calibration.causes import NOTICED, Cause, decided_otherwise, taken_longer
from gnomon.calibration.kernels import Kernels, iterations_of, with_kv
from gnomon.calibration.logs import PHASES, Log, Steps
from gnomon.calibration.replay import Figures, figures, latencies, matched, simulated_latencies
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario

SIZES = (1, 8, 32, 128, 512)
"""Edges of the classes of batch sizes."""


@dataclass(frozen=True)
class Difference:
    """One quantity in both."""

    what: str
    recorded: float
    simulated: float

    @property
    def relative(self) -> float:
        """Simulated over recorded, less one."""
        return self.simulated / self.recorded - 1.0 if self.recorded else 0.0


@dataclass(frozen=True, eq=False)
class Gap:
    """Everything that differs."""

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
    told = figures([(log.stamps, done)])
    counts = _count_differences(log, done)
    first = _first_off(log, done)
    steps, causes = [], [*decided_otherwise(log, done, simulated_steps(done))]
    if log.steps is not None and not any(one.name.startswith("scheduler") for one in causes):
        kernels, ours = _same_iterations(scenario, log)
        if ours is not None:
            steps = _step_differences(log.steps, ours)
            causes += taken_longer(log.steps, kernels, ours)
    causes += _front_end_cause(told, steps)
    return Gap(log.name, told, steps, counts, first, causes, log, done)


def _same_iterations(scenario: Scenario, log: Log) -> tuple[Kernels | None, Floats | None]:
    """The recorded iterations by the scenario, unless it has none as large: then that is the cause."""
    try:
        return iterations_of(scenario, log)
    except ConfigError:
        return None, None


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


def _front_end_cause(told: Figures, steps: list[Difference]) -> list[Cause]:
    """First tokens that come late although iterations do not: what lies before the scheduler, or behind it."""
    ttft, tpot = told.error("ttft"), told.error("tpot") if "tpot" in told.values else 0.0
    fits = all(abs(one.relative) < 2 * NOTICED for one in steps) if steps else abs(tpot) < NOTICED
    if abs(ttft) < 2 * NOTICED or not fits:
        if not steps and abs(tpot) >= NOTICED:
            recorded, simulated = told.values["tpot"]["mean"]
            return [Cause(
                "time per iteration", tpot, f"{1e3 * recorded:.2f} ms per output token, ours {1e3 * simulated:.2f}",
                "A step log tells host time and kernels apart; gnomon calibrate fits what latencies tell.",
            )]  # fmt: skip
        return []
    recorded, simulated = told.values["ttft"]["mean"]
    share = (recorded - simulated) / max(told.values["e2e"]["mean"][0], 1e-9)
    return [Cause(
        "front end or queueing", -share,
        f"first tokens after {1e3 * recorded:.1f} ms, ours {1e3 * simulated:.1f}, while iterations agree",
        "Fit front_end.reply_s and per_request_s (gnomon calibrate), and check the admission policy.",
    )]  # fmt: skip
