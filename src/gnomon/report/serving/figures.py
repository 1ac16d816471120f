"""The figures of a serving run as plain plotly dictionaries: the report embeds them, `Result.figures` wraps them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, pairwise

import numpy as np
from numpy.typing import NDArray

from gnomon.core import units
from gnomon.core.arrays import Floats, Ints
from gnomon.report import look
from gnomon.report.blocks import Figure
from gnomon.report.look import BLUE, GREEN, GREY, ORANGE, RED, short, slo_line, time_lines
from gnomon.report.serving.fleet import fleet_drawers
from gnomon.search.load_curve import Headroom, LoadCurve
from gnomon.serving.engine.state import ABANDONED, FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.results.latency import request_times
from gnomon.serving.results.percentiles import weighted_quantiles
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run
from gnomon.workload.slo import SloConfig

CURVE_POINTS = 400
TIME_POINTS = 600

MARKED_SHARES = (0.5, 0.9, 0.99)
_TAIL = 1 - np.geomspace(1, 1e-4, CURVE_POINTS // 2)
_SHARES = np.unique(np.concatenate([np.linspace(0, 1, CURVE_POINTS // 2), _TAIL, MARKED_SHARES]))


@dataclass(frozen=True)
class Curve:
    """Points of a line."""

    x: Floats
    y: Floats


def distribution(values: Floats, counts: Ints | None = None) -> Curve:
    """The empirical distribution function; finer towards the upper tail, where people look."""
    known = ~np.isnan(values)
    values = values[known]
    if not values.size:
        return Curve(np.empty(0), np.empty(0))
    if counts is None:
        return Curve(np.quantile(values, _SHARES), _SHARES)
    return Curve(weighted_quantiles(values, counts[known], _SHARES), _SHARES)


@dataclass(frozen=True)
class Levels:
    """How full the fleet was, at `TIME_POINTS` moments."""

    at_s: Floats
    waiting: Floats
    """Requests that have arrived and were in no batch yet."""
    running: Floats
    """Requests between their first batch and their end."""
    kv_mean: Floats
    """Share of KV blocks in use, mean over the replicas."""
    kv_max: Floats
    """Share of KV blocks in use of the fullest replica."""


@dataclass(frozen=True)
class Rates:
    """What the fleet did per second, in bins wide enough to hold a few requests each."""

    middle_s: Floats
    """Middles of the bins."""
    arrivals_per_s: Floats
    finished_per_s: Floats
    prompt_tokens_per_s: Floats
    output_tokens_per_s: Floats


def levels(run: Run, start_s: float, end_s: float) -> Levels:
    q = run.cluster.requests
    at = np.linspace(start_s, max(end_s, start_s + 1e-9), TIME_POINTS)
    served = _served(run)
    started = served & (q.scheduled_s >= 0)
    done = q.status == FINISHED
    arrived, scheduled, finished = (
        np.searchsorted(np.sort(stamps_s), at, side="right").astype(np.float64)
        for stamps_s in (q.arrival_s[served], q.scheduled_s[started], q.finished_s[done])
    )
    kv = _kv_shares(run, at)
    return Levels(at, arrived - scheduled, scheduled - finished, kv.mean(axis=0), kv.max(axis=0))


def rates(run: Run, start_s: float, end_s: float) -> Rates:
    q = run.cluster.requests
    served, done = _served(run), q.status == FINISHED
    end_s = max(end_s, start_s + 1e-9)
    edges = np.linspace(start_s, end_s, int(np.clip(np.count_nonzero(done) // 50, 10, 120)) + 1)
    width = edges[1] - edges[0]
    return Rates(
        middle_s=(edges[1:] + edges[:-1]) / 2,
        arrivals_per_s=np.histogram(q.arrival_s[served], edges)[0] / width,
        finished_per_s=np.histogram(q.finished_s[done], edges)[0] / width,
        prompt_tokens_per_s=np.histogram(q.first_token_s[done], edges, weights=q.prompt_tokens[done])[0] / width,
        output_tokens_per_s=np.diff(_output_tokens_by(edges, run)) / width,
    )


def _served(run: Run) -> NDArray[np.bool_]:
    status = run.cluster.requests.status
    return ~np.isin(status, (NOT_ARRIVED, REJECTED, SHED, ABANDONED))


def _kv_shares(run: Run, at: Floats) -> Floats:
    """[replica, moment]: share of blocks in use after the last iteration that ended by then."""
    rows = run.log.iterations[: run.log.used[0]]
    first = np.flatnonzero(rows["stage"] == 0)
    order = first[np.argsort(rows["replica"][first], kind="stable")]
    replica, end_s, used = rows["replica"][order], rows["end_s"][order], rows["used_blocks"][order]
    bounds = np.searchsorted(replica, np.arange(run.cluster.replicas.size + 1))
    shares = np.zeros((run.cluster.replicas.size, at.size))
    for r, (first, last) in enumerate(pairwise(bounds.tolist())):
        if last > first:
            index = np.searchsorted(end_s[first:last], at, side="right") - 1
            blocks = np.where(index >= 0, used[first + np.maximum(index, 0)], 0)
            shares[r] = blocks / max(int(run.cluster.replicas.num_blocks[r]), 1)
    return shares


def _output_tokens_by(at: Floats, run: Run) -> Floats:
    """Output tokens of finished requests by each moment, spread evenly between a request's first token and its end."""
    q = run.cluster.requests
    done = (q.status == FINISHED) & (q.first_token_s >= 0)
    first, last, tokens = q.first_token_s[done], q.finished_s[done], q.output_tokens[done]
    lasting = last > first
    slope = np.divide(tokens - 1.0, last - first, out=np.zeros(first.size), where=lasting)
    at_once = np.where(lasting, 1.0, tokens)
    begun, rising, offset = _sums_by(at, first, at_once, slope, slope * first)
    ended, last_offset = _sums_by(at, last, slope, slope * last)
    return begun + (at * rising - offset) - (at * ended - last_offset)


def _sums_by(at: Floats, stamps_s: Floats, *values: Floats) -> list[Floats]:
    order = np.argsort(stamps_s)
    count = np.searchsorted(stamps_s[order], at, side="right")
    return [np.concatenate([[0.0], np.cumsum(each[order])])[count] for each in values]


COLOURS = (BLUE, ORANGE, GREEN, "#7B61A8", "#B58A2F", GREY)
"""Of curves side by side."""
LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
"""Latencies that every request has, and the titles of their figures."""
CLIPPED_AT = 0.995
"""The share of the requests up to which a distribution is shown; a few stragglers would squeeze all others."""
# More than this from the median to the largest value, and only a logarithmic axis shows both.
_LOG_FROM = 30.0


def drawers(run: Run, summary: Summary) -> dict[str, Callable[[], Figure]]:
    log = run.log
    rows = log.iterations[: log.used[0]]
    gaps = log.used[2]

    def batches(column: str) -> Curve:
        return distribution(rows[column][rows["stage"] == 0].astype(np.float64))

    def lines(title: str, at_s: Floats, *series: tuple[str, Floats, str]) -> Figure:
        return time_lines(title, at_s, list(series), {})

    start = float(run.cluster.requests.arrival_s.min())
    span = (start, start + summary.duration_s)
    full, flow = cache(lambda: levels(run, *span)), cache(lambda: rates(run, *span))
    latencies = cache(lambda: latency_curves(run))
    return {
        "ttft": lambda: latency_cdf("ttft", {"": latencies()["ttft"]}, run.scenario.slo),
        "tbt": lambda: cdf("Time between tokens", {"": distribution(log.gap_s[:gaps], log.gap_count[:gaps])}),
        "tpot": lambda: latency_cdf("tpot", {"": latencies()["tpot"]}, run.scenario.slo),
        "e2e": lambda: latency_cdf("e2e", {"": latencies()["e2e"]}, run.scenario.slo),
        "queue": lambda: lines("Requests in the system", full().at_s, ("waiting", full().waiting, ORANGE),
                               ("running", full().running, BLUE)),
        "rates": lambda: lines("Requests per second", flow().middle_s, ("arriving", flow().arrivals_per_s, GREY),
                               ("finishing", flow().finished_per_s, BLUE)),
        "tokens": lambda: lines("Tokens per second", flow().middle_s, ("prompt", flow().prompt_tokens_per_s, ORANGE),
                                ("output", flow().output_tokens_per_s, BLUE)),
        "kv": lambda: _kv(full(), many=len(summary.replicas) > 1),
        "batch_size": lambda: cdf("Batch size", {"": batches("size")}, unit="requests"),
        "batch_tokens": lambda: cdf("Tokens per batch", {"": batches("tokens")}, unit="tokens"),
        **(fleet_drawers(run) if run.fleet is not None else {}),
    }  # fmt: skip


def latency_curves(run: Run) -> dict[str, Curve]:
    """The distribution of each of `LATENCIES` over the finished requests."""
    times, done = request_times(run), run.cluster.requests.status == FINISHED
    return {name: distribution(getattr(times, f"{name}_s")[done]) for name in LATENCIES}


def latency_cdf(name: str, curves: Mapping[str, Curve], slo: SloConfig) -> Figure:
    """The distribution of one latency, of one run or of several by name, with the SLO's target."""
    return cdf(LATENCIES[name], curves, target=getattr(slo, f"{name}_s"))


def cdf(title: str, curves: Mapping[str, Curve], *, unit: str = "s", target: float | None = None) -> Figure:
    """Distribution functions with the SLO's target as a line; a single one has its median, P90 and P99 marked."""
    largest = max((float(c.x[-1]) for c in curves.values() if c.x.size), default=0.0)
    median = min((float(np.median(c.x)) for c in curves.values() if c.x.size), default=0.0)
    shown, factor = ("ms", 1e3) if unit == "s" and 0 < largest < 2 else (unit, 1.0)
    is_log = largest > _LOG_FROM * max(median, 1e-12)
    end = None if is_log else _end(curves, target)
    data: list[Figure] = []
    for (name, curve), colour in zip(curves.items(), cycle(COLOURS), strict=False):
        positive = curve.x > 0 if is_log else np.full(curve.x.size, True)
        x, y = curve.x[positive] * factor, curve.y[positive]
        words = f"{name} %{{x:.4g}} {shown}" if name else f"%{{y:.2%}} at most %{{x:.4g}} {shown}"
        data.append(look.line(short(x), short(y), colour, 2, name=name, hovertemplate=f"{words}<extra></extra>"))
        if len(curves) == 1:
            data.append(_marks(x, y, factor, unit, (largest if end is None else end) * factor))
    below = look.axis(shown, type="log" if is_log else "linear")
    if end is not None and largest > 1.15 * end:
        # The axis up to `end`; what the maximum is stands beside the unit, where no line is.
        below |= look.axis(f"{shown} (max {_value(largest, unit)})", range=[0, 1.04 * (end * factor)])
    more: Figure = {"showlegend": True, "hovermode": "closest"} if len(curves) > 1 else {}
    if target is not None:
        side = "right" if target > (end or largest) / 2 else "left"  # Where there is room for its name.
        more["shapes"] = [slo_line(target * factor, textposition="start", xanchor=side, padding=4)]
    beside = {"tickformat": ".0%", "range": [0, 1.12], "tickvals": [0, 0.25, 0.5, 0.75, 1]}
    return look.plot(data, title, below, beside, **more)


def _end(curves: Mapping[str, Curve], target: float | None) -> float | None:
    """Up to where a linear axis is shown: P99.5, and the target where that is not far."""
    shown = [curve for curve in curves.values() if curve.x.size]
    if not shown:
        return None
    end = max(float(curve.x[min(int(np.searchsorted(curve.y, CLIPPED_AT)), curve.x.size - 1)]) for curve in shown)
    return max(end, target) if target is not None and target < 3 * end else end


def _marks(x: Floats, y: Floats, factor: float, unit: str, end: float) -> Figure:
    """Points at the median, P90 and P99, with their values; the axis is shown up to `end`."""
    marked = np.searchsorted(y, MARKED_SHARES) if y.size else np.empty(0, int)
    marked = marked[marked < y.size]
    return {
        "type": "scatter", "mode": "markers+text", "x": short(x[marked]), "y": short(y[marked]),
        "text": [f"P{100 * share:.0f}  {_value(value / factor, unit)}"
                 for share, value in zip(y[marked], x[marked], strict=True)],
        "textposition": [_side(x[i], end, y[i]) for i in marked],
        "textfont": {"size": 11, "color": "#1F2A37"},
        "marker": {"color": BLUE, "size": 7}, "hoverinfo": "skip", "cliponaxis": False, "showlegend": False,
    }  # fmt: skip


def _side(x: float, end: float, share: float) -> str:
    """Where a mark's label finds room beside the curve."""
    if x > 0.6 * end:
        return "top left"
    return "top right" if share > 0.95 else "bottom right"


def _value(value: float, unit: str) -> str:
    return units.seconds(value) if unit == "s" else f"{value:,.4g}"


def _kv(series: Levels, *, many: bool) -> Figure:
    lines = [("mean of replicas" if many else "in use", series.kv_mean, GREEN)]
    if many:
        lines.append(("fullest replica", series.kv_max, GREY))
    return time_lines("KV cache in use", series.at_s, lines, {"tickformat": ".1~%"}, hover=".1%")


STATISTICS = {"p50": ("median", BLUE), "p90": ("P90", GREEN), "p99": ("P99", ORANGE)}


def load_figure(name: str, curve: LoadCurve, slo: SloConfig, *, capacity: float, load: float | None) -> Figure:
    """One latency (ttft, tpot or e2e) at each load. `capacity`: the highest load that meets all limits (0: none does),
    `load`: where the reader stands."""
    loads, latencies, target = curve.loads, curve.seconds[name], getattr(slo, f"{name}_s")
    known = [value for values in latencies.values() for value in values if value is not None]
    shown, factor = ("ms", 1e3) if known and min(known) < 1 else ("s", 1.0)
    data = [
        {"type": "scatter", "mode": "lines+markers", "name": STATISTICS[statistic][0], "x": list(loads),
         "y": [None if value is None else float(f"{value * factor:.5g}") for value in values],
         "line": {"color": STATISTICS[statistic][1], "width": 2}, "marker": {"size": 5},
         "hovertemplate": f"{STATISTICS[statistic][0]} %{{y:.4g}} {shown}<extra></extra>"}
        for statistic, values in latencies.items()
    ]  # fmt: skip
    end = max((*loads, capacity, load or 0.0))
    lines, notes = [], []
    if target is not None:
        lines.append(look.rule("y", target * factor, RED) | {"label": look.words("SLO", RED)})
    if capacity:
        lines.append(look.rule("x", capacity, RED, "dot"))
        text = f"capacity {capacity:.3g}/s, by {crossed_first(curve, slo)}"
        notes.append(_note(capacity, text, RED, is_left=capacity > end / 2))
    if load is not None:
        is_left = load <= capacity or load > 0.9 * end
        # From above the name of the capacity, which it would cross.
        lines.append(look.rule("x", load, GREY, "solid", 1) | {"y0": 0.09 if capacity else 0})
        notes.append(_note(load, "now", GREY, is_left=is_left, above=14 if capacity else 0))
    return look.plot(
        data, f"{name.upper()} against load{'' if capacity else ': no load meets the SLO'}",
        look.axis(f"requests per second, in runs of {curve.num_requests:,}", rangemode="tozero"),
        look.axis(shown, **_log([value * factor for value in (*known, target) if value])),
        showlegend=True, shapes=lines, annotations=notes,
    )  # fmt: skip


def crossed_first(curve: LoadCurve, slo: SloConfig) -> str:
    """The latency whose P99 passes its limit at the lowest load; where none does, the queue grows first."""
    found: list[tuple[float, float, str]] = []
    for name in LATENCIES:
        limit = getattr(slo, f"{name}_s")
        for load, value in zip(curve.loads, curve.seconds[name]["p99"], strict=True):
            if limit is not None and (value is None or value > limit):
                found.append((load, -(value or np.inf) / limit, name.upper()))
                break
    return min(found)[2] if found else "a growing queue"


def load_drawers(room: Headroom, slo: SloConfig) -> dict[str, Callable[[], Figure]]:
    """The curves of a run's report, one per latency: names as in `figures`, with `load_` before them."""
    at = {"capacity": room.capacity_per_s, "load": room.load_per_s}
    return {f"load_{name}": partial(load_figure, name, room.curve, slo, **at) for name in ("ttft", "tpot")}


def _log(values: Sequence[float]) -> Figure:
    """With room below the curves for words."""
    if not values:
        return {"type": "log"}
    axis = look.log_axis(min(values), max(values))
    low, high = axis["range"]
    return axis | {"range": [low - 0.2 * (high - low), high]}


def _note(at: float, text: str, colour: str, *, is_left: bool, above: int = 0) -> Figure:
    """Words beside a line upwards, below the curves, on the side where there is room."""
    side = "right" if is_left else "left"
    return look.note(at, 0, text, colour, xanchor=side, yanchor="bottom", yshift=above)
