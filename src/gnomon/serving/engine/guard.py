"""Running the compiled loops so that they can be stopped, and saying what stopped them.

A loop runs in slices of so many iterations: between two of them Python gets its turn, so that Ctrl-C works. What
policies and routers raise is collected, and faults that the engine found (`engine.contract`) become errors:
a `ConfigError` that names the user's file for users' own code, an `AssertionError` for Gnomon's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml
from gnomon.core.user_files import is_own, own_error, place_of, plain
from gnomon.jit import unraised_errors
from gnomon.serving.engine import contract
from gnomon.serving.engine.state import BUDGET, ENDED, FAULT, FINISHED, NO_LIMIT, NOT_ARRIVED, REJECTED, Cluster
from gnomon.workload import Requests

T = TypeVar("T")

SLICE_ITERATIONS = 100_000  # Iterations between two moments at which Ctrl-C is noticed: a fraction of a second.


@dataclass(frozen=True)
class Guard:
    """A cluster with the functions that decide in it."""

    cluster: Cluster
    policies: tuple[Any, ...]
    """As replicas refer to them."""
    router: Any = None
    admission: Any = None
    decider: Any = None
    between: Callable[[], None] | None = None
    """Called after every slice that was used up: whoever raises an error there ends the run."""

    def __post_init__(self) -> None:
        own = np.array([is_own(policy) for policy in self.policies])
        self.cluster.replicas.checked = own[self.cluster.replicas.policy]

    def run(self, step: Callable[[], T]) -> T:
        """Call `step` until it has not used up its slice; returns what it returned last."""
        control = self.cluster.control
        with unraised_errors() as errors:
            while True:
                control[BUDGET] = SLICE_ITERATIONS
                try:
                    result = step()
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # Plain Python: nothing is compiled, or the router is not.
                    raise self._explained(error) from error
                if control[FAULT]:
                    raise self._error(errors)
                if control[BUDGET] > 0:
                    control[BUDGET] = NO_LIMIT
                    return result
                if self.between is not None:
                    self.between()

    def audit(self, offered: Requests) -> None:
        """Check the books of a run that was not cut short: every request ended as it was offered, nothing is held."""
        replicas, requests = self.cluster.replicas, self.cluster.requests
        ended = int(np.count_nonzero((requests.status == FINISHED) | (requests.status == REJECTED)))
        books = (
            "num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding",
            "num_held", "num_moving", "num_coming", "num_landing", "num_ready", "num_reported", "num_deferred",
        )  # fmt: skip
        wrong = [name for name in books if replicas[name].any()]
        if (replicas.free_blocks != replicas.num_blocks).any():
            wrong.append("free_blocks")
        if int(replicas.num_finished.sum() + replicas.num_rejected.sum()) != ended:
            wrong.append("num_finished")
        if not np.isin(requests.status, (NOT_ARRIVED, *ENDED)).all():
            wrong.append("status")
        lengths = ("prompt_tokens", "output_tokens")
        wrong += [name for name in lengths if (requests[name] != getattr(offered, name)).any()]
        if not wrong:
            return
        raise self._blamed(f"leaves the books wrong at the end of the run ({', '.join(wrong)}).")

    def _blamed(self, what: str) -> Exception:
        """An error for the first of the user's functions, which may have written where it should only look; where there
        is none, the fault is Gnomon's."""
        if not self._own:
            return AssertionError(f"the engine {what}")
        function, kind = self._own[0]
        through = "Change requests and blocks only with the batch operations of gnomon.extend."
        fix = through if kind == "batching policy" else "Look at the replicas, and write to fleet.memory alone."
        return ConfigError(f"the {kind} {plain(function).__name__} {what}", where=place_of(function), fix=fix)

    @property
    def _own(self) -> list[tuple[Any, str]]:
        """The user's functions, and what each of them is."""
        asked = [(self.router, "router"), (self.admission, "admission control"), (self.decider, "decider")]
        every = [*((policy, "batching policy") for policy in self.policies), *asked]
        return [(function, kind) for function, kind in every if function is not None and is_own(function)]

    def _explained(self, error: BaseException) -> BaseException:
        """The error of a user's function in words; any other as it is."""
        files = {plain(one).__code__.co_filename: (one, kind) for one, kind in self._own}
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in files:
                return own_error(error, *files[trace.tb_frame.f_code.co_filename])
            trace = trace.tb_next
        return error

    def _error(self, errors: list[BaseException]) -> Exception:
        """The fault that stopped the engine, in words."""
        _, fault, r, request = (int(number) for number in self.cluster.control[:4])
        if fault == contract.NO_SUCH_REPLICA:
            return self._router_fault(r, request, errors)
        if fault == contract.ADMISSION_RAISED:
            return _raised(errors, self.admission, "admission control")
        policy = self.policies[self.cluster.replicas[r].policy]
        if fault == contract.POLICY_RAISED:
            return _raised(errors, policy, "batching policy")
        sayings = own_yaml(files("gnomon.serving.engine") / "faults.yaml")
        what, fix = next(words for name, words in sayings.items() if getattr(contract, name) == fault)
        what = f"the batching policy {plain(policy).__name__} {what.format(request=f'request {request}')}"
        if is_own(policy):
            return ConfigError(what, where=place_of(policy), fix=fix)
        return self._blamed(f"has changed what replicas go by: {what}") if self._own else AssertionError(what)

    def _router_fault(self, r: int, request: int, errors: list[BaseException]) -> Exception:
        if errors:
            return _raised(errors, self.router, "router")
        what = f"the router {plain(self.router).__name__} answered {r} for request {request}"
        return ConfigError(
            f"{what}: there is no such replica.",
            where=place_of(self.router),
            fix=f"Answer with a number from 0 to {self.cluster.replicas.size - 1}.",
        )


def _raised(errors: list[BaseException], function: Any, kind: str) -> Exception:
    """What a function raised in compiled code, in words where it is a user's."""
    error = errors[0] if errors else RuntimeError("it raised an error")
    return own_error(error, function, kind) if is_own(function) else AssertionError(str(error))
