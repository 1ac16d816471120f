"""A number of replicas for every time of the day."""

from gnomon.core.errors import ConfigError
from gnomon.serving.autoscaling.controllers import View, controller

DAY_S = 86_400.0


@controller("schedule", needs_steps=True)
def schedule(view: View) -> int:
    """The last step that has begun; before the first one of a day, the last of the day before."""
    if not view.steps:
        what = "a schedule needs steps."
        raise ConfigError(what, where="fleet.controller.steps", fix="Give [seconds of the day, replicas] pairs.")
    begun = [count for at_s, count in view.steps if at_s <= view.now_s % DAY_S]
    return begun[-1] if begun else view.steps[-1][1]
