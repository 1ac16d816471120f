"""Fitted constants under the names of a scenario's fields, with their intervals and what cannot be told of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnomon import catalog
from gnomon.calibration.logs import PHASES
from gnomon.calibration.request_fit import RequestFit
from gnomon.calibration.step_fit import BLOCKS, FEW, Data, Fit, Phase, covariance
from gnomon.core.arrays import Floats
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import Constant

Named = tuple[dict[str, Constant], tuple[str, ...], Floats, list[str]]
LEAST_S, LEAST_SHARE = 1e-6, 0.005
"""Half of an interval is at least this: clocks and formats are not finer."""
DRIFT, DRIFT_PARTS = 1.3, 8
"""A host drifts where, of at least so many parts of the logs, the slowest tenth takes so much longer than the fastest
tenth."""
ALIKE = 0.98
"""Correlation beyond which two constants are known by their sum only."""


def of_steps(fit: Fit, data: Data, scenario: Scenario) -> Named:
    """The constants of iterations."""
    layers = catalog.model(scenario.model).num_layers
    names = [
        (index, name)
        for index, phase in enumerate(fit.phases)
        if phase.borrowed is None and phase.count
        for name in ("constant", "per_sequence", "launch")
        if name == "constant" or getattr(phase, name) > 0.0
    ]
    names += [(-1, name) for name, is_fitted in (("clock", fit.clock < 1.0), ("scale", fit.scale != 1.0)) if is_fitted]
    matrix, factor = covariance(fit, data, names)
    half = {name: factor * np.sqrt(max(matrix[i, i], 0.0)) for i, name in enumerate(names)}
    constants: dict[str, Constant] = {}
    for index, phase in enumerate(fit.phases):
        place = index if phase.borrowed is None else phase.borrowed
        for name, value in (
            ("constant", phase.constant),
            ("per_sequence", phase.per_sequence),
            ("launch", phase.launch),
        ):
            share = layers if name == "launch" else 1
            one = _constant(value / share, half.get((place, name), 0.0) / share, found=(place, name) in half)
            constants[_dotted(index, name)] = one
        for key in ("per_token_s", "exposed_s", "launch_s"):
            constants[f"timing.host.{PHASES[index]}.{key}"] = Constant(value=0.0, low=0.0, high=0.0, identified=False)
    for name in ("clock", "scale"):
        if (-1, name) in half:
            constants[f"timing.{name}"] = _constant(
                getattr(fit, name), half[-1, name], most=1.0 if name == "clock" else None
            )
    dotted = tuple(_dotted(*name) for name in names)
    size = np.array([1.0 / layers if name == "launch" else 1.0 for _, name in names])
    notes = [note for index, phase in enumerate(fit.phases) for note in _phase_notes(index, phase, data)]
    notes += [note for index in range(len(PHASES)) for note in _drift(index, fit, data)]
    notes += _alike(dotted, matrix)
    if fit.clock == 1.0:
        notes.append("timing.clock: no iteration shows a lower clock than that of the kernels' measurements.")
    return constants, dotted, _root(matrix * np.outer(size, size)), notes


def _drift(index: int, fit: Fit, data: Data) -> list[str]:
    """Words on a host that is slower in some parts of the logs than in others, at the same work."""
    ratios = []
    for steps, kernels in zip(data.steps, data.kernels, strict=True):
        mine = np.flatnonzero(steps.phase == index)
        ratio = steps.seconds[mine] / fit.seconds(steps, kernels)[mine]
        parts = np.array_split(ratio, min(BLOCKS, len(mine) // FEW)) if len(mine) >= FEW else []
        ratios += [float(np.median(part)) for part in parts]
    if len(ratios) < DRIFT_PARTS:
        return []
    low, high = np.quantile(ratios, (0.1, 0.9))
    if high < DRIFT * low:
        return []
    return [
        f"{PHASES[index]}: the host drifts: a tenth of the logs' parts take {low:.2f} times what the constants say or "
        f"less, another tenth {high:.2f} times or more. Record more and shorter rounds, in turn over the loads."
    ]


def of_requests(fit: RequestFit, scenario: Scenario, num_loads: int) -> Named:
    """The constants that latencies tell."""
    layers = catalog.model(scenario.model).num_layers
    c, sizes = fit.constants, []
    half = {name: fit.factor * np.sqrt(max(fit.covariance[i, i], 0.0)) for i, name in enumerate(fit.names)}
    constants, order = {}, []
    for name, value in (("per_iteration", c.per_iteration), ("per_sequence", c.per_sequence), ("launch", c.launch),
                        ("reply", c.reply), ("scale", c.scale)):  # fmt: skip
        if name == "scale" and name not in half:
            continue
        share = layers if name == "launch" else 1
        for dotted in _REQUEST_FIELDS[name]:
            constants[dotted] = _constant(value / share, half.get(name, 0.0) / share, found=name in half)
    for name in fit.names:
        order.append(_REQUEST_FIELDS[name][0])
        sizes.append(1.0 / layers if name == "launch" else 1.0)
    for key in ("per_token_s", "exposed_s", "launch_s", "decode.launch_per_layer_s"):
        constants[f"timing.host.{key}"] = Constant(value=0.0, low=0.0, high=0.0, identified=False)
    notes = [
        "Latencies alone do not tell phases apart: iterations with prompts and of decodes share one constant. "
        "Step logs do."
    ]
    if "launch" not in fit.names or not constants[_REQUEST_FIELDS["launch"][0]].identified:
        notes.append("The launch bound of prompts cannot be identified: no prompt is short enough to show it.")
    if num_loads < 2:
        notes.append("timing.host.per_sequence_s cannot be identified from one load.")
    if fit.misfit > 3.0:
        notes.append(
            f"The means are {fit.misfit:.1f} times further off than chance explains: something else differs. "
            "`gnomon explain-gap` lists what."
        )
    notes += _alike(order, fit.covariance)
    return constants, tuple(order), _root(fit.covariance * np.outer(sizes, sizes)), notes


_REQUEST_FIELDS = {
    "per_iteration": ("timing.host.per_iteration_s",),
    "per_sequence": ("timing.host.per_sequence_s",),
    "launch": ("timing.host.prefill.launch_per_layer_s", "timing.host.mixed.launch_per_layer_s"),
    "reply": ("front_end.reply_s",),
    "scale": ("timing.scale",),
}
_STEP_FIELDS = {"constant": "per_iteration_s", "per_sequence": "per_sequence_s", "launch": "launch_per_layer_s"}


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
        return [f"{name}: {phase.count} iterations seen, fewer than {FEW}; the constants are those of "
                f"{PHASES[phase.borrowed]} iterations."]  # fmt: skip
    if not phase.count:
        return [f"{name}: no iteration seen; nothing can be said about its host time."]
    notes = []
    _, sequences, memory, compute = data.phase(index)
    if sequences.std() < 0.05 * sequences.mean():
        notes.append(f"{name}: all batches have about {sequences.mean():.0f} sequences: a part per sequence cannot be "
                     "identified.")  # fmt: skip
    if phase.launch > 0.0 and phase.bound > 0.98:
        notes.append(f"{name}: every iteration waits for launching: the bound and the constant are known by their sum "
                     "only. Add a log with longer prompts.")  # fmt: skip
    if phase.launch == 0.0:
        shortest = 1e3 * float((memory + compute).min())
        notes.append(f"{name}: no launch bound above the shortest kernels ({shortest:.2g} ms) can be seen.")
    return notes


def _alike(names: Sequence[str], matrix: Floats) -> list[str]:
    """Pairs of constants that the logs tell apart by hardly anything."""
    size = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    correlation = matrix / np.outer(size, size)
    return [
        f"{names[i]} and {names[j]} are known by their sum only (correlation {correlation[i, j]:.2f})."
        for i in range(len(names))
        for j in range(i)
        if correlation[i, j] < -ALIKE
    ]


def _root(matrix: Floats) -> Floats:
    """S with S Sᵀ the matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
