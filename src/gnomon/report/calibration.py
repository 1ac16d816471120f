"""A calibration in words: constants with their intervals, loads with their errors, what cannot be told."""

from functools import partial
from typing import Any

import numpy as np

from gnomon.calibration.calibrate import Calibrated, Check
from gnomon.calibration.gap import Difference, Gap, simulated_steps
from gnomon.calibration.replay import latencies, simulated_latencies
from gnomon.core import units
from gnomon.core.arrays import Floats
from gnomon.report.blocks import Block, Card, Figure, Line, Plot, Section, Table, View, lines
from gnomon.report.look import AXIS, COLOURS, dots, figure, line
from gnomon.serving.scenario.calibration import Calibration

METRICS = ("ttft", "tpot", "e2e")


def view(result: Any) -> View:
    found: Calibrated = result.found
    loads = [check_row(one) for one in found.checks]
    return View(
        "Calibration", partial(_text, found), lambda: result.summary | {"loads": loads},
        {"constants": lambda: constant_rows(found.calibration), "loads": lambda: loads},
    )  # fmt: skip


def _text(found: Calibrated) -> list[Block]:
    about = found.calibration.provenance
    held = " (held out: on the fitted ones)" if any(not one.is_fitted for one in found.checks) else ""
    how = (
        f"Each load by constants fitted on the others{held}: errors of the mean, predicted over recorded, and the "
        "promised 90 % interval of the predicted one. Step: iterations by all constants."
    )
    out: list[Block] = [
        Line(f"{about.model} on {about.device}, kernels by the source {about.source}"),
        Table(constant_rows(found.calibration), caption="Interval: 90 %. Constants at zero are left out."),
        Table([_load_row(one) for one in found.checks], caption=how),
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
        "step predicted" if one.steps else "predicted": _percent(one.predicted),
    }
    for metric in METRICS:
        if one.promised and metric in one.promised:
            cell = one.promised[metric]["mean"]
            low, high = (end / cell.predicted - 1.0 for end in (cell.low, cell.high))
            row[metric.upper()] = f"{cell.error:+z.1%} ({low:+.0%} to {high:+.0%})"
    return row


def _paced_row(one: Check) -> dict[str, Any]:
    at_pace = one.at_pace or {}
    return {"load": one.name} | {
        _name(metric, name): _percent(at_pace[metric][name].error) for metric in at_pace for name in ("mean", "p99")
    }


def check_row(one: Check) -> dict[str, Any]:
    row: dict[str, Any] = {"load": one.name, "fitted": one.is_fitted, "steps": one.steps, "requests": one.requests}
    row |= {"error": one.step_error, "predicted": one.predicted}
    for metric in METRICS:
        cell = one.promised[metric]["mean"] if one.promised and metric in one.promised else None
        row[f"{metric}_error"] = cell.error if cell else None
        row[f"{metric}_holds"] = cell.holds if cell else None
    return row


def _name(metric: str, statistic: str) -> str:
    return f"{metric.upper()} {statistic if statistic == 'mean' else statistic.upper()}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:+z.1%}"


MOST_POINTS = 4000


def gap_view(result: Any) -> View:
    gap: Gap = result.gap
    return View(f"{gap.name}: recorded and simulated", partial(_gap_text, gap), partial(_gap_data, gap))


def _gap_text(gap: Gap) -> list[Block]:
    out: list[Block] = []
    for metric, statistics in gap.figures.values.items():
        recorded, simulated = map(units.seconds, statistics["mean"])
        error = f"ours {simulated} ({gap.figures.error(metric):+z.1%})"
        out.append(Card(f"{metric.upper()} mean", recorded, error))
    out.append(Section("Both over time", [Plot("time_lines", lambda: time_lines(gap), "tall")]))
    out.append(Table(figure_rows(gap), title=f"{gap.name}: recorded and simulated"))
    if gap.steps:
        out.append(Table([_row(one, seconds=True) for one in gap.steps], title="Iterations by shape"))
    out.append(Table([_row(one, seconds=False) for one in gap.counts], title="Counts"))
    if gap.first:
        when = "at {recorded_first_token_s:.3f} s, ours at {simulated_first_token_s:.3f} s".format_map(gap.first)
        sent = f"request {gap.first['request']}, sent at {gap.first['sent_s']:.2f} s"
        others = f"{gap.first['waiting_before']} requests were waiting or in prefill"
        out.append(Line(f"First to differ: {sent}: first token {when} ({others})"))
    if not gap.causes:
        return [*out, Line("No cause stands out: what differs is within 2 %.")]
    out.append(Line("Likely causes, the largest first:"))
    for number, one in enumerate(gap.causes, 1):
        out.append(Line(f"{number}. {one.name} ({one.weight:+z.1%}): {one.evidence}. {one.try_this}"))
    return out


def figure_rows(gap: Gap) -> list[dict[str, Any]]:
    return [
        {
            "latency": _name(metric, name),
            "recorded": units.seconds(both[0]),
            "simulated": units.seconds(both[1]),
            "error": f"{gap.figures.error(metric, name):+z.1%}",
        }
        for metric, statistics in gap.figures.values.items()
        for name, both in statistics.items()
    ]


def _row(one: Difference, *, seconds: bool) -> dict[str, Any]:
    words = units.seconds if seconds else units.count
    return {"what": one.what, "recorded": words(one.recorded), "simulated": words(one.simulated),
            "error": f"{one.relative:+z.1%}" if one.recorded else None}  # fmt: skip


def _gap_data(gap: Gap) -> dict[str, Any]:
    return {
        "log": gap.name,
        "latencies": {
            metric: {name: {"recorded": a, "simulated": b} for name, (a, b) in statistics.items()}
            for metric, statistics in gap.figures.values.items()
        },
        "iterations": [vars(one) | {"relative": one.relative} for one in gap.steps],
        "counts": [vars(one) | {"relative": one.relative} for one in gap.counts],
        "first_difference": gap.first,
        "causes": [vars(one) for one in gap.causes],
    }


def time_lines(gap: Gap) -> Figure:
    """Iterations and requests over time, the recording and the simulation over each other."""
    assert gap.log.stamps is not None
    ours = simulated_steps(gap.done)
    traces: list[dict[str, Any]] = []
    steps = gap.log.steps
    if steps is not None:
        traces.append(_dots(steps.at_s, 1e3 * steps.seconds, "recorded iterations", 1, 0))
    traces.append(_dots(ours["start"], 1e3 * ours["seconds"], "simulated iterations", 1, 1))
    recorded, simulated = latencies(gap.log.stamps), simulated_latencies(gap.done)
    q = gap.done.cluster.requests
    sent = q.arrival_s if gap.log.stamps.closed_loop else gap.log.stamps.requests.arrival_s
    traces.append(_dots(sent, 1e3 * recorded.ttft, "recorded", 2, 0, shown=steps is None))
    traces.append(_dots(q.arrival_s, 1e3 * simulated.ttft, "simulated", 2, 1, shown=False))
    grid, theirs = _running(sent, sent + recorded.e2e)
    _, mine = _running(q.arrival_s, q.last_token_s, grid)
    for name, values, colour in (("recorded", theirs, 0), ("simulated", mine, 1)):
        axes = {"xaxis": "x", "yaxis": "y3", "showlegend": False}
        traces.append(line(_list(grid), _list(values), COLOURS[colour], 1.5, name=name, **axes))
    return figure(
        traces, "Both over time", 720, {"l": 70, "r": 20, "t": 70, "b": 50}, legend={"orientation": "h", "y": 1.05},
        xaxis=AXIS | {"title": {"text": "seconds"}, "anchor": "y3"},
        yaxis=AXIS | {"domain": [0.70, 1.0], "title": {"text": "iteration, ms"}},
        yaxis2=AXIS | {"domain": [0.36, 0.64], "title": {"text": "first token after, ms"}},
        yaxis3=AXIS | {"domain": [0.0, 0.30], "title": {"text": "requests in flight"}},
    )  # fmt: skip


def _dots(at: Floats, values: Floats, name: str, axis: int, colour: int, *, shown: bool = True) -> dict[str, Any]:
    step = max(1, -(-len(at) // MOST_POINTS))
    place: dict[str, Any] = {"xaxis": "x", "yaxis": f"y{axis if axis > 1 else ''}"}
    mark = {"size": 3, "color": COLOURS[colour], "opacity": 0.6}
    drawn = dots(_list(at[::step]), _list(values[::step]), "", name=name, marker=mark, showlegend=shown, **place)
    return drawn | {"type": "scattergl"}


def _running(begun: Floats, ended: Floats, grid: Floats | None = None) -> tuple[Floats, Floats]:
    """Requests in flight at each moment of a grid."""
    grid = np.linspace(0.0, float(ended.max()), 400) if grid is None else grid
    return grid, (
        np.searchsorted(np.sort(begun), grid, "right") - np.searchsorted(np.sort(ended), grid, "right")
    ).astype(np.float64)


def _list(values: Floats) -> list[float]:
    return [round(float(value), 5) for value in values]
