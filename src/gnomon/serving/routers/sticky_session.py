"""All requests of a conversation to the same replica."""

from gnomon.serving.routers import Fleet, router


@router("sticky_session", sees_state=False)
def sticky_session(fleet: Fleet, request_id: int) -> int:
    """The replica given by the session's number, spread evenly; requests without a session take turns."""
    count = fleet.candidates.size
    session = int(fleet.cluster.requests[request_id].session)
    if session >= 0:
        return fleet.candidates[int(session * 2_654_435_761 % 4_294_967_296 * count // 4_294_967_296)]
    turn = int(fleet.memory[0]) % count
    fleet.memory[0] = turn + 1
    return fleet.candidates[turn]
