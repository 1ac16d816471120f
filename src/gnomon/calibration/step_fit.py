"""Host constants from iterations: what each took beyond its kernels, by phase.

An iteration of a phase takes `constant + per_sequence x sequences + max(kernels, launching)`. For a given bound of
launching the rest is a least-squares problem with nothing below zero; the bound is found by trying. Each iteration
counts as often as it has sequences, as it does in the latencies of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnomon.calibration.kernels import Kernels
from gnomon.calibration.logs import PHASES, Steps
from gnomon.core.arrays import Floats

FORMS: tuple[tuple[str, ...], ...] = ((), ("sequence",), ("launch",), ("sequence", "launch"))
"""What a phase may have beside its constant, the simplest first."""
WORTH = 0.02
"""A form with more constants must foretell what it was not fitted on better by this share of its squared error."""
BLOCKS = 12
"""Parts of a log in time: neighbours err together, so that a part counts as one observation."""
ENOUGH = 2000
"""Iterations of a phase of one log; more of them tell no more."""
FEW = 20
"""Iterations of a phase below which its constants are those of another."""
LIKE = ((2, 1), (2, 0), (0, 1))
"""For each phase, whose constants it takes then."""
QUANTILE_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
"""Of Student's t at 95 %, for 1, 2, ... degrees of freedom."""


SCALES = (0.7, 1.5)
"""Least and most factor on all kernels: beyond, they are not those of this GPU."""


@dataclass(frozen=True)
class Phase:
    """The constants of one phase, in seconds."""

    constant: float = 0.0
    per_sequence: float = 0.0
    launch: float = 0.0
    form: tuple[str, ...] = ()
    count: int = 0
    """Iterations seen."""
    bound: float = 0.0
    """Share of them that waited for launching."""
    borrowed: int | None = None
    """The phase whose constants these are, where too few iterations were seen."""


@dataclass(frozen=True)
class Fit:
    """All constants of a server's iterations."""

    phases: tuple[Phase, Phase, Phase]
    scale: float = 1.0
    clock: float = 1.0

    def seconds(self, steps: Steps, kernels: Kernels) -> Floats:
        """What iterations take by these constants."""
        gpu, out = kernels.seconds(self.scale, self.clock), np.empty(len(steps))
        for index, phase in enumerate(self.phases):
            mine = steps.phase == index
            host = phase.constant + phase.per_sequence * steps.sequences[mine]
            out[mine] = host + np.maximum(gpu[mine], phase.launch)
        return out


@dataclass(frozen=True, eq=False)
class Data:
    """Iterations of several loads, and the GPU's part of each."""

    steps: Sequence[Steps]
    kernels: Sequence[Kernels]

    def without(self, index: int) -> Data:
        """All loads but one."""
        keep = [i for i in range(len(self.steps)) if i != index]
        return Data([self.steps[i] for i in keep], [self.kernels[i] for i in keep])

    def phase(self, index: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Seconds, sequences, memory-bound and compute-bound seconds of one phase's iterations."""
        parts = []
        for steps, kernels in zip(self.steps, self.kernels, strict=True):
            mine = steps.phase == index
            parts.append((steps.seconds[mine], steps.sequences[mine].astype(float), kernels.memory[mine],
                          kernels.compute[mine]))  # fmt: skip
        seconds, sequences, memory, compute = (np.concatenate(column) for column in zip(*parts, strict=True))
        return seconds, sequences, memory, compute


def thinned(steps: Steps, kernels: Kernels) -> tuple[Steps, Kernels]:
    """At most `ENOUGH` iterations of each phase, evenly over the log."""
    phase = steps.phase
    kept = []
    for index in range(len(PHASES)):
        mine = np.flatnonzero(phase == index)
        kept.append(mine[np.unique(np.linspace(0, len(mine) - 1, min(ENOUGH, len(mine))).astype(int))])
    order = np.sort(np.concatenate(kept))
    return steps.take(order), Kernels(kernels.memory[order], kernels.compute[order])


def fit_steps(data: Data, *, with_clock: bool = True, with_scale: bool = False) -> Fit:
    """Constants by phase, the clock where compute-bound iterations show one, and a factor on kernels if asked for."""
    forms = [_form(data, index) for index in range(len(PHASES))]
    fit = _at(data, forms, 1.0, 1.0)
    if with_scale:
        fit = _refined(data, forms, fit, "scale", *SCALES)
    if with_clock:
        fit = _refined(data, forms, fit, "clock", 0.6, 1.0)
        if with_scale:
            fit = _refined(data, forms, fit, "scale", *SCALES)
    return fit


def _form(data: Data, index: int) -> tuple[str, ...]:
    """The form of a phase that foretells best the loads (or parts of one load) that it was not fitted on."""
    folds = data if len(data.steps) > 1 else _parts(data)
    whole = data.phase(index)
    if len(whole[0]) < FEW:
        return ()
    best: tuple[str, ...] = ()
    least = np.inf
    for form in FORMS:
        error = 0.0
        for i in range(len(folds.steps)):
            seconds, sequences, memory, compute = Data([folds.steps[i]], [folds.kernels[i]]).phase(index)
            rest = folds.without(i).phase(index)
            if not len(seconds) or len(rest[0]) < 10:
                continue
            phase = _phase(rest[0], rest[1], rest[2] + rest[3], form)
            told = _told(phase, sequences, memory + compute)
            error += float(np.sum(sequences * np.abs(seconds - told)))  # Squares would heed one slow round only.
        if error < least * (1.0 - WORTH / 2):
            best, least = form, error
    return best


def _parts(data: Data, count: int = 5) -> Data:
    """One load cut by how busy it was, so that a slope must hold for sizes that it has not seen."""
    [steps], [kernels] = data.steps, data.kernels
    order = np.argsort(steps.sequences, kind="stable")
    parts = np.array_split(order, count)
    return Data(
        [steps.take(part) for part in parts], [Kernels(kernels.memory[part], kernels.compute[part]) for part in parts]
    )


def _at(data: Data, forms: Sequence[tuple[str, ...]], scale: float, clock: float) -> Fit:
    phases = []
    for index, form in enumerate(forms):
        seconds, sequences, memory, compute = data.phase(index)
        phases.append(_phase(seconds, sequences, scale * (memory + compute / clock), form))
    borrowed = [_borrowed(phases, index) for index in range(len(phases))]
    return Fit((borrowed[0], borrowed[1], borrowed[2]), scale, clock)


def _borrowed(phases: Sequence[Phase], index: int) -> Phase:
    """A phase that was hardly seen takes the constants of the one most like it: prompts those of mixed iterations."""
    if phases[index].count >= FEW:
        return phases[index]
    for other in LIKE[index]:
        if phases[other].count >= FEW:
            return replace(phases[other], count=phases[index].count, borrowed=other)
    return phases[index]


def _error(data: Data, fit: Fit) -> float:
    return sum(
        float(np.sum(steps.sequences * (steps.seconds - fit.seconds(steps, kernels)) ** 2))
        for steps, kernels in zip(data.steps, data.kernels, strict=True)
    )


def _refined(data: Data, forms: Sequence[tuple[str, ...]], fit: Fit, name: str, low: float, high: float) -> Fit:
    """The same with one factor moved to where the error is least (golden section), if that is worth it."""

    def at(value: float) -> Fit:
        moved = {"scale": fit.scale, "clock": fit.clock, name: value}
        return _at(data, forms, moved["scale"], moved["clock"])

    ratio = (np.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    errors = {left: _error(data, at(left)), right: _error(data, at(right))}
    for _ in range(14):
        if errors[left] < errors[right]:
            high, right = right, left
            left = high - ratio * (high - low)
            errors[left] = _error(data, at(left))
        else:
            low, left = left, right
            right = low + ratio * (high - low)
            errors[right] = _error(data, at(right))
    found = at(0.5 * (low + high))
    return found if _error(data, found) < (1.0 - WORTH) * _error(data, fit) else fit


def _phase(seconds: Floats, sequences: Floats, gpu: Floats, form: tuple[str, ...]) -> Phase:
    """The constants of one phase; the bound of launching by trying, finer and finer."""
    if not len(seconds):
        return Phase()
    best, least = _linear(seconds, sequences, gpu, 0.0, form)
    if "launch" in form:
        low, high = 0.5 * float(gpu.min()), float(np.quantile(seconds, 0.98))
        for _ in range(4):
            for bound in np.linspace(low, high, 17).tolist():
                one, error = _linear(seconds, sequences, gpu, bound, form)
                if error < least:
                    best, least = one, error
            step = (high - low) / 8
            low, high = max(0.0, best.launch - step), best.launch + step
    return replace(best, count=len(seconds), bound=float(np.mean(gpu < best.launch)))


def _linear(
    seconds: Floats, sequences: Floats, gpu: Floats, launch: float, form: tuple[str, ...]
) -> tuple[Phase, float]:
    """Constant and slope for a given bound, neither below zero, and the weighted sum of squares that they leave."""
    left = seconds - np.maximum(gpu, launch)
    weighted = sequences * left
    sums = np.array([weighted.sum(), weighted @ sequences])
    squares = sequences * sequences
    ones, slope, both = sequences.sum(), squares @ sequences, squares.sum()
    tried = [(0.0, 0.0), (max(0.0, sums[0] / ones), 0.0)]
    if "sequence" in form:
        tried.append((0.0, max(0.0, sums[1] / slope)))
        determinant = ones * slope - both * both
        if determinant > 1e-9 * ones * slope:
            constant = (slope * sums[0] - both * sums[1]) / determinant
            per_sequence = (ones * sums[1] - both * sums[0]) / determinant
            if constant >= 0.0 and per_sequence >= 0.0:
                tried.append((constant, per_sequence))
    whole = float(weighted @ left)
    errors = [
        whole - 2.0 * (c * sums[0] + s * sums[1]) + c * c * ones + 2.0 * c * s * both + s * s * slope for c, s in tried
    ]
    at = int(np.argmin(errors))
    return Phase(float(tried[at][0]), float(tried[at][1]), launch, form), float(errors[at])


def _told(phase: Phase, sequences: Floats, gpu: Floats) -> Floats:
    return phase.constant + phase.per_sequence * sequences + np.maximum(gpu, phase.launch)


# How sure the constants are


def jacobian(fit: Fit, steps: Steps, kernels: Kernels, names: Sequence[tuple[int, str]]) -> Floats:
    """[iteration, constant]: how each iteration's time grows with each constant; phase -1: clock and scale."""
    gpu = kernels.seconds(fit.scale, fit.clock)
    phase_of, columns = steps.phase, []
    waits = gpu < np.array([phase.launch for phase in fit.phases])[phase_of]
    for phase, name in names:
        mine = (phase_of == phase).astype(float)
        match name:
            case "constant":
                columns.append(mine)
            case "per_sequence":
                columns.append(mine * steps.sequences)
            case "launch":
                columns.append(mine * waits)
            case "clock":
                columns.append(-fit.scale * kernels.compute / fit.clock**2 * ~waits)
            case _:
                columns.append(gpu / fit.scale * ~waits)
    return np.stack(columns, 1)


def covariance(fit: Fit, data: Data, names: Sequence[tuple[int, str]]) -> tuple[Floats, float]:
    """Of the constants, from how parts of the logs err together; and the factor of a 90 % interval.

    Parts of a log in time, not single iterations, are taken as independent: what slows a host lasts for seconds.
    """
    hessian, meat, parts = np.zeros((len(names), len(names))), np.zeros((len(names), len(names))), 0
    for steps, kernels in zip(data.steps, data.kernels, strict=True):
        gradient = jacobian(fit, steps, kernels, names)
        weight = steps.sequences.astype(float)
        error = weight * (steps.seconds - fit.seconds(steps, kernels))
        hessian += gradient.T @ (gradient * weight[:, None])
        for part in np.array_split(np.arange(len(steps)), min(BLOCKS, max(2, len(steps) // 20))):
            score = gradient[part].T @ error[part]
            meat += np.outer(score, score)
            parts += 1
    size = np.sqrt(np.maximum(np.diag(hessian), 1e-300))
    scaled = hessian / np.outer(size, size)
    inverse = np.linalg.pinv(scaled, rcond=1e-9) / np.outer(size, size)
    free = max(1, parts - len(names))
    factor = QUANTILE_90[min(free, len(QUANTILE_90)) - 1]
    return inverse @ meat @ inverse * (parts / free), factor
