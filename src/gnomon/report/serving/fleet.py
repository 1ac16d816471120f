"""A fleet over the day: load, replicas, SLO attainment, cost and power, as a table and as figures."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from gnomon.core import units
from gnomon.core.arrays import Floats
from gnomon.report.blocks import Card, Table
from gnomon.report.look import BLUE, GREEN, GREY, ORANGE, RED, dots, short, time_lines
from gnomon.serving.autoscaling.capacity import slo_check
from gnomon.serving.autoscaling.replicas import DOWN, DRAINING, PAID, STARTING, UP, FleetRecord
from gnomon.serving.engine.state import FINISHED, NOT_ARRIVED
from gnomon.serving.results.energy import joules
from gnomon.serving.results.fleet import past
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run

MOST_POINTS = 240  # Intervals of the time lines: a day in steps of six minutes.
HOUR_S, AFTER_S = 3600.0, 600.0  # Of a row of the day, and after a failure in which its cost shows.
EVENTS = ((DOWN, "failed", "x", RED), (STARTING, "starts", "triangle-up", ORANGE),
          (DRAINING, "drains", "triangle-down", GREY))  # fmt: skip
"""States of a replica that are marked when they begin: words, mark and colour."""
COLOURS = (BLUE, ORANGE, GREEN, RED, GREY)


def fleet_frame(run: Run) -> pl.DataFrame:
    """One row per interval: arrivals, replicas by state, what waits and runs, SLO attainment by class, dollars per hour
    and kilowatts."""
    record, q = run.fleet, run.cluster.requests
    assert record is not None
    edges = _edges(run)
    columns: dict[str, Any] = {"time_s": edges[1:]}
    came = q.arrival_s[(q.status != NOT_ARRIVED) & np.isfinite(q.arrival_s)]
    columns["arrivals_per_s"] = np.histogram(came, edges)[0] / np.diff(edges)
    seen = past(record, edges[-1])
    at = np.searchsorted(seen.time_s, edges[1:], side="right") - 1
    for state, name in ((2, "up"), (1, "starting"), (3, "draining"), (4, "down")):
        columns[name] = seen.counts[at, :, state].sum(axis=1)
    for role in _roles(run):
        columns[role] = seen.counts[at, :, UP][:, [pool.role == role for pool in run.pools]].sum(axis=1)
    samples = np.searchsorted(record.column("time_s")[:, 0], edges, side="right") - 1
    for name in ("waiting", "running") if record.samples.size else ():  # The controller may never have been asked.
        columns[name] = record.column(name).sum(axis=1)[np.maximum(samples[1:], 0)]
    for name, share in slo_by_class(run, edges).items():
        columns[f"slo_met_{name}"] = share
    columns["dollars_per_hour"] = _dollars(run, seen.counts[at])
    watts = _kilowatts(run, samples, np.diff(edges), seen.counts[at])
    if watts is not None:
        columns["kw"] = watts
    return pl.DataFrame(columns)


def _roles(run: Run) -> tuple[str, ...]:
    """Lines of their own among the replicas that are up."""
    return ("prefill", "decode") if {pool.role for pool in run.pools} == {"prefill", "decode"} else ()


def _edges(run: Run) -> Floats:
    assert run.fleet is not None
    times = run.fleet.column("time_s")[:, 0]
    if times.size < 2:
        q = run.cluster.requests
        return np.array([0.0, max(float(q.finished_s.max()), 1e-9)])
    step = max(1, -(-times.size // MOST_POINTS))
    return np.concatenate(([0.0], times[step - 1 :: step]))


def slo_by_class(run: Run, edges: Floats) -> dict[str, Floats]:
    """For every class (or all alike) the share of the requests that arrived in an interval and met their SLO; NaN where
    none did. Those that were turned away or never ended did not."""
    q = run.cluster.requests
    check = slo_check(run.scenario.slo, run.requests, q)
    if check is None:
        return {}
    good = np.zeros(q.size)
    done = np.flatnonzero(q.status == FINISHED)
    good[done] = check(done)
    names = [one.name for one in run.requests.classes] or ["all"]
    there = np.isfinite(q.arrival_s) & (q.status != NOT_ARRIVED)
    found = {}
    for number, name in enumerate(names):
        mine = there & (q.user_class == number)
        all_ = np.histogram(q.arrival_s[mine], edges)[0]
        met = np.histogram(q.arrival_s[mine], edges, weights=good[mine])[0]
        found[name] = np.divide(met, all_, out=np.full(all_.size, np.nan), where=all_ > 0)
    return found


def day_cards(summary: Summary) -> list[Card]:
    """What a day of a fleet comes to."""
    fleet, energy, slo = summary.fleet, summary.energy, summary.slo
    assert fleet is not None
    dollars = summary.cost.per_hour * summary.duration_s / HOUR_S
    return [
        Card("replicas", f"{fleet.mean_up:.3g}", f"{fleet.least_up} to {fleet.peak_up}"),
        *([Card("SLO met by", f"{slo.attainment:.1%}", "of all requests")] if slo else []),
        Card("GPU hours", f"{fleet.gpu_hours:,.4g}", f"${dollars:,.4g}"),
        Card("cold starts", f"{fleet.cold_starts}", f"{units.seconds(fleet.cold_start_s)} each"),
        Card("failures", f"{fleet.failures}", f"{fleet.retries:,} requests sent again"),
        *([Card("switched", f"{fleet.switches}", "replicas between pools")] if fleet.switches else []),
        *([Card("moved", f"{fleet.moves:,}", "requests, while they decoded")] if fleet.moves else []),
        *([Card("energy", f"{energy.kwh:,.4g} kWh", f"{energy.mean_kw:.3g} kW in the mean")] if energy else []),
    ]


def day_tables(run: Run) -> list[Table]:
    """The hours with their load, replicas, scaling and SLO, the worst of them named, and what each failure cost."""
    record = run.fleet
    assert record is not None
    q = run.cluster.requests
    came_s = q.arrival_s[np.isfinite(q.arrival_s)]
    end_s = max(float(q.finished_s.max()), float(came_s.max(initial=0.0)), 1e-9)
    seen = past(record, end_s)
    edges = np.linspace(0.0, end_s, 13) if end_s <= 2 * HOUR_S else np.append(np.arange(0.0, end_s, HOUR_S), end_s)
    shares = slo_by_class(run, edges)
    rows: list[dict[str, Any]] = []
    for first, last in pairwise(edges):
        at, end = np.searchsorted(seen.time_s, first, side="right") - 1, np.searchsorted(seen.time_s, last)
        up = seen.counts[max(0, int(at)) : int(end), :, UP].sum(axis=1)
        new = [state for at_s, _, state in record.changes if first <= at_s < last]
        came = int(np.count_nonzero((came_s >= first) & (came_s < last)))
        row: dict[str, Any] = {"from": units.seconds(first), "requests/s": f"{came / (last - first):.3g}",
                               "replicas up": f"{up.min()} to {up.max()}", "started": new.count(STARTING),
                               "drained": new.count(DRAINING), "failed": new.count(DOWN)}  # fmt: skip
        met = {name: share[len(rows)] for name, share in shares.items()}
        rows.append(row | {f"SLO met, {name}": _percent(share) for name, share in met.items()})
    asked = {name: share for name, share in shares.items() if not np.isnan(share).all()}
    worst = _worst(edges, asked) if asked else ""
    failures = [
        {"failure at": units.seconds(at_s), "replica": i, "requests sent again": count}
        | {f"SLO met, {name}": f"{_percent(before)} before, {_percent(after)} after"
           for name, (before, after) in slo_by_class(run, np.array([at_s - AFTER_S, at_s, at_s + AFTER_S])).items()}
        for (at_s, i), count in _sent_again(record).items()
    ]  # fmt: skip
    caption = f"SLO: of requests that came within {units.seconds(AFTER_S)}."
    return [Table(rows, "Over the day", worst), *([Table(failures, "What failures cost", caption)] if failures else [])]


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.1%}"


def _worst(edges: Floats, shares: dict[str, Floats]) -> str:
    name = min(shares, key=lambda one: float(np.nanmin(shares[one])))
    place = int(np.nanargmin(shares[name]))
    start, end = units.seconds(edges[place]), units.seconds(edges[place + 1])
    return f"Worst: from {start} to {end}, {name} meets its SLO for {shares[name][place]:.1%} of the requests."


def _dollars(run: Run, counts: Any) -> Floats:
    price = run.scenario.price_per_gpu_hour
    each = [k.replica.num_gpus * (k.device.price_per_hour if price is None else price) for k in run.pools]
    return np.asarray((counts[:, :, PAID].sum(axis=2) * np.array(each)).sum(axis=1), dtype=np.float64)


def _kilowatts(run: Run, samples: Any, lasts_s: Floats, counts: Any) -> Floats | None:
    """Mean power in each interval, by what the pools did between two samples; before the first, from nothing on."""
    record, config = run.fleet, run.scenario.power
    assert record is not None
    total = np.zeros(lasts_s.size)
    row = 0
    for number, pool in enumerate(run.pools):
        facts, work = config.facts(pool.device.name), run.tables.work[row]
        row += pool.replica.pipeline_parallel
        if facts is None or not record.samples.size:
            return None
        so_far = [np.append(0.0, record.column(name)[:, number]) for name in ("busy_s", "bytes", "flops")]
        done = [np.diff(one[samples + 1]) for one in so_far]
        gpus = pool.replica.num_gpus / pool.replica.data_parallel
        on_s = counts[:, number, PAID].sum(axis=1) * pool.replica.data_parallel * lasts_s
        seconds = (done[0], done[1] / max(work[6], 1.0), done[2] / max(work[5], 1.0))
        total += joules(config, facts, gpus, on_s, *(np.maximum(one, 0.0) for one in seconds)) / lasts_s / 1e3
    return total


def _sent_again(record: FleetRecord) -> dict[tuple[float, int], int]:
    """Requests that were sent again, by the moment of a failure and its replica; it may be noticed later."""
    found: dict[tuple[float, int], int] = {}
    for noticed_s, i, count in record.lost:
        failed_s = [at_s for at_s, one, state in record.changes if (one, state) == (i, DOWN) and at_s <= noticed_s]
        if failed_s:
            found[max(failed_s), i] = found.get((max(failed_s), i), 0) + count
    return found


def _events(run: Run, hours: Floats, along: Floats) -> list[dict[str, Any]]:
    """What happened to replicas, as marks along a curve: failures, starts and ends."""
    record = run.fleet
    assert record is not None
    lost = _sent_again(record)
    known = ~np.isnan(along)
    found = []
    for state, word, symbol, colour in EVENTS:
        here = [(at_s, i) for at_s, i, kind in record.changes if kind == state]
        if not here or not known.any():
            continue
        at = np.array([at_s for at_s, _ in here]) / HOUR_S
        hover = [f"replica {i} {word}" + (f", {lost[at_s, i]:,} requests sent again" if (at_s, i) in lost else "")
                for at_s, i in here]  # fmt: skip
        y, mark = short(np.interp(at, hours[known], along[known])), {"symbol": symbol, "color": colour, "size": 7}
        more: dict[str, Any] = {"text": hover, "hovertemplate": "%{text}<extra></extra>", "showlegend": True}
        found.append(dots(short(at), y, colour, name=word, marker=mark, **more))
    return found


def fleet_drawers(run: Run) -> dict[str, Callable[[], dict[str, Any]]]:
    frame = cache(lambda: fleet_frame(run))

    def draw(title: str, *names: str, **axis: Any) -> dict[str, Any]:
        table = frame()
        hours = table["time_s"].to_numpy() / HOUR_S
        lines = [(name.removeprefix("slo_met_"), table[name].to_numpy(), colour)
                 for name, colour in zip(names, COLOURS, strict=False) if name in table.columns]  # fmt: skip
        drawn = time_lines(title, hours, lines, axis, "hours")
        marks = _events(run, hours, lines[0][1]) if names[0] in ("up", "prefill", *met) and lines else []
        return drawn | {"data": [*drawn["data"], *marks]}

    met = [f"slo_met_{one.name}" for one in run.requests.classes] or ["slo_met_all"]
    return {
        "load": lambda: draw("Requests per second", "arrivals_per_s"),
        "replicas": lambda: draw("Replicas", *(_roles(run) or ("up",)), "starting", "draining", "down"),
        "slo_over_time": lambda: draw("SLO met", *met, tickformat=".0%"),
        "cost_over_time": lambda: draw("Dollars per hour", "dollars_per_hour"),
        "power": lambda: draw("Power, kW", "kw"),
    }
