"""Latency against load: how it rises towards the capacity."""

from gnomon.search.load_curve import MAX_REQUESTS, REQUESTS_PER_RANK, LoadCurve, capacity, load_curve

__all__ = ["MAX_REQUESTS", "REQUESTS_PER_RANK", "LoadCurve", "capacity", "load_curve"]
