"""Latency against load: how it rises towards the capacity."""

from gnomon.search.headroom import MAX_REQUESTS, REQUESTS_PER_RANK, Headroom, headroom
from gnomon.search.load_curve import LoadCurve, capacity, load_curve, saturation

__all__ = [
    "MAX_REQUESTS",
    "REQUESTS_PER_RANK",
    "Headroom",
    "LoadCurve",
    "capacity",
    "headroom",
    "load_curve",
    "saturation",
]
