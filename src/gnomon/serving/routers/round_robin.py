"""Each replica in turn."""

from gnomon.serving.routers import Fleet, router


@router("round_robin", sees_state=False)
def round_robin(fleet: Fleet, request_id: int) -> int:
    """The replica after the one that got the last request."""
    turn = int(fleet.memory[0]) % fleet.candidates.size
    fleet.memory[0] = turn + 1
    return fleet.candidates[turn]
