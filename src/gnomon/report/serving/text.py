"""A serving run in words: the scenario in a sentence, the summary as tables for a terminal."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnomon.core import units
from gnomon.report.blocks import Block, Facts, Table, lines, seconds
from gnomon.report.serving.intervals import interval_blocks
from gnomon.search.load_curve import Headroom
from gnomon.serving.features.adapters import AdapterFigures
from gnomon.serving.results.class_metrics import Fairness
from gnomon.serving.results.energy import Energy
from gnomon.serving.results.fleet import FleetSummary
from gnomon.serving.results.intervals import Intervals
from gnomon.serving.results.kv_transfers import Moves, TierHits
from gnomon.serving.results.percentiles import STATISTICS
from gnomon.serving.results.summary import Summary
from gnomon.serving.results.usage import Utilization
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import DeciderConfig
from gnomon.serving.scenario.pool import Pool

LATENCIES = {
    "ttft_s": "time to first token", "tbt_s": "time between tokens", "tpot_s": "time per output token",
    "e2e_s": "end to end", "scheduling_delay_s": "scheduling delay", "normalized_s": "end to end per output token",
}  # fmt: skip

Row = dict[str, Any]

MAX_REPLICA_ROWS = 8

DETAIL = re.compile(r"[a-z_]+(:| has no | is extrapolated )")
"""How a note begins that a timing source makes about single operators."""


def summary_blocks(
    scenario: Scenario, summary: Summary, room: Headroom | None = None, intervals: Intervals | None = None,
    spread: float | None = None,
) -> list[Block]:  # fmt: skip
    """A run in lines and tables: latencies, the other figures, replicas, warnings and notes. `spread`: standard
    deviation of the timing source's error, where it is known."""
    blocks = lines([title(scenario), f"{workload_words(scenario)}; {policy_words(scenario)}"])
    blocks.append(Table(latency_rows(summary)))
    blocks += interval_blocks(intervals or {}, spread)
    blocks.append(Facts(figure_rows(summary, room)))
    if summary.classes:
        blocks.append(Table(class_rows(summary)))
    if len(summary.replicas) > 1:
        some = replica_rows(summary, MAX_REPLICA_ROWS)
        left = len(summary.replicas) - len(some)
        blocks.append(Table(some, caption=f"{left} more replicas" if left else ""))
    return [*blocks, *lines(summary.warnings, "warning"), *lines(_most_important(summary.notes), "note")]


def _most_important(notes: list[str]) -> list[str]:
    """The notes; those on single operators as one."""
    details = [note for note in notes if DETAIL.match(note)]
    if len(details) < 2:
        return notes
    rest = "on single operators (measured elsewhere, extrapolated, points left out) are in the report and in --json."
    return [*(note for note in notes if note not in details), f"{len(details)} more {rest}"]


def title(scenario: Scenario) -> str:
    return f"{scenario.model} on {' + '.join(_pool(pool) for pool in scenario.all_pools())}"


def _pool(pool: Pool) -> str:
    replica = pool.replica
    cut = {"TP": replica.tensor_parallel, "PP": replica.pipeline_parallel, "DP": replica.data_parallel}
    degrees = [f"{short} {value}" for short, value in cut.items() if value > 1]
    degrees += ["EP"] if replica.expert_parallel else []
    count = pool.num_replicas
    gpus = f"{replica.num_gpus} x {pool.device_name}" if replica.num_gpus > 1 else f"{pool.device_name}"
    one = f"{gpus} ({', '.join(degrees)})" if degrees else gpus
    what = {"prefill": "prefill ", "decode": "decode "}.get(pool.role, "")
    return f"{count} {what}replicas of {one}" if count > 1 else f"{what}{one}"


def policy_words(scenario: Scenario) -> str:
    """How batches are formed and requests routed, in one line."""
    pools = scenario.all_pools()
    policies = list(dict.fromkeys(pool.given_batching.policy for pool in pools))
    engine = f"engine {scenario.engine.name}, " if scenario.engine else ""
    words = f"{engine}batching {' and '.join(policies)}"
    if scenario.has_roles:
        moving = scenario.disaggregation
        words += f", prefill routed by {scenario.router.name}, decode by {moving.decode_router.name}"
        return words if moving.decider == DeciderConfig() else f"{words}, disaggregated by {moving.decider.name}"
    return f"{words}, routed by {scenario.router.name}" if scenario.num_ranks > 1 else words


def workload_words(scenario: Scenario) -> str:
    w = scenario.workload
    lengths = w.preset or (w.trace and Path(w.trace.file).name) or f"{w.lengths.distribution} lengths"
    count = f"{w.num_requests:,} requests" if w.num_requests else "requests"
    arrivals = w.arrivals
    if arrivals.process == "closed_loop":
        how = f"{arrivals.concurrency} at a time"
    elif arrivals.process == "batch":
        how = "all at once"
    elif arrivals.process == "trace":
        how = f"as recorded, {w.rate:g} per second" if w.rate else "as recorded"
    else:
        how = f"{arrivals.process.replace('_', ' ')} arrivals" + (f", {w.rate:g} per second" if w.rate else "")
    return f"{count} of {lengths}, {how}"


def latency_rows(summary: Summary) -> list[Row]:
    rows = []
    for name, words in LATENCIES.items():
        spread = getattr(summary.latency, name)
        values = {s: getattr(spread, s) for s in STATISTICS}
        row: Row = {"latency": words}
        rows.append(row | {s: units.seconds(v) if v is not None else None for s, v in values.items()})
    return rows


def figure_rows(summary: Summary, room: Headroom | None = None) -> list[tuple[str, str]]:
    t, c, i, use = summary.throughput, summary.requests, summary.iterations, summary.utilization
    offered = f" of {t.offered_requests_per_s:.4g} offered" if t.offered_requests_per_s else ""
    preempted = f"; {c.preemptions:,} pre-emptions of {c.preempted:,} requests" if c.preemptions else ""
    ended = f"{c.finished:,} of {c.offered:,} finished in {units.seconds(summary.duration_s)}"
    rows = [
        ("requests", ended + _lost(summary)),
        ("throughput", f"{t.requests_per_s:.4g} requests/s{offered}"),
        ("tokens", f"{t.output_tokens_per_s:,.0f} output/s, {t.prompt_tokens_per_s:,.0f} prompt/s"),
    ]
    if room is not None:
        rows.append(("capacity", headroom_words(room)))
    if summary.slo is not None:
        rows.append(("SLO", slo_words(summary)))
    rows += [
        ("GPUs", use_words(use)),
        ("KV cache", f"{use.kv_mean:.1%} mean, {use.kv_peak:.1%} peak{preempted}"),
        ("batches", f"{i.count:,}, mean {i.mean_size:.3g} requests, {i.mean_tokens:,.4g} tokens, "
                    f"{units.seconds(i.mean_duration_s)}"),
        ("lengths", f"{summary.prompt_tokens.mean:,.0f} prompt and {summary.output_tokens.mean:,.0f} output tokens in "
                    f"the mean, P:D {summary.prompt_to_output:.3g}"),
    ]  # fmt: skip
    if summary.prefix_hit_rate:
        rows.append(("prefix cache", f"{summary.prefix_hit_rate:.1%} of prompt tokens found"))
    optional: dict[str, tuple[Any, Callable[[Any], str]]] = {
        "fairness": (summary.fairness, fairness_words), "KV moved": (summary.moves, moves_words),
        "fleet": (summary.fleet, fleet_words), "KV tiers": (summary.tiers, tier_words),
        "LoRA adapters": (summary.adapters, adapter_words),
    }  # fmt: skip
    rows += [(name, words(found)) for name, (found, words) in optional.items() if found is not None]
    rows.append(("cost", cost_words(summary)))
    if summary.energy is not None:
        rows.append(("energy", energy_words(summary.energy)))
    return [*rows, ("timing", timing_words(summary))]


def headroom_words(room: Headroom) -> str:
    """The capacity beside the load: "≈ 38 requests/s, headroom 19 %"."""
    within = "at which 99 % of the requests meet the SLO" if room.has_limits else "before requests pile up"
    if room.why_unknown:
        return room.why_unknown
    if room.share is None:
        return "no load meets the SLO"
    left = f"headroom {room.share:.0%}" if room.share >= 0 else f"the load is {-room.share:.0%} above it"
    rough = " (rough: too few requests to see whether they pile up)" if room.is_rough else ""
    beyond = f"; beyond {room.saturation_per_s:.3g} they pile up" if room.has_limits and room.saturation_per_s else ""
    return f"≈ {room.capacity_per_s:.3g} requests/s {within}, {left}{rough}{beyond}"


def timing_words(summary: Summary) -> str:
    """What may be wrong about the iteration times, in one sentence."""
    if not summary.timing_error:
        return "as given"
    others = [f"{name} {share:.2f}" for name, share in summary.timing_sources.items()]
    beside = f"; by other sources, times as long: {', '.join(others)}" if others else ""
    host = "host time included" if summary.has_host_time else "kernels only: no host time"
    return f"iterations of a server within ±{summary.timing_error:.0%} in nine of ten cases; {host}{beside}"


def adapter_words(adapters: AdapterFigures) -> str:
    waited = f", {adapters.waited:.1%} of the requests waited for a slot" if adapters.waited else ""
    return f"found {adapters.found:.1%}, {adapters.loads:,} loads{waited}"


def tier_words(tiers: TierHits) -> str:
    found = [f"{name} {getattr(tiers, name):.1%}" for name in ("gpu", "host", "ssd", "remote", "peers", "computed")]
    rest = f" ({tiers.passed_over:.1%} found, but computed sooner)" if tiers.passed_over else ""
    wait = f"; loads waited {units.seconds(tiers.wait_s.mean)} in the mean" if tiers.wait_s.mean is not None else ""
    return f"prompt tokens from {', '.join(one for one in found if not one.endswith(' 0.0%'))}{rest}{wait}"


def moves_words(moved: Moves) -> str:
    if not moved.moved:
        return f"none; {moved.stayed:,} requests stayed where they decode"
    rest = f", {moved.stayed:,} stayed" if moved.stayed else ""
    rest += f", {moved.dropped:,} dropped and prefilled again" if moved.dropped else ""
    wait, took = (units.seconds(one.mean or 0.0) for one in (moved.wait_s, moved.transfer_s))
    return (
        f"{moved.moved:,} requests{rest}; {units.size(moved.bytes / moved.moved)} each, waited {wait} and took {took} "
        f"in the mean; links {moved.link_use:.1%} used"
    )


def use_words(use: Utilization) -> str:
    """Time and work shares in one line. Busy is no share of the capacity: at a higher load the batches grow."""
    rest = f", {use.bubble:.1%} bubble" if use.bubble else ""
    rest += f", {use.idle:.1%} idle" if use.idle is not None else ""
    return f"an iteration ran {use.busy:.1%} of the time{rest}; MFU {use.mfu:.1%}, memory bandwidth {use.hbm:.1%}"


def slo_words(summary: Summary) -> str:
    slo = summary.slo
    assert slo is not None
    targets = []
    for name in ("ttft", "tpot", "e2e"):
        limit, share = getattr(slo, f"{name}_s"), getattr(slo, f"{name}_attainment")
        if limit is not None:
            met = f" met by {share:.1%}" if share is not None else ""
            targets.append(f"{name.upper()} ≤ {units.seconds(limit)}{met}")
    every = f"all by {slo.attainment:.1%}, " if len(targets) > 1 else ""
    return f"{', '.join(targets)}; {every}goodput {slo.goodput_requests_per_s:.4g} requests/s"


def fleet_words(fleet: FleetSummary) -> str:
    parts = [f"{fleet.mean_up:.3g} replicas in the mean ({fleet.least_up} to {fleet.peak_up})",
             f"{fleet.gpu_hours:,.4g} GPU hours", f"{fleet.cold_starts} cold starts of "
             f"{units.seconds(fleet.cold_start_s)}"]  # fmt: skip
    if fleet.failures:
        parts.append(f"{fleet.failures} failures, {fleet.retries:,} requests sent again")
    if fleet.switches:
        parts.append(f"{fleet.switches} replicas switched pools")
    if fleet.moves:
        parts.append(f"{fleet.moves:,} requests moved")
    return f"{fleet.controller}: {', '.join(parts)}"


def energy_words(energy: Energy) -> str:
    each = energy.joules_per_output_token
    parts = [f"{energy.kwh:,.4g} kWh, {energy.mean_kw:,.3g} kW in the mean"]
    parts += [f"{each:,.3g} J per output token"] if each is not None else []
    parts += [f"${energy.price:,.4g}"] if energy.price is not None else []
    parts += [f"{energy.carbon_kg:,.4g} kg CO2"] if energy.carbon_kg is not None else []
    return ", ".join(parts)


def cost_words(summary: Summary) -> str:
    cost = summary.cost
    million = cost.per_million_output_tokens
    per = f", ${million:.3g} per million output tokens" if million is not None else ""
    gpus = f"{cost.num_gpus} {'GPU' if cost.num_gpus == 1 else 'GPUs'}"
    if summary.fleet is not None:
        gpus = f"{summary.fleet.gpu_hours / max(summary.duration_s / 3600, 1e-9):.3g} GPUs in the mean"
    return f"{gpus}, ${cost.per_hour:,.2f} per hour{per}"


def class_rows(summary: Summary) -> list[Row]:
    return [
        {
            "class": one.name,
            "requests": one.arrived,
            "finished": one.finished,
            "shed": one.shed,
            "TTFT P50": seconds(one.ttft_s.p50),
            **{f"{name.upper()} P99": seconds(getattr(one, f"{name}_s").p99) for name in ("ttft", "tpot", "e2e")},
            "SLO met": f"{one.slo.attainment:.1%}" if one.slo else None,
            "service": f"{one.service_share:.1%}" if one.service_share is not None else None,
            "pre-emptions": one.preemptions,
        }
        for one in summary.classes
    ]


def fairness_words(fairness: Fairness) -> str:
    parts = {"service over weight": fairness.service, "seconds per token": fairness.latency}
    texts = [f"{name} {value:.3f}" for name, value in parts.items() if value is not None]
    return f"Jain's index of {', of '.join(texts)}"


def replica_rows(summary: Summary, limit: int | None = None) -> list[Row]:
    has_roles = any(use.role != "both" for use in summary.replicas)
    shares = {"busy": "busy", "MFU": "mfu", "HBM": "hbm", "KV mean": "kv_mean", "KV peak": "kv_peak"}
    return [
        {
            "replica": f"{use.replica} {use.role}" if has_roles else use.replica,
            "device": f"{use.num_gpus} x {use.device}" if use.num_gpus > 1 else use.device,
            "finished": use.finished,
            "batches": use.iterations,
            "tokens": use.tokens,
            **{name: f"{getattr(use.utilization, share):.1%}" for name, share in shares.items()},
            "pre-emptions": use.preemptions,
            "prefix hits": f"{use.prefix_hit_rate:.1%}" if use.prefix_hit_rate is not None else None,
        }
        for use in summary.replicas[:limit]
    ]


def _lost(summary: Summary) -> str:
    names = {"rejected": "rejected", "shed": "turned away", "abandoned": "given up", "too_long": "too long",
            "unfinished": "unfinished", "not_arrived": "not arrived"}  # fmt: skip
    counts = {words: getattr(summary.requests, name) for name, words in names.items()}
    parts = [f"{count:,} {words}" for words, count in counts.items() if count]
    return f" ({', '.join(parts)})" if parts else ""
