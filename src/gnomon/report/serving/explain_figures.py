"""Pictures of where the time goes: causes by percentile, slow requests among their neighbours, the roofline."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from gnomon.core import units
from gnomon.report.look import plot_layout
from gnomon.report.serving.operators import operator_frame
from gnomon.serving.results.explain import Neighbour, Slow, by_cause, delayed_by, waited_behind
from gnomon.serving.results.latency_breakdown import CAUSES, Accounts, Metric
from gnomon.serving.run.simulate import Run

Figure = dict[str, Any]
CAUSE_COLOURS = dict(
    zip(
        ("own prefill", "own decode", "batch", "prefills", "KV memory", "batch cap", "routing", "iteration", "policy",
         "slow replica", "host", "pipeline", "transfers", "outages", "adapters"),
        ("#9ECAE1", "#2F6FB5", "#3E9B6E", "#E08A2E", "#C8493F", "#7B61A8", "#D46A9F", "#8A94A3", "#B58A2F",
         "#8C564B", "#2FA0B5", "#6B8E23", "#FDBF6F", "#1F2A37", "#B2DF8A"),
        strict=True,
    )
)  # fmt: skip
assert CAUSE_COLOURS.keys() == CAUSES.keys()
_BINS = 50
_WAIT, _PREFILL, _DECODE = "#C5CCD6", "#E08A2E", "#2F6FB5"
_MOST_BARS = 12


def causes_figure(accounts: Accounts, metric: Metric = "e2e") -> Figure:
    """Mean seconds by cause of the requests around each percentile of a latency, stacked."""
    values, parts = accounts.values_s(metric), accounts.parts_s(metric)
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    # The last two in a hundred get as much room as the rest deserves: bins by rank, the slowest finer.
    shares = np.unique(np.concatenate([np.linspace(0, 0.9, _BINS // 2), np.linspace(0.9, 1.0, _BINS // 2)]))
    edges = np.unique(np.rint(shares * order.size).astype(int))
    middle = [50.0 * (a + b) / order.size for a, b in pairwise(edges)]
    mean = np.array([parts[order[a:b]].mean(axis=0) for a, b in pairwise(edges)])
    causes = by_cause(mean)
    unit, factor = ("ms", 1e3) if float(mean.sum(axis=1).max(initial=0.0)) < 2 else ("s", 1.0)
    data = [
        {"type": "scatter", "mode": "lines", "stackgroup": "one", "name": _short_name(name), "x": middle,
         "y": [float(f"{v * factor:.5g}") for v in causes[name]], "line": {"width": 0.5, "color": colour},
         "fillcolor": colour, "hovertemplate": f"{_short_name(name)} %{{y:.3g}} {unit}<extra></extra>"}
        for name, colour in CAUSE_COLOURS.items()
        if causes[name].any()
    ]  # fmt: skip
    names = {"e2e": "End to end", "ttft": "Time to first token", "tpot": "Time per output token"}
    drawn = plot_layout(
        f"{names[metric]} by cause, fastest to slowest",
        {"title": {"text": "percentile"}, "range": [0, 100]},
        {"title": {"text": unit}, "rangemode": "tozero"},
    )
    drawn["legend"] = {"orientation": "h", "x": 0, "y": -0.28, "yanchor": "top"}
    return {"data": data, "layout": drawn | {"showlegend": True, "height": 380, "margin": drawn["margin"] | {"b": 120}}}


def _short_name(cause: str) -> str:
    return {"own prefill": "own prompt, alone", "own decode": "own answer, alone"}.get(cause, CAUSES[cause])


def slowest_figure(accounts: Accounts, slow: Slow) -> Figure:
    """The slowest requests as bars, divided by cause."""
    values, parts = accounts.values_s(slow.metric), accounts.parts_s(slow.metric)
    rows = slow.rows[np.argsort(-values[slow.rows], kind="stable")][:_MOST_BARS][::-1]
    causes = by_cause(parts[rows])
    names = [f"request {int(accounts.ids[row]):,}" for row in rows]
    data = [
        {"type": "bar", "orientation": "h", "name": _short_name(name), "y": names,
         "x": [float(f"{v:.5g}") for v in causes[name]], "marker": {"color": colour},
         "hovertemplate": f"{_short_name(name)} %{{x:.3g}} s<extra>%{{y}}</extra>"}
        for name, colour in CAUSE_COLOURS.items()
        if causes[name].any()
    ]  # fmt: skip
    drawn = plot_layout("The slowest requests by cause", {"title": {"text": "seconds"}}, {"automargin": True})
    drawn["legend"] = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"}
    return {
        "data": data,
        "layout": drawn | {
            "barmode": "stack", "hovermode": "closest", "showlegend": True, "height": 220 + 22 * len(names),
            "margin": drawn["margin"] | {"l": 110, "b": 120},
        },
    }  # fmt: skip


def neighbours_figure(accounts: Accounts, row: int) -> Figure:
    """One request's life with those it waited behind and those whose prefills fell into its decoding."""
    others = [*waited_behind(accounts, row, 6).behind, *delayed_by(accounts, row, 6)]
    rows = [row, *dict.fromkeys(accounts.row(one.request) for one in _different(others))]
    q = accounts.requests
    start = float(q.arrival_s[row])
    names = [f"{'<b>' if one == row else ''}request {int(accounts.ids[one]):,}{'</b>' if one == row else ''}"
             for one in rows]  # fmt: skip
    phases = (
        ("waiting", _WAIT, q.arrival_s, q.scheduled_s),
        ("prefill", _PREFILL, q.scheduled_s, q.first_token_s),
        ("decode", _DECODE, q.first_token_s, q.finished_s),
    )
    data = [
        {"type": "bar", "orientation": "h", "name": name, "y": names[::-1],
         "base": [float(f"{begin[one] - start:.6g}") for one in rows[::-1]],
         "x": [float(f"{max(0.0, end[one] - begin[one]):.6g}") for one in rows[::-1]], "marker": {"color": colour},
         "customdata": [int(q.prompt_tokens[one]) for one in rows[::-1]],
         "hovertemplate": f"{name} %{{x:.3g}} s, prompt of %{{customdata:,}} tokens<extra>%{{y}}</extra>"}
        for name, colour, begin, end in phases
    ]  # fmt: skip
    drawn = plot_layout(
        f"Request {int(accounts.ids[row]):,} and those in its way",
        {"title": {"text": "seconds since its arrival"}},
        {"automargin": True},
    )
    lines = [
        {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper",
         "line": {"color": "#4A5565", "width": 1, "dash": "dot"}}
        for at in (0.0, float(q.finished_s[row]) - start)
    ]  # fmt: skip
    return {
        "data": data,
        "layout": drawn | {
            "barmode": "overlay", "hovermode": "closest", "showlegend": True, "height": 140 + 24 * len(names),
            "margin": drawn["margin"] | {"l": 110}, "shapes": lines,
        },
    }  # fmt: skip


def _different(neighbours: list[Neighbour]) -> list[Neighbour]:
    found: dict[int, Neighbour] = {}
    for one in neighbours:
        found.setdefault(one.request, one)
    return list(found.values())


def roofline_figure(run: Run) -> Figure:
    """Operators of the mean iterations: FLOP/s over FLOPs per byte, under the roof of the (first) device."""
    frame = operator_frame(run)
    device, pool = run.pools[0].device, run.pools[0]
    peak = device.flops(run.model.precision(pool.timing.dtype).dtype)
    bandwidth = device.bandwidth_bytes_s
    data: list[Figure] = []
    chosen = frame.filter((frame["kind"] == 0) & (frame["flops"] > 0) & (frame["bytes"] > 0))
    colours = {"prefill": _PREFILL, "mixed": "#3E9B6E", "decode": _DECODE}
    longest = float(chosen["seconds"].max() or 1.0) if len(chosen) else 1.0  # type: ignore[arg-type]
    for name, colour in colours.items():
        some = chosen.filter(chosen["iteration"] == name)
        if not len(some):
            continue
        data.append(
            {"type": "scatter", "mode": "markers", "name": f"{name} iterations",
             "x": [float(f"{v:.4g}") for v in some["flops"] / some["bytes"]],
             "y": [float(f"{v:.4g}") for v in some["flops"] / some["seconds"]],
             "marker": {"color": colour, "opacity": 0.8, "line": {"width": 0},
                        "size": [6 + 22 * float(v / longest) ** 0.5 for v in some["seconds"]]},
             "text": [f"{op}: {units.seconds(s)}, {limit}" for op, s, limit in
                      zip(some["operator"], some["seconds"], some["limit"], strict=True)],
             "hovertemplate": "%{text}<extra>" + name + "</extra>"}
        )  # fmt: skip
    ends = [0.1, peak / bandwidth, 1e5]
    data.insert(
        0,
        {"type": "scatter", "mode": "lines", "name": f"roof of {device.name}", "x": [float(f"{v:.4g}") for v in ends],
         "y": [float(f"{min(peak, v * bandwidth):.4g}") for v in ends], "line": {"color": "#4A5565", "width": 1.5},
         "hoverinfo": "skip"},
    )  # fmt: skip
    drawn = plot_layout(
        "Operators under the roofline (larger: longer)",
        {"title": {"text": "FLOPs per byte"}, "type": "log", "dtick": 1},
        {"title": {"text": "FLOP/s per GPU"}, "type": "log", "dtick": 1, "exponentformat": "power"},
    )
    return {"data": data, "layout": drawn | {"hovermode": "closest", "showlegend": True, "height": 380}}
