"""The schedules that are built in, by name."""

from __future__ import annotations

from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.zoo import classic, controllable_memory, dualpipe, zero_bubble, zero_bubble_auto, zero_bubble_v
from gnomon.pipeline.zoo.plan import SCHEDULES, Family, Plan

__all__ = [
    "SCHEDULES",
    "Family",
    "Plan",
    "classic",
    "controllable_memory",
    "dualpipe",
    "make",
    "zero_bubble",
    "zero_bubble_auto",
    "zero_bubble_v",
]


def make(name: str, plan: Plan) -> Schedule:
    """The schedule `name` for `plan`."""
    return SCHEDULES[name].make(plan)
