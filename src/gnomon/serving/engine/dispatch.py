"""Who gets an arriving request: admission control, routers, and where prefill and decode are apart, the decider."""

from gnomon.jit import borrow, feature, inlined
from gnomon.serving.engine import contract
from gnomon.serving.engine.context import Engine, Environment, Fleet, Router
from gnomon.serving.engine.state import NONE, NUM_PARKED, NUM_SHED, PARKED, SHED
from gnomon.serving.features.transfers import IS_DOWN


@inlined
def ask(fleet: Fleet, router: Router, request_id: int) -> int:
    """The replica that a router chooses; the engine stops where there is no such replica."""
    r = router(fleet, request_id) - 1
    if r < 0 or r >= fleet.cluster.replicas.size:
        contract.stop(fleet.cluster, contract.NO_SUCH_REPLICA, r, request_id)
        return 0
    return r


@inlined
def passes_admission(fleet: Fleet, engine: Engine, request_id: int, now: float) -> bool:
    """Whether an arriving request may be handed to a replica. One that admission control turns away ends here; where
    no replica is up, it is parked until one is."""
    request = fleet.cluster.requests[request_id]
    if request.num_tries == 0:
        verdict = engine.admission(fleet, request_id)
        if verdict == 0:
            contract.stop(fleet.cluster, contract.ADMISSION_RAISED, NONE, request_id)
        if verdict < 2:
            request.status = SHED
            request.finished_s = now
            fleet.cluster.control[NUM_SHED] += 1
            return False
        request.num_tries = 1
    if fleet.candidates.size == 0:
        request.status = PARKED
        fleet.cluster.control[NUM_PARKED] += 1
        return False
    return True


@inlined
def choose(fleet: Fleet, engine: Engine, env: Environment, request_id: int) -> int:
    """The replica that gets an arriving request."""
    if env.calendar.book[0].has_roles != 0:
        return _choose_two(fleet, engine, env, request_id)
    return ask(fleet, engine.router, request_id)


@feature
def _choose_two(fleet: Fleet, engine: Engine, env: Environment, request_id: int) -> int:
    """Where prefill and decode are apart: the replica that decodes a request is chosen first, then whether it is
    prefilled elsewhere, then where."""
    cluster, request, own = fleet.cluster, fleet.cluster.requests[request_id], env.decode
    to_decode = Fleet(
        cluster, fleet.tables, own.draws, own.parameters, own.memory, own.predicted_output, own.known,
        own.candidates, fleet.gate, fleet.gate_memory,
    )  # fmt: skip
    request.decode_replica = ask(borrow(to_decode), engine.decode_router, request_id)
    if env.transfers.settings[IS_DOWN] != 0.0:
        return request.decode_replica
    to_decide = Fleet(
        cluster, fleet.tables, fleet.draws, env.decider, fleet.memory, fleet.predicted_output, fleet.known,
        fleet.candidates, fleet.gate, fleet.gate_memory,
    )  # fmt: skip
    if engine.decider(borrow(to_decide), request_id) < 2:
        return request.decode_replica
    r = ask(fleet, engine.router, request_id)
    request.prefill_replica = r
    if r != request.decode_replica:
        cluster.replicas[request.decode_replica].num_coming += 1
    return r
