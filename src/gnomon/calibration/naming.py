"""Fitted constants under the names of a scenario's fields, with their intervals and what cannot be told of them."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.calibration.drift import States
from gnomon.calibration.logs import PHASES, load_of
from gnomon.calibration.request_fit import LEAST, RequestFit, Target, limits
from gnomon.calibration.step_fit import FEW, LIMITS, Data, Fit, Phase, covariance, joined
from gnomon.core.arrays import Floats
from gnomon.core.text import own_yaml
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Constant

Named = tuple[dict[str, Constant], tuple[str, ...], Floats, list[str]]
LEAST_S, LEAST_SHARE = 1e-6, 0.005  # Half of an interval is at least this: clocks and formats are not finer.
TOO_FAR = 3.0  # Means that are so many times further off than chance explains: no reply time is identified then.
ALIKE = 0.98  # Correlation beyond which two constants are known by their sum only.


NOTES: dict[str, str] = own_yaml(files("gnomon.calibration") / "notes.yaml")


def note(kind: str, **facts: Any) -> str:
    return NOTES[kind].format(**facts)


def of_steps(fit: Fit, data: Data, scenario: Scenario, states: States | None) -> Named:
    """The constants of iterations; data at the paces of the host."""
    layers = catalog.model(scenario.model).num_layers
    names = [
        (index, name)
        for index, phase in enumerate(fit.phases)
        if phase.borrowed is None and phase.count
        for name in _STEP_FIELDS
        if ("flat" in phase.form if name == "further_share" else getattr(phase, name) > 0.0)
    ]
    names += [(-1, name) for name, is_fitted in (("clock", fit.clock < 1.0), ("scale", fit.scale != 1.0)) if is_fitted]
    matrix, factor = covariance(fit, data, names) if names else (np.zeros((0, 0)), 1.0)
    half = {name: factor * np.sqrt(max(matrix[i, i], 0.0)) for i, name in enumerate(names)}
    constants: dict[str, Constant] = {}
    for index, phase in enumerate(fit.phases):
        place = index if phase.borrowed is None else phase.borrowed
        for name in _STEP_FIELDS:
            if name == "further_share" and "flat" not in phase.form:
                continue
            share = layers if name == "launch" else 1
            value = getattr(phase, name) / share
            found = (place, name) in half
            most = 1.0 if name == "further_share" else None
            one = _constant(value, half.get((place, name), 0.0) / share, found=found, most=most)
            constants[_dotted(index, name)] = one
        if "flat" in phase.form:
            full = float(phase.full_sequences)
            constants[f"timing.host.{PHASES[index]}.full_sequences"] = Constant(value=full, low=full, high=full)
        for key in ("exposed_s", "launch_s"):
            constants[f"timing.host.{PHASES[index]}.{key}"] = Constant(value=0.0, low=0.0, high=0.0, identified=False)
    notes = [note for index, phase in enumerate(fit.phases) for note in _phase_notes(index, phase, data)]
    for name in ("clock", "scale"):
        if (-1, name) in half:
            value, (low, high) = getattr(fit, name), LIMITS[name]
            is_inside = low * 1.01 < value < (high * 0.99 if name == "scale" else high)
            constants[f"timing.{name}"] = _constant(value, half[-1, name], found=is_inside, most=high)
            if not is_inside:
                notes.append(note("at_bound", name=f"timing.{name}", bound=f" ({low:g} to {high:g})"))
    if states is not None:
        constants |= _slow(states, sum(float(one.at_s[-1]) for one in data.steps))
    dotted = tuple(_dotted(*name) for name in names)
    size = np.array([1.0 / layers if name == "launch" else 1.0 for _, name in names])
    notes += _alike(dotted, matrix)
    if fit.clock == 1.0:
        notes.append(note("no_clock"))
    return constants, dotted, _root(matrix * np.outer(size, size)), notes


def _slow(states: States, seconds: float) -> dict[str, Constant]:
    """The two states of the host; spells are what is independent in a recording of so many seconds."""
    off = 1.65 * float(np.sqrt(2.0 * states.spell_s * states.share * (1.0 - states.share) / max(seconds, 1.0)))
    return {
        "timing.host.slow_share": _constant(states.share, off, most=0.99),
        "timing.host.slow_factor": _constant(states.factor, 0.1 * states.factor),
        "timing.host.slow_spell_s": _constant(states.spell_s, 0.5 * states.spell_s),
    }


def of_requests(fit: RequestFit, scenario: Scenario, targets: Sequence[Target]) -> Named:
    """The constants that latencies tell. Those that hardly differ in what they do to latencies are not identified."""
    layers, most = catalog.model(scenario.model).num_layers, limits(targets)
    half = {name: fit.factor * np.sqrt(max(fit.covariance[i, i], 0.0)) for i, name in enumerate(fit.names)}
    pairs = _pairs(fit.names, fit.covariance)
    at_bound = {n for n in fit.names if getattr(fit.constants, n) > 0.99 * most[n]}
    at_bound |= {"scale"} if "scale" in fit.names and fit.constants.scale < 1.01 * LEAST["scale"] else set()
    is_explained = not at_bound and fit.misfit <= TOO_FAR  # Else a reply time makes up for what is not in the others.
    constants = {}
    for name, fields in _REQUEST_FIELDS.items():
        if name == "scale" and name not in half:
            continue
        share, value = layers if name == "launch" else 1, getattr(fit.constants, name)
        is_found = name in half and name not in at_bound and not any(name in pair for pair in pairs)
        is_found = is_found and (is_explained or name != "reply")
        for field in fields:
            constants[field] = _constant(value / share, half.get(name, 0.0) / share, found=is_found)
    order = tuple(_REQUEST_FIELDS[name][0] for name in fit.names)
    sizes = [1.0 / layers if name == "launch" else 1.0 for name in fit.names]
    for key in ("per_token_s", "exposed_s", "launch_s", "decode.launch_per_layer_s"):
        constants[f"timing.host.{key}"] = Constant(value=0.0, low=0.0, high=0.0, identified=False)
    dotted = {name: fields[0] for name, fields in _REQUEST_FIELDS.items()}
    notes = [note("one_constant"), *(note("same", one=dotted[a], other=dotted[b]) for a, b in pairs)]
    notes += [note("at_bound", name=dotted[name], bound="") for name in sorted(at_bound)]
    if "launch" not in fit.names or not constants[dotted["launch"]].identified:
        notes.append(note("no_launch"))
    if len({load_of(target.name) for target in targets}) < 2:
        notes.append(note("no_slope"))
    if fit.misfit > TOO_FAR:
        notes.append(note("misfit", misfit=fit.misfit))
    return constants, order, _root(fit.covariance * np.outer(sizes, sizes)), notes


def _correlation(matrix: Floats) -> Floats:
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    return np.asarray(matrix / np.outer(size, size))


def _pairs(names: Sequence[str], matrix: Floats) -> list[tuple[str, str]]:
    """Constants that latencies tell apart by little."""
    close = np.abs(_correlation(matrix)) > 0.9
    return [(names[j], names[i]) for i in range(len(names)) for j in range(i) if close[i, j]]


_REQUEST_FIELDS = {
    "per_iteration": ("timing.host.per_iteration_s",),
    "per_sequence": ("timing.host.per_sequence_s",),
    "launch": ("timing.host.prefill.launch_per_layer_s", "timing.host.mixed.launch_per_layer_s"),
    "reply": ("front_end.reply_s",),
    "scale": ("timing.scale",),
}
_STEP_FIELDS = {"constant": "per_iteration_s", "per_sequence": "per_sequence_s", "further_share": "further_share",
                "per_token": "per_token_s", "launch": "launch_per_layer_s"}  # fmt: skip


def _dotted(index: int, name: str) -> str:
    return f"timing.host.{PHASES[index]}.{_STEP_FIELDS[name]}" if index >= 0 else f"timing.{name}"


def _constant(value: float, half: float, *, found: bool = True, most: float | None = None) -> Constant:
    half = max(half, LEAST_SHARE * value, LEAST_S if most is None and value < 0.5 else 0.0)
    low, high = max(0.0, value - half), value + half if most is None else min(most, value + half)
    is_found = found and low > 0.0 and half < value
    return Constant(value=_short(value), low=_short(low), high=_short(high), identified=is_found)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _phase_notes(index: int, phase: Phase, data: Data) -> list[str]:
    name = PHASES[index]
    if phase.borrowed is not None:
        return [note("borrowed", name=name, count=phase.count, few=FEW, other=PHASES[phase.borrowed])]
    if not phase.count:
        return [note("unseen", name=name)]
    notes = []
    rows = joined(data.rows(index))
    if rows.sequences.std() < 0.05 * rows.sequences.mean():
        notes.append(note("one_size", name=name, size=rows.sequences.mean()))
    if phase.launch > 0.0 and phase.bound > 0.98:
        notes.append(note("all_wait", name=name))
    if phase.launch == 0.0:
        notes.append(note("no_bound", name=name, shortest=1e3 * float(rows.gpu().min())))
    return notes


def _alike(names: Sequence[str], matrix: Floats) -> list[str]:
    """Pairs of constants that the logs tell apart by hardly anything."""
    correlation = _correlation(matrix)
    return [
        note("sum_only", one=names[i], other=names[j], correlation=correlation[i, j])
        for i in range(len(names))
        for j in range(i)
        if correlation[i, j] < -ALIKE
    ]


def _root(matrix: Floats) -> Floats:
    """S with S Sᵀ the matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
