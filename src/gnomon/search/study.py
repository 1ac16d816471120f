"""The search itself: all configurations, or only those that may win."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.config import load
from gnomon.core.errors import DataError
from gnomon.core.parallel import Map, Outcome, shared_workers
from gnomon.search.config import SearchConfig
from gnomon.search.evaluate import Estimate, Record, Task, bounds_of, capacity_with_seed, check_rated, evaluate, pilot
from gnomon.search.results import ResultsFile
from gnomon.search.slo import price, rate_for
from gnomon.search.space import Candidate, candidates, compile_for, scenario_of
from gnomon.serving.results.intervals import Interval
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.calibration import read_calibration
from gnomon.workload.slo import SloConfig

PLACEMENT = ("batching.", "router.", "num_replicas")  # Fields that do not say where the model runs.
FIRST_ROUND, LARGEST_ROUND = 4, 32
"""Configurations examined at a time by the smart strategy, whatever the number of workers: all of a round are held
against the best of the rounds before, so that the result does not depend on who is faster. Each round is twice the one
before: the first ones find something to beat, the later ones keep many workers busy."""
# Student's t at 97.5 % for 1, 2, ... degrees of freedom; beyond ten, that of ten, which is a little wider.
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Found:
    """The answer of a search."""

    search: SearchConfig
    ranked: list[Record]
    """Configurations that meet the SLO, best first."""
    others: list[Record]
    """Passed over, impossible, failed, or unable to meet the SLO; each with its reason."""
    margins: dict[str, float] = field(default_factory=dict)
    """Half of the 95 % interval of the capacity of the best, by label."""
    beside: tuple[int, int] = (0, 0)
    """Runs, and requests simulated, for pilots and intervals."""

    @property
    def best(self) -> Record | None:
        return self.ranked[0] if self.ranked else None

    @property
    def ties(self) -> list[Record]:
        """Configurations that may be as good as the winner: their scores differ by less than the intervals of both."""
        if self.best is None or self.best.label not in self.margins:
            return []
        errors = [self._error(one) for one in self.ranked]
        least = [(1.0 - math.hypot(errors[0], error)) * (self.best.score or 0.0) for error in errors]
        return [one for one, limit in zip(self.ranked[1:], least[1:], strict=True) if (one.score or 0.0) >= limit]

    def _error(self, record: Record) -> float:
        """Half of the 95 % interval of a capacity as a share of it; that of the winner where none was measured."""
        known = record if record.label in self.margins else self.ranked[0]
        return self.margins[known.label] / (known.capacity_per_s or 1.0)

    @property
    def runs(self) -> int:
        return self.beside[0] + sum(one.runs for one in (*self.ranked, *self.others))

    @property
    def simulated(self) -> int:
        return self.beside[1] + sum(one.simulated for one in (*self.ranked, *self.others))


def search(
    question: SearchConfig, *, results: str | Path | None = None, jobs: int | None = None, ray: str | None = None,
    on_progress: Progress | None = None,
) -> Found:  # fmt: skip
    """Find the best configuration.

    `results` names a file (JSON lines) to which every record is appended: a search that was interrupted goes on from
    there. `jobs` local processes (all cores unless given), or a Ray cluster at `ray`; the results are the same.
    `on_progress(done, total)` is called when a configuration is settled.
    """
    check(question)
    file = ResultsFile(Path(results) if results is not None else None, question)
    compile_for(question)
    with shared_workers(jobs=jobs, ray=ray) as workers:
        return search_with(question, file, workers, on_progress or (lambda done, total: None))


def check(question: SearchConfig) -> None:
    """Say what is wrong with a question before anything is compiled or started."""
    candidates(question)
    check_rated(question)


def search_with(question: SearchConfig, file: ResultsFile, workers: Map, report: Progress) -> Found:
    space = candidates(question)
    examiner = _Examiner(question, file, workers, report, len(space))
    records = examiner.all_of(space) if question.strategy == "exhaustive" else _smart(examiner, space)
    ranked, others, margins = _ranked(question, records, lambda asked: examiner.estimates(capacity_with_seed, asked))
    return Found(question, ranked, others, margins, (examiner.runs, examiner.simulated))


def _ranked(
    question: SearchConfig, records: list[Record], estimates: Callable[[dict[str, Any]], dict[str, float]]
) -> tuple[list[Record], list[Record], dict[str, float]]:
    """Those that meet the SLO, the best first; the others; and half-widths of the 95 % intervals of the best ones'
    capacities, from `estimates` on other sequences of requests."""
    ranked = sorted((one for one in records if one.score is not None), key=lambda one: (-(one.score or 0.0), one.label))
    best = ranked[: question.effort.num_intervals]
    margins = _half_widths(question, best, estimates(_repeats(question, best)))
    return ranked, [one for one in records if one.score is None], margins


@dataclass
class _Examiner:
    """Asks workers about configurations, unless the results file knows already."""

    question: SearchConfig
    file: ResultsFile
    workers: Map
    report: Progress
    total: int
    settled: int = 0
    runs: int = 0
    simulated: int = 0
    bounds: dict[str, float] = field(default_factory=dict)
    """By key: loads that configurations cannot exceed."""

    def estimates(self, function: Callable[[Any], Estimate], asked: dict[str, Any]) -> dict[str, float]:
        """Capacities by key, without a record of the configuration; those whose attempt failed are missing."""
        open_ones = {key: task for key, task in asked.items() if self.file.get(key) is None}
        for key, outcome in zip(open_ones, self.workers(function, list(open_ones.values())), strict=True):
            if outcome.value is not None:
                self.file.put(key, asdict(outcome.value))
        known = {key: one for key in asked if (one := self.file.get(key)) is not None}
        self.runs += sum(one["runs"] for one in known.values())
        self.simulated += sum(one["simulated"] for one in known.values())
        return {key: one["per_s"] for key, one in known.items()}

    def all_of(self, chosen: list[Candidate], beat: Mapping[str, float] | None = None) -> list[Record]:
        """A record for each, in order; `beat` are the scores to be beaten, by engine."""
        beat = beat or {}
        open_ones = [one for one in chosen if self.file.get(one.key) is None]
        self._advance(len(chosen) - len(open_ones))
        tasks = [Task(self.question, one, beat.get(one.engine), self.bounds.get(one.key)) for one in open_ones]
        for one, outcome in zip(open_ones, self.workers(evaluate, tasks), strict=True):
            record = outcome.value or Record.of(one, "failed", outcome.error)
            self.file.put(one.key, record.to_dict())
            self._advance(1)
        return [Record(**self.file.known[one.key]) for one in chosen]

    def settle(self, record: Record, key: str) -> Record:
        """Keep a record that needed no worker."""
        if self.file.get(key) is None:
            self.file.put(key, record.to_dict())
        self._advance(1)
        return Record(**self.file.known[key])

    def _advance(self, count: int) -> None:
        self.settled += count
        if count:
            self.report(self.settled, self.total)


def _smart(examiner: _Examiner, space: list[Candidate]) -> list[Record]:
    """The most promising first, in rounds; each configuration must beat the best so far of its engine, at first in a
    short run."""
    question = examiner.question
    records: dict[str, Record] = {}
    hopeful: list[tuple[float, Candidate]] = []
    for one, outcome in _bounds(examiner, space):
        if isinstance(outcome.value, float):
            examiner.bounds[one.key] = outcome.value
            hopeful.append((_worth(question, one, outcome.value), one))
        else:
            records[one.key] = examiner.settle(outcome.value or Record.of(one, "failed", outcome.error), one.key)
    hopeful.sort(key=lambda pair: (-pair[0], pair[1].key))
    queue, size = _engines_first(_promising_first(examiner, [one for _, one in hopeful])), FIRST_ROUND
    best: dict[str, float] = {}
    while queue:
        chosen, queue = queue[:size], queue[size:]
        size = min(2 * size, LARGEST_ROUND)
        for one, record in zip(chosen, examiner.all_of(chosen, best), strict=True):
            records[one.key] = record
        for record in records.values():
            if record.score is not None:
                engine = record.candidate.engine
                best[engine] = max(best.get(engine, record.score), record.score)
    return [records[one.key] for one in space]


def _bounds(examiner: _Examiner, space: list[Candidate]) -> Iterator[tuple[Candidate, Outcome[float | Record]]]:
    """What each cannot exceed; neighbours of one placement go to one worker."""
    placed = [list(some) for _, some in groupby(space, _placement)]
    groups = [some[at : at + LARGEST_ROUND] for some in placed for at in range(0, len(some), LARGEST_ROUND)]
    asked = [[Task(examiner.question, one) for one in some] for some in groups]
    for some, found in zip(groups, examiner.workers(bounds_of, asked), strict=True):
        yield from zip(some, found.value or [Outcome(0, error=found.error) for _ in some], strict=True)


def _promising_first(examiner: _Examiner, by_bound: list[Candidate]) -> list[Candidate]:
    """Order configurations by what a pilot of their placement promises; within a placement, by their bound.

    The pilot of a placement (GPUs and how the model is spread over them) is its configuration of the highest bound. A
    bound knows nothing of the SLO, hence the pilots: they find something good to beat before anything is measured.
    """
    question = examiner.question
    pilots: dict[str, Candidate] = {}
    for one in by_bound:
        pilots.setdefault(_placement(one), one)
    asked = {f"{one.key} pilot": Task(question, one, bound=examiner.bounds[one.key]) for one in pilots.values()}
    rates = examiner.estimates(pilot, asked)
    promise = {place: _worth(question, one, rates.get(f"{one.key} pilot", 0.0)) for place, one in pilots.items()}
    return sorted(by_bound, key=lambda one: -promise[_placement(one)])


def _engines_first(queue: list[Candidate]) -> list[Candidate]:
    """The most promising of every engine before the others, so that each has something to beat from the first on."""
    leaders: dict[str, Candidate] = {}
    for one in queue:
        leaders.setdefault(one.engine, one)
    return sorted(queue, key=lambda one: leaders[one.engine] is not one)


def _placement(candidate: Candidate) -> str:
    return str([pair for pair in candidate.overrides if not pair[0].startswith(PLACEMENT)])


def _worth(question: SearchConfig, candidate: Candidate, rate: float) -> float:
    """The score at a load; for the objective cost, the load per dollar."""
    objective = "qps_per_dollar" if question.objective == "cost" else question.objective
    return rate / rate_for(objective, 1.0, price(scenario_of(question, candidate)))


def _repeats(question: SearchConfig, best: list[Record]) -> dict[str, Any]:
    """The best configurations on other sequences, by key; none where there is only one sequence."""
    if question.objective == "cost" or question.workload.trace is not None:
        return {}
    return {
        _repeat_key(one, seed): (question, one.candidate, seed, one.capacity_per_s, one.num_requests)
        for one in best
        for seed in _seeds(question)
    }


def _seeds(question: SearchConfig) -> list[int]:
    return [question.seed + number for number in range(1, question.effort.num_sequences)]


def _repeat_key(record: Record, seed: int) -> str:
    return f"{record.candidate.key} seed {seed}"


def _half_widths(question: SearchConfig, best: list[Record], rates: dict[str, float]) -> dict[str, float]:
    margins = {}
    for one in best:
        others = [rates[key] for seed in _seeds(question) if (key := _repeat_key(one, seed)) in rates]
        if others:
            t = _T_975[min(len(others), len(_T_975)) - 1]
            spread = np.std([one.capacity_per_s or 0.0, *others], ddof=1)
            margins[one.label] = float(t * spread / np.sqrt(len(others) + 1))
    return margins


def finished_search(folder: str | Path) -> Found:
    """The answer that a search has left in its folder, without running anything again."""
    folder = Path(folder)
    if not (folder / "search.yaml").is_file() or not (folder / "results.jsonl").is_file():
        raise DataError("holds no finished search.", where=str(folder), fix="Run `gnomon search` to its end.")
    question = load(SearchConfig, folder / "search.yaml")
    known = ResultsFile(folder / "results.jsonl", question).known
    records = [Record(**known[one.key]) for one in candidates(question) if one.key in known]
    estimates = {key: one for key, one in known.items() if "per_s" in one}
    beside = sum(one["runs"] for one in estimates.values()), sum(one["simulated"] for one in estimates.values())
    rates = {key: one["per_s"] for key, one in estimates.items()}
    return Found(question, *_ranked(question, records, lambda asked: rates), beside)


def is_on_front(points: Sequence[tuple[float, ...]]) -> list[bool]:
    """For each point (smaller is better in every coordinate): whether no other is at least as good and once better."""
    return [
        not any(all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points)
        for point in points
    ]


def latency_axes(search: SearchConfig) -> tuple[str, str]:
    """The figures of interest of the first token and of those after it: those of the SLO (TBT, or else TPOT), or else
    TTFT P90 and TBT P99."""
    slo = search.slo
    after = (
        f"tpot_s {next(iter(slo.tpot_s))}" if slo.tpot_s and not slo.tbt_s else f"tbt_s {next(iter(slo.tbt_s), 'p99')}"
    )
    return f"ttft_s {next(iter(slo.ttft_s), 'p90')}", after


def front(search: SearchConfig, ranked: Sequence[Record]) -> list[bool]:
    """Which of the ranked are on the front of score (high) against both latencies at capacity (low)."""
    axes = latency_axes(search)
    known = [[one.figures.get(axis) for axis in axes] for one in ranked]
    latencies = [[math.inf if value is None else value for value in values] for values in known]
    return is_on_front([(-(one.score or 0.0), *values) for one, values in zip(ranked, latencies, strict=True)])


def winning_scenario(search: SearchConfig, record: Record) -> Scenario:
    """The configuration at its capacity, on the very requests on which it was measured."""
    scenario = scenario_of(search, record.candidate)
    load = {"rate": record.capacity_per_s}
    if search.workload.trace is None:
        load["num_requests"] = record.num_requests
    # The limits that a single request can meet or miss, so that the run counts who does.
    good = search.slo.goodput
    limits = {}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        limits[name] = getattr(good, name) if good is not None else next(iter(getattr(search.slo, name).values()), None)
    workload = scenario.workload.model_copy(update=load)
    return scenario.model_copy(update={"workload": workload, "slo": SloConfig(**limits)})


_NORMAL_95, _NORMAL_975 = 1.645, 1.960
_FEW = 20


def capacity_interval(found: Found, record: Record) -> Interval | None:
    """90 % interval of a capacity: the timing source's error (or a calibration's) and other sequences of requests.

    A server whose iterations all take so much longer carries as much less.
    """
    if not record.capacity_per_s or found.search.objective == "cost":
        return None
    scenario = winning_scenario(found.search, record)
    if scenario.calibration is not None:
        spread = read_calibration(scenario.calibration).error
    else:
        load = scenario.workload.model_copy(update={"num_requests": _FEW})
        few = scenario if scenario.workload.trace is not None else scenario.model_copy(update={"workload": load})
        spread = run(few).spread
    margin = found.margins.get(record.label, 0.0) / record.capacity_per_s
    half = math.hypot(_NORMAL_95 * spread, margin * _NORMAL_95 / _NORMAL_975)
    value = record.capacity_per_s
    return Interval(value, value * math.exp(-half), value * math.exp(half))
