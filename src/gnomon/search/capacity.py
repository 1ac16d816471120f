"""The capacity of one configuration: the highest load that meets the SLO without a growing queue.

One fixed sequence of requests is sent faster or slower (common random numbers), so that one more request per second
changes nothing but the arrival times. Short runs find the neighbourhood, runs of twice the length refine it, until
doubling the length no longer changes the answer.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.search.config import EffortConfig, SloTargets
from gnomon.search.slo import GROWING, Verdict, judge, least_excess
from gnomon.serving.deciders import DECIDERS
from gnomon.serving.engine.state import FINISHED, SHED, Cluster
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.pool import Pool
from gnomon.serving.scenario.pools import accepted, bake, resolve
from gnomon.timing.iteration import IterationTables
from gnomon.workload import Requests, with_rate


def rate_bound(scenario: Scenario, requests: Requests) -> float:
    """Requests per second that the replicas of a scenario cannot exceed on these requests."""
    pools = resolve(scenario, requests)
    served = accepted(scenario, pools, requests)
    tables = bake(scenario.model, pools, served).tables
    row, rates = 0, dict.fromkeys(("both", "prefill", "decode"), 0.0)
    for pool in pools:
        stages = range(row, row + pool.replica.pipeline_parallel)
        slowest_s = max(_seconds_per_request(pool, tables, stage, served) for stage in stages)
        rates[pool.role] += pool.num_ranks / max(slowest_s, 1e-12)  # Tables may say that it takes no time.
        row += pool.replica.pipeline_parallel
    # Replicas that do both may help either side. Where requests may stay where they decode, prefill replicas only add.
    is_apart = not rates["both"] and DECIDERS.chosen(scenario.disaggregation.decider).always_elsewhere
    return rates["both"] + (min if is_apart else sum)((rates["prefill"], rates["decode"]))


def _seconds_per_request(pool: Pool, tables: IterationTables, stage: int, requests: Requests) -> float:
    """The least time of a stage for a mean request, or for the part of it that its role leaves."""
    prompt, output = requests.prompt_tokens.astype(np.float64), requests.output_tokens.astype(np.float64)
    if pool.role == "prefill":
        output = np.ones_like(output)
    elif pool.role == "decode":
        prompt = np.ones_like(prompt)
    if pool.batching.prefix_cache and len(requests.prefix_hashes):
        prompt = np.ones_like(prompt)  # All of it may be cached, up to the last token.
    decodes = output - 1.0
    budget = min(pool.max_iteration_tokens(requests), tables.token_s.shape[1] - 1)
    per_token = _cheapest(tables.token_s[stage], budget)
    per_decode = per_token if pool.policy.mixes else _cheapest(tables.token_s[stage], pool.max_in_batch)
    seconds = per_token * prompt.mean() + per_decode * decodes.mean()
    seconds += _cheapest(tables.sequence_s[stage], pool.max_in_batch) * (decodes.mean() / pool.tokens_per_decode)
    if not tables.mixed_s.shape[1] and not tables.skew.shape[1]:
        pairs = prompt * prompt / 2.0
        read = decodes * prompt + decodes * decodes / 2.0
        # The least seconds per query-key pair. Between grid points the interpolation of c x kv + c^2/2 lies above it.
        chunk, kv = tables.chunk_axis[1:, None], tables.kv_axis[None, :]
        seconds += float((tables.prefill_s[stage, 1:] / (chunk * (kv + chunk / 2.0))).min()) * pairs.mean()
        # The least seconds per KV token that a decode reads.
        count = np.arange(1, tables.decode_s.shape[1])[:, None]
        least = float((tables.decode_s[stage, 1:, 1:] / (count * tables.kv_axis[None, 1:])).min())
        seconds += least * read.mean() / pool.tokens_per_decode
    # Nor can it do with fewer iterations than its batch cap allows.
    iterations = decodes.mean() / (pool.max_in_batch * pool.tokens_per_decode)
    return float(max(seconds, iterations * tables.token_s[stage, 1 : budget + 1].min()))


def _cheapest(seconds: np.ndarray, most: int) -> float:
    """The least seconds per unit over batches of 1 to `most` units."""
    last = min(most, seconds.size - 1)
    return float((seconds[1 : last + 1] / np.arange(1, last + 1)).min())


Turn = Callable[[], AbstractContextManager[None]]
"""Entered for every simulation, so that others can have the machine between two."""
COARSE = 1.1  # Width of the bracket that short runs find.
IDLE = 0.01  # Mean requests in the system below which a load is no load: what is not met then is met at no load.
BEYOND = 1e6  # Times a guess, up or down, that a capacity is looked for.
HOPELESS = 1.5  # A limit exceeded this much by the first quarter of the requests will not be met by all of them.
TURNOVERS = 50
"""A run is long against what it simulates when arrivals last this many times the median request. Shorter ones flatter:
the first requests find an empty machine (measured: 3 % too high at 25, within 2 % from 50 on)."""
MIN_QUARTER = 1000  # Requests that a quarter must have to say something.
OVERLOAD = 10.0  # Times a load that cannot be sustained: the backlog is there at once.
FULL = 4  # Times as many requests as it holds at once: filling and emptying are at both ends of a run, and cancel out.
BASE_REQUESTS, MOST_REQUESTS = 5000, 80_000  # Of one lot, and of one run.
FEW, SURE = 1000, 0.6  # Requests of a short run, and the share of the rate they are served at that surely lasts.


def saturation(scenario: Scenario, requests: Requests) -> tuple[float, bool]:
    """The load beyond which requests pile up without end: the rate at which a backlog is worked off, and whether there
    were enough requests to tell. Infinite where admission control turns the rest away.

    A queue that grows for a while tells nothing: a server that takes everyone into its batch fills up for minutes at a
    load that it can carry, and a short run ends before the queue of a load that is too high has grown. So more requests
    than it can hold are sent at once, and twice as many: what the second half adds to the time is what it takes when
    the deployment is full from the first to the last."""
    copies, work_off = _backlog(scenario, requests)
    count, before_s, can_repeat = min(len(requests), BASE_REQUESTS), 0.0, not len(requests.prefix_hashes)
    if not can_repeat:
        count //= 2  # A prompt that comes again is found in the cache.
    while True:
        end_s, most = work_off(count)
        if not np.isfinite(end_s):
            return np.inf, True
        is_full = count >= FULL * most
        is_last = 2 * count > (MOST_REQUESTS if can_repeat else min(len(requests), BASE_REQUESTS))
        if before_s and (is_full or is_last):
            return copies * count / 2 / max(end_s - before_s, 1e-12), is_full
        count, before_s = 2 * count, end_s


def _backlog(scenario: Scenario, requests: Requests) -> tuple[int, Callable[[int], tuple[float, int]]]:
    """How many copies of what is simulated there are, and what tells when so many requests, sent at once, have been
    served by one of them, and how many it served at the same time at most; infinite where some are turned away."""
    copies, bound = 1, rate_bound(scenario, requests)
    if not scenario.pools and (scenario.front_end.per_replica or scenario.front_end.takes_no_time):
        copies = scenario.num_replicas  # With a backlog, each works as if it were alone.
        scenario = scenario.model_copy(update={"num_replicas": 1})
    lasting = scenario.workload.model_copy(update={"patience": None})  # None of a backlog leaves before it is served.
    scenario = scenario.model_copy(update={"time_limit_s": None, "workload": lasting})
    requests = requests.take(np.arange(min(len(requests), BASE_REQUESTS)))

    def work_off(count: int) -> tuple[float, int]:
        lot = requests.take(np.resize(np.arange(len(requests)), count))
        at_once = np.arange(count) / (OVERLOAD * bound)
        done = run(scenario, requests=replace(lot, arrival_s=at_once, shape=None)).cluster.requests
        served = done.status == FINISHED
        if (done.status == SHED).any() or not served.any():
            return np.inf, 0
        started = np.sort(done.scheduled_s[served])
        ended = np.searchsorted(np.sort(done.finished_s[served]), started, side="right")
        return float(done.finished_s[served].max()), int((np.arange(1, started.size + 1) - ended).max())

    return copies, work_off


@dataclass(frozen=True)
class Capacity:
    """What a configuration can take."""

    per_s: float
    """Requests per second; 0 if the SLO is not met at any load."""
    num_requests: int
    """Length of the longest runs."""
    converged: bool
    """Whether twice the requests no longer changed it."""
    verdict: Verdict
    """The run at that load (at the lowest load tried, if the capacity is 0)."""
    binding: str
    """What is not met at a load just above."""


@dataclass
class Prober:
    """Simulates one scenario at chosen loads, and counts what that takes."""

    scenario: Scenario
    requests: Requests
    """As many as the longest run may need."""
    targets: SloTargets
    turn: Turn = nullcontext
    gives_up: bool = False
    """Whether a run ends as soon as it is `HOPELESS`: its verdict then says no more than that."""
    runs: int = 0
    simulated: int = 0
    _known: dict[tuple[float, int], Verdict] = field(default_factory=dict)

    def __call__(self, rate: float, count: int) -> Verdict:
        key = (rate, count)
        if key not in self._known:
            self._known[key] = self._simulate(rate, count)
        return self._known[key]

    def whole(self, rate: float, count: int) -> Verdict:
        """The verdict on a run that goes to its end."""
        if self(rate, count).given_up:
            self._known[rate, count] = replace(self, gives_up=False, _known={})(rate, count)
        return self._known[rate, count]

    def unless_hopeless(self, rate: float, count: int) -> Verdict:
        """The verdict on a load that may be far too high: given up after a quarter of the requests where hopeless."""
        if count // 4 >= MIN_QUARTER:
            early = self(rate, count // 4)
            if early.excess > HOPELESS:
                return early
        return self(rate, count)

    @cached_property
    def saturation(self) -> tuple[float, bool]:
        """The load beyond which requests pile up, and whether there are enough of them to tell."""
        with self.turn():
            return saturation(self.scenario, self.requests)

    @cached_property
    def _surely_sustained(self) -> float:
        """A load that is far below the saturation, told by few requests, of which filling and emptying are a part."""
        with self.turn():
            copies, work_off = _backlog(self.scenario, self.requests)
            count = min(len(self.requests), FEW)
            return SURE * copies * count / max(work_off(count)[0], 1e-12)

    def _simulate(self, rate: float, count: int) -> Verdict:
        self.runs += 1
        self.simulated += count
        chosen = self.requests if count == len(self.requests) else self.requests.take(np.arange(count))
        has_one_clock = self.scenario.num_ranks == 1 and self.scenario.fleet is None
        look = partial(self._give_up_hopeless, rate) if self.gives_up and has_one_clock else None
        try:
            with self.turn():
                verdict = judge(run(self.scenario, requests=with_rate(chosen, rate), look=look), self.targets)
        except _GivenUp as end:
            return end.verdict
        if verdict.met and rate > self._surely_sustained and rate > self.saturation[0]:
            return replace(verdict, excess=np.inf, worst=GROWING)
        return verdict

    def _give_up_hopeless(self, rate: float, cluster: Cluster) -> None:
        verdict = least_excess(cluster.requests, self.targets, HOPELESS)
        if verdict.excess > HOPELESS and rate * (verdict.figures["e2e_s p50"] or 0.0) >= IDLE:
            raise _GivenUp(verdict)


class _GivenUp(Exception):
    """A run whose verdict is certain before its end."""

    verdict = property(lambda self: self.args[0])


def find_capacity(prober: Prober, bound: float, effort: EffortConfig, num_ranks: int) -> Capacity:
    """Bracket and bisect, from short runs to long ones. `bound` is a load that cannot be sustained."""
    count = min(effort.min_requests * num_ranks, len(prober.requests))
    longest = min(effort.max_requests * num_ranks, len(prober.requests))
    low, high = coarse_bracket(prober, bound, count)
    if low == 0.0:
        return _none(prober, high, count)
    before = None
    while count < longest:
        count = min(2 * count, longest)
        halfway = _turnovers(prober, low, count) >= TURNOVERS / 2
        low, high = refine(prober, low, count, effort.precision if halfway else COARSE / 2 - 0.5)
        if low == 0.0:
            return _none(prober, high, count)
        settled = before is not None and abs(low - before) <= effort.convergence * low
        if settled and _turnovers(prober, low, count) >= TURNOVERS:
            return Capacity(low, count, True, prober(low, count), prober.whole(high, count).worst)
        before = low if halfway else None
    low, high = refine(prober, low, count, effort.precision)
    if low == 0.0:
        return _none(prober, high, count)
    return Capacity(low, count, False, prober(low, count), prober.whole(high, count).worst)


def coarse_bracket(prober: Prober, bound: float, count: int) -> tuple[float, float]:
    """A load that is met and one that is not, within 10 %; (0, load) where none is met."""
    high = bound
    while not prober(low := high / 2.0, count).met:
        high = low
        if _in_system(prober, low, count) < IDLE or low * BEYOND < bound:
            return 0.0, low
    return _bisected(lambda rate: prober(rate, count).met, low, high, COARSE)


def _none(prober: Prober, lowest: float, count: int) -> Capacity:
    """The SLO is met at no load."""
    verdict = prober.whole(lowest, count)
    return Capacity(0.0, count, True, verdict, verdict.worst)


def _in_system(prober: Prober, rate: float, count: int) -> float:
    """Median requests in the system (Little's law); 0 where most are never served, at this load or a lower one."""
    verdict = prober(rate, count)
    median_s = verdict.figures["e2e_s p50"]
    if median_s is None:
        return float("inf") if verdict.turned_away else 0.0
    return rate * median_s


def _turnovers(prober: Prober, rate: float, count: int) -> float:
    """How many median requests, one after the other, arrivals last."""
    prober.whole(rate, count)
    return count / max(_in_system(prober, rate, count), 1e-9)


def refine(prober: Prober, guess: float, count: int, precision: float) -> tuple[float, float]:
    """The capacity near `guess` as (highest load met, lowest load not met); (0, load) where none is met."""

    def met(rate: float) -> bool:
        return prober(rate, count).met

    step = 1.0 + 2.0 * precision
    low = high = guess
    if met(guess):
        while met(high := low * step):
            low, step = high, step * step
            if low > guess * BEYOND:
                what = "no load is too high: too few requests to see the queue grow, and no limit that is missed."
                raise ConfigError(what, where="effort.min_requests", fix="Use more requests, or set an SLO.")
    else:
        while not met(low := high / step):
            high, step = low, step * step
            if _in_system(prober, high, count) < IDLE or high * BEYOND < guess:
                return 0.0, high
    return _bisected(met, low, high, 1.0 + precision)


def _bisected(met: Callable[[float], bool], low: float, high: float, width: float) -> tuple[float, float]:
    """Narrow (met, not met) until high <= low x width."""
    while high > low * width:
        middle = float(np.sqrt(low * high))
        if met(middle):
            low = middle
        else:
            high = middle
    return low, high
