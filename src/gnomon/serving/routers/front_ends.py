"""Several front ends behind a proxy: each takes replicas in turn, in an order of its own, and knows of no other."""

from gnomon.jit import inlined
from gnomon.serving.routers import Fleet, router


@inlined
def _place(draw: float, replica: int) -> float:
    """Where a replica stands in the order of the front end that drew `draw`: as good as drawn for each of them."""
    return 1e6 * draw * (replica + 2) ** 0.7 % 1.0


@router("front_ends", options={"front_ends": 10.0}, sees_state=False, draws=True)
def front_ends(fleet: Fleet, request_id: int) -> int:
    """The proxy takes front ends in turn, and each of them replicas, in an order that is drawn once."""
    count, num = fleet.candidates.size, max(1, int(fleet.parameters[0]))
    sent, found = int(fleet.memory[0]), 0
    fleet.memory[0] = sent + 1
    draw = fleet.draws[sent % num % fleet.draws.shape[0], 0]
    for i in range(count):
        turn = 0
        for j in range(count):
            turn += int(_place(draw, j) < _place(draw, i))
        found = i if turn == sent // num % count else found
    return fleet.candidates[found]
