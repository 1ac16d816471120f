"""Variants on the same requests as plotly figures (plain dictionaries): what each is worth against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.report.serving_series import distribution
from gnomon.serving.paired import Difference
from gnomon.serving.state import Floats

Figure = dict[str, Any]

FASTER, SLOWER, UNCLEAR, BASELINE = "#3E9B6E", "#C8493F", "#B7C0CC", "#1F2A37"
COLOURS = ("#2F6FB5", "#E08A2E", "#3E9B6E", "#C8493F", "#7B61A8", "#8A94A3", "#B58A2F", "#2FA0B5", "#D46A9F", "#6B8E23",
           "#8C564B", "#1F2A37", "#9ECAE1", "#FDBF6F", "#B2DF8A", "#FB9A99")  # fmt: skip
ROW_PX = 26
_AXIS = {"gridcolor": "#EBEEF2", "zeroline": False, "linecolor": "#C5CCD6", "ticks": "outside", "tickcolor": "#C5CCD6"}
_LOOK: Figure = {
    "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": "#4A5565"},
    "plot_bgcolor": "#FFFFFF",
    "paper_bgcolor": "#FFFFFF",
}


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
        "text": [f"{value:+.1f} %" for value in share], "textposition": "none",
        "customdata": [[one.value * 1e3, one.baseline * 1e3] for one in found.values()],
        "hovertemplate": "<b>%{y}</b>  %{x:+.1f} %<br>%{customdata[0]:.4g} ms against %{customdata[1]:.4g} ms"
        "<extra></extra>",
        "error_x": {
            "type": "data", "symmetric": False, "color": "#4A5565", "thickness": 1.2, "width": 3,
            "array": [_beyond(one, one.high) for one in found.values()],
            "arrayminus": [-_beyond(one, one.low) for one in found.values()],
        },
    }  # fmt: skip
    layout = _LOOK | {
        "title": {"text": title, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8},
                  "font": {"size": 14, "color": BASELINE}},
        "height": differences_height(len(order)),
        "margin": {"l": 150, "r": 16, "t": 44, "b": 52},
        "showlegend": False,
        "bargap": 0.35,
        "xaxis": _AXIS
        | {"title": {"text": f"% against {baseline}"}, "zeroline": True, "zerolinecolor": BASELINE},
        "yaxis": {"categoryorder": "array", "categoryarray": list(reversed(names)), "fixedrange": True, "ticks": ""},
    }  # fmt: skip
    return {"data": [trace], "layout": layout}


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
             "line": {"color": COLOURS[number % len(COLOURS)], "width": 1.8},
             "hovertemplate": f"{name}: %{{y:.2%}} at most %{{x:.4g}} s<extra></extra>"}
        )  # fmt: skip
    layout = _LOOK | {
        "title": {"text": title, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8},
                  "font": {"size": 14, "color": BASELINE}},
        "height": 350,
        "margin": {"l": 58, "r": 16, "t": 44, "b": 52},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        "xaxis": _AXIS | {"title": {"text": "s"}, "type": "log"},
        "yaxis": _AXIS | {"tickformat": ".0%", "range": [0, 1.02]},
    }  # fmt: skip
    return {"data": data, "layout": layout}
