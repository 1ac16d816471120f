"""Why requests were slow: what the slowest suffer from that others do not, where and when, and because of whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.serving.features import breakdown
from gnomon.serving.results.latency_breakdown import CAUSES, NAMES, PARTS, Accounts, Metric, prefilled_at

_TYPICAL = (45.0, 55.0)  # Percentiles between which a request counts as typical.
_MOST = 0.6  # What counts as most of the slow requests.
_GIANT = 8.0  # A prompt so many times the median is a giant one.
_MAX_GIANTS = 200
_NUM_SLICES = 20  # Of the run, by time.

Why = Literal["slow replica", "routing", "giant prompt", "burst", "cause"]


@dataclass(frozen=True)
class Cause:
    """A group of parts with one cure."""

    name: str
    slow_s: float
    """Mean seconds among the slow requests, and among typical ones."""
    typical_s: float
    share: float
    """Of what the slow ones take more than typical ones."""

    @property
    def words(self) -> str:
        return CAUSES[self.name]


@dataclass(frozen=True)
class Circumstance:
    """What stands behind the causes: the first thing that a person would say."""

    why: Why
    share: float
    """Of the slow requests that it explains."""
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Slow:
    """The slow requests against typical ones."""

    metric: Metric
    percentile: float | None
    """None: those that missed the SLO."""
    rows: Ints
    """Of the accounts."""
    typical: Ints
    threshold_s: float
    slow_s: float
    """Means of the metric."""
    typical_s: float
    parts_slow_s: Floats
    parts_typical_s: Floats
    causes: list[Cause]
    """The largest first."""
    circumstances: list[Circumstance]


def slowest(accounts: Accounts, metric: Metric = "e2e", percentile: float = 99.0) -> Slow:
    """The requests at and above a percentile of a latency against those around its median."""
    values = accounts.values_s(metric)
    threshold = float(np.nanpercentile(values, percentile, method="lower"))
    return _compared(accounts, metric, percentile, np.flatnonzero(values >= threshold), threshold)


def missed(accounts: Accounts, metric: Metric, target_s: float) -> Slow | None:
    """The requests above a target against those around the median; None where all meet it."""
    values = accounts.values_s(metric)
    rows = np.flatnonzero(values > target_s)
    return _compared(accounts, metric, None, rows, target_s) if rows.size else None


def _compared(accounts: Accounts, metric: Metric, percentile: float | None, rows: Ints, threshold: float) -> Slow:
    values, parts = accounts.values_s(metric), accounts.parts_s(metric)
    low, high = np.nanpercentile(values, _TYPICAL, method="lower")
    typical = np.flatnonzero((values >= low) & (values <= high))
    slow, usual = parts[rows].mean(axis=0), parts[typical].mean(axis=0)
    more = {name: float(value) for name, value in by_cause(np.maximum(slow - usual, 0.0)).items()}
    whole = sum(more.values())
    a, b = by_cause(slow), by_cause(usual)
    found = [
        Cause(name, float(a[name]), float(b[name]), value / whole if whole > 0.0 else 0.0)
        for name, value in more.items()
        if a[name] > 0.0 or b[name] > 0.0
    ]
    circumstances = (
        _slow_replicas(accounts, rows, parts), _routing(accounts, rows, parts),
        _giant_prompt(accounts, rows, float(values[rows].mean() - values[typical].mean())),
        _burst(accounts, rows, parts),
    )  # fmt: skip
    return Slow(
        metric, percentile, rows, typical, threshold, float(values[rows].mean()), float(values[typical].mean()), slow,
        usual, sorted(found, key=lambda cause: (-cause.share, -cause.slow_s)),
        [one for one in circumstances if one is not None],
    )  # fmt: skip


def by_cause(parts: Floats) -> dict[str, Floats]:
    """Parts (the last axis) added up by their cause."""
    columns: dict[str, list[int]] = {name: [] for name in CAUSES}
    for i, part in enumerate(PARTS):
        columns[part.group].append(i)
    return {name: parts[..., chosen].sum(axis=-1) for name, chosen in columns.items()}


def _slow_replicas(accounts: Accounts, rows: Ints, parts: Floats) -> Circumstance | None:
    """Most of them ran on replicas that need longer than the others for the same work."""
    replica = accounts.requests.replica
    count = accounts.run.cluster.replicas.size
    if count < 2:
        return None
    served = parts[:, breakdown.PREFILL_ALONE :].sum(axis=1)
    lost = np.bincount(replica, parts[:, breakdown.STRAGGLER], minlength=count)
    spent = np.bincount(replica, served, minlength=count)
    slowdown = np.divide(spent, np.maximum(spent - lost, 1e-12), out=np.ones(count), where=spent > 0)
    usual = float(np.median(slowdown))
    is_slow = slowdown > 1.15 * usual
    here, everywhere = float(is_slow[replica[rows]].mean()), float(is_slow[replica].mean())
    if here < _MOST or here < 1.5 * everywhere:
        return None
    names = np.flatnonzero(is_slow)
    facts = {"replicas": names.tolist(), "factor": float(slowdown[names].max() / usual), "of_all": everywhere}
    return Circumstance("slow replica", here, facts)


def _routing(accounts: Accounts, rows: Ints, parts: Floats) -> Circumstance | None:
    """Much of their time they waited while another replica had nobody waiting."""
    waited = parts[rows, breakdown.ROUTING : breakdown.POLICY + 1].sum(axis=1)
    routed = parts[rows, breakdown.ROUTING]
    share = float(routed.sum() / max(float(waited.sum()), 1e-12))
    if share < 0.5 or waited.sum() < 0.25 * parts[rows].sum():
        return None
    count = accounts.run.cluster.replicas.size
    of_slow = np.bincount(accounts.requests.replica[rows], minlength=count) / rows.size
    of_all = np.bincount(accounts.requests.replica, minlength=count) / accounts.ids.size
    busiest = int(of_slow.argmax())
    facts = {
        "router": accounts.run.scenario.router.name, "waited": share, "busiest": busiest,
        "of_slow": float(of_slow[busiest]), "of_all": float(of_all[busiest]),
    }  # fmt: skip
    return Circumstance("routing", float((routed > 0).mean()), facts)


def _giant_prompt(accounts: Accounts, rows: Ints, more_s: float) -> Circumstance | None:
    """Most of them were there while one giant prompt was prefilled beside them, for a good part of their delay."""
    q = accounts.requests
    giants = np.flatnonzero(q.prompt_tokens >= _GIANT * max(1.0, float(np.median(q.prompt_tokens))))
    giants = giants[(q.first_token_s - q.scheduled_s)[giants] >= 0.25 * more_s]
    giants = giants[np.argsort(-q.prompt_tokens[giants], kind="stable")][:_MAX_GIANTS]
    victims = np.setdiff1d(rows, giants)
    if not giants.size or not victims.size:
        return None
    v = q[victims]
    met = [
        (v.replica == g.replica) & (v.arrival_s < g.first_token_s) & (v.finished_s > g.scheduled_s) for g in q[giants]
    ]
    counts = np.array([one.sum() for one in met])
    best = int(counts.argmax())
    share = counts[best] / victims.size
    if share < _MOST:
        return None
    giant = giants[best]
    facts = {
        "request": int(accounts.ids[giant]), "prompt_tokens": int(q.prompt_tokens[giant]),
        "times_median": float(q.prompt_tokens[giant] / max(1.0, float(np.median(q.prompt_tokens)))),
        "prefill_s": float(q.first_token_s[giant] - q.scheduled_s[giant]), "num_giants": int(giants.size),
    }  # fmt: skip
    return Circumstance("giant prompt", float(share), facts)


def _burst(accounts: Accounts, rows: Ints, parts: Floats) -> Circumstance | None:
    """Most of them came, and had to wait, while arrivals came much faster than usual."""
    waited = parts[rows, breakdown.ROUTING : breakdown.POLICY + 1].sum()
    arrival = accounts.run.cluster.requests.arrival_s
    arrival = arrival[np.isfinite(arrival)]
    first, last = float(arrival.min()), float(arrival.max())
    if last <= first or waited < 0.25 * parts[rows].sum():
        return None
    edges = np.linspace(first, last, _NUM_SLICES + 1)
    all_, _ = np.histogram(arrival, edges)
    slow, _ = np.histogram(accounts.requests.arrival_s[rows], edges)
    usual = max(1.0, float(np.median(all_)))
    is_burst = all_ >= 2.0 * usual
    share = float(slow[is_burst].sum() / rows.size)
    if not is_burst.any() or share < _MOST or is_burst.mean() > 0.34:
        return None
    inside = np.flatnonzero(is_burst)
    start_s, end_s = float(edges[inside[0]] - first), float(edges[inside[-1] + 1] - first)
    facts = {"start_s": start_s, "end_s": end_s, "times_usual": float(all_[is_burst].mean() / usual)}
    return Circumstance("burst", share, facts)


@dataclass(frozen=True)
class Neighbour:
    """A request that stood in the way of another."""

    request: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    """For so long it was served while the other one waited."""
    prefill_tokens: int
    """Tokens of its prompt that were computed meanwhile."""
    kv_tokens: int
    """What it held in the KV cache when the other one was admitted at last, or at its own end."""


@dataclass(frozen=True)
class Wait:
    """Behind whom a request waited."""

    num_ahead: int
    """Requests in the queue before it when it came."""
    num_running: int
    """Requests that were being served when it came."""
    behind: list[Neighbour]
    """Those that stood in its way most, the worst first."""
    by_class: dict[str, int]
    """How many of those before it and running belong to each class of users, where there are classes."""


def waited_behind(accounts: Accounts, row: int, most: int = 5) -> Wait:
    """The requests that a request waited behind, ranked by what was scarce: memory held, tokens prefilled, or time."""
    q, me = accounts.requests, accounts.requests[row]
    came, admitted = float(me.arrival_s + me.front_s), float(me.scheduled_s)
    where = prefilled_at(q)
    left_s = np.where(where == q.replica, q.finished_s, q.landed_s)  # With prefill and decode apart, when its KV left.
    here = (where == where[row]) & (np.arange(q.size) != row)
    arrived = q.arrival_s + q.front_s
    ahead = here & (arrived <= came) & (q.scheduled_s > came)
    running = here & (q.scheduled_s <= came) & (left_s > came)
    rows = np.flatnonzero(here & (q.scheduled_s <= admitted) & (left_s > came))
    start, end = np.maximum(q.scheduled_s[rows], came), np.minimum(left_s[rows], admitted)
    seconds = np.maximum(end - start, 0.0)
    prefill_s = np.maximum(q.first_token_s[rows] - q.scheduled_s[rows], 1e-12)
    met_s = np.maximum(np.minimum(q.first_token_s[rows], admitted) - start, 0.0)
    prefilled = np.rint(q.prompt_tokens[rows] * np.minimum(met_s / prefill_s, 1.0)).astype(int)
    decode_s = np.maximum(q.finished_s[rows] - q.first_token_s[rows], 1e-12)
    progress = np.clip((end - q.first_token_s[rows]) / decode_s, 0.0, 1.0)
    held = q.prompt_tokens[rows] + np.rint(q.output_tokens[rows] * progress).astype(int)
    waits = accounts.parts_ns[row, breakdown.BEFORE, breakdown.ROUTING : breakdown.POLICY + 1]
    scarce = NAMES[breakdown.ROUTING + int(waits.argmax())]
    weight = {"wait_kv": held * seconds, "wait_batch_cap": seconds}.get(scarce, prefilled + 1e-9 * seconds)
    behind = _heaviest(accounts, rows, weight, most, seconds, prefilled, held)
    requests = accounts.run.requests
    of_class = requests.user_class[accounts.ids[ahead | running]] if requests.classes else np.empty(0, int)
    by_class = {one.name: int((of_class == i).sum()) for i, one in enumerate(requests.classes)}
    return Wait(int(ahead.sum()), int(running.sum()), behind, {name: n for name, n in by_class.items() if n})


def delayed_by(accounts: Accounts, row: int, most: int = 5) -> list[Neighbour]:
    """The requests whose prefills fell into the decoding of a request, the longest prompts first."""
    q, me = accounts.requests, accounts.requests[row]
    here = (prefilled_at(q) == me.replica) & (np.arange(q.size) != row)
    rows = np.flatnonzero(here & (q.first_token_s > me.first_token_s) & (q.scheduled_s < me.finished_s))
    start, end = np.maximum(q.scheduled_s[rows], me.first_token_s), np.minimum(q.first_token_s[rows], me.finished_s)
    seconds = np.maximum(end - start, 0.0)
    share = seconds / np.maximum(q.first_token_s[rows] - q.scheduled_s[rows], 1e-12)
    tokens = np.rint(q.prompt_tokens[rows] * np.minimum(share, 1.0)).astype(int)
    return _heaviest(accounts, rows, tokens, most, seconds, tokens, q.prompt_tokens[rows])


def _heaviest(
    accounts: Accounts, rows: Ints, weight: Any, most: int, seconds: Floats, prefilled: Ints, kv: Ints
) -> list[Neighbour]:
    """The requests of these rows that have a weight, the heaviest first."""
    order = np.argsort(-weight, kind="stable")[:most]
    q = accounts.requests[rows[order]]
    columns = (accounts.ids[rows[order]], q.prompt_tokens, q.output_tokens, seconds[order], prefilled[order], kv[order])
    return [Neighbour(*(one.item() for one in row)) for row in zip(*columns, strict=True)][: int((weight > 0).sum())]


def offenders(accounts: Accounts, most: int = 5) -> list[tuple[int, int, float]]:
    """The requests whose prefills delayed decodes of others most: id, prompt tokens, seconds of all others."""
    order = np.argsort(-accounts.inflicted_ns, kind="stable")[:most]
    tokens, delayed_s = accounts.requests.prompt_tokens, accounts.inflicted_ns / 1e9
    return [(int(accounts.ids[i]), int(tokens[i]), float(delayed_s[i])) for i in order if delayed_s[i] > 0]
