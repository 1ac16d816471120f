"""A search's answer in words and rows, for the terminal and the page alike."""

import re
from collections import Counter
from typing import Any

from gnomon.core import units
from gnomon.report.blocks import seconds
from gnomon.search.config import LATENCIES, UNITS, SearchConfig
from gnomon.search.evaluate import Record
from gnomon.search.matrix import Matrix
from gnomon.search.slo import WORDS, latency_name, shown
from gnomon.search.study import Found, front, latency_axes
from gnomon.serving.results.intervals import Interval

MAX_REASONS = 10
LEFT = ("#", "configuration", "limited by", "front")
"""Columns of words in a ranking."""
HEADINGS = {
    "qps_per_dollar": "Throughput per dollar against latency",
    "goodput_per_gpu": "Goodput per GPU against latency",
    "cost": "Cost against latency",
}
"""Of the scatters, by objective."""

MOST_TIES = 5


def best_words(found: Found) -> list[str]:
    assert found.best is not None
    ties = [one.label for one in found.ties]
    if not ties:
        return [f"Best: {found.best.label}"]
    more = f" and {len(ties) - MOST_TIES} more" if len(ties) > MOST_TIES else ""
    return [
        f"First of {len(ties) + 1} that tie: {found.best.label}",
        f"Within the 95 % intervals of both, as good: {'; '.join(ties[:MOST_TIES])}{more}",
    ]


def capacity_words(capacity: Interval) -> str:
    return (
        f"Its capacity: {capacity.value:.3g} requests/s, {capacity.low:.3g}–{capacity.high:.3g} with 90 % probability "
        "(error of the timing source or calibration, other requests)"
    )


def slo_words(search: SearchConfig) -> str:
    parts = [
        f"{latency_name(f'{metric} {statistic}')} ≤ {units.seconds(limit)}"
        for metric in LATENCIES
        for statistic, limit in getattr(search.slo, metric).items()
    ]
    good = search.slo.goodput
    if good is not None:
        limits = [f"{WORDS[n]} ≤ {units.seconds(v)}" for n in ("ttft_s", "tpot_s", "e2e_s") if (v := getattr(good, n))]
        parts.append(f"{good.share:.0%} of requests with {' and '.join(limits)}")
    return ", ".join(parts) or "no growing queue"


def has_limits(search: SearchConfig) -> bool:
    return search.slo.goodput is not None or any(getattr(search.slo, metric) for metric in LATENCIES)


def question_words(search: SearchConfig) -> str:
    load = f" at {search.load:g} requests/s" if search.load is not None else ""
    lengths = search.workload.preset or (search.workload.trace and search.workload.trace.file)
    named = lengths or search.workload.lengths.distribution
    return f"{search.model}, {named}; {slo_words(search)}; best {UNITS[search.objective]}{load}"


def gpus(count: int | None) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def cards(found: Found) -> list[tuple[str, str, str]]:
    """The winner in key figures: name, value, what stands beside it."""
    best = found.best
    if best is None:
        return []
    objective = found.search.objective
    margin = found.margins.get(best.label)
    cards = [
        ("capacity", f"{best.capacity_per_s:.4g}/s", f"± {margin:.2g} (95 %)" if margin else "requests"),
        ("objective", f"{shown(objective, best.score or 0.0):.4g}", UNITS[objective]),
        ("cost", f"${best.cost_per_hour:.2f}/h", gpus(best.num_gpus)),
    ]
    for axis in latency_axes(found.search):
        value = best.figures.get(axis)
        cards.append((latency_name(axis), units.seconds(value) if value is not None else "–", "at capacity"))
    return cards


def ranking_rows(found: Found, top: int | None = None) -> list[dict[str, Any]]:
    axes = latency_axes(found.search)
    best = found.ranked[:top]
    on_front = front(found.search, found.ranked)
    is_whole = found.search.strategy == "exhaustive"  # Of a smart search the front is not known.
    return [
        {
            "#": number,
            "configuration": one.label,
            "GPUs": one.num_gpus,
            "$/h": f"{one.cost_per_hour:.2f}",
            "load/s" if found.search.objective == "cost" else "capacity/s": _with_margin(
                one, found.margins.get(one.label)
            ),
            UNITS[found.search.objective]: f"{shown(found.search.objective, one.score or 0.0):.4g}",
            **{latency_name(axis): seconds(one.figures.get(axis)) for axis in axes},
            "limited by": limited_by(one),
        }
        | ({"front": "●" if on_front[number - 1] else ""} if is_whole else {})
        for number, one in enumerate(best, start=1)
    ]


def limited_by(record: Record) -> str:
    """What is not met just above the capacity."""
    return latency_name(record.binding or "")


def account(found: Found) -> list[str]:
    """What became of the configurations, in sentences."""
    counts = Counter(_FATES.get(one.status, one.status) for one in found.others)
    total = len(found.ranked) + len(found.others)
    met = " that meet the SLO" if has_limits(found.search) else ""
    text = [f"{total:,} configurations: {len(found.ranked):,} measured{met}"]
    text += [f"{count:,} {fate}" for fate, count in counts.items()]
    lines = [", ".join(text) + f". {found.runs:,} runs, {units.count(found.simulated)} requests simulated."]
    lines += best_by_device(found)
    unsure = [one for one in found.ranked[:1] if one.converged is False]
    if unsure:
        lines.append("The winner's capacity still changed with the length of the runs: raise effort.max_requests.")
    return lines


def best_by_device(found: Found) -> list[str]:
    """The best on each GPU, in one sentence, where several were measured."""
    first: dict[str, Record] = {}
    for one in found.ranked:
        first.setdefault(str(one.overrides["device"]), one)
    if len(first) < 2:
        return []
    objective = found.search.objective
    worth = "" if objective == "cost" else f" {UNITS[objective]}"
    scores = [f", {shown(objective, one.score or 0.0):.4g}{worth}" if worth else "" for one in first.values()]
    each = [
        f"{one.label} (${one.cost_per_hour:.2f}/h{score})" for one, score in zip(first.values(), scores, strict=True)
    ]
    return [f"Best on each GPU: {'; '.join(each)}."]


_FATES = {"measured": "met at no load", "passed over": "passed over (cannot beat the best)"}


def reason_rows(found: Found, top: int | None = None) -> list[dict[str, str]]:
    """Why configurations have no place in the ranking; those of one kind are told once, with the first as example."""
    grouped: dict[tuple[str, str], list[Record]] = {}
    for one in found.others:
        # What could not beat the best is told by GPU, with the one that came nearest.
        kind = str(one.overrides.get("device", "")) if one.status == "passed over" else (one.reason or "").split(":")[0]
        grouped.setdefault((one.status, kind), []).append(one)
    rows = []
    for (status, kind), members in list(grouped.items())[:top]:
        if status == "passed over":
            members = sorted(members, key=_reach, reverse=True)
        rest = f" and {len(members) - 1} more" if len(members) > 1 else ""
        what = f"{status} on {kind}".removesuffix(" on ") if status == "passed over" else status
        what = "meets the SLO at no load" if status == "measured" else what
        rows.append({"what": what, "configurations": f"{members[0].label}{rest}", "why": _why(members[0])})
    return rows


def _reach(record: Record) -> float:
    """The load up to which a configuration that was passed over might go, as its reason says."""
    found = re.search(r"([\d.e+-]+)/s", record.reason or "")
    return float(found.group(1)) if found else 0.0


def _why(record: Record) -> str:
    reason = record.reason or ""
    if record.status != "passed over":
        return reason
    if reason.startswith("bound: "):
        most = reason.removeprefix("bound: ").replace("would be needed", "would beat the best")
        return f"its iteration times allow {most}"
    return f"{reason}; the best is worth more than that load"


def nothing_qualifies(found: Found) -> str:
    """Why there is no winner, and what comes nearest."""
    tried = [one for one in found.others if one.status in ("measured", "passed over")]
    if not tried:
        reasons = " ".join(one.reason or "" for one in found.others)
        fitting = sorted({int(degree) for degree in re.findall(r"arallelism (\d+) would fit", reasons)})
        more = f" More GPUs for each copy: --tp {','.join(map(str, fitting))}." if fitting else ""
        return f"No configuration can run: see the reasons above.{more}"
    text = (
        f"No configuration meets the SLO ({slo_words(found.search)})."
        if has_limits(found.search)
        else ("The queue grows at every load.")
    )
    missing = [one for one in tried if one.nearest_miss is not None]
    if missing:
        nearest = min(missing, key=lambda one: (one.nearest_miss or 0.0, one.label))
        text += f" Nearest is {nearest.label}: {nearest.reason}."
    return f"{text} Loosen the SLO or widen the space."


def _with_margin(record: Record, margin: float | None) -> str:
    capacity = f"{record.capacity_per_s:.4g}"
    return f"{capacity} ± {margin:.2g}" if margin is not None else capacity


def cell_rows(matrix: Matrix) -> list[dict[str, Any]]:
    rows = []
    for (model, workload), found in matrix.cells.items():
        best, objective = found.best, found.search.objective
        row: dict[str, Any] = {"best configuration": best.label if best else "nothing meets the SLO"}
        row["capacity/s"] = _with_margin(best, found.margins.get(best.label)) if best else None
        row[UNITS[objective]] = f"{shown(objective, best.score or 0.0):.4g}" if best else None
        rows.append({"model": model, "workload": workload, **row})
    return rows


def worth_rows(matrix: Matrix, model: str) -> list[dict[str, Any]]:
    """Rows: the workload that a configuration was chosen for; columns: the one it is used for."""
    rows = []
    for chosen in matrix.workloads:
        shares = {used: matrix.worth.get((model, chosen, used)) for used in matrix.workloads}
        if any(share is not None for share in shares.values()):
            row = {f"on {used}": "–" if share is None else f"{share:.0%}" for used, share in shares.items()}
            rows.append({"chosen for": chosen, **row})
    return rows


def bench_row(record: Record) -> dict[str, Any]:
    if record.score is None:
        return {"GPUs": record.num_gpus, "capacity/s": None, "QPS/($/h)": None, "TTFT P90": None, "TBT P99": None,
                "limited by": record.reason}  # fmt: skip
    return {
        "GPUs": record.num_gpus, "capacity/s": f"{record.capacity_per_s:.4g}",
        "QPS/($/h)": f"{record.score:.4g}", "TTFT P90": seconds(record.figures["ttft_s p90"]),
        "TBT P99": seconds(record.figures["tbt_s p99"]), "limited by": limited_by(record),
    }  # fmt: skip
