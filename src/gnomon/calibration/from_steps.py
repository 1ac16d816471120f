"""Constants from steps of several logs: first as if the host were always the same, then with what it was like."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnomon.calibration import drift
from gnomon.calibration.kernels import kernels_of, with_kv
from gnomon.calibration.logs import Log, Steps, load_of
from gnomon.calibration.step_fit import Data, Fit, fit_steps, forms_of, levelled, thinned, with_clock
from gnomon.core.arrays import Floats
from gnomon.serving.scenario import Scenario
from gnomon.timing.host import WINDOW_S

FIRST = (("launch", "sequence"), ("sequence",), ("launch", "sequence"))
"""Forms of the first fit, which only tells where the host was slow."""


@dataclass(frozen=True, eq=False)
class StepFit:
    """Constants, the data that they were fitted on, and how the host changed meanwhile."""

    fit: Fit
    data: Data
    states: drift.States | None
    drift: float


class StepLogs:
    """The steps of logs with the GPU's part of each."""

    def __init__(self, base: Scenario, logs: Sequence[Log], *, with_scale: bool, with_clock: bool) -> None:
        stepped = [with_kv(base, log) for log in logs if log.steps is not None]
        self.kernels = kernels_of(base, stepped)
        self.steps = {log.name: log.steps for log in stepped if log.steps is not None}
        self.thin = {name: thinned(steps, self.kernels[name]) for name, steps in self.steps.items()}
        self.with_scale, self.with_clock = with_scale, with_clock

    def fit(self, names: Sequence[str]) -> StepFit:
        """Constants of some logs. Forms and shapes are found with the host as slow as it was from window to window, the
        level so that the mean iteration is as recorded."""
        at_one = self._data(names, {name: np.ones(len(self.thin[name][0])) for name in names})
        found, forms, clock = fit_steps(at_one, FIRST), list(FIRST), 1.0
        scale = fit_steps(at_one, FIRST, with_scale=True).scale if self.with_scale else 1.0
        for turn in range(2):
            windows = {name: drift.windows(found, *self.thin[name]) for name in names}
            traced = self._data(names, {name: _at(self.thin[name][0], drift.trace_of(windows[name])) for name in names})
            states = drift.states_of(list(windows.values()))
            paces = {name: drift.pace_of(self.thin[name][0], windows[name], states) for name in names}
            data = self._data(names, paces)
            if turn == 0:
                forms = forms_of(traced)
            elif self.with_clock:
                forms, clock = with_clock(data, forms, scale)
            found = levelled(data, fit_steps(traced, forms, clock, with_scale=self.with_scale))
        return StepFit(found, data, states, drift.spread_of(found, [self.thin[name] for name in names]))

    def _data(self, names: Sequence[str], paces: dict[str, Floats]) -> Data:
        steps, kernels = zip(*(self.thin[name] for name in names), strict=True)
        return Data(steps, kernels, [load_of(name) for name in names], [paces[name] for name in names])

    def error(self, one: StepFit, name: str) -> float:
        """Of the mean iteration of a log, by constants; each counts as often as requests wait for it."""
        steps, kernels = self.steps[name], self.kernels[name]
        states = one.states
        usual = 1.0 if states is None else 1.0 + states.share * (states.factor - 1.0)
        return float(steps.felt @ one.fit.seconds(steps, kernels, usual) / (steps.felt @ steps.seconds) - 1.0)

    def host_factor(self, one: StepFit, name: str) -> float:
        """How many times longer than the constants say the host took in a log."""
        return drift.host_factor(one.fit, self.steps[name], self.kernels[name])

    def trace(self, one: StepFit, name: str) -> Floats:
        """How slow the host was in a log, by windows."""
        return drift.trace_of(drift.windows(one.fit, self.steps[name], self.kernels[name]))


def _at(steps: Steps, trace: Floats) -> Floats:
    return trace[np.minimum((steps.at_s / WINDOW_S).astype(int), len(trace) - 1)]
