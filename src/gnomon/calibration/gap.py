"""Why a simulation differs from a recording: the two side by side, and likely causes with their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.calibration.kernels import with_kv
from gnomon.calibration.logs import PHASES, Log, Steps
from gnomon.calibration.replay import Figures, figures, latencies, matched, simulated_latencies
from gnomon.core.arrays import Floats
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario

NOTICED = 0.02
"""Differences of a mean below this share are left alone."""
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


@dataclass(frozen=True)
class Cause:
    """What may be behind it, how much of the end-to-end difference it would explain, and what shows it."""

    name: str
    weight: float
    """Share of the mean time per request that differs by it; the list is ranked by its size."""
    evidence: str
    try_this: str


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
    steps = _step_differences(log.steps, done) if log.steps is not None else []
    counts = _count_differences(log, done)
    first = _first_off(log, done)
    causes = sorted(_causes(told, steps, counts, log, done), key=lambda one: -abs(one.weight))
    return Gap(log.name, told, steps, counts, first, causes, log, done)


def simulated_steps(done: Run) -> dict[str, Floats]:
    """The iterations of the simulation's first replica and stage."""
    rows = done.log.iterations[: done.log.used[0]]
    rows = rows[(rows["stage"] == 0) & (rows["replica"] == 0)]
    prefill, decodes = rows["prefill_tokens"], rows["decodes"]
    return {
        "start": rows["start_s"].copy(),
        "seconds": rows["end_s"] - rows["start_s"],
        "sequences": rows["size"].astype(float),
        "prefill": prefill.astype(float),
        "phase": np.where((prefill > 0) & (decodes > 0), 2, np.where(prefill > 0, 0, 1)),
        "blocks": rows["used_blocks"].astype(float),
        "waiting": rows["waiting"].astype(float),
    }


def _step_differences(steps: Steps, done: Run) -> list[Difference]:
    ours, found = simulated_steps(done), []
    for index, phase in enumerate(PHASES):
        for low, high in zip(SIZES, (*SIZES[1:], 1 << 30), strict=True):
            theirs = (steps.phase == index) & (steps.sequences >= low) & (steps.sequences < high)
            mine = (ours["phase"] == index) & (ours["sequences"] >= low) & (ours["sequences"] < high)
            if theirs.sum() >= 5 and mine.sum() >= 5:
                size = f"{low}" if high - low == 1 else f"{low}–{high - 1}" if high < 1 << 30 else f"{low} and more"
                found.append(
                    Difference(
                        f"{phase}, {size} sequences",
                        float(steps.seconds[theirs].mean()),
                        float(ours["seconds"][mine].mean()),
                    )
                )
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


def _causes(told: Figures, steps: list[Difference], counts: list[Difference], log: Log, done: Run) -> list[Cause]:
    """Rules, each from what differs to what usually makes it differ."""
    by_name = {one.what: one for one in counts}
    found = _host_causes(steps, log)
    hits = by_name.get("prompt tokens found in the cache")
    if hits and abs(hits.simulated - hits.recorded) > NOTICED * float(done.cluster.requests.prompt_tokens.sum()):
        share = (hits.simulated - hits.recorded) / float(done.cluster.requests.prompt_tokens.sum())
        found.append(Cause(
            "prefix cache", share,
            f"{hits.recorded:,.0f} prompt tokens were found in the server's cache, {hits.simulated:,.0f} in ours",
            "Record prompt_token_ids, or set batching.prefix_cache as the server has it.",
        ))  # fmt: skip
    prompts, whole = by_name.get("iterations with prompts"), by_name.get("iterations")
    is_slower = any(abs(one.weight) > NOTICED for one in found)  # Then batches differ as a consequence.
    if prompts and whole and not is_slower and abs(prompts.relative - whole.relative) > 5 * NOTICED:
        found.append(Cause(
            "how prompts are admitted", prompts.relative - whole.relative,
            f"{prompts.recorded:,.0f} iterations hold prompts in the recording, {prompts.simulated:,.0f} in ours",
            "Check the policy, max_batch_tokens, max_chunk_tokens and options such as prefill_interval.",
        ))  # fmt: skip
    batch = by_name.get("sequences per iteration")
    cap = done.kinds[0].batching.max_sequences
    if batch and log.steps is not None and int(log.steps.sequences.max()) > cap:
        found.append(Cause(
            "batch cap", int(log.steps.sequences.max()) / cap - 1.0,
            f"the server ran {int(log.steps.sequences.max())} sequences at once; the scenario allows {cap}",
            "Set batching.max_sequences as the server had it.",
        ))  # fmt: skip
    if int(done.cluster.replicas.num_preemptions.sum()):
        lost = int(done.cluster.replicas.num_preemptions.sum())
        found.append(Cause(
            "KV blocks", lost / max(1, len(done.cluster.requests)),
            f"{lost:,} pre-emptions in the simulation: KV is short there",
            "Set replica.num_kv_blocks to what the server reports at its start.",
        ))  # fmt: skip
    found += _front_end_cause(told, steps)
    return found


def _host_causes(steps: list[Difference], log: Log) -> list[Cause]:
    """Iterations of one phase that all differ: by the same time (host), or by the same factor (kernels, clock)."""
    causes = []
    total = float(log.steps.seconds.sum()) if log.steps is not None else 0.0
    for index, phase in enumerate(PHASES):
        mine = [one for one in steps if one.what.startswith(phase)]
        if not mine or log.steps is None:
            continue
        seconds = float(log.steps.seconds[log.steps.phase == index].sum())
        missing = np.array([one.recorded - one.simulated for one in mine])
        ratio = np.array([one.recorded / one.simulated for one in mine])
        mean = float(np.mean([abs(one.relative) for one in mine]))
        if mean < NOTICED:
            continue
        weight = float(np.mean([one.relative for one in mine])) * seconds / total
        is_constant = len(mine) > 1 and missing.std() < abs(missing.mean()) and missing.std() / abs(
            missing.mean()) < ratio.std() / abs(ratio.mean() - 1.0)  # fmt: skip
        sizes = "; ".join(
            f"{one.what}: {1e3 * one.recorded:.2f} ms, ours {1e3 * one.simulated:.2f}" for one in mine[:3]
        )
        if is_constant or len(mine) == 1:
            causes.append(Cause(
                f"host time of {phase} iterations", weight,
                f"{1e3 * missing.mean():+z.2f} ms per iteration at every batch size ({sizes})",
                "gnomon calibrate fits it from this log.",
            ))  # fmt: skip
        else:
            causes.append(Cause(
                f"kernels or clock in {phase} iterations", weight,
                f"iterations take {ratio.mean():.2f} times as long at every batch size ({sizes})",
                "Use kernels of this GPU (gnomon profile all), or gnomon calibrate --kernel-scale.",
            ))  # fmt: skip
    return causes


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
