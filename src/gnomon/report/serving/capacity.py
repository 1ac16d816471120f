"""How much load a deployment takes, in words."""

from __future__ import annotations

from typing import Any

from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table

LIMITS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def text(result: Any) -> list[Block]:
    """Both loops with what a million tokens costs, and why the two differ."""
    slo = result.scenario.slo
    limits = [f"{name} ≤ {units.seconds(value)}" for key, name in LIMITS.items() if (value := getattr(slo, f"{key}_s"))]
    within = f"99 % of the requests within {', '.join(limits)}" if limits else "no limit: before requests pile up"
    rows = [_row(result, "open: requests come at random", f"{result.requests_per_s:.3g}", result.requests_per_s)]
    if result.users:
        name = f"closed: {result.users.count:,} users at once"
        rows.append(_row(result, name, f"{result.users.requests_per_s:.3g}", result.users.requests_per_s))
    gpus, dollars = result.price.num_gpus, result.price.per_hour
    lengths = f"{result.prompt_tokens:,.0f} input and {result.output_tokens:,.0f} output tokens a request"
    return [
        Line(f"{result.scenario.model} on {gpus} x {result.scenario.device}, ${dollars:,.2f} per hour; {within}"),
        Table(rows, caption=f"All dollars over the tokens of one kind, or over both: {lengths} in the mean."),
        *(Line(one) for one in _why(result)),
    ]


def _row(result: Any, loop: str, rate: str, per_s: float) -> dict[str, str]:
    row = {"loop": loop, "requests/s": rate}
    for per in ("input", "output", "total"):
        dollars = result.dollars(per, per_s)
        row[f"$ per million {per}"] = "–" if dollars is None else f"{dollars:.3g}"
    return row


def _why(result: Any) -> list[str]:
    """What limits each, and why they differ."""
    full = f"Requests pile up beyond {result.saturation_per_s:.3g} per second, whatever the limits."
    if not result.requests_per_s:
        return [f"No load meets the limits: {result.binding}. {full}"]
    told = [f"Just above {result.requests_per_s:.3g} per second: {result.binding}. {full}"]
    if result.users is None:
        return [*told, "Without limits any number of users is served, only slower: give --slo.ttft-s or --slo.tpot-s."]
    closed, is_more = result.users.requests_per_s, result.users.requests_per_s > result.requests_per_s
    because = (
        "random arrivals come in bunches that must wait, users wait for their answers and never come in bunches"
        if is_more
        else "all users begin at once and come again as soon as they are answered, so that their prompts meet"
    )
    differs = f"The loops differ ({closed:.3g} per second closed): {because}."
    return [*told, f"With more users: {result.users.binding}. {differs}"]
