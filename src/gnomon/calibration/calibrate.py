"""From logs to a calibration: fit, foretell every load from the others, and say what the logs cannot tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnomon import __version__
from gnomon.calibration import naming
from gnomon.calibration.kernels import Kernels, kernels_of, with_kv
from gnomon.calibration.logs import Log
from gnomon.calibration.replay import Figures, figures, matched
from gnomon.calibration.request_fit import RequestFit, fit_requests, simulated, target_of
from gnomon.calibration.step_fit import Data, Fit, fit_steps, thinned
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Calibration, Constant, Load, Provenance
from gnomon.serving.scenario.engine_presets import filled_in, nested

LEAST_ERROR = 0.01
"""Standard deviation of what stays, at least: no server repeats itself exactly."""
ONE_LOAD = (
    "Only one load was seen: constants that grow with the batch may be far off at others (a slope fitted at a low load "
    "was once 42 % wrong at a high one). Add a log of a higher load."
)


@dataclass(frozen=True, eq=False)
class Check:
    """One load: how far the constants are off on it, once without having seen it."""

    name: str
    is_fitted: bool
    steps: int
    requests: int
    step_error: float | None
    """Of the mean iteration (each counts as often as it has sequences), by the final constants."""
    foretold: float | None
    """The same, by constants fitted on the other loads only."""
    figures: Figures | None
    """Latencies of its requests, recorded and simulated."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration, and how it does on every load."""

    calibration: Calibration
    scenario: Scenario
    """With the constants."""
    checks: list[Check]
    logs: list[Log] = field(repr=False)


def load_of(name: str) -> str:
    """The load a log belongs to: `chat-60`, `chat-60.2` and `chat-60.3` are repeats of one."""
    return re.sub(r"\.\d+$", "", name)


def with_facts(scenario: Scenario, logs: Sequence[Log]) -> Scenario:
    """The scenario, with the settings that the logs name where it gives none."""
    given = scenario.model_dump(mode="json", exclude_unset=True)
    return build(Scenario, filled_in(given, nested(logs[0].facts)))


def calibrate(
    logs: Sequence[Log], scenario: Scenario, *, hold_out: Sequence[str] = (), with_scale: bool = False,
    with_clock: bool = True, on_progress: Callable[[int, int], None] | None = None,
) -> Calibrated:  # fmt: skip
    """Fit the constants of a server to `logs`; those named in `hold_out` are only foretold."""
    names = [log.name for log in logs]
    if len(set(names)) < len(names):
        raise ConfigError("two logs have the same name.", where=", ".join(names), fix="Rename one of them.")
    for name in hold_out:
        if name not in names and name not in map(load_of, names):
            raise ConfigError(f"no log is called {name!r}.", where="--hold-out", fix=f"There are: {', '.join(names)}.")
    fitted = [log for log in logs if log.name not in hold_out and load_of(log.name) not in hold_out]
    if not fitted:
        raise ConfigError("every log is held out.", where="--hold-out")
    base = with_facts(scenario, logs)
    if fitted[0].steps is not None:
        found = _from_steps(fitted, logs, base, with_scale=with_scale, with_clock=with_clock)
    else:
        found = _from_requests(fitted, logs, base, with_scale=with_scale, on_progress=on_progress)
    constants, order, spread, notes, errors = found
    loads = {load_of(log.name) for log in fitted}
    if len(loads) == 1:
        notes = [ONE_LOAD, *notes]
    calibration = Calibration(
        format="gnomon-calibration",
        constants=constants,
        names=order,
        spread=tuple(tuple(float(f"{value:.6g}") for value in row) for row in spread),
        error=round(_left_error(logs, fitted, errors), 4),
        provenance=Provenance(
            gnomon=__version__,
            model=base.model,
            device=base.device,
            source=base.timing.source,
            loads=tuple(
                Load(
                    name=log.name,
                    steps=len(log.steps) if log.steps is not None else 0,
                    requests=len(log.stamps.requests) if log.stamps is not None else 0,
                    fitted=log in fitted,
                    error=round(errors.get(log.name, (0.0, None))[0] or 0.0, 5),
                )
                for log in logs
            ),
            notes=tuple(notes),
        ),
    )
    calibrated = with_constants(base, calibration)
    checks = [_check(name, logs, fitted, calibrated, errors) for name in dict.fromkeys(map(load_of, names))]
    return Calibrated(calibration, calibrated, checks, list(logs))


def with_constants(base: Scenario, calibration: Calibration) -> Scenario:
    """The scenario with a calibration's constants in place of its own."""
    given = base.model_dump(mode="json", exclude_unset=True)
    return build(Scenario, filled_in(nested(calibration.settings), given))


Errors = dict[str, tuple[float | None, float | None]]
Found = tuple[dict[str, Constant], tuple[str, ...], Any, list[str], Errors]


def _check(load: str, logs: Sequence[Log], fitted: Sequence[Log], scenario: Scenario, errors: Errors) -> Check:
    """One load, its repeats together."""
    mine = [log for log in logs if load_of(log.name) == load]
    pairs = [(log.stamps, matched(scenario, log)) for log in mine if log.stamps is not None]
    return Check(
        name=load,
        is_fitted=mine[0] in fitted,
        steps=sum(len(log.steps) for log in mine if log.steps is not None),
        requests=sum(len(log.stamps.requests) for log in mine if log.stamps is not None),
        step_error=_pooled(mine, errors, 0),
        foretold=_pooled(mine, errors, 1),
        figures=figures(pairs) if pairs else None,
    )


def _pooled(logs: Sequence[Log], errors: Errors, which: int) -> float | None:
    known = [error for log in logs if (error := errors.get(log.name, (None, None))[which]) is not None]
    return float(np.mean(known)) if known else None


def _left_error(logs: Sequence[Log], fitted: Sequence[Log], errors: Errors) -> float:
    """What stays on a load that was not fitted: on those held out, else on each as foretold from two others or more,
    else twice what stays on those that were fitted. The first of these that is known."""
    names = {load_of(log.name): [one for one in logs if load_of(one.name) == load_of(log.name)] for log in logs}
    held = [mine for mine in names.values() if mine[0] not in fitted]
    own = [mine for mine in names.values() if mine[0] in fitted]
    foretold = [_pooled(mine, errors, 1) for mine in own] if len(own) > 2 else []
    seen = [_pooled(mine, errors, 0) for mine in own]
    ways = ([_pooled(mine, errors, 0) for mine in held], foretold, [2.0 * one for one in seen if one is not None])
    known = next((known for way in ways if (known := [error for error in way if error is not None])), [0.0])
    return max(LEAST_ERROR, float(np.sqrt(np.mean(np.square(known)))))


def _from_steps(fitted: list[Log], logs: Sequence[Log], base: Scenario, *, with_scale: bool, with_clock: bool) -> Found:
    stepped = [with_kv(base, log) for log in logs if log.steps is not None]
    kernels = kernels_of(base, stepped)
    used = {log.name for log in fitted}
    thin = {log.name: thinned(log.steps, kernels[log.name]) for log in stepped if log.steps is not None}

    def fit(names: Sequence[str]) -> Fit:
        data = Data([thin[name][0] for name in names], [thin[name][1] for name in names])
        return fit_steps(data, with_clock=with_clock, with_scale=with_scale)

    own = [log.name for log in stepped if log.name in used]
    final = fit(own)
    loads = sorted({load_of(name) for name in own})
    left_out = {one: fit([name for name in own if load_of(name) != one]) for one in loads if len(loads) > 1}
    errors: Errors = {}
    for log in stepped:
        without = left_out.get(load_of(log.name)) if log.name in used else final
        errors[log.name] = (
            _mean_error(log, kernels[log.name], final),
            _mean_error(log, kernels[log.name], without) if without else None,
        )
    data = Data([thin[name][0] for name in own], [thin[name][1] for name in own])
    constants, order, spread, notes = naming.of_steps(final, data, base)
    notes += [
        f"{log.name} does not say how much KV its decodes read: the mean of its requests was taken."
        for log in logs
        if log.steps is not None and not log.steps.knows_kv
    ]
    return constants, order, spread, notes, errors


def _mean_error(log: Log, kernels: Kernels, fit: Fit) -> float:
    assert log.steps is not None
    weight = log.steps.sequences
    return float(weight @ fit.seconds(log.steps, kernels) / (weight @ log.steps.seconds) - 1.0)


def _from_requests(
    fitted: list[Log], logs: Sequence[Log], base: Scenario, *, with_scale: bool,
    on_progress: Callable[[int, int], None] | None,
) -> Found:  # fmt: skip
    targets = [target_of(log) for log in fitted]
    found = fit_requests(base, targets, with_scale=with_scale, on_progress=on_progress)
    errors: Errors = {name: (float(error[3]), None) for name, error in found.errors.items()}
    loads = sorted({load_of(log.name) for log in fitted})
    for one in loads if len(loads) > 2 else []:
        rest = [target for target in targets if load_of(target.name) != one]
        without: RequestFit = fit_requests(base, rest, with_scale=with_scale)
        for target in targets:
            if load_of(target.name) == one:
                told = simulated(base, target, without.constants) / target.means - 1.0
                errors[target.name] = (errors[target.name][0], float(told[3]))
    held = [log for log in logs if log not in fitted and (log.stamps is not None or log.counters is not None)]
    for target in map(target_of, held):
        told = simulated(base, target, found.constants) / target.means - 1.0
        errors[target.name] = (float(told[3]), float(told[3]))
    constants, order, spread, notes = naming.of_requests(found, base, len(targets))
    return constants, order, spread, notes, errors
