"""Every measured server simulated: once for each configuration, in parallel, kept so that a run can go on later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gnomon
from gnomon.core.cache_folder import cache_home
from gnomon.core.parallel import map_ordered
from gnomon.verify.silicon.launch import launch_of
from gnomon.verify.silicon.scenarios import facts_of, scenario_of
from gnomon.verify.silicon.servers import Server


@dataclass(frozen=True)
class Prediction:
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    notes: tuple[str, ...] = ()
    """What the simulation says about its own times."""
    problem: str | None = None
    """Why there is no prediction."""


@dataclass(frozen=True)
class Scored:
    server: Server
    prediction: Prediction

    @property
    def ttft_error(self) -> float:
        return self.prediction.ttft_s / self.server.ttft_s - 1.0

    @property
    def tpot_error(self) -> float:
        return self.prediction.tpot_s / self.server.tpot_s - 1.0


def predict(server: Server) -> Prediction:
    from gnomon.serving.results.metrics import summarize
    from gnomon.serving.run.simulate import run

    done = run(scenario_of(server))
    latency = summarize(done).latency
    if latency.ttft_s.mean is None or latency.tpot_s.mean is None:
        return Prediction(problem="no request finished in the simulation")
    cold_s = 0.0 if server.prefill else launch_of(facts_of(server)).compile_s * server.concurrency / len(done.requests)
    return Prediction(latency.ttft_s.mean + cold_s, latency.tpot_s.mean, tuple(done.notes))


def score(
    chosen: Iterable[Server], *, jobs: int | None = None, ray: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Scored]:  # fmt: skip
    """Predict every server. Those of one configuration share a simulation; what is known already is not repeated."""
    chosen = list(chosen)
    known = _Kept.of_this_version()
    missing = {s.key: s for s in chosen if s.problem is None and not known.has(s)}
    todo = sorted(missing.values(), key=_neighbours_first)
    total = len({s.key for s in chosen})
    for done, (server, prediction) in enumerate(_predict_all(todo, jobs, ray), start=total - len(todo) + 1):
        known.add(server, prediction)
        if on_progress:
            on_progress(done, total)
    return [Scored(s, Prediction(problem=s.problem) if s.problem else known.of(s)) for s in chosen]


def _neighbours_first(server: Server) -> tuple[Any, ...]:
    """Servers that read the same kernel tables side by side: a worker then bakes them once."""
    layout = server.layout
    place = (server.model, server.device, server.engine, server.version or "", server.precision)
    return (*place, layout.num_gpus, layout.attention_groups, layout.expert_parallel, server.concurrency)


def _predict_all(todo: list[Server], jobs: int | None, ray: str | None) -> Iterator[tuple[Server, Prediction]]:
    for outcome in map_ordered(predict, todo, jobs=jobs, ray=ray):
        problem = LOST if outcome.is_lost else (outcome.error or "").partition("\n")[0]
        failed = Prediction(problem=problem) if outcome.error else None
        yield todo[outcome.index], failed or outcome.unwrap()


LOST = "its worker died"  # The problem of a server that can be asked again: it is not kept.


class _Kept:
    """Predictions on disk, one line each, of exactly this version of Gnomon and of the measured kernels."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Prediction] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    @classmethod
    def of_this_version(cls) -> _Kept:
        """What this version predicted before."""
        home = cache_home()
        return cls(home / "verify-silicon" / f"{_version()}.jsonl" if home else None)

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            key = row.pop("key")
            self._known[key] = Prediction(**{**row, "notes": tuple(row["notes"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # A line cut off when a run was stopped.

    def has(self, server: Server) -> bool:
        return _key(server) in self._known

    def of(self, server: Server) -> Prediction:
        return self._known[_key(server)]

    def add(self, server: Server, prediction: Prediction) -> None:
        self._known[_key(server)] = prediction
        if self.path is None or prediction.problem == LOST:
            return
        with suppress(OSError):  # A full or read-only disk: it is predicted again next time.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": _key(server)} | asdict(prediction)) + "\n")


def _key(server: Server) -> str:
    return hashlib.sha256(repr(server.key).encode()).hexdigest()[:24]


@cache
def _version() -> str:
    """A hash of all sources and data files of the package: any change may change a prediction, but for the figures that
    are recorded of them."""
    digest = hashlib.sha256()
    package = Path(gnomon.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".yaml", ".csv", ".parquet") and path.is_file() and path.name != "recorded.yaml":
            digest.update(path.read_bytes())
    from importlib.metadata import version

    digest.update(version("aiconfigurator-core").encode())
    return digest.hexdigest()[:16]
