"""Several front ends behind a proxy: each takes replicas in turn, in an order of its own, and knows of no other."""

from gnomon.serving.routers import Fleet, router


@router("front_ends", options={"front_ends": 10.0}, sees_state=False, draws=True)
def front_ends(fleet: Fleet, request_id: int) -> int:
    """The proxy takes front ends in turn, and each of them replicas, in an order that is drawn once."""
    count, rows, num = fleet.candidates.size, fleet.draws.shape[0], max(1, int(fleet.parameters[0]))
    sent = int(fleet.memory[0])
    fleet.memory[0] = sent + 1
    first, found = sent % num * count, 0
    for i in range(count):
        turn = 0
        for j in range(count):
            turn += int(fleet.draws[(first + j) % rows, 0] < fleet.draws[(first + i) % rows, 0])
        found = i if turn == sent // num % count else found
    return fleet.candidates[found]
