"""An explanation: the answer in sentences and tables, as plain data, as pictures; what would help, and what limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from gnomon.core import units
from gnomon.report.blocks import Block, Figure, Table, lines, seconds
from gnomon.report.serving import explain_figures as figures
from gnomon.report.serving import explain_text as words
from gnomon.serving.results.counterfactual import MIN_GAIN, MIN_MISSED, Outcome, gain, ranked
from gnomon.serving.results.explain import Slow, delayed_by, waited_behind
from gnomon.serving.results.latency_breakdown import NAMES, Accounts, Metric
from gnomon.serving.results.summary import Summary


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
    """The answer in two or three sentences."""
    if result.request is not None:
        return words.request_sentences(result.accounts, result.request)
    before = result.simulation.summary
    found = [*words.missed_sentences(result.accounts), *words.slow_sentences(result.accounts, result.slow)]
    found += [advice_sentence(before, result.advice, result.metric, result.statistic)] if result.advice else []
    return found + ([limit_sentence(before, result.limits)] if result.limits else [])


def text(result: Any) -> list[Block]:
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


def tables(result: Any) -> dict[str, Callable[[], pl.DataFrame]]:
    """Every request's parts."""
    return {"parts": partial(part_frame, result.accounts)}


def drawers(result: Any) -> dict[str, Callable[[], Figure]]:
    """Causes by percentile, the slowest requests, one among its neighbours, operators under the roofline."""
    accounts: Accounts = result.accounts

    def neighbours() -> Figure:
        slowest = int(accounts.values_s(result.metric)[result.slow.rows].argmax())
        row = accounts.row(result.request) if result.request is not None else int(result.slow.rows[slowest])
        return figures.neighbours_figure(accounts, row)

    return {
        "causes": lambda: figures.causes_figure(accounts, result.metric),
        "slowest": lambda: figures.slowest_figure(accounts, result.slow),
        "neighbours": neighbours,
        "roofline": lambda: figures.roofline_figure(result.simulation.run),
    }


def data(given: Any) -> dict[str, Any]:
    """Everything that the text says, as nested plain data."""
    accounts, summary = given.accounts, given.simulation.summary
    told: dict[str, Any] = {"sentences": given.sentences, "metric": given.metric, "note": given.note}
    if given.request is not None:
        row = accounts.row(given.request)
        parts = accounts.parts_ns[row]
        return told | {
            "request": given.request,
            "e2e_ns": int(accounts.e2e_ns[row]),
            "ttft_ns": int(accounts.ttft_ns[row]),
            "parts_ns": {name: int(parts[:, i].sum()) for i, name in enumerate(NAMES)},
            "before_first_token_ns": {name: int(parts[0, i]) for i, name in enumerate(NAMES)},
            "waited": asdict(waited_behind(accounts, row)),
            "delayed_by": [asdict(one) for one in delayed_by(accounts, row)],
        }
    slow = given.slow
    return told | {
        "percentile": given.percentile,
        **_slow_data(accounts, slow),
        "groups": {table.title: list(table.rows) for table in words.group_tables(accounts, given.metric, slow)},
        "advice": advice_rows(summary, given.advice, given.metric, given.statistic),
        "limits": limit_rows(summary, given.limits),
        "scenarios": {
            one.change.name: one.scenario.model_dump(mode="json", exclude_unset=True) for one in given.advice
        },
    }


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
            row[f"{words.SHORT[name]} {statistic.upper()}"] = seconds(one.figure(name, statistic))
        row[f"gain in {words.SHORT[metric]}"] = f"{gain(before, one, metric, statistic):+z.1%}"
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
    helping = [one for one in order if _said(before, one, metric, statistic)]
    if not helping:
        return "None of the changes that were simulated helps by more than 1 %."
    first = helping[0]
    paid = next((one for one in helping[1:] if _cost(before, one).startswith("+")), None)
    dollars = _cost(before, first)
    cost = f", for {dollars} per hour" if dollars else "" if first.change.needs else " for free"
    told = f"Try {first.change.words} first: {_said(before, first, metric, statistic)}{cost}."
    if paid is None:
        return told
    said = f"{paid.change.words}: {_said(before, paid, metric, statistic)}, for {_cost(before, paid)} per hour"
    return f"{told} For money, {said}."


def _said(before: Summary, one: Outcome, metric: Metric, statistic: str) -> str:
    """What a change does, in words; nothing where it does not help."""
    slo, now = before.slo, one.summary.slo
    if slo is not None and now is not None and 1.0 - slo.attainment > MIN_MISSED:
        is_better = now.attainment - slo.attainment > MIN_GAIN * (1.0 - slo.attainment)
        return f"the SLO is met by {now.attainment:.1%} instead of {slo.attainment:.1%}" if is_better else ""
    share = gain(before, one, metric, statistic)
    if share < MIN_GAIN:
        return ""
    was, then = getattr(getattr(before.latency, f"{metric}_s"), statistic), one.figure(metric, statistic)
    name = f"{statistic.upper()} of {words.SHORT[metric]}"
    return f"the {name} falls from {units.seconds(was)} to {units.seconds(then or 0.0)} ({share:.0%} less)"


def limit_rows(before: Summary, outcomes: Sequence[Outcome]) -> list[words.Row]:
    """How much faster things would be if each resource were free, the one that matters most first."""
    rows = []
    for one in sorted(outcomes, key=lambda one: -gain(before, one, "e2e", "mean")):
        row: words.Row = {"if free": one.change.words}
        for name in ("ttft", "tpot", "e2e"):
            row[f"mean {words.SHORT[name]}"] = f"{-gain(before, one, name, 'mean'):+z.1%}"
        row["E2E P99"] = f"{-gain(before, one, 'e2e', 'p99'):+z.1%}"
        row["GPUs busy"] = f"{one.summary.utilization.busy:.1%}"
        rows.append(row)
    return rows


def limit_sentence(before: Summary, outcomes: Sequence[Outcome]) -> str:
    """What limits the deployment."""
    best = max(outcomes, key=lambda one: gain(before, one, "e2e", "mean"), default=None)
    share = gain(before, best, "e2e", "mean") if best else 0.0
    if best is None or share < 0.02:
        return "No single resource limits this deployment: none of them, made free, helps by more than 2 %."
    what = f"What limits this deployment is {best.change.words}"
    return f"{what}: if it cost nothing, the mean E2E would be {share:.0%} lower."
