"""Variants on the same requests as plotly figures (plain dictionaries): what each is worth against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.core.arrays import Floats
from gnomon.report import look
from gnomon.report.serving.series import distribution
from gnomon.serving.results.paired import Difference

Figure = dict[str, Any]

FASTER, SLOWER, UNCLEAR = "#3E9B6E", "#C8493F", "#B7C0CC"
ROW_PX = 26


def differences_height(count: int) -> int:
    """Pixels that `differences_figure` takes for so many variants."""
    return ROW_PX * count + 110


def differences_figure(
    title: str, baseline: str, differences: Mapping[str, Difference | None], order: Sequence[str]
) -> Figure:
    """Each variant's change against the baseline with its 95 % interval; grey where the interval holds zero."""
    names = [name for name in order if name in differences]
    found = {name: one for name in names if (one := differences[name]) is not None and one.relative is not None}
    colours = [
        UNCLEAR if not one.is_clear else FASTER if one.difference < 0 else SLOWER for one in found.values()
    ]  # fmt: skip
    share = [100 * (one.relative or 0.0) for one in found.values()]
    trace: Figure = {
        "type": "bar", "orientation": "h", "x": share, "y": list(found), "marker": {"color": colours},
        "customdata": [[one.value * 1e3, one.baseline * 1e3] for one in found.values()],
        "hovertemplate": "<b>%{y}</b>  %{x:+.1f} %<br>%{customdata[0]:.4g} ms against %{customdata[1]:.4g} ms"
        "<extra></extra>",
        "error_x": {
            "type": "data", "symmetric": False, "color": "#4A5565", "thickness": 1.2, "width": 3,
            "array": [_beyond(one, one.high) for one in found.values()],
            "arrayminus": [-_beyond(one, one.low) for one in found.values()],
        },
    }  # fmt: skip
    x = look.AXIS | {"title": {"text": f"% against {baseline}"}, "zeroline": True, "zerolinecolor": look.DARK}
    y = {"categoryorder": "array", "categoryarray": list(reversed(names)), "fixedrange": True, "ticks": ""}
    height = differences_height(len(order))
    return look.figure([trace], title, height, {"l": 150, "b": 52}, showlegend=False, bargap=0.35, xaxis=x, yaxis=y)


def _beyond(one: Difference, end: float | None) -> float:
    """From the difference to an end of its interval, in per cent of the baseline."""
    return 0.0 if end is None else 100 * (end - one.difference) / one.baseline


def distributions_figure(title: str, values: Mapping[str, Floats]) -> Figure:
    """One distribution function per variant, in seconds on a logarithmic axis."""
    data = []
    for number, (name, seconds) in enumerate(values.items()):
        curve = distribution(seconds)
        shown = curve.x > 0
        data.append(
            {"type": "scatter", "mode": "lines", "name": name,
             "x": [float(f"{one:.5g}") for one in curve.x[shown]], "y": [float(f"{one:.5g}") for one in curve.y[shown]],
             "line": {"color": look.COLOURS[number % len(look.COLOURS)], "width": 1.8},
             "hovertemplate": f"{name}: %{{y:.2%}} at most %{{x:.4g}} s<extra></extra>"}
        )  # fmt: skip
    return look.figure(
        data, title, 350, {"b": 52}, hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        xaxis=look.LOG_AXIS | {"title": {"text": "s"}}, yaxis=look.AXIS | {"tickformat": ".0%", "range": [0, 1.02]},
    )  # fmt: skip
