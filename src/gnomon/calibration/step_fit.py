"""Host constants from iterations: what each took beyond its kernels, by phase.

An iteration of a phase takes `constant + per_sequence x sequences + per_token x tokens + max(kernels, launching)`;
beyond a number of sequences each may count by a share. For a given bound of launching the rest is a least-squares
problem with nothing below zero; the bound is found by trying. Each iteration counts as often as there are requests that
wait for it: those in its batch, those that another batch would serve, and those in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np

from gnomon.calibration.kernels import Kernels
from gnomon.calibration.logs import PHASES, Columns, Steps
from gnomon.core.arrays import Floats

EXTRAS = {"launch": 0.025, "sequence": 0.01, "token": 0.01, "flat": 0.01}
"""What a phase may have beside its constant (`flat`: sequences beyond a number count less), and by what share of the
absolute error it must predict better what it was not fitted on."""
APART = 1.15  # Kernels must differ by this factor for a bound of launching to be told from a constant.
WORTH = 0.01  # The same for a clock; of squared errors for a factor on kernels.
CLOCK_STEP = 0.05  # Clocks are tried from full speed down, as long as each predicts better than the one before.
PARTS = 5  # With fewer than three loads forms are chosen by parts of the batch sizes, each predicted from the others.
CLUSTERS = 6  # From so many logs on a log counts as one observation, else a part of one: neighbours err together.
BLOCKS = 12  # Parts of a log in time.
ENOUGH = 800  # Iterations of a phase of one log; more of them tell no more.
FEW = 20  # Iterations of a phase below which its constants are those of another.
LIKE = ((2, 1), (2, 0), (0, 1))  # For each phase, whose constants it takes then.
LIMITS = {"clock": (0.6, 1.0), "scale": (0.7, 1.5)}
"""What is possible: GPUs do not run far below the clock of the kernels' measurements for long, nor beyond it."""
FAR = 2.0  # Medians of the absolute error, beyond which an iteration counts less.
KNEES = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9)  # Quantiles of the batch sizes at which sequences may begin to count less.
QUANTILE_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75)
"""Of Student's t at 95 %, for 1, 2, ... degrees of freedom."""
Form = tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """The constants of one phase, in seconds."""

    constant: float = 0.0
    per_sequence: float = 0.0
    per_token: float = 0.0
    launch: float = 0.0
    full_sequences: int = 0
    further_share: float = 1.0
    form: Form = ()
    count: int = 0
    """Iterations seen."""
    bound: float = 0.0
    """Share of them that waited for launching."""
    borrowed: int | None = None
    """The phase whose constants these are, where too few iterations were seen."""

    def times(self, factor: float) -> Phase:
        seconds = ("constant", "per_sequence", "per_token", "launch")
        return replace(self, **{name: factor * getattr(self, name) for name in seconds})

    def launched(self, pace: Floats | float, after: Floats) -> Floats:
        """The least that the GPU's part takes: launching, and what begins behind it."""
        return np.asarray(pace * self.launch + after) if self.launch > 0.0 else np.zeros_like(after)

    def host(self, sequences: Floats, tokens: Floats) -> Floats:
        """What the host adds to the GPU's part."""
        counted = sequences - (1.0 - self.further_share) * np.maximum(0.0, sequences - self.full_sequences)
        return self.constant + self.per_sequence * counted + self.per_token * tokens


@dataclass(frozen=True)
class Fit:
    """All constants of a server's iterations."""

    phases: tuple[Phase, ...]
    scale: float = 1.0
    clock: float = 1.0

    def seconds(self, steps: Steps, kernels: Kernels, pace: Floats | float = 1.0) -> Floats:
        """What iterations take by these constants, at a pace of the host."""
        gpu, out = kernels.seconds(self.scale, self.clock), np.empty(len(steps))
        paces = np.broadcast_to(pace, len(steps))
        for index, phase in enumerate(self.phases):
            mine = steps.phase == index
            host = paces[mine] * phase.host(steps.sequences[mine], steps.tokens[mine])
            out[mine] = host + np.maximum(gpu[mine], phase.launched(paces[mine], kernels.after[mine]))
        return out


@dataclass(frozen=True, eq=False)
class Rows(Columns):
    """Iterations of one phase."""

    seconds: Floats
    sequences: Floats
    tokens: Floats
    memory: Floats
    compute: Floats
    after: Floats
    weight: Floats
    pace: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def gpu(self, scale: float = 1.0, clock: float = 1.0) -> Floats:
        return scale * (self.memory + self.compute / clock)


@dataclass(frozen=True, eq=False)
class Data:
    """Iterations of several logs, the GPU's part of each, the load that each log is of, and the pace of the host."""

    steps: Sequence[Steps]
    kernels: Sequence[Kernels]
    loads: Sequence[str]
    paces: Sequence[Floats]

    def rows(self, index: int) -> list[Rows]:
        """The iterations of one phase, by log."""
        found = []
        for steps, kernels, pace in zip(self.steps, self.kernels, self.paces, strict=True):
            mine = steps.phase == index
            gpu = (kernels.memory, kernels.compute, kernels.after)
            columns = (steps.seconds, steps.sequences, steps.tokens, *gpu, steps.felt, pace)
            found.append(Rows(*(column[mine].astype(float) for column in columns)))
        return found


def thinned(steps: Steps, kernels: Kernels) -> tuple[Steps, Kernels]:
    """At most `ENOUGH` iterations of each phase, evenly over the log."""
    phases = [np.flatnonzero(steps.phase == index) for index in range(len(PHASES))]
    kept = [mine[np.unique(np.linspace(0, len(mine) - 1, min(ENOUGH, len(mine))).astype(int))] for mine in phases]
    order = np.sort(np.concatenate(kept))
    return steps.timed().take(order), kernels.take(order)


def forms_of(data: Data) -> list[Form]:
    """What each phase has beside a constant."""
    return [_form(data.rows(index), data.loads) for index in range(len(PHASES))]


def with_clock(data: Data, forms: Sequence[Form], scale: float) -> tuple[list[Form], float]:
    """The clock that predicts best, and the forms with it: what prompts take longer at a lower clock looks like host
    time by the token, until they are longer than any that was seen."""
    folds = [_folds(data.rows(index), data.loads) for index in range(len(PHASES))]

    def error(forms: Sequence[Form], clock: float) -> float:
        return sum(_left_out_error(some, form, scale, clock) for some, form in zip(folds, forms, strict=True))

    full = error(forms, 1.0)
    found, clock, least = list(forms), 1.0, (1.0 - WORTH) * full
    for tried in (list(forms), [tuple(extra for extra in form if extra != "token") for form in forms]):
        before = full
        for number in range(1, round((1.0 - LIMITS["clock"][0]) / CLOCK_STEP) + 1):
            lower = 1.0 - number * CLOCK_STEP
            if (now := error(tried, lower)) >= before and number > 1:
                break
            if now < least:
                found, clock, least = tried, lower, now
            before = now
    return found, clock


def fit_steps(data: Data, forms: Sequence[Form], clock: float = 1.0, *, with_scale: bool = False) -> Fit:
    """Constants by phase near a clock, and a factor on kernels if asked for."""
    fit = _at(data, forms, 1.0, clock)
    if with_scale:
        fit = _refined(data, forms, fit, "scale", LIMITS["scale"])
    if clock < 1.0:
        fit = _refined(data, forms, fit, "clock", (clock - CLOCK_STEP, clock + CLOCK_STEP))
    return fit


def levelled(data: Data, fit: Fit) -> Fit:
    """The same constants times a factor for each phase, so that its mean iteration is as recorded at these paces."""
    phases = list(fit.phases)
    for index, phase in enumerate(phases):
        rows = joined(data.rows(index))
        if phase.borrowed is not None or not len(rows):
            continue
        gpu, low, high = rows.gpu(fit.scale, fit.clock), 0.2, 5.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            too_long = rows.weight @ _predicted_s(phase.times(middle), rows, gpu) > rows.weight @ rows.seconds
            low, high = (low, middle) if too_long else (middle, high)
        phases[index] = phase.times(0.5 * (low + high))
    return replace(fit, phases=tuple(_borrowed(phases, index) for index in range(len(phases))))


def joined(rows: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(one, name) for one in rows]) for name in Rows.__dataclass_fields__))


def _form(rows: Sequence[Rows], loads: Sequence[str]) -> Form:
    """The form of a phase that predicts best what it was not fitted on: one extra after the other, the best first."""
    whole, folds = joined(rows), _folds(rows, loads)
    if len(whole) < FEW:
        return ()
    short, long = np.quantile(whole.gpu() - whole.after, (0.05, 0.95))
    can_wait = bool(long > APART * short)
    best: Form = ()
    least = _left_out_error(folds, best)
    while True:
        extras = [e for e in EXTRAS if e not in best and (e != "flat" or "sequence" in best)]
        extras = [e for e in extras if e != "launch" or can_wait]
        errors = {e: _left_out_error(folds, (*best, e)) for e in extras}
        errors = {e: error for e, error in errors.items() if error < least * (1.0 - EXTRAS[e])}
        better = min(errors, key=lambda e: errors[e], default=None)
        if better is None:
            return best
        best, least = (*best, better), errors[better]


def _folds(rows: Sequence[Rows], loads: Sequence[str]) -> list[Rows]:
    """What is predicted from the rest: each load; with fewer than three, parts of the batch sizes."""
    names = sorted(set(loads))
    if len(names) > 2:
        return [joined([one for one, load in zip(rows, loads, strict=True) if load == name]) for name in names]
    whole = joined(rows)
    parts = np.array_split(np.lexsort((whole.tokens, whole.sequences)), PARTS)
    return [whole.take(part.astype(np.int64)) for part in parts]


def _left_out_error(folds: Sequence[Rows], form: Form, scale: float = 1.0, clock: float = 1.0) -> float:
    """The absolute error on every fold by constants of the others. Squares would heed one slow round only."""
    error = 0.0
    for i, one in enumerate(folds):
        rest = [other for j, other in enumerate(folds) if j != i and len(other)]
        if not len(one) or sum(map(len, rest)) < FEW // 2:
            continue
        others = joined(rest)
        phase = _phase(others, others.gpu(scale, clock), form)
        error += float(one.weight @ np.abs(one.seconds - _predicted_s(phase, one, one.gpu(scale, clock))))
    return error


def _predicted_s(phase: Phase, rows: Rows, gpu: Floats) -> Floats:
    host = rows.pace * phase.host(rows.sequences, rows.tokens)
    return np.asarray(host + np.maximum(gpu, phase.launched(rows.pace, rows.after)))


def _at(data: Data, forms: Sequence[Form], scale: float, clock: float) -> Fit:
    whole = [joined(data.rows(index)) for index in range(len(PHASES))]
    phases = [_phase(rows, rows.gpu(scale, clock), form) for rows, form in zip(whole, forms, strict=True)]
    return Fit(tuple(_borrowed(phases, index) for index in range(len(phases))), scale, clock)


def _borrowed(phases: Sequence[Phase], index: int) -> Phase:
    """A phase that was hardly seen takes the constants of the one most like it: prompts those of mixed iterations."""
    seen = next((other for other in (index, *LIKE[index]) if phases[other].count >= FEW), index)
    own = phases[index]
    return own if seen == index else replace(phases[seen], count=own.count, borrowed=seen)


def _error(data: Data, fit: Fit) -> float:
    return sum(
        float(steps.felt @ (steps.seconds - fit.seconds(steps, kernels, pace)) ** 2)
        for steps, kernels, pace in zip(data.steps, data.kernels, data.paces, strict=True)
    )


def _refined(data: Data, forms: Sequence[Form], fit: Fit, name: str, limits: tuple[float, float]) -> Fit:
    """The same with one factor moved to where the error is least (golden section), if that is worth it."""

    def at(value: float) -> Fit:
        return _at(data, forms, **({"scale": fit.scale, "clock": fit.clock} | {name: value}))

    (low, high), ratio = limits, (np.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    errors = {left: _error(data, at(left)), right: _error(data, at(right))}
    for _ in range(12):
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


def _phase(rows: Rows, gpu: Floats, form: Form) -> Phase:
    """The constants of one phase: least squares, then again with what is far off counting less. A host that becomes
    slow lets batches grow: outliers would be taken for the cost of large batches."""
    if not len(rows):
        return Phase()
    even = replace(rows, weight=rows.weight / rows.pace**2)
    first = _least_squares(even, gpu, form)
    off = np.abs(rows.seconds - _predicted_s(first, rows, gpu)) / rows.pace
    usual = float(np.median(off)) + 1e-12
    return _least_squares(replace(even, weight=even.weight * np.minimum(1.0, FAR * usual / np.maximum(off, usual))),
                          gpu, form)  # fmt: skip


def _least_squares(rows: Rows, gpu: Floats, form: Form) -> Phase:
    """The bound of launching by trying, finer and finer; the rest for each."""
    knees = sorted({int(k) for k in np.quantile(rows.sequences, KNEES)}) if "flat" in form else [0]
    best, least = Phase(), np.inf
    for knee in knees:
        linear = _Linear(rows, gpu, form, knee)
        one, error = linear.at(0.0)
        if "launch" in form:
            low, high = 0.5 * float((gpu - rows.after).min()), float(np.quantile(rows.seconds / rows.pace, 0.98))
            for _ in range(4):
                for bound in np.linspace(low, high, 13).tolist():
                    tried, wrong = linear.at(bound)
                    if wrong < error:
                        one, error = tried, wrong
                step = (high - low) / 6
                low, high = max(0.0, one.launch - step), one.launch + step
        if error < least:
            best, least = one, error
    waits = float(np.mean(gpu < best.launched(rows.pace, rows.after)))
    if waits == 1.0:  # Constant and bound are known by their sum: launching is by far the larger where all wait for it.
        best = replace(best, constant=0.0, launch=best.launch + best.constant)
    return replace(best, count=len(rows), bound=waits)


class _Linear:
    """The constants of a phase for a given bound of launching, none below zero."""

    def __init__(self, rows: Rows, gpu: Floats, form: Form, knee: int) -> None:
        self.rows, self.gpu, self.form, self.knee = rows, gpu, form, knee
        columns = [np.ones(len(rows))]
        if "flat" in form:
            columns += [np.minimum(rows.sequences, knee), np.maximum(0.0, rows.sequences - knee)]
        elif "sequence" in form:
            columns.append(rows.sequences)
        if "token" in form:
            columns.append(rows.tokens)
        design = np.stack(columns, 1) * rows.pace[:, None]
        self.size = np.sqrt(np.maximum((design * design).T @ rows.weight, 1e-300))
        design = design / self.size
        self.weighted = design * rows.weight[:, None]
        gram, count = self.weighted.T @ design, design.shape[1]
        self.free = [list(some) for n in range(count, 0, -1) for some in combinations(range(count), n)]
        self.inverse = cache(lambda i: np.linalg.pinv(gram[np.ix_(self.free[i], self.free[i])], rcond=1e-10))

    def at(self, launch: float) -> tuple[Phase, float]:
        """They, and the weighted sum of squares that they leave."""
        rows = self.rows
        left = rows.seconds - np.maximum(self.gpu, Phase(launch=launch).launched(rows.pace, rows.after))
        right, whole = self.weighted.T @ left, float(rows.weight @ (left * left))
        found, least = np.zeros(len(right)), whole
        for i, some in enumerate(self.free):
            values = self.inverse(i) @ (mine := right[some])
            if min(values.tolist()) >= 0.0 and (error := whole - float(values @ mine)) < least:
                found, least = np.zeros(len(right)), error
                found[some] = values
                if len(some) == len(right):  # Nothing is below zero where all are free.
                    break
        rest = (found / self.size).tolist()
        constant = rest.pop(0)
        slope = rest.pop(0) if "sequence" in self.form else 0.0
        further = rest.pop(0) if "flat" in self.form else slope
        if further > slope:
            return Phase(), np.inf
        share = further / slope if slope > 0.0 else 1.0
        token = rest.pop(0) if rest else 0.0
        return Phase(constant, slope, token, launch, self.knee, share, self.form), least


# How sure the constants are


def jacobian(fit: Fit, steps: Steps, kernels: Kernels, pace: Floats, names: Sequence[tuple[int, str]]) -> Floats:
    """[iteration, constant]: how each iteration's time grows with each constant; phase -1: clock and scale."""
    gpu = kernels.seconds(fit.scale, fit.clock)
    phase_of, columns = steps.phase, []
    launch = np.array([phase.launch for phase in fit.phases])[phase_of]
    waits = gpu < pace * launch + np.where(launch > 0.0, kernels.after, 0.0)
    for index, name in names:
        mine, phase = pace * (phase_of == index), fit.phases[index]
        beyond = np.maximum(0.0, steps.sequences - phase.full_sequences)
        grown = {
            "constant": mine, "per_sequence": mine * (steps.sequences - (1.0 - phase.further_share) * beyond),
            "further_share": mine * phase.per_sequence * beyond, "per_token": mine * steps.tokens,
            "launch": mine * waits, "clock": -fit.scale * kernels.compute / fit.clock**2 * ~waits,
            "scale": gpu / fit.scale * ~waits,
        }  # fmt: skip
        columns.append(grown[name])
    return np.stack(columns, 1)


def covariance(fit: Fit, data: Data, names: Sequence[tuple[int, str]]) -> tuple[Floats, float]:
    """Of the constants, from how logs, or parts of few logs, err together; and the factor of a 90 % interval.

    Single iterations are not independent: what slows a host lasts for seconds, and often for a whole round.
    """
    hessian, meat, parts = np.zeros((len(names), len(names))), np.zeros((len(names), len(names))), 0
    for steps, kernels, pace in zip(data.steps, data.kernels, data.paces, strict=True):
        gradient = jacobian(fit, steps, kernels, pace, names)
        error = steps.felt * (steps.seconds - fit.seconds(steps, kernels, pace))
        hessian += gradient.T @ (gradient * steps.felt[:, None])
        count = 1 if len(data.steps) >= CLUSTERS else min(BLOCKS, max(2, len(steps) // 20))
        for part in np.array_split(np.arange(len(steps)), count):
            score = gradient[part].T @ error[part]
            meat += np.outer(score, score)
            parts += 1
    size = np.sqrt(np.maximum(np.diag(hessian), 1e-300))
    scaled = hessian / np.outer(size, size)
    inverse = np.linalg.pinv(scaled, rcond=1e-9) / np.outer(size, size)
    free = max(1, parts - 1)
    factor = QUANTILE_90[min(free, len(QUANTILE_90)) - 1]
    return inverse @ meat @ inverse * (parts / free), factor
