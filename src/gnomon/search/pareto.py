"""Configurations that nothing beats in every respect."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.search.config import SearchConfig
from gnomon.search.evaluate import Record


def is_on_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """For each point (smaller is better in every coordinate): whether no other is at least as good and once better."""
    return [
        not any(all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points)
        for point in points
    ]


def latency_axes(search: SearchConfig) -> tuple[str, str]:
    """The figures of interest of the first token and of those after it: those of the SLO (TBT, or else TPOT), or else
    TTFT P90 and TBT P99."""
    slo = search.slo
    after = (
        f"tpot_s {next(iter(slo.tpot_s))}" if slo.tpot_s and not slo.tbt_s else f"tbt_s {next(iter(slo.tbt_s), 'p99')}"
    )
    return f"ttft_s {next(iter(slo.ttft_s), 'p90')}", after


def front(search: SearchConfig, ranked: Sequence[Record]) -> list[bool]:
    """Which of the ranked are on the front of score (high) against both latencies at capacity (low)."""
    axes = latency_axes(search)
    points = [(-(one.score or 0.0), *(_latency(one, axis) for axis in axes)) for one in ranked]
    return is_on_front(points)


def _latency(record: Record, axis: str) -> float:
    value = record.figures.get(axis)
    return float("inf") if value is None else value
