"""As many replicas as at the start; those that fail are replaced."""

from gnomon.serving.autoscaling.controllers import View, controller


@controller("fixed")
def fixed(view: View) -> int:
    """What it was."""
    return view.desired
