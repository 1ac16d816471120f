"""Constants from what clients saw: simulate each load, and move the constants until its latencies are those recorded.

Compared are means that a scheduler's chance does not move much: time to the first token by thirds of the prompt
lengths, and time per output token. Their noise is that of parts of the recording in time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnomon.calibration.logs import Counters, Log, Stamps, load_of
from gnomon.calibration.replay import latencies
from gnomon.calibration.step_fit import QUANTILE_90
from gnomon.core.arrays import Floats
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.timing.host import PHASES
from gnomon.timing.iteration import IterationTables, scaled
from gnomon.workload import Requests
from gnomon.workload.requests import first_wave

PARTS = 10
FLOOR = 0.004  # Relative error below which no mean is trusted: chance in who shares an iteration with whom.
STARTS = (0.0, 0.3, 0.6, 0.9)
"""Bounds of launching to start from, in times to the first token of the quickest requests."""
LEAST = {"scale": 0.7}
WORTH = 0.5  # A reply time must leave so much less of the sum of squares.


@dataclass(frozen=True)
class Constants:
    """What latencies can tell of a server, in seconds; `scale` is a factor on kernels."""

    per_iteration: float = 0.0
    per_sequence: float = 0.0
    launch: float = 0.0
    """Of iterations with prompts."""
    reply: float = 0.0
    scale: float = 1.0

    def adjusted(self, tables: IterationTables) -> IterationTables:
        """The seconds of iterations with these."""
        host = np.zeros_like(tables.host_s)
        host[:, :, 0], host[:, :, 1] = self.per_iteration, self.per_sequence
        for index, phase in enumerate(PHASES):
            host[:, index, 6] = self.launch if phase != "decode" else 0.0
        return scaled(tables._replace(host_s=host), self.scale)


@dataclass(frozen=True, eq=False)
class Target:
    """The means of one load, and how far chance moves each (relative)."""

    name: str
    requests: Requests
    bins: Floats
    """Edges of the thirds of the prompt lengths."""
    means: Floats
    noise: Floats
    shortest: float
    """Seconds to the first token that a twentieth of the requests, the quickest ones, are below."""
    closed_loop: bool = False


@dataclass(frozen=True, eq=False)
class RequestFit:
    """The constants, their covariance in the order of `names`, and the factor of a 90 % interval."""

    constants: Constants
    names: tuple[str, ...]
    covariance: Floats
    factor: float
    misfit: float
    """How many times further than chance the means are off."""
    errors: dict[str, Floats]
    """Relative errors of the means, by load."""


def target_of(log: Log, seed: int = 0) -> Target:
    if log.stamps is None:
        assert log.counters is not None
        return _from_counters(log.name, log.counters, seed)
    stamps = log.stamps
    bins = np.quantile(stamps.requests.prompt_tokens, [0.0, 1 / 3, 2 / 3, 1.0])
    parts = np.array_split(np.arange(len(stamps.requests)), min(PARTS, max(2, len(stamps.requests) // 10)))
    whole = _means(stamps, bins)
    each = np.array([_means(stamps, bins, part) for part in parts])
    with np.errstate(invalid="ignore"):
        spread = np.nanstd(each, 0, ddof=1) / np.sqrt(len(parts)) / whole
    noise = np.maximum(np.nan_to_num(spread, nan=0.1), FLOOR)
    shortest = float(np.quantile(latencies(stamps).ttft, 0.05))
    return Target(log.name, stamps.requests, bins, whole, noise, shortest, stamps.closed_loop)


def _from_counters(name: str, counters: Counters, seed: int) -> Target:
    """As many requests of the mean lengths as a closed loop of the mean batch needs to settle."""
    count = max(1, round(counters.running))
    total = 12 * count
    lengths = np.random.default_rng(seed).exponential(1.0, (2, total))
    means = (counters.prompt_tokens - counters.cached_tokens, counters.output_tokens)
    prompt, output = (np.maximum(1, np.rint(m * d)).astype(np.int32) for m, d in zip(means, lengths, strict=True))
    wave = first_wave(total, count, 0)
    requests = Requests(wave, prompt, output, concurrency=count, think_s=np.zeros(total))
    seen, noise = np.array([np.nan] * 3 + [counters.tpot_s, counters.ttft_s]), np.array([1.0, 1.0, 1.0, 0.03, 0.1])
    return Target(name, requests, np.zeros(4), seen, noise, counters.ttft_s, closed_loop=True)


def _means(stamps: Stamps, bins: Floats, part: Any = None) -> Floats:
    q = stamps.requests
    sent = np.zeros(len(q)) if stamps.closed_loop else q.arrival_s
    return means_of(q.prompt_tokens, q.output_tokens, stamps.first_token_s - sent,
                    stamps.last_token_s - stamps.first_token_s, bins, part)  # fmt: skip


def means_of(prompt: Any, output: Any, ttft_s: Floats, rest_s: Floats, bins: Floats, part: Any = None) -> Floats:
    """Time to the first token by thirds of the prompts, per output token, and to the first token of all."""
    at = np.arange(len(prompt)) if part is None else part
    third = np.clip(np.searchsorted(bins[1:3], prompt[at]), 0, 2)
    several = output[at] > 1
    ttft = [float(ttft_s[at][third == i].mean()) if (third == i).any() else np.nan for i in range(3)]
    tpot = rest_s[at][several] / (output[at][several] - 1)
    return np.array([*ttft, float(tpot.mean()) if several.any() else np.nan, float(ttft_s[at].mean())])


def simulated(scenario: Scenario, target: Target, constants: Constants) -> Floats:
    front = scenario.front_end.model_copy(update={"reply_s": constants.reply})
    chosen = scenario.model_copy(update={"front_end": front})
    q = run(chosen, requests=target.requests, adjust=constants.adjusted).cluster.requests
    ttft = q.first_token_s - q.arrival_s
    return means_of(q.prompt_tokens, q.output_tokens, ttft, q.last_token_s - q.first_token_s, target.bins)


def fit_requests(
    scenario: Scenario, targets: Sequence[Target], *, with_scale: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> RequestFit:  # fmt: skip
    """The constants with which a simulation gives the recorded means, by damped Gauss-Newton from several starts."""
    names = ["per_iteration"]
    names += ["per_sequence"] if len({load_of(target.name) for target in targets}) > 1 else []
    names += ["scale"] if with_scale else []
    most = limits(targets)
    tried = []
    for turn, share in enumerate(STARTS):
        if on_progress:
            on_progress(turn, len(STARTS) + 2)
        free = (*names, "launch") if share else tuple(names)
        tried.append((*_newton(scenario, targets, Constants(launch=share * most["launch"]), free, most, 2), free))
    constants, error, free = min(tried, key=lambda one: one[1])
    constants, error = _newton(scenario, targets, constants, free, most)
    if on_progress:
        on_progress(len(STARTS) + 1, len(STARTS) + 2)
    # A reply time is believed only where nothing else explains first tokens: it and launching both delay them.
    replied, left = _newton(scenario, targets, constants, (*free, "reply"), most)
    if left < WORTH * error:
        constants, error, free = replied, left, (*free, "reply")
    if on_progress:
        on_progress(len(STARTS) + 2, len(STARTS) + 2)
    matrix, residual = _linearised(scenario, targets, constants, free)
    count = int(np.isfinite(residual).sum())
    misfit = error / max(1, count - len(free))
    covariance: Floats = np.linalg.pinv(matrix.T @ matrix, rcond=1e-8).astype(np.float64) * max(1.0, misfit)
    factor = QUANTILE_90[min(max(1, count - len(free)), len(QUANTILE_90)) - 1]
    errors = {t.name: simulated(scenario, t, constants) / t.means - 1.0 for t in targets}
    return RequestFit(constants, free, covariance, factor, float(np.sqrt(misfit)), errors)


def limits(targets: Sequence[Target]) -> dict[str, float]:
    """The most that each constant can be: no longer than what the quickest requests saw."""
    first, token = min(target.shortest for target in targets), float(np.nanmin([t.means[3] for t in targets]))
    return {"per_iteration": token, "per_sequence": token, "launch": first, "reply": first, "scale": 1.5}


def _residual(scenario: Scenario, targets: Sequence[Target], constants: Constants) -> Floats:
    parts = []
    for target in targets:
        with np.errstate(invalid="ignore"):
            parts.append(np.log(simulated(scenario, target, constants) / target.means) / target.noise)
        if np.isfinite(target.means[:3]).any():
            parts[-1][4] = np.nan  # The mean of all is in the thirds.
    return np.nan_to_num(np.concatenate(parts))


def _linearised(
    scenario: Scenario, targets: Sequence[Target], constants: Constants, free: Sequence[str]
) -> tuple[Floats, Floats]:
    """How the residuals move with each constant, and the residuals."""
    base = _residual(scenario, targets, constants)
    steps = {name: _step(name, targets) for name in free}
    moved = [replace(constants, **{name: getattr(constants, name) + step}) for name, step in steps.items()]
    grown = [_residual(scenario, targets, one) - base for one in moved]
    return np.stack(grown, 1) / list(steps.values()), base


def _step(name: str, targets: Sequence[Target]) -> float:
    """How far to move a constant to see what it does: a few percent of a token's time."""
    tpot = float(np.nanmean([target.means[3] for target in targets]))
    batch = max(1.0, float(np.mean([len(target.requests) for target in targets])) ** 0.5)
    return {"scale": 0.03, "per_sequence": 0.05 * tpot / batch}.get(name, 0.05 * tpot)


def _newton(
    scenario: Scenario, targets: Sequence[Target], start: Constants, free: Sequence[str], most: dict[str, float],
    turns: int = 6,
) -> tuple[Constants, float]:  # fmt: skip
    """Damped steps within what is possible; returns the constants and the sum of squares."""
    constants, damping = start, 1e-3
    error = float(np.sum(_residual(scenario, targets, constants) ** 2))
    for _ in range(turns):
        matrix, residual = _linearised(scenario, targets, constants, free)
        gram, gradient = matrix.T @ matrix, matrix.T @ residual
        for _ in range(4):
            step = -np.linalg.solve(gram + damping * np.diag(np.diag(gram) + 1e-30), gradient)
            values = {
                n: min(most[n], max(LEAST.get(n, 0.0), getattr(constants, n) + float(d)))
                for n, d in zip(free, step, strict=True)
            }
            moved = replace(constants, **values)
            reached = float(np.sum(_residual(scenario, targets, moved) ** 2))
            if reached < error:
                break
            damping *= 10.0
        else:
            break
        gain, constants, error, damping = error - reached, moved, reached, damping * 0.3
        if gain < 1e-3 * error:
            break
    return constants, error
