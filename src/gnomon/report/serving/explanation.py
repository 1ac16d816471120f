"""An explanation: the answer in sentences and tables, as plain data, as pictures; what would help, and what limits."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from gnomon.core import units
from gnomon.report.blocks import Block, Figure, Table, View, lines, seconds
from gnomon.report.look import ROOM, axis, bars, line, plot, rule, short
from gnomon.report.serving import explain_text as words
from gnomon.report.serving.operators import operator_frame
from gnomon.serving.results.counterfactual import MIN_GAIN, MIN_MISSED, Outcome, gain, ranked
from gnomon.serving.results.explain import Slow, by_cause, delayed_by, waited_behind
from gnomon.serving.results.latency_breakdown import CAUSES, NAMES, Accounts, Metric
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

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
        line(middle, short(causes[name] * factor), colour, 0.5, stackgroup="one", fillcolor=colour,
             name=_short_name(name), hovertemplate=f"{_short_name(name)} %{{y:.3g}} {unit}<extra></extra>")
        for name, colour in CAUSE_COLOURS.items()
        if causes[name].any()
    ]  # fmt: skip
    names = {"e2e": "End to end", "ttft": "Time to first token", "tpot": "Time per output token"}
    return plot(
        data, f"{names[metric]} by cause, fastest to slowest", axis("percentile", range=[0, 100]),
        axis(unit, rangemode="tozero"), showlegend=True, height=280 + 22 * len(data), margin=ROOM | {"b": 120},
        legend={"orientation": "h", "x": 0, "y": -0.28, "yanchor": "top"},
    )  # fmt: skip


def _short_name(cause: str) -> str:
    return {"own prefill": "own prompt, alone", "own decode": "own answer, alone"}.get(cause, CAUSES[cause])


def slowest_figure(accounts: Accounts, slow: Slow) -> Figure:
    """The slowest requests as bars, divided by cause."""
    values, parts = accounts.values_s(slow.metric), accounts.parts_s(slow.metric)
    rows = slow.rows[np.argsort(-values[slow.rows], kind="stable")][:_MOST_BARS][::-1]
    causes = by_cause(parts[rows])
    names = [f"request {int(accounts.ids[row]):,}" for row in rows]
    data = [
        bars(short(causes[name]), names, colour, name=_short_name(name),
             hovertemplate=f"{_short_name(name)} %{{x:.3g}} s<extra>%{{y}}</extra>")
        for name, colour in CAUSE_COLOURS.items()
        if causes[name].any()
    ]  # fmt: skip
    return plot(
        data, "The slowest requests by cause", axis("seconds"), {"automargin": True}, barmode="stack",
        hovermode="closest", showlegend=True, height=160 + 22 * (len(names) + len(data)),
        margin=ROOM | {"l": 110, "b": 120}, legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
    )  # fmt: skip


def neighbours_figure(accounts: Accounts, row: int) -> Figure:
    """One request's life with those it waited behind and those whose prefills fell into its decoding."""
    others = [*waited_behind(accounts, row, 6).behind, *delayed_by(accounts, row, 6)]
    rows = [row, *dict.fromkeys(accounts.row(one.request) for one in others)]
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
    return plot(
        data, f"Request {int(accounts.ids[row]):,} and those in its way", axis("seconds since its arrival"),
        {"automargin": True}, barmode="overlay", hovermode="closest", showlegend=True, height=140 + 24 * len(names),
        margin=ROOM | {"l": 110},
        shapes=[rule("x", at, "#4A5565", "dot", 1) for at in (0.0, float(q.finished_s[row]) - start)],
    )  # fmt: skip


def roofline_figure(run: Run) -> Figure:
    """Operators of the mean iterations: FLOP/s over FLOPs per byte, under the roof of the (first) device."""
    frame = operator_frame(run, with_spread=False)
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
    ends = np.array([0.1, peak / bandwidth, 1e5])
    roof = np.minimum(peak, ends * bandwidth)
    data.insert(0, line(short(ends), short(roof), "#4A5565", 1.5, name=f"roof of {device.name}", hoverinfo="skip"))
    return plot(
        data, "Operators under the roofline (larger: longer)", axis("FLOPs per byte", type="log", dtick=1),
        axis("FLOP/s per GPU", type="log", dtick=1, exponentformat="power"), hovermode="closest", showlegend=True,
        height=380,
    )  # fmt: skip


def part_frame(accounts: Accounts) -> pl.DataFrame:
    """One row per finished request: its latencies and parts in nanoseconds."""
    columns = {
        "request": accounts.ids,
        "e2e_ns": accounts.e2e_ns,
        "ttft_ns": accounts.ttft_ns,
        **{f"{name}_ns": accounts.parts_ns[:, :, i].sum(axis=1) for i, name in enumerate(NAMES)},
        "delayed_others_ns": accounts.inflicted_ns,
    }
    return pl.DataFrame({name: np.ascontiguousarray(values) for name, values in columns.items()})


def sentences(result: Any) -> list[str]:
    if result.request is not None:
        return words.request_sentences(result.accounts, result.request)
    before = result.simulation.summary
    found = [*words.missed_sentences(result.accounts), *words.slow_sentences(result.accounts, result.slow)]
    found += [advice_sentence(before, result.advice, result.metric, result.statistic)] if result.advice else []
    return found + ([limit_sentence(before, result.limits)] if result.limits else [])


def _text(result: Any) -> list[Block]:
    """The answer in sentences, then the tables; the story of one request where that was asked for."""
    remarks = lines([result.note] if result.note else [], "warning")
    if result.request is not None:
        return [*words.request_blocks(result.accounts, result.request), *remarks]
    before = result.simulation.summary
    blocks: list[Block] = [*lines(result.sentences)]
    blocks += [one for one in words.slow_blocks(result.accounts, result.slow) if isinstance(one, Table)]
    if result.advice:
        rows = advice_rows(before, result.advice, result.metric, result.statistic)
        blocks.append(Table(rows, "What would help: each change simulated on the same requests"))
    if result.limits:
        blocks.append(Table(limit_rows(before, result.limits), "What limits it: each resource made free"))
    return blocks + remarks


def view(result: Any) -> View:
    accounts: Accounts = result.accounts

    def neighbours() -> Figure:
        slowest = int(accounts.values_s(result.metric)[result.slow.rows].argmax())
        row = accounts.row(result.request) if result.request is not None else int(result.slow.rows[slowest])
        return neighbours_figure(accounts, row)

    drawn: dict[str, Callable[[], Figure]] = {
        "causes": lambda: causes_figure(accounts, result.metric),
        "slowest": lambda: slowest_figure(accounts, result.slow),
        "neighbours": neighbours,
        "roofline": lambda: roofline_figure(result.simulation.run),
    }
    made = {"parts": partial(part_frame, accounts)}
    return View("Why requests were slow", partial(_text, result), partial(_data, result), made, lambda: drawn)


def _data(given: Any) -> dict[str, Any]:
    accounts, summary = given.accounts, given.simulation.summary
    data: dict[str, Any] = {"sentences": given.sentences, "metric": given.metric, "note": given.note}
    if given.request is not None:
        row = accounts.row(given.request)
        parts = accounts.parts_ns[row]
        return data | {
            "request": given.request,
            "e2e_ns": int(accounts.e2e_ns[row]),
            "ttft_ns": int(accounts.ttft_ns[row]),
            "parts_ns": {name: int(parts[:, i].sum()) for i, name in enumerate(NAMES)},
            "before_first_token_ns": {name: int(parts[0, i]) for i, name in enumerate(NAMES)},
            "waited": asdict(waited_behind(accounts, row)),
            "delayed_by": [asdict(one) for one in delayed_by(accounts, row)],
        }
    slow = given.slow
    scenarios = {one.change.name: one.scenario.model_dump(mode="json", exclude_unset=True) for one in given.advice}
    return data | {
        "percentile": given.percentile, **_slow_data(accounts, slow),
        "groups": {table.title: list(table.rows) for table in words.group_tables(accounts, given.metric, slow)},
        "advice": advice_rows(summary, given.advice, given.metric, given.statistic),
        "limits": limit_rows(summary, given.limits), "scenarios": scenarios,
    }  # fmt: skip


def _slow_data(accounts: Accounts, slow: Slow) -> dict[str, Any]:
    return {
        "threshold_s": slow.threshold_s,
        "slow_s": slow.slow_s,
        "typical_s": slow.typical_s,
        "num_slow": int(slow.rows.size),
        "slow_requests": [int(one) for one in accounts.ids[slow.rows[:1000]]],
        "causes": [asdict(cause) for cause in slow.causes],
        "circumstances": [{"why": one.why, "share": one.share, "facts": dict(one.facts)} for one in slow.circumstances],
        "parts": {
            name: {"slow_s": float(slow.parts_slow_s[i]), "typical_s": float(slow.parts_typical_s[i])}
            for i, name in enumerate(NAMES)
        },
    }


def advice_rows(before: Summary, outcomes: Sequence[Outcome], metric: Metric, statistic: str) -> list[words.Row]:
    """Changes in the order in which to try them, with the gain and the cost; each was simulated."""
    shown = []
    for one in ranked(before, outcomes, metric, statistic):
        row: words.Row = {"change": one.change.words}
        for name in ("ttft", "tpot", "e2e"):
            row[f"{name.upper()} {statistic.upper()}"] = seconds(one.figure(name, statistic))
        row[f"gain in {metric.upper()}"] = f"{gain(before, one, metric, statistic):+z.1%}"
        if before.slo is not None and one.summary.slo is not None:
            row["SLO met by"] = f"{one.summary.slo.attainment:.1%}"
        row["cost per hour"] = _cost(before, one) or (one.change.needs.split(":")[0] or "nothing")
        shown.append(row)
    return shown


def _cost(before: Summary, one: Outcome) -> str:
    more = one.summary.cost.per_hour - before.cost.per_hour
    return f"{'+' if more > 0 else '−'}${abs(more):,.2f}" if abs(more) > 0.005 else ""


def advice_sentence(before: Summary, outcomes: Sequence[Outcome], metric: Metric, statistic: str) -> str:
    """What to try first, and what money would buy."""
    order = ranked(before, outcomes, metric, statistic)
    helping = [one for one in order if _effect(before, one, metric, statistic)]
    if not helping:
        return "None of the changes that were simulated helps by more than 1 %."
    first = helping[0]
    paid = next((one for one in helping[1:] if _cost(before, one).startswith("+")), None)
    dollars = _cost(before, first)
    cost = f", for {dollars} per hour" if dollars else "" if first.change.needs else " for free"
    advice = f"Try {first.change.words} first: {_effect(before, first, metric, statistic)}{cost}."
    if paid is None:
        return advice
    cheaper = f"{paid.change.words}: {_effect(before, paid, metric, statistic)}, for {_cost(before, paid)} per hour"
    return f"{advice} For money, {cheaper}."


def _effect(before: Summary, one: Outcome, metric: Metric, statistic: str) -> str:
    """What a change does, in words; nothing where it does not help."""
    slo, now = before.slo, one.summary.slo
    if slo is not None and now is not None and 1.0 - slo.attainment > MIN_MISSED:
        is_better = now.attainment - slo.attainment > MIN_GAIN * (1.0 - slo.attainment)
        return f"the SLO is met by {now.attainment:.1%} instead of {slo.attainment:.1%}" if is_better else ""
    share = gain(before, one, metric, statistic)
    if share < MIN_GAIN:
        return ""
    was, then = getattr(getattr(before.latency, f"{metric}_s"), statistic), one.figure(metric, statistic)
    name = f"{statistic.upper()} of {metric.upper()}"
    return f"the {name} falls from {units.seconds(was)} to {units.seconds(then or 0.0)} ({share:.0%} less)"


def limit_rows(before: Summary, outcomes: Sequence[Outcome]) -> list[words.Row]:
    """How much faster things would be if each resource were free, the one that matters most first."""
    rows = []
    for one in sorted(outcomes, key=lambda one: -gain(before, one, "e2e", "mean")):
        row: words.Row = {"if free": one.change.words}
        for name in ("ttft", "tpot", "e2e"):
            row[f"mean {name.upper()}"] = f"{-gain(before, one, name, 'mean'):+z.1%}"
        row["E2E P99"] = f"{-gain(before, one, 'e2e', 'p99'):+z.1%}"
        row["GPUs busy"] = f"{one.summary.utilization.busy:.1%}"
        rows.append(row)
    return rows


def limit_sentence(before: Summary, outcomes: Sequence[Outcome]) -> str:
    best = max(outcomes, key=lambda one: gain(before, one, "e2e", "mean"), default=None)
    share = gain(before, best, "e2e", "mean") if best else 0.0
    if best is None or share < 0.02:
        return "No single resource limits this deployment: none of them, made free, helps by more than 2 %."
    what = f"What limits this deployment is {best.change.words}"
    return f"{what}: if it cost nothing, the mean E2E would be {share:.0%} lower."
