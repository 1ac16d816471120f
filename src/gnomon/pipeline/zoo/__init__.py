"""The schedules that are built in, by name."""

from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.zoo.plan import SCHEDULES, Plan, ScheduleSpec, check_passes, pipeline_schedule

__all__ = ["SCHEDULES", "Plan", "ScheduleSpec", "check_passes", "make", "pipeline_schedule"]


def make(name: str, plan: Plan) -> Schedule:
    return SCHEDULES[name].make(plan)
