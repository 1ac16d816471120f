"""What must hold of every run, and of runs that differ in one thing."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from combinations.draw import Data
from gnomon.core.config import build
from gnomon.serving.engine.state import ABANDONED, FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.results.latency import request_times
from gnomon.serving.results.latency_breakdown import NAMES, accounts
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, generate

ALIKE = 1e-9
"""Seconds that rounding may make."""
ROUNDED_NS = 1000
"""Nanoseconds that many roundings may make."""


LOOKED_UP = ("prefill_", "decode_", "recomputed", "host", "straggler")
"""Parts of a latency that are divided by looking up what less would have taken."""


class Violation(Exception):
    """Something that must hold does not; `kind` names it in a word or two."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind, self.what = kind, what
        super().__init__(f"{kind}: {what}")


def require(holds: Any, kind: str, what: str) -> None:
    if not holds:
        raise Violation(kind, what)


def simulated(data: Data, **changes: Any) -> Run:
    """One run of a scenario given as plain data."""
    return run(build(Scenario, data), **changes)


# One run by itself.


def check_run(done: Run) -> None:
    """Every request ends once, nothing is lost or held, stamps are in order, shares are shares."""
    summary = summarize(done)  # Counts, shares and times of its own.
    q, replicas = done.cluster.requests, done.cluster.replicas
    finished, rejected, shed, gone = (q.status == one for one in (FINISHED, REJECTED, SHED, ABANDONED))
    is_cut = done.scenario.time_limit_s is not None or bool(done.fleet and done.fleet.gave_up)
    if not is_cut:
        left = np.flatnonzero(~(finished | rejected | shed | gone))
        require(not left.size, "ends once", f"requests {left[:5]} have status {q.status[left[:5]]}")
    is_whole = not done.scenario.workload.warmup_requests  # Counters have those that warmed up, requests do not.
    if is_whole:
        ended = int(replicas.num_finished.sum())  # A client may leave while its last token is on its way.
        require(finished.sum() <= ended <= (finished | gone).sum(), "ends once",
                f"{ended} ended in replicas, {finished.sum()} in all")  # fmt: skip
    ok = q[finished]
    require(np.all(ok.processed == ok.prompt_tokens + ok.output_tokens), "tokens", "a finished request lacks tokens")
    exactly = not is_cut and not (rejected | gone).any() and not _fails(done)
    if is_whole and exactly:
        require(int(replicas.num_produced.sum()) == int(ok.output_tokens.sum()), "tokens",
                f"{replicas.num_produced.sum()} were produced, {ok.output_tokens.sum()} asked for")  # fmt: skip
    require(np.all(replicas.peak_blocks <= replicas.num_blocks), "blocks", "more blocks in use than there are")
    if not is_cut:
        require(np.array_equal(replicas.free_blocks, replicas.num_blocks), "blocks",
                f"free {replicas.free_blocks}, there are {replicas.num_blocks}")  # fmt: skip
        for book in ("num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding",
                     "waiting_tokens", "prefill_left", "decode_left", "num_loose", "step_kv", "num_coming", "num_held",
                     "num_landing", "num_ready"):  # fmt: skip
            require(not replicas[book].any(), "books", f"{book} is {replicas[book]}")
    _check_stamps(ok, done)
    _check_gaps(done, ok, exactly=exactly)
    _check_iterations(done)
    _check_front_end(done)
    for one in summary.replicas:
        use = one.utilization
        for name in ("busy", "kv_mean", "kv_peak"):
            value = getattr(use, name)
            require(-ALIKE <= value <= 1 + ALIKE, "utilisation", f"{name} of replica {one.replica} is {value}")


def _fails(done: Run) -> bool:
    return done.fleet is not None and done.fleet.failures > 0


def _check_stamps(ok: Any, done: Run) -> None:
    times = {"arrival": ok.arrival_s, "scheduled": ok.scheduled_s, "first token": ok.first_token_s,
             "end": ok.finished_s}  # fmt: skip
    # What a client sees of a token comes later than the token; when it was scheduled is the scheduler's own.
    names = list(times)
    for before, after in itertools.pairwise(names):
        wrong = np.flatnonzero(times[before] > times[after] + ALIKE)
        require(not wrong.size, "stamps", f"{before} after {after}: {times[before][wrong[:3]]}, "
                f"{times[after][wrong[:3]]}")  # fmt: skip
    require(np.all(np.isfinite(ok.finished_s)), "stamps", "an end is not finite")
    latency = request_times(done)
    for name in ("ttft_s", "tpot_s", "e2e_s", "scheduling_delay_s"):
        values = getattr(latency, name)
        require(not (values < -ALIKE).any(), "stamps", f"{name} is below 0")
    limit_s = done.scenario.time_limit_s
    if limit_s is not None and ok.size:
        latest = float((ok.finished_s - ok.last_reply_s).max())
        require(latest <= limit_s + ALIKE, "stamps", f"an end at {latest}, after the limit of {limit_s}")


def _check_gaps(done: Run, ok: Any, *, exactly: bool) -> None:
    gaps, counts = (one[: done.log.used[2]] for one in (done.log.gap_s, done.log.gap_count))
    require(np.all(gaps >= -ALIKE), "gaps", f"a gap between tokens is {gaps.min(initial=0.0)}")
    produced = int((ok.output_tokens - 1).sum())
    if exactly and not done.requests.num_warmup:
        require(int(counts.sum()) == produced, "gaps", f"{counts.sum()} gaps between {produced} tokens")


def _check_iterations(done: Run) -> None:
    rows, replicas = done.log.iterations[: done.log.used[0]], done.cluster.replicas
    require(np.all(rows.end_s >= rows.start_s), "iterations", "one ends before it starts")
    for r in range(replicas.size):
        for stage in range(replicas.num_stages[r]):
            mine = rows[(rows.replica == r) & (rows.stage == stage)]
            require(np.all(np.diff(mine.end_s) >= -ALIKE), "iterations", f"replica {r}: ends are not in order")
            require(np.all(mine.start_s[1:] >= mine.end_s[:-1] - ALIKE), "iterations",
                    f"replica {r}, stage {stage} runs two batches at a time")  # fmt: skip


def _check_front_end(done: Run) -> None:
    """A request that finds the front end idle passes in its own time, however far away others are."""
    config, q = done.scenario.front_end, done.cluster.requests
    if not (config.per_request_s or config.per_prompt_token_s):
        return
    came = np.flatnonzero((q.status != NOT_ARRIVED) & np.isfinite(q.arrival_s) & (q.num_tries <= 1))
    if config.takes_no_time or not came.size or _fails(done) or done.scenario.time_limit_s is not None:
        return
    sent, left = q.arrival_s[came], q.arrival_s[came] + q.front_s[came]
    own = config.per_request_s + config.per_prompt_token_s * q.prompt_tokens[came]
    order = np.argsort(sent, kind="stable")
    latest = np.concatenate([[-np.inf], np.maximum.accumulate(left[order])[:-1]])
    alone = np.diff(sent[order], prepend=-np.inf) > ALIKE  # Of those sent at one moment any may be the first.
    alone &= np.append(np.diff(sent[order]), np.inf) > ALIKE
    idle = order[alone & (latest <= sent[order] + ALIKE)]
    late = idle[q.front_s[came][idle] > own[idle] + 1e-6]
    require(not late.size, "front end", f"requests {came[late[:3]]} find it idle and take "
            f"{q.front_s[came][late[:3]]} s instead of {own[late[:3]]}")  # fmt: skip


def check_accounts(done: Run) -> None:
    """The parts of every latency add up (which `accounts` checks itself), and none is negative."""
    booked = accounts(done)
    worst = int(booked.parts_ns.min(initial=0))
    # As they were booked: `accounts` lets the largest part bear what is below 0, which rounding alone should make of a
    # part that is the time between two moments. What a request would take alone is looked up, and may be more than it
    # took; and after the first token the front end may write the last one sooner than it wrote the first.
    measured = [number for number, name in enumerate(NAMES) if not name.startswith(LOOKED_UP)]
    ledger = done.cluster.parts_ns[booked.ids]
    front_ns = booked.ttft_ns - ledger[:, 0].sum(axis=1)
    worst = int(min(worst, ledger[:, :, measured].min(initial=0), front_ns.min(initial=0)))
    require(worst >= -ROUNDED_NS, "parts", f"a part of a latency is {worst} ns")
    for metric in ("ttft", "e2e"):
        parts, whole = booked.parts_s(metric).sum(axis=1), booked.values_s(metric)
        off = float(np.abs(parts - whole).max(initial=0.0))
        require(off < 1e-6, "parts", f"parts of {metric} add up to {off} s less or more")


# Runs that must be alike.


def digest(done: Run) -> dict[str, Any]:
    """All that a run says, as plain numbers, to be held against another run."""
    q, replicas, rows = done.cluster.requests, done.cluster.replicas, done.log.iterations[: done.log.used[0]]
    said = {f"requests.{name}": q[name].tolist() for name in q.dtype.names}
    said |= {f"replicas.{name}": replicas[name].tolist() for name in replicas.dtype.names}
    rows = rows[np.lexsort((rows.stage, rows.number, rows.replica))]
    said |= {f"iterations.{name}": rows[name].tolist() for name in ("replica", "start_s", "end_s", "size", "tokens")}
    said["summary"] = json.dumps(summarize(done).to_dict(), sort_keys=True, default=str)
    return said


def check_same(one: dict[str, Any], other: dict[str, Any], kind: str, but: tuple[str, ...] = ()) -> None:
    """Two digests are equal to the last bit."""
    for name, value in one.items():
        if name not in but and not _equal(value, other[name]):
            raise Violation(kind, f"{name} differs: {_difference(value, other[name])}")


def _equal(one: Any, other: Any) -> bool:
    return one == other or json.dumps(one) == json.dumps(other)  # NaN is NaN.


def _difference(one: Any, other: Any) -> str:
    if isinstance(one, str):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
        return f"...{one[max(0, at - 60) : at + 40]}... against ...{other[max(0, at - 60) : at + 40]}..."
    wrong = [i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b and not (a != a and b != b)]
    return f"{len(wrong)} of {len(one)}, first {wrong[:1]}: {[(one[i], other[i]) for i in wrong[:2]]}"


# A restarted replica against a new one.

TABLE = {"per_iteration": 0.01, "per_prefill_token": 1e-5, "per_sequence": 3e-4, "per_token": 2e-5,
         "per_decode_kv_token": 1e-7}  # fmt: skip
DETECTED_S = 0.2
"""By then everybody knows that replicas which failed at the start are not there."""


def restarted(data: Data, at_share: float) -> tuple[Data, Data] | None:
    """The scenario with one replica of each pool, all of which fail in the middle and come back; and the same with
    their failing before the first request. None where that means nothing: where what is sent depends on what was
    answered."""
    plain = json.loads(json.dumps(data))
    for key in ("fleet", "time_limit_s", "admission", "num_replicas", "tool_cache"):
        plain.pop(key, None)
    plain["workload"].pop("patience", None)
    for part in [plain, *plain.get("pools", [])]:  # A source's times are laid out over the lengths that are asked for.
        if part is plain or "timing" in part:
            part.setdefault("timing", {}).update(source="table", table=TABLE)
    if plain.get("pools"):
        plain["pools"] = _one_of_each(plain["pools"])
        if len(plain["pools"]) < 2:
            plain.pop("disaggregation", None)
    for replica in [plain.get("replica", {}), *(pool.get("replica", {}) for pool in plain.get("pools", []))]:
        if "speculative" in replica:
            replica["speculative"]["acceptance"] = 1.0  # Draws go by a request's number.
    for part in [plain, *plain.get("pools", [])]:
        for key in ("slow_share", "slow_factor", "slow_spell_s"):  # Spells are drawn for all of a run.
            part.get("timing", {}).get("host", {}).pop(key, None)
    for router in [plain.get("router", {}), plain.get("disaggregation", {}).get("decode_router", {})]:
        router.clear()
    front = plain.setdefault("front_end", {})
    front.update(per_request_s=0.0, per_prompt_token_s=0.0)
    plain.get("kv_tiers", {}).pop("remote", None)  # The store outlives a replica.
    plain.get("disaggregation", {}).pop("down_s", None)
    for tier in plain.get("kv_tiers", {}).values():
        if isinstance(tier, dict):
            tier.pop("down_s", None)
    scenario = build(Scenario, plain)
    requests = generate(scenario.workload, scenario.seed)
    if requests.concurrency or len(requests.parents) or len(requests) < 4:
        return None
    done = run(scenario)
    ended = np.sort(done.cluster.requests.finished_s[done.cluster.requests.status == FINISHED])
    if ended.size < 4:
        return None
    fail_s = round(float(ended[int(at_share * (ended.size - 2))]), 6)
    count = sum(pool.num_replicas for pool in done.pools)
    cold = {"weights_s": 0.25, "compile_s": 0.0, "warmup_s": 0.0}
    failures = {"detect_s": 0.1, "keeps_tokens": False}

    def failing(at_s: float) -> Data:
        events = [{"at_s": at_s, "what": "fail", "replica": r} for r in range(count)]
        events += [{"at_s": fail_s + 0.5, "what": "repair", "replica": r} for r in range(count)]
        fleet = {"controller": {"interval_s": 1000.0}, "events": events, "cold_start": cold, "failures": failures}
        return {**plain, "fleet": fleet}

    return failing(0.0), failing(fail_s)


def _one_of_each(pools: list[Data]) -> list[Data]:
    """One replica that prefills and one that decodes, or one that does both: a router, which forgets nothing, has no
    choice."""
    roles = {pool.get("role", "both"): {**pool, "num_replicas": 1} for pool in reversed(pools)}
    if {"prefill", "decode"} <= roles.keys():
        return [roles["prefill"], roles["decode"]]
    return [{**pools[0], "num_replicas": 1, "role": "both"}]


def check_restarted(data: Data, at_share: float) -> bool:
    """After a failure replicas serve as new ones do; returns whether that could be looked at."""
    made = restarted(data, at_share)
    if made is None:
        return False
    before, midway = made
    scenario = build(Scenario, midway)
    offered = generate(scenario.workload, scenario.seed)
    done = run(scenario, requests=offered)
    q = done.cluster.requests
    if len(q) != len(offered):
        return False
    assert scenario.fleet is not None
    ready_s = scenario.fleet.events[-1].at_s + 0.25
    later = np.flatnonzero((q.num_tries > 1) | (q.scheduled_s >= ready_s) | (q.status != FINISHED))
    if not later.size or (q.scheduled_s[later] < 0).any() or (q.scheduled_s[later] < ready_s - ALIKE).any():
        return False
    new = _with_arrivals(offered.take(later), np.maximum(offered.arrival_s[later], DETECTED_S))
    fresh = run(build(Scenario, before), requests=new).cluster.requests
    if (fresh.prefill_replica != q.prefill_replica[later]).any():
        return False  # A router that goes round gives data-parallel ranks each other's requests.
    for stamp in ("scheduled_s", "first_token_s", "finished_s"):
        off = np.abs(fresh[stamp] - q[stamp][later])
        worst = int(off.argmax())
        require(off[worst] <= 1e-6, "restarted", f"{stamp} of request {later[worst]} is {q[stamp][later][worst]}, with "
                f"new replicas {fresh[stamp][worst]}")  # fmt: skip
    require(np.array_equal(fresh.status, q.status[later]), "restarted", "other requests end otherwise")
    return True


def _with_arrivals(requests: Requests, arrival_s: Any) -> Requests:
    return replace(requests, arrival_s=np.asarray(arrival_s, np.float64), shape=None)


# Half the load, or one replica more.

SLACK = 1.35
"""How much longer the mean request may take all the same: batches fall otherwise, and fewer share a prefix."""


def easier(data: Data) -> Iterator[tuple[str, Data]]:
    """Scenarios in which requests should not take longer."""
    half = json.loads(json.dumps(data))
    workload = half["workload"]
    process = workload.get("arrivals", {}).get("process", "poisson")
    if process == "closed_loop" and workload["arrivals"]["concurrency"] > 1:
        workload["arrivals"]["concurrency"] //= 2
        yield "half the load", half
    elif "trace" not in workload and "client" not in workload and process not in ("closed_loop", "batch"):
        workload["rate"] = workload.get("rate", 31.0) / 2
        yield "half the load", half
    more = json.loads(json.dumps(data))
    if any(pool.get("role", "both") != "both" for pool in more.get("pools", [])):
        return  # With more of them, fewer requests are decoded where they were prefilled: more KV moves.
    if "pools" in more:
        for pool in more["pools"]:
            pool["num_replicas"] = pool.get("num_replicas", 1) + 1
    else:
        more["num_replicas"] = more.get("num_replicas", 1) + 1
    yield "one more replica", more


AT_GIVEN_TIMES = ('"fleet"', '"time_limit_s"', '"down_s"', '"admission"', '"expire_s"', '"patience"')


def is_steady(data: Data) -> bool:
    """Whether nothing happens at given times, and no one is turned away."""
    text = json.dumps(data)
    return not any(word in text for word in AT_GIVEN_TIMES)


def check_easier(done: Run, other: Run, what: str) -> None:
    """Requests that end in both runs take no longer in the mean, but for what batches make of it."""
    one, two = done.cluster.requests, other.cluster.requests
    if len(one) != len(two) or (done.pools[1:] and any((q.status == REJECTED).any() for q in (one, two))):
        return  # A pool that turns requests away gets more of them, if there is more of it.
    both = (one.status == FINISHED) & (two.status == FINISHED)
    require(int((two.status == FINISHED).sum()) >= int((one.status == FINISHED).sum()), "worse",
            f"{what}: fewer requests end")  # fmt: skip
    if both.sum() < 5:
        return
    before = float((one.finished_s - one.arrival_s)[both].mean())
    after = float((two.finished_s - two.arrival_s)[both].mean())
    rows = done.log.iterations[: done.log.used[0]]
    longest = float((rows.end_s - rows.start_s).max(initial=0.0)) * max(done.cluster.replicas.num_stages)
    if done.adapters is not None:  # As fewer wait for the same adapter, it is loaded more often.
        longest += float(done.adapters.load_s.max())
    require(after <= SLACK * before + 3 * longest or math.isclose(after, before), "worse",
            f"{what}: {after:.4g} s in the mean instead of {before:.4g}")  # fmt: skip
