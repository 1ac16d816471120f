"""What is to happen to replicas: functions with a time, as events of the engine's calendar."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gnomon.serving.engine.calendar import CONTROL_TICK, REPLICA_CHANGES, Calendar, schedule_all


@dataclass
class FleetEvents:
    """Functions of the time at which they are called, and the lives of replicas that they belong to."""

    calendar: Calendar
    planned: list[Callable[[float], None]] = field(default_factory=list)
    lives: dict[int, int] = field(default_factory=dict)
    """How often a replica was started or has died: what was planned for an earlier life does not happen."""

    def at(self, time_s: float, what: Callable[[float], None]) -> None:
        """Let something happen at a given time."""
        self.planned.append(what)
        schedule_all(self.calendar, REPLICA_CHANGES, np.array([time_s]), np.array([len(self.planned) - 1]))

    def tick_at(self, time_s: float) -> None:
        """Ask the controller at a given time."""
        schedule_all(self.calendar, CONTROL_TICK, np.array([time_s]), np.zeros(1, np.int64))

    def happen(self, place: int, now_s: float) -> None:
        """Do what was planned."""
        self.planned[place](now_s)

    def begin_life(self, i: int) -> None:
        """What was planned in the life of replica `i` so far does not happen any more."""
        self.lives[i] = self.lives.get(i, 0) + 1

    def in_life(self, i: int, what: Callable[[int, float], None]) -> Callable[[float], None]:
        """`what` for replica `i`, unless its life has ended before."""
        life = self.lives.get(i, 0)
        return lambda now_s: what(i, now_s) if self.lives.get(i, 0) == life else None
