"""Any replica, with equal chances."""

from gnomon.serving.routers import Fleet, router


@router("random", sees_state=False, draws=True)
def random(fleet: Fleet, request_id: int) -> int:
    """A uniformly random replica."""
    return fleet.candidates[int(fleet.draws[request_id, 0] * fleet.candidates.size)]
