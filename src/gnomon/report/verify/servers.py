"""Measured vLLM servers and their simulation, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table
from gnomon.report.verify.told import Told
from gnomon.verify.servers import GOALS, SLACK, Scored, figures, recorded

FAR = 0.25
"""Servers further off than this are listed one by one."""


def told(scored: Sequence[Scored], *, is_whole: bool) -> Told:
    """Tables by GPU, model and size; what was recorded with the release is judged where all servers were simulated."""
    blocks: list[Block] = [Table(_groups(scored, _half), "By GPU and half")]
    blocks += [Table(_groups(scored, lambda s: f"{s.server.device} {s.server.short}"), "By model")]
    blocks += [Table(_groups(scored, _size), "By sequences at a time")]
    far = [s for s in scored if abs(s.errors.get("itl", 0.0)) > FAR]
    if far:
        rows = [
            {"server": s.server.name, "measured": units.seconds(s.server.itl_s), "simulated": units.seconds(s.itl_s),
             "error": f"{s.errors['itl']:+.0%}"}
            for s in far
        ]  # fmt: skip
        blocks.append(Table(rows, "Time between tokens, further off than 25 %"))
    blocks += [Line(f"{s.server.name}: {s.problem}") for s in scored if s.problem]
    found = figures(scored)
    for name, goal in GOALS.items():
        if name in found:
            verdict = "met" if found[name] <= goal else "not met"
            blocks.append(Line(f"Held out, {name}: {found[name]:.1%} (goal {goal:.0%}: {verdict})"))
    worse = [
        f"{name} {found[name]:.1%} (recorded {value:.1%})"
        for name, value in recorded().items()
        if is_whole and found.get(name, 1.0) > value + SLACK
    ]
    return Told(rows=[_row(s) for s in scored], data={"figures": found, "servers": [_row(s) for s in scored]},
                blocks=blocks, failures=worse)  # fmt: skip


def _row(one: Scored) -> dict[str, Any]:
    s = one.server
    return {
        "server": s.name, "is_held_out": s.is_held_out, "itl_s": s.itl_s, "simulated_itl_s": one.itl_s,
        "tokens_s": s.tokens_s, "simulated_tokens_s": one.tokens_s, **{f"{k}_error": v for k, v in one.errors.items()},
    }  # fmt: skip


def _half(one: Scored) -> str:
    return f"{one.server.device}, {'held out' if one.server.is_held_out else 'other half'}"


def _size(one: Scored) -> str:
    top = next((n for n in (16, 64, 256, 1024) if one.server.max_sequences <= n), 0)
    return f"{one.server.device} {f'up to {top:,}' if top else 'more than 1,024'}"


def _groups(scored: Iterable[Scored], key: Callable[[Scored], str]) -> list[dict[str, Any]]:
    groups: dict[str, list[Scored]] = {}
    for one in scored:
        groups.setdefault(key(one), []).append(one)
    return [{"": name, "servers": len(group), **_summary(group)} for name, group in sorted(groups.items())]


def _summary(group: Sequence[Scored]) -> dict[str, str | None]:
    cells: dict[str, str | None] = {}
    for metric, words in (("itl", "time between tokens"), ("throughput", "throughput")):
        errors = [s.errors[metric] for s in group if metric in s.errors]
        cells[words] = f"{statistics.median(map(abs, errors)):.1%}" if errors else None
        cells[f"{words}, mean"] = f"{statistics.fmean(map(abs, errors)):.1%}" if errors else None
        cells[f"{words}, bias"] = f"{statistics.median(errors):+.1%}" if errors else None
    return cells
