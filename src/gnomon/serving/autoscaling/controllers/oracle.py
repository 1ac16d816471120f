"""The cheapest schedule that meets the SLO, by hindsight: the regret of the others is counted against it.

It is looked for before the run, by running the same requests under one schedule after another (`run.hindsight`): at
most `runs` times, with a number of replicas for each of `pieces` parts of the run, until `goal` of the requests meet
their SLO and no replica can be spared.
"""

from gnomon.serving.autoscaling.controllers import View, controller


@controller("oracle", options={"goal": 0.99, "pieces": 24.0, "runs": 150.0}, sees_future=True)
def oracle(view: View) -> int:
    """The last step that has begun."""
    return next((count for at_s, count in reversed(view.steps) if at_s <= view.now_s), view.steps[0][1])
