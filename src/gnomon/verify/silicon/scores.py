"""Figures of merit over many predicted servers: errors by group, and whether the best layout is found."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from gnomon.verify.silicon.predict import Scored

TPOT_LIMITS_S = (0.010, 0.020, 0.030, 0.050, 0.100)
"""Interactivity at which layouts are ranked: 100 to 10 tokens per second and user."""
MIN_SERVERS = 5
"""Servers that a group needs to be ranked."""

GROUPS: dict[str, Callable[[Scored], str]] = {
    "family": lambda s: s.server.family,
    "engine": lambda s: s.server.engine,
    "system": lambda s: s.server.device,
    "model": lambda s: s.server.model.split("/")[-1],
    "precision": lambda s: s.server.precision or "as the checkpoint",
    "mode": lambda s: s.server.mode,
}


@dataclass(frozen=True)
class Errors:
    """Relative errors of one group of servers."""

    servers: int
    """All of the group."""
    covered: int
    """Those with a prediction."""
    ttft_mape: float
    ttft_median: float
    ttft_bias: float
    tpot_mape: float
    tpot_median: float
    tpot_bias: float


def errors_of(scored: Iterable[Scored]) -> Errors | None:
    """Mean and median absolute error and mean error of a group; None where nothing of it was predicted."""
    group = list(scored)
    covered = [s for s in group if s.prediction.problem is None]
    if not covered:
        return None
    ttft = np.array([s.ttft_error for s in covered])
    tpot = np.array([s.tpot_error for s in covered])
    figures = [f for x in (ttft, tpot) for f in (np.abs(x).mean(), np.median(np.abs(x)), x.mean())]
    return Errors(len(group), len(covered), *(float(value) for value in figures))


def errors_by(scored: Iterable[Scored], name: str) -> dict[str, Errors]:
    """The errors of each group of `GROUPS[name]`, the largest group first."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[GROUPS[name](one)].append(one)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return {group: errors for group, members in ordered if (errors := errors_of(members)) is not None}


@dataclass(frozen=True)
class Ranking:
    """How good the layout is that the simulator would choose."""

    choices: int
    """(model, system, engine, precision, lengths) x TPOT limit with at least two layouts."""
    agreement: float
    """Share of them in which the predicted best layout is the measured best."""
    median_regret: float
    """Measured throughput per GPU lost by following the prediction."""
    mean_regret: float


def ranking(scored: Iterable[Scored]) -> Ranking | None:
    """Does the predicted best aggregated layout under a TPOT limit match the measured best?"""
    regrets = np.array([regret for group in _comparable(scored) for regret in _regrets(group)])
    if not regrets.size:
        return None
    return Ranking(regrets.size, float((regrets == 0).mean()), float(np.median(regrets)), float(regrets.mean()))


def _comparable(scored: Iterable[Scored]) -> list[list[Scored]]:
    groups: dict[object, list[Scored]] = defaultdict(list)
    for one in scored:
        s = one.server
        if s.mode == "agg" and one.prediction.problem is None:
            place = (s.family, s.model, s.device, s.engine, s.precision, s.prompt_tokens, s.output_tokens)
            groups[place].append(one)
    return [group for group in groups.values() if len(group) >= MIN_SERVERS]


def _regrets(group: list[Scored]) -> Iterable[float]:
    for limit_s in TPOT_LIMITS_S:
        measured: dict[object, float] = {}
        predicted: dict[object, float] = {}
        for one in group:
            s, p = one.server, one.prediction
            layout = (s.layout, s.version)
            for best, ttft_s, tpot_s in ((measured, s.ttft_s, s.tpot_s), (predicted, p.ttft_s, p.tpot_s)):
                if tpot_s <= limit_s:
                    best[layout] = max(best.get(layout, 0.0), per_gpu(one, ttft_s, tpot_s))
        if len(measured) >= 2 and predicted:
            chosen = max(predicted, key=lambda layout: predicted[layout])
            yield 1.0 - measured.get(chosen, 0.0) / max(measured.values())


def per_gpu(scored: Scored, ttft_s: float, tpot_s: float) -> float:
    """Output tokens per second and GPU of a closed loop with these latencies."""
    s = scored.server
    per_request_s = ttft_s + tpot_s * (s.output_tokens - 1)
    return s.concurrency * s.output_tokens / per_request_s / s.num_gpus
