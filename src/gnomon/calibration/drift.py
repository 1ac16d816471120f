"""A host that is not always as fast: states of it within a log, and rounds that were slower than others.

Looked at are iterations that the host decides: it takes most of their time, or the GPU waits for launching.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnomon.calibration.kernels import Kernels
from gnomon.calibration.logs import Steps
from gnomon.calibration.step_fit import Fit
from gnomon.core.arrays import Floats
from gnomon.timing.host import WINDOW_S

LEAST_FACTOR, LEAST_GAP = 1.2, 3.0
"""Two states are seen where the slow one takes so many times as long, and so many standard deviations of the other."""
SLOW_ROUND = 1.1  # A round is slow where its host takes so many times as long as that of the median round.
FEW = 4  # Logs, below which quarters of logs are compared.


@dataclass(frozen=True)
class States:
    """A host that is slow for a while, now and then."""

    factor: float
    share: float
    """Of the time."""
    spell_s: float
    cut: float
    """From which ratio to the constants on a window is slow."""


def windows(fit: Fit, steps: Steps, kernels: Kernels) -> Floats:
    """[window]: how many times longer than the constants say the host took; NaN where nothing tells."""
    host, predicted_s = _host(fit, steps, kernels)
    by_host = host > 0.5 * predicted_s
    at = (steps.at_s / WINDOW_S).astype(int)
    out = np.full(int(at.max()) + 1, np.nan)
    ratio = np.maximum(1.0 + (steps.seconds - predicted_s) / np.maximum(host, 1e-9), 0.1)
    for window in np.unique(at[by_host]):
        out[window] = np.median(ratio[by_host & (at == window)])
    return out


def states_of(logs: Sequence[Floats]) -> States | None:
    """The two states that the windows of several logs show, if they do."""
    known = [one[np.isfinite(one)] for one in logs]
    values = np.log(np.concatenate(known)) if known else np.zeros(0)
    if values.size < 20:
        return None
    low, high = np.quantile(values, (0.3, 0.97))
    for _ in range(30):
        cut = (low + high) / 2
        if (values >= cut).all() or not (values >= cut).any():
            return None
        low, high = values[values < cut].mean(), values[values >= cut].mean()
    slow = values >= cut
    if high - low < max(np.log(LEAST_FACTOR), LEAST_GAP * values[~slow].std()) or slow.mean() > 0.5:
        return None
    spells = sum(int(np.count_nonzero(np.diff(np.r_[False, np.log(one) >= cut].astype(int)) > 0)) for one in known)
    factor = float(np.exp(values[slow]).mean() / np.exp(values[~slow]).mean())
    return States(factor, float(slow.mean()), WINDOW_S * int(slow.sum()) / max(1, spells), float(np.exp(cut)))


def pace_of(steps: Steps, found: Floats, states: States | None) -> Floats:
    """How many times longer the host takes during each iteration, by the state of its window."""
    at = np.minimum((steps.at_s / WINDOW_S).astype(int), len(found) - 1)
    if states is None:
        return np.ones(len(steps))
    return np.where(np.nan_to_num(found, nan=1.0)[at] >= states.cut, states.factor, 1.0)


def trace_of(found: Floats, count: int = 4096) -> Floats:
    """The windows as paces of a simulation: where nothing tells, as in the one before; after the end as constants."""
    at = np.maximum.accumulate(np.where(np.isfinite(found), np.arange(len(found)), 0))
    return np.r_[np.nan_to_num(found[at], nan=1.0), np.ones(max(0, count - len(found)))]


def host_factor(fit: Fit, steps: Steps, kernels: Kernels) -> float:
    """How many times longer than the constants say the iterations of a log took that the host decides."""
    host, predicted_s = _host(fit, steps, kernels)
    weight = steps.felt * (host > 0.5 * predicted_s)
    return float(1.0 + weight @ (steps.seconds - predicted_s) / (weight @ host)) if weight.any() else 1.0


def _host(fit: Fit, steps: Steps, kernels: Kernels) -> tuple[Floats, Floats]:
    """Of each iteration by the constants: what the host decides, launching that the GPU waits for too, and all."""
    predicted_s, gpu = fit.seconds(steps, kernels), kernels.seconds(fit.scale, fit.clock)
    launch = np.array([phase.launch for phase in fit.phases])[steps.phase]
    waits = (launch > 0.0) & (gpu < launch + kernels.after)
    return np.where(waits, predicted_s, predicted_s - gpu), predicted_s


def spread_of(fit: Fit, logs: Sequence[tuple[Steps, Kernels]]) -> float:
    """Standard deviation of the logarithm of what the host takes from round to round. Rounds of one recording have as
    much in common as those of the next may not have: it is not divided by their number."""
    parts = 1 if len(logs) >= FEW else 4
    factors = []
    for steps, kernels in logs:
        for part in np.array_split(np.arange(len(steps)), parts):
            some = kernels.take(part)
            factors.append(host_factor(fit, steps.take(part), some))
    return float(np.std(np.log(factors), ddof=1)) if len(factors) > 1 else 0.0


def slow_rounds(factors: dict[str, float]) -> dict[str, float]:
    """Logs whose host took longer than that of the median one, with how many times."""
    usual = float(np.median(list(factors.values()))) if factors else 1.0
    return {name: factor / usual for name, factor in factors.items() if factor > SLOW_ROUND * usual}
