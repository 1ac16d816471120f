"""Nobody is turned away."""

from gnomon.serving.admission import Fleet, admission


@admission("everyone", sees_state=False)
def everyone(fleet: Fleet, request_id: int) -> bool:
    """Every request is let in."""
    return True
