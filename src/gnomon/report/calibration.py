"""A calibration in words: constants with their intervals, loads with their errors, what cannot be told."""

from __future__ import annotations

from typing import Any

from gnomon.calibration.calibrate import Calibrated, Check
from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table, lines
from gnomon.serving.scenario.calibration import Calibration

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def blocks(found: Calibrated) -> list[Block]:
    """What the terminal shows."""
    about = found.calibration.provenance
    is_held = any(not one.is_fitted for one in found.checks)
    out: list[Block] = [
        Line(f"{about.model} on {about.device}, kernels by the source {about.source}"),
        Table(constant_rows(found.calibration), caption="Interval: 90 %. Constants at zero are left out."),
        Table(
            [_load_row(one) for one in found.checks],
            caption="Errors of means, simulated over recorded. Predicted: by constants fitted on the other loads"
            + (" (held out: on the fitted ones)." if is_held else "."),
        ),
        Line(f"Error to expect of iterations at other loads: {found.calibration.error:.1%}"),
    ]
    warned = [note for note in about.notes if note.startswith("Only one load")]
    return [*out, *lines(warned, "warning"), *lines([note for note in about.notes if note not in warned], "note")]


def constant_rows(calibration: Calibration) -> list[dict[str, Any]]:
    """Every constant that is not zero, formatted."""
    return [
        {
            "constant": name,
            "value": _words(name, one.value),
            "90 % interval": f"{_words(name, one.low)} – {_words(name, one.high)}",
            "identified": "yes" if one.identified else "no",
        }
        for name, one in calibration.constants.items()
        if one.value != 0.0
    ]


def _words(name: str, value: float) -> str:
    return units.seconds(value) if name.endswith("_s") else f"{value:.4g}"


def _load_row(one: Check) -> dict[str, Any]:
    row: dict[str, Any] = {
        "load": one.name,
        "used": "fitted" if one.is_fitted else "held out",
        "of": f"{one.steps:,} steps" if one.steps else f"{one.requests:,} requests" if one.requests else "counters",
        "step" if one.steps else "error": _percent(one.step_error),
        "predicted": _percent(one.foretold),
    }
    if one.figures is not None:
        row |= {words: _percent(one.figures.error(metric)) for metric, words in METRICS.items()
                if metric in one.figures.values}  # fmt: skip
    return row


def check_row(one: Check) -> dict[str, Any]:
    """The same as plain data."""
    row: dict[str, Any] = {
        "load": one.name,
        "fitted": one.is_fitted,
        "steps": one.steps,
        "requests": one.requests,
        "error": one.step_error,
        "predicted": one.foretold,
    }
    for metric in METRICS:
        known = one.figures is not None and metric in one.figures.values
        row[f"{metric}_error"] = one.figures.error(metric) if known and one.figures is not None else None
    return row


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:+z.1%}"
