"""A cluster that is ready to run: its loops, called until they want nothing more of anybody."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from gnomon.jit import bound
from gnomon.serving.autoscaling.manager import Manager
from gnomon.serving.engine import contract
from gnomon.serving.engine.calendar import A_REPLICA, AN_EVENT, NOTHING
from gnomon.serving.engine.cluster import ADVANCE, serve
from gnomon.serving.engine.context import Engine, Environment, Fleet, Router
from gnomon.serving.engine.guard import Guard
from gnomon.serving.engine.log import Log
from gnomon.serving.engine.state import BUDGET, NO_LIMIT
from gnomon.serving.run.patience import Patience

PLAIN_COST = 100
"""What an answer in plain Python takes, in iterations of the engine: after many of them the guard has its turn."""


@dataclass(frozen=True, eq=False)
class OpenCluster:
    """A cluster whose requests can be sent: all that its loops are called with."""

    fleet: Fleet
    engine: Engine
    env: Environment
    log: Log
    guard: Guard
    manager: Manager | None
    """Of a fleet that changes."""
    patience: Patience | None
    """Of clients that give up."""
    route: Router | None
    """The router, where it is plain Python."""

    def drive(self, last: int) -> None:
        """Let happen what happens until request `last` has been sent (see `gnomon.serving.engine.cluster.serve`)."""
        self.guard.run(partial(self._drive, last))

    @cached_property
    def _drive(self) -> Callable[[int], None]:
        made = (self.fleet, self.engine, self.env, self.log, self.manager)
        return partial(_drive, self._go_on, *made, patience=self.patience, route=self.route)

    @cached_property
    def _go_on(self) -> Callable[..., None]:
        return bound(serve, self.fleet, self.engine, self.env, self.log, 0)

    def advance(self, until_s: float) -> None:
        """Let replicas that nobody waits for come up to `until_s`."""
        self.env.calendar.book.advance_to_s = until_s
        self.guard.run(lambda: self._go_on(self.fleet, self.engine, self.env, self.log, ADVANCE))


def _drive(
    go_on: Callable[..., None], fleet: Fleet, engine: Engine, env: Environment, log: Log, manager: Manager | None,
    last: int, *, patience: Patience | None, route: Router | None,
) -> None:  # fmt: skip
    """`serve`, with the choices of a router in plain Python, which answers with 1 + the replica, and with what happens
    to the replicas of a fleet and to clients that give up."""
    cluster, book = fleet.cluster, env.calendar.book[0]
    while True:
        if book.wants == AN_EVENT and patience is not None:  # Never beside a manager, whose kinds are others.
            patience.handle(float(book.time_s))
        elif book.wants == AN_EVENT:
            assert manager is not None
            manager.handle()
        elif book.wants == A_REPLICA:
            assert route is not None
            r = route(manager.fleet if manager else fleet, int(book.subject)) - 1
            if not 0 <= r < cluster.replicas.size:
                cluster.control[:4] = (0, contract.NO_SUCH_REPLICA, min(max(r, -NO_LIMIT), NO_LIMIT), book.subject)
                return
            cluster.requests[book.subject].replica = r
        if manager is not None:
            fleet, env = manager.fleet, manager.env
        go_on(fleet, engine, env, log, last)
        if book.wants == NOTHING or cluster.control[BUDGET] <= 0:
            return
        cluster.control[BUDGET] -= PLAIN_COST
