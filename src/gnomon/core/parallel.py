"""One function over many items: in this process, in local processes, or on a Ray cluster.

Results come in the order of the items, failures are values, and Ctrl-C stops the workers. At most a few items per
worker are under way, so that an endless stream of items needs no more memory than a short one.
"""

import os
import socket
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Generic, TypeVar

from gnomon.core.errors import GnomonError, MissingExtraError
from gnomon.core.processes import default_jobs, die_with_parent, keep_freed_memory, spin_no_threads

Item = TypeVar("Item")
Value = TypeVar("Value")
WINDOW = 4  # Items under way per worker.
ATTEMPTS = 3  # How often an item is tried whose worker died (killed, out of memory).


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What became of one item: a value, or the error that stopped it."""

    index: int
    value: Value | None = None
    error: str | None = None
    """One line: the kind of error and its message."""
    details: str | None = None
    """The traceback, for a mistake of ours."""
    is_lost: bool = False
    """Whether its worker died: it may go well another time."""

    def unwrap(self) -> Value:
        """The value; raises if there is none."""
        if self.error is not None:
            raise GnomonError(f"item {self.index} failed: {self.error}")
        return self.value  # type: ignore[return-value]


Attempt = tuple[Any, str | None, str | None, bool]  # The fields of an outcome without its index.


def map_ordered(
    function: Callable[[Item], Value], items: Iterable[Item], *, jobs: int | None = None, ray: str | None = None,
    num_gpus: int = 0,
) -> Iterator[Outcome[Value]]:  # fmt: skip
    """Yield the outcome of `function(item)` for every item, in order.

    `jobs` local processes (all cores unless given; with 1, this process). `ray` names a cluster instead: `auto`,
    `local`, or an address such as `ray://head:10001`; every item gets `num_gpus` GPUs of it. For processes,
    `function` must be importable.
    """
    with shared_workers(jobs=jobs, ray=ray, num_gpus=num_gpus) as workers:
        yield from workers(function, items)


Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Outcome[Any]]]


@contextmanager
def shared_workers(*, jobs: int | None = None, ray: str | None = None, num_gpus: int = 0) -> Iterator[Map]:
    """`map_ordered` several times on the same workers: they start once, and keep what they have cached."""
    if ray is not None:
        yield lambda function, items: _on_ray(function, items, ray, num_gpus)
    elif (jobs or default_jobs()) == 1:
        yield lambda function, items: (Outcome(i, *_attempt(function, item)) for i, item in enumerate(items))
    else:
        pool = _Pool(jobs or default_jobs())
        try:
            yield lambda function, items: _on_processes(function, items, pool)
        except BaseException:  # Ctrl-C, or a caller that stops early: do not wait for work nobody wants.
            pool.stop()
            raise
        pool.executor.shutdown()


def _attempt(function: Callable[[Item], Value], item: Item) -> Attempt:
    try:
        return function(item), None, None, False
    except GnomonError as error:
        return None, str(error), None, False
    except Exception as error:
        return None, f"{type(error).__name__}: {error}", traceback.format_exc(), False


def end_with_parent(end: Callable[[], None] = lambda: os._exit(1)) -> None:
    """In a worker: leave when the parent is gone, however it went; Ctrl-C is the parent's to decide about.

    A thread waits for the parent's end; compiled code may hold it off, so Linux is asked to see to it as well.
    """
    parent = parent_process()
    if parent is None:
        return
    die_with_parent()
    threading.Thread(target=_end_after, args=(parent, end), daemon=True).start()
    if not parent.is_alive():  # It went before the wish was heard.
        end()


def _begin() -> None:
    end_with_parent()
    keep_freed_memory()


def _end_after(parent: Any, end: Callable[[], None]) -> None:
    parent.join()
    end()


class _Pool:
    """Local processes. When one dies, its executor breaks and is replaced."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        spin_no_threads()
        self.start()

    def start(self) -> None:
        self.executor = ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn"), initializer=_begin)

    def stop(self) -> None:
        for process in list((self.executor._processes or {}).values()):
            process.terminate()
        self.executor.shutdown(wait=True, cancel_futures=True)


@dataclass
class _Pending:
    """An item under way."""

    item: Any
    future: Future[Any]
    attempts: int = 1


def _windowed(
    items: Iterable[Item], jobs: int, submit: Callable[[Item], None], result: Callable[[], Attempt]
) -> Iterator[Outcome[Any]]:
    """Outcomes in order, with a few items of each worker under way."""
    sent = index = 0
    for item in items:
        submit(item)
        sent += 1
        if sent - index >= WINDOW * jobs:
            yield Outcome(index, *result())
            index += 1
    for rest in range(index, sent):
        yield Outcome(rest, *result())


def _on_processes(function: Callable[[Item], Value], items: Iterable[Item], pool: _Pool) -> Iterator[Outcome[Value]]:
    pending: deque[_Pending] = deque()

    def submit(item: Item) -> None:
        pending.append(_Pending(item, pool.executor.submit(_attempt, function, item)))

    yield from _windowed(items, pool.jobs, submit, lambda: _first_result(function, pending, pool))


def _first_result(function: Callable[[Any], Any], pending: deque[_Pending], pool: _Pool) -> Attempt:
    """Wait for the oldest item; where a worker died, all that is under way starts again."""
    while True:
        try:
            result: Attempt = pending[0].future.result()
        except BrokenProcessPool as error:
            pool.executor.shutdown(wait=True, cancel_futures=True)
            pool.start()
            result = None, f"its worker died: {error}", None, True
            given_up = pending[0].attempts >= ATTEMPTS
            for one in list(pending)[given_up:]:
                one.future, one.attempts = pool.executor.submit(_attempt, function, one.item), one.attempts + 1
            if not given_up:
                continue
        except Exception as error:  # The item could not be sent to a worker.
            result = None, f"{type(error).__name__}: {error}", None, False
        pending.popleft()
        return result


def _on_ray(
    function: Callable[[Item], Value], items: Iterable[Item], address: str, num_gpus: int
) -> Iterator[Outcome[Value]]:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("running on a Ray cluster", "ray") from None
    if not ray.is_initialized():
        _check_answers(address)
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, str(error).splitlines()[0]) from None
    if num_gpus > ray.cluster_resources().get("GPU", 0):
        raise _no_cluster(address, "the one there has no GPU")
    remote = ray.remote(num_gpus=num_gpus)(_attempt)
    jobs = max(int(ray.cluster_resources().get("CPU", 1)), 1)
    pending: deque[Any] = deque()

    def submit(item: Item) -> None:
        pending.append(remote.remote(function, item))

    try:
        yield from _windowed(items, jobs, submit, lambda: _ray_result(ray, pending.popleft()))
    except BaseException:
        for reference in pending:
            ray.cancel(reference, force=True)
        raise


ANSWER_S = 5.0  # How long a cluster may take to answer; Ray itself would try for minutes, or end the process.


def _check_answers(address: str) -> None:
    """Refuse an address behind which nobody listens, or somebody who is not Ray."""
    if address == "local":
        return
    given = address
    if address == "auto":
        note = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
        given = os.environ.get("RAY_ADDRESS") or (note.read_text(encoding="utf-8").strip() if note.is_file() else "")
        if not given:
            raise _no_cluster(address, "none is running on this machine")
    host, colon, port = given.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise GnomonError("is not the address of a Ray cluster.", where=address, fix="Write HOST:PORT, auto or local.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S) as connection:
            speaks = os.environ.get("RAY_USE_TLS", "0") not in ("", "0") or _speaks_grpc(connection)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from None
    if not speaks:
        raise _no_cluster(address, "what listens there is not Ray")


_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 begins with, and settings that change nothing (RFC 9113)."""


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side answers a greeting of HTTP/2, on which gRPC runs, with its settings."""
    connection.sendall(_HTTP2_HELLO)
    answer = b""
    while len(answer) < 4 and (more := connection.recv(9 - len(answer))):
        answer += more
    return answer[3:4] == b"\x04"


def _no_cluster(address: str, reason: str) -> GnomonError:
    fix = "Start one with `ray start --head`, or use the address local."
    return GnomonError(f"no Ray cluster answers: {reason}.", where=address, fix=fix)


def _ray_result(ray: Any, reference: Any) -> Attempt:
    try:
        result: Attempt = ray.get(reference)
    except ray.exceptions.RayError as error:
        return None, f"{type(error).__name__}: {error}", None, True
    return result
