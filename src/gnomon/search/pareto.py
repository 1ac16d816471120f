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
    """The TTFT and TBT figures of interest: those of the SLO, else TTFT P90 and TBT P99."""
    ttft, tbt = next(iter(search.slo.ttft_s), "p90"), next(iter(search.slo.tbt_s), "p99")
    return f"ttft_s {ttft}", f"tbt_s {tbt}"


def front(search: SearchConfig, ranked: Sequence[Record]) -> list[bool]:
    """Which of the ranked are on the front of score (high) against TTFT and TBT at capacity (low)."""
    axes = latency_axes(search)
    points = [(-(one.score or 0.0), *(_latency(one, axis) for axis in axes)) for one in ranked]
    return is_on_front(points)


def _latency(record: Record, axis: str) -> float:
    value = record.figures.get(axis)
    return float("inf") if value is None else value
