"""A calibration in words: constants with their intervals, loads with their errors, what cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnomon.calibration.calibrate import Calibrated, Check
from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table, lines
from gnomon.serving.scenario.calibration import Calibration

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def text(result: Any) -> list[Block]:
    """Constants, loads, and what the logs cannot tell."""
    found: Calibrated = result.found
    about = found.calibration.provenance
    is_held = any(not one.is_fitted for one in found.checks)
    out: list[Block] = [
        Line(f"{about.model} on {about.device}, kernels by the source {about.source}"),
        Table(constant_rows(found.calibration), caption="Interval: 90 %. Constants at zero are left out."),
        Table(
            [_load_row(one) for one in found.checks],
            caption="Each load by constants fitted on the others"
            + (" (held out: on the fitted ones)" if is_held else "")
            + ": errors of the mean, predicted over recorded, and the promised 90 % interval of the predicted one. "
            "Step: iterations by all constants.",
        ),
    ]
    cells = [cell for one in found.checks if one.promised for some in one.promised.values() for cell in some.values()]
    if cells:
        inside = sum(cell.holds for cell in cells)
        out.append(Line(f"Promises that hold (mean, P50, P90, P99 of TTFT, TPOT, E2E): {inside} of {len(cells)}"))
    paced = [one for one in found.checks if one.at_pace]
    if paced:
        caption = "The same with the host as slow as it was during the recording: what is left is not its drift."
        out.append(Table([_paced_row(one) for one in paced], caption=caption))
    warned = [note for note in about.notes if note.startswith("Only one load")]
    return [*out, *lines(warned, "warning"), *lines([note for note in about.notes if note not in warned], "note")]


def data(result: Any) -> dict[str, Any]:
    """The calibration, and each load's errors."""
    loads: dict[str, Any] = {"loads": [check_row(one) for one in result.found.checks]}
    return result.summary | loads


def tables(result: Any) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Constants and loads."""
    found: Calibrated = result.found
    return {
        "constants": lambda: constant_rows(found.calibration),
        "loads": lambda: [check_row(one) for one in found.checks],
    }


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
        "step predicted" if one.steps else "predicted": _percent(one.foretold),
    }
    for metric, words in METRICS.items():
        if one.promised and metric in one.promised:
            cell = one.promised[metric]["mean"]
            low, high = (end / cell.foretold - 1.0 for end in (cell.low, cell.high))
            row[words] = f"{cell.error:+z.1%} ({low:+.0%} to {high:+.0%})"
    return row


def _paced_row(one: Check) -> dict[str, Any]:
    told = one.at_pace or {}
    return {"load": one.name} | {
        f"{METRICS[metric]} {name if name == 'mean' else name.upper()}": _percent(told[metric][name].error)
        for metric in told
        for name in ("mean", "p99")
    }


def check_row(one: Check) -> dict[str, Any]:
    """A check as plain data."""
    row: dict[str, Any] = {
        "load": one.name,
        "fitted": one.is_fitted,
        "steps": one.steps,
        "requests": one.requests,
        "error": one.step_error,
        "predicted": one.foretold,
    }
    for metric in METRICS:
        cell = one.promised[metric]["mean"] if one.promised and metric in one.promised else None
        row[f"{metric}_error"] = cell.error if cell else None
        row[f"{metric}_holds"] = cell.holds if cell else None
    return row


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:+z.1%}"
