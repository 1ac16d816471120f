"""From logs to a calibration: fit, predict every load from the others, and say what the logs cannot tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnomon import __version__
from gnomon.calibration import drift, naming
from gnomon.calibration.kernels import kernels_of, with_kv
from gnomon.calibration.logs import Log, Steps, load_of
from gnomon.calibration.naming import Named, note
from gnomon.calibration.replay import Promises, promises
from gnomon.calibration.request_fit import fit_requests, simulated, target_of
from gnomon.calibration.step_fit import Data, Fit, fit_steps, forms_of, levelled, thinned, with_clock
from gnomon.core.arrays import Floats
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Calibration, Load, Provenance
from gnomon.serving.scenario.engine_presets import filled_in, nested
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


LEAST_ERROR = 0.01  # Standard deviation of what stays, at least: no server repeats itself exactly.
CANNOT = 0.1  # Beyond this error on loads left out, latencies are said not to tell enough.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Check:
    """One load: how far constants that have not seen it are off."""

    name: str
    is_fitted: bool
    """Else it was held out. Either way it is predicted from the other loads, where there are any."""
    steps: int
    requests: int
    step_error: float | None
    """Of the mean iteration (each counts as often as requests wait for it), by the final constants; from latencies
    alone, of the time per output token."""
    predicted: float | None
    """Error of the mean iteration, by constants fitted on the other loads only."""
    promised: Promises | None
    """Latencies of its requests, recorded and predicted by simulation."""
    at_pace: Promises | None
    """The same with the host as slow as during the recording, where steps tell it."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration, and how it does on every load."""

    calibration: Calibration
    scenario: Scenario
    """With the constants."""
    checks: list[Check]
    logs: list[Log] = field(repr=False)


def with_facts(scenario: Scenario, logs: Sequence[Log]) -> Scenario:
    """The scenario, with the settings that logs name where it gives none; an error where they name another model."""
    given = scenario.model_dump(mode="json", exclude_unset=True)
    for log in logs:
        for name, own in (("model", scenario.model), ("device", scenario.device)):
            if name in given and log.facts.get(name, own) != own:
                what = f"was recorded with the {name} {log.facts[name]}, the scenario has {own}."
                raise ConfigError(what, where=log.name, fix="Give the scenario of that server, or its own logs.")
    return build(Scenario, filled_in(given, nested(logs[0].facts)))


def with_constants(base: Scenario, calibration: Calibration) -> Scenario:
    given = base.model_dump(mode="json", exclude_unset=True)
    return build(Scenario, filled_in(nested(calibration.settings), given))


def calibrate(
    logs: Sequence[Log], scenario: Scenario, *, hold_out: Sequence[str] = (), leave_out_slow: bool = True,
    with_scale: bool = False, with_clock: bool = True, on_progress: Progress | None = None,
) -> Calibrated:  # fmt: skip
    """Fit the constants of a server to `logs`; those named in `hold_out` are only predicted. Rounds with a slow host
    are left out of both with `leave_out_slow`, where their load has others."""
    names = [log.name for log in logs]
    if len(set(names)) < len(names):
        raise ConfigError("two logs have the same name.", where=", ".join(names), fix="Rename one of them.")
    for name in hold_out:
        if name not in names and name not in map(load_of, names):
            raise ConfigError(f"no log is called {name!r}.", where="--hold-out", fix=f"There are: {', '.join(names)}.")
    held = {name for name in names if name in hold_out or load_of(name) in hold_out}
    if len(held) == len(names):
        raise ConfigError("every log is held out.", where="--hold-out")
    base = with_facts(scenario, logs)
    stepped = [log.name for log in logs if log.steps is not None]
    if len(stepped) < len(names) and stepped:
        missing = ", ".join(name for name in names if name not in stepped)
        raise ConfigError(f"has no steps, others have: {missing}.", where="logs", fix="Give steps of all, or of none.")
    way: _BySteps | _ByRequests = _BySteps(base, logs, held, with_scale, with_clock) if stepped else _ByRequests(
        base, logs, with_scale, on_progress)  # fmt: skip
    slow = way.slow
    has_others = {load_of(name) for name in names if name not in slow}
    left_out = {name for name in slow if leave_out_slow and load_of(name) in has_others}
    used = [log for log in logs if log.name not in left_out]
    fitted = [log.name for log in used if log.name not in held]
    loads = list(dict.fromkeys(map(load_of, fitted)))
    final = way.fit(fitted)
    others = {one: way.fit([name for name in fitted if load_of(name) != one]) for one in loads if len(loads) > 1}
    errors = {
        log.name: (final.error(log.name), others.get(load_of(log.name), final).error(log.name))
        if log.name in held or others
        else (final.error(log.name), None)
        for log in used
    }
    left = _left_error(errors, held, loads)
    notes = [*final.named[3], *_slow_notes(slow, names, left_out), *way.notes]
    if len(loads) == 1:
        notes = [note("one_load"), *notes]
    made = [_calibration(one, base, left) for one in (final, *others.values())]
    load_records = tuple(
        Load(name=log.name, steps=len(log.steps) if log.steps is not None else 0,
             requests=len(log.stamps.requests) if log.stamps is not None else 0, fitted=log.name in fitted,
             error=round(errors[log.name][0] or 0.0, 5))
        for log in used
    )  # fmt: skip
    about = made[0].provenance.model_copy(update={"loads": load_records, "notes": tuple(notes)})
    calibration = made[0].model_copy(update={"provenance": about})
    by_load = dict(zip(others, made[1:], strict=True))
    checks = [
        _check([log for log in used if load_of(log.name) == one], base, by_load.get(one, calibration), errors, held,
               others.get(one, final))
        for one in dict.fromkeys(load_of(log.name) for log in used)
    ]  # fmt: skip
    if not stepped and (worst := _worst(checks)) > CANNOT:
        notes.insert(0, note("cannot", limit=CANNOT, worst=worst))
        constants = dict(calibration.constants)
        constants["front_end.reply_s"] = constants["front_end.reply_s"].model_copy(update={"identified": False})
        about = about.model_copy(update={"notes": tuple(notes)})
        calibration = calibration.model_copy(
            update={"constants": constants, "provenance": about, "error": max(calibration.error, worst)}
        )
    return Calibrated(calibration, with_constants(base, calibration), checks, list(used))


def _worst(checks: Sequence[Check]) -> float:
    """The largest error of a mean on a load that the constants have not seen."""
    known = [one.promised for one in checks if one.promised is not None and one.predicted is not None]
    return max((abs(some["mean"].error) for one in known for some in one.values()), default=0.0)


Errors = dict[str, tuple[float | None, float | None]]


def _check(
    mine: Sequence[Log], base: Scenario, known: Calibration, errors: Errors, held: set[str], found: Found
) -> Check:
    """One load, its repeats together, by constants that have not seen it where there are such."""
    stamped = [log for log in mine if log.stamps is not None]
    chosen = with_constants(base, known)
    paces = {log.name: found.pace(log.name) for log in stamped}
    own = {name: pace for name, pace in paces.items() if pace is not None}
    return Check(
        name=load_of(mine[0].name),
        is_fitted=mine[0].name not in held,
        steps=sum(len(log.steps) for log in mine if log.steps is not None),
        requests=sum(len(log.stamps.requests) for log in stamped if log.stamps is not None),
        step_error=_mean([errors[log.name][0] for log in mine]),
        predicted=_mean([errors[log.name][1] for log in mine]),
        promised=promises(chosen, known, stamped) if stamped else None,
        at_pace=promises(chosen, known, stamped, own) if stamped and len(own) == len(stamped) else None,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _left_error(errors: Errors, held: set[str], loads: Sequence[str]) -> float:
    """What stays on a load that was not fitted: on those held out and on each as predicted from the others; with one
    load only, twice what stays on it."""
    by_load: dict[str, list[float | None]] = {}
    for name, (own, predicted) in errors.items():
        is_predicted = name in held or len(loads) > 1
        by_load.setdefault(load_of(name), []).append(predicted if is_predicted else None if own is None else 2.0 * own)
    known = [error for some in by_load.values() if (error := _mean(some)) is not None]
    return max(LEAST_ERROR, float(np.sqrt(np.mean(np.square(known)))) if known else 0.0)


def _slow_notes(slow: dict[str, float], names: Sequence[str], left_out: set[str]) -> list[str]:
    """Which rounds were slow, and what that does to their loads: a simulation has the host of a usual round."""

    def slow_note(some: dict[str, float]) -> str:
        return note("slow", rounds=", ".join(f"{name} ({factor:.2f} times)" for name, factor in some.items()))

    rounds, notes = Counter(map(load_of, names)), []
    kept = {name: factor for name, factor in slow.items() if name not in left_out}
    if left_out:
        some = slow_note({name: factor for name, factor in slow.items() if name in left_out})
        notes.append(note("slow_left_out", slow=some))
    if kept:
        parts = ", ".join(f"{load} ({n} of {rounds[load]})" for load, n in Counter(map(load_of, kept)).items())
        notes.append(note("slow_kept", slow=slow_note(kept), parts=parts))
    return notes


def _calibration(found: Found, base: Scenario, error: float) -> Calibration:
    constants, order, spread, _ = found.named
    return Calibration(
        format="gnomon-calibration",
        constants=constants,
        names=order,
        spread=tuple(tuple(float(f"{value:.6g}") for value in row) for row in spread),
        error=round(error, 4),
        drift=round(found.drift, 4),
        provenance=Provenance(
            gnomon=__version__, model=base.model, device=base.device, source=base.timing.source, loads=()
        ),
    )


# The two ways: from steps, and from latencies alone


@dataclass(frozen=True, eq=False)
class Found:
    """Constants fitted on some logs, and what they make of all."""

    named: Named
    drift: float
    error: Callable[[str], float | None]
    """Of a log, by its name."""
    pace: Callable[[str], Floats | None]
    """How slow the host was during a log, where it is known."""


class _BySteps:
    """What each iteration took."""

    def __init__(self, base: Scenario, logs: Sequence[Log], held: set[str], scale: bool, clock: bool) -> None:
        self.base, self.logs = base, StepLogs(base, logs, with_scale=scale, with_clock=clock)
        self.names = [log.name for log in logs if log.name not in held]
        self.own = self.logs.fit(self.names)
        self.slow = drift.slow_rounds({log.name: self.logs.host_factor(self.own, log.name) for log in logs})
        unsure = [log.name for log in logs if log.steps is not None and not log.steps.knows_kv]
        self.notes = [note("mean_kv", log=name) for name in unsure]

    def fit(self, names: Sequence[str]) -> Found:
        one = self.own if list(names) == self.names else self.logs.fit(names)
        named = naming.of_steps(one.fit, one.data, self.base, one.states)
        return Found(named, one.drift, lambda name: self.logs.error(one, name), lambda name: self.logs.trace(one, name))


class _ByRequests:
    """What clients saw."""

    def __init__(self, base: Scenario, logs: Sequence[Log], scale: bool, on_progress: Progress | None) -> None:
        self.base, self.with_scale, self.on_progress = base, scale, on_progress
        self.targets = {log.name: target_of(log) for log in logs}
        self.slow: dict[str, float] = {}
        self.notes: list[str] = []

    def fit(self, names: Sequence[str]) -> Found:
        own = [self.targets[name] for name in names]
        found = fit_requests(self.base, own, with_scale=self.with_scale, on_progress=self.on_progress)
        self.on_progress = None  # Of the first, which is the final one.

        def error(name: str) -> float | None:
            target = self.targets[name]
            return float((simulated(self.base, target, found.constants) / target.means - 1.0)[3])

        return Found(naming.of_requests(found, self.base, own), 0.0, error, lambda _: None)
