"""Latency against load: how it rises towards the capacity."""

from gnomon.search.load_curve import LoadCurve, capacity, load_curve, saturation

__all__ = ["LoadCurve", "capacity", "load_curve", "saturation"]
