"""The summary of a run: every figure that the table, the report and `summary.json` show.

Nothing here is simulated: all of it is computed from the engine's records. `docs/metrics.md` defines each figure.
"""

from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.engine.state import ABANDONED, ENDED, FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.features.adapters import adapter_figures
from gnomon.serving.results.class_metrics import class_summaries
from gnomon.serving.results.energy import Energy, joules
from gnomon.serving.results.fleet import fleet_summary, paid_s
from gnomon.serving.results.kv_transfers import moves, tier_hits
from gnomon.serving.results.latency import RequestTimes, Slo, request_times, slo_met
from gnomon.serving.results.percentiles import percentiles, weighted_percentiles
from gnomon.serving.results.saturation import saturation
from gnomon.serving.results.summary import Cost, Counts, Iterations, Latency, Summary, Throughput, check_summary
from gnomon.serving.results.usage import overall, prefix_hit_rate, replica_uses, seconds_on
from gnomon.serving.run.simulate import Run


class Headline(Protocol):
    """The figures that one looks at first."""

    duration_s: float
    latency: Latency
    throughput: Throughput
    slo: Slo | None
    cost: Cost


def headline(run: Run) -> Headline:
    """Those of a run alone."""
    times = request_times(run)
    return SimpleNamespace(**_first_figures(run, times, *_span(run, times.status)))


def _first_figures(run: Run, times: RequestTimes, start_s: float, end_s: float) -> dict[str, Any]:
    done, duration_s = times.status == FINISHED, end_s - start_s
    arrived = int(np.count_nonzero(times.status != NOT_ARRIVED))
    offered = arrived + run.requests.num_rejected
    return {
        "duration_s": duration_s, "latency": _latency(run, times, done),
        "throughput": _throughput(run, done, duration_s, arrived),
        "slo": slo_met(run.scenario.slo, times, done, offered, duration_s), "cost": _cost(run, done, duration_s, end_s),
    }  # fmt: skip


def summarize(run: Run) -> Summary:
    """Compute every figure but the error of its times, which their sources are asked for (`results.mean_iteration`)."""
    q, times = run.cluster.requests, request_times(run)
    done = times.status == FINISHED
    start_s, end_s = _span(run, times.status)
    duration_s = end_s - start_s
    uses = replica_uses(run, start_s, end_s)
    is_open = not run.requests.concurrency and not len(run.requests.parents)
    arrived = int(np.count_nonzero(times.status != NOT_ARRIVED))
    trend = saturation(q, arrived) if is_open else None
    counts = _counts(run, times.status)
    classes, fairness = class_summaries(run, times, duration_s)
    summary = Summary(
        **_first_figures(run, times, start_s, end_s), requests=counts,
        utilization=overall(uses, seconds_on(run, start_s, end_s) if run.fleet else None),
        energy=_energy(run, done, duration_s, start_s, end_s),
        fleet=fleet_summary(run.fleet, _gpus_of_replicas(run), end_s) if run.fleet else None,
        iterations=_iterations(run), prompt_tokens=percentiles(q.prompt_tokens.astype(np.float64)),
        output_tokens=percentiles(q.output_tokens.astype(np.float64)),
        prompt_to_output=float(q.prompt_tokens.sum() / q.output_tokens.sum()),
        prompt_to_output_per_request=percentiles(q.prompt_tokens / q.output_tokens),
        prefix_hit_rate=prefix_hit_rate(run.cluster.replicas), saturation=trend, moves=moves(run, duration_s),
        tiers=tier_hits(run), adapters=adapter_figures(run.adapters) if run.adapters is not None else None,
        timing_error=0.0, has_host_time=bool(run.tables.host_s.any()), classes=classes, fairness=fairness,
        replicas=uses, notes=list(run.notes),
    )  # fmt: skip
    summary.warnings.extend(_warnings(run, summary))
    check_summary(summary)
    return summary


def _span(run: Run, status: Any) -> tuple[float, float]:
    """The first arrival and the last end; the time limit where it cut something off."""
    q = run.cluster.requests
    ended = q.finished_s[np.isin(status, ENDED)]
    start = float(q.arrival_s.min())
    limit_s = run.scenario.time_limit_s
    if limit_s is not None and ended.size < q.size:
        return min(start, limit_s), limit_s
    end = float(ended.max()) if ended.size else start
    if run.fleet is not None and ended.size < q.size:  # Some were given up, when the last decision was taken.
        end = max(end, float(run.fleet.column("time_s").max(initial=end)))
    return start, end


def _counts(run: Run, status: Any) -> Counts:
    q = run.cluster.requests
    became = {"finished": FINISHED, "rejected": REJECTED, "shed": SHED, "abandoned": ABANDONED}
    known = {name: int(np.count_nonzero(status == code)) for name, code in became.items()}
    not_arrived = int(np.count_nonzero(status == NOT_ARRIVED))
    return Counts(
        **known, offered=q.size + run.requests.num_rejected, too_long=run.requests.num_rejected,
        unfinished=q.size - sum(known.values()) - not_arrived, not_arrived=not_arrived,
        preempted=int(np.count_nonzero(q.num_preemptions)),
        preemptions=int(run.cluster.replicas.num_preemptions.sum()),
    )  # fmt: skip


def _latency(run: Run, times: RequestTimes, done: Any) -> Latency:
    q, log = run.cluster.requests, run.log
    gaps = log.used[2]
    return Latency(
        ttft_s=percentiles(times.ttft_s[done]), tbt_s=weighted_percentiles(log.gap_s[:gaps], log.gap_count[:gaps]),
        tpot_s=percentiles(times.tpot_s[done]), e2e_s=percentiles(times.e2e_s[done]),
        scheduling_delay_s=percentiles(times.scheduling_delay_s[done]),
        normalized_s=percentiles(times.normalized_s[done]),
        preempted_s=percentiles(q.preempted_s[done & (q.num_preemptions > 0)]),
    )  # fmt: skip


def _throughput(run: Run, done: Any, duration_s: float, arrived: int) -> Throughput:
    q = run.cluster.requests
    span = max(duration_s, 1e-12)
    prompt, output = float(q.prompt_tokens[done].sum()), float(q.output_tokens[done].sum())
    num_gpus = sum(pool.num_gpus for pool in run.pools)
    arrivals_s = q.arrival_s[np.isfinite(q.arrival_s)][:arrived] if not run.requests.concurrency else np.zeros(1)
    spread = float(np.ptp(arrivals_s)) if arrivals_s.size else 0.0
    return Throughput(
        requests_per_s=float(np.count_nonzero(done)) / span, output_tokens_per_s=output / span,
        prompt_tokens_per_s=prompt / span, tokens_per_s=(prompt + output) / span,
        output_tokens_per_s_per_gpu=output / span / num_gpus,
        offered_requests_per_s=(arrived - 1) / spread if spread > 0 else None,
    )  # fmt: skip


def _gpus_of_replicas(run: Run) -> Floats:
    """[replica of a fleet that changes]: its GPUs."""
    assert run.fleet is not None
    return np.array([run.pools[one.pool].replica.num_gpus for one in run.fleet.members], np.float64)


def _energy(run: Run, done: Any, duration_s: float, start_s: float, end_s: float) -> Energy | None:
    """What the run drew; None where the watts of a GPU are not known."""
    config, replicas, q = run.scenario.power, run.cluster.replicas, run.cluster.requests
    on_s = seconds_on(run, start_s, end_s)
    if run.fleet is not None:
        on_s = np.repeat(paid_s(run.fleet, end_s), [len(one.ranks) for one in run.fleet.members])
    work = run.tables.work[np.minimum(replicas.row, len(run.tables.work) - 1)]
    total_j = 0.0
    for number, pool in enumerate(run.pools):
        facts, mine = config.facts(pool.device.name), run.pool_of_replica == number
        if facts is None:
            return None
        a, w = replicas[mine], work[mine]
        gpus = pool.replica.num_gpus / pool.replica.data_parallel
        seconds = (a.busy_s, a.bytes / np.maximum(w[:, 6], 1.0), a.flops / np.maximum(w[:, 5], 1.0))
        total_j += float(joules(config, facts, gpus, on_s[mine], *seconds).sum())
    output = float(q.output_tokens[done].sum())
    requests = int(np.count_nonzero(done))
    kwh = total_j / 3.6e6
    return Energy(
        kwh=kwh,
        mean_kw=total_j / max(duration_s, 1e-12) / 1e3,
        joules_per_output_token=total_j / output if output else None,
        joules_per_request=total_j / requests if requests else None,
        price=kwh * config.price_per_kwh if config.price_per_kwh is not None else None,
        carbon_kg=kwh * config.carbon_g_per_kwh / 1e3 if config.carbon_g_per_kwh is not None else None,
    )


def _cost(run: Run, done: Any, duration_s: float, end_s: float) -> Cost:
    q, price = run.cluster.requests, run.scenario.price_per_gpu_hour
    prices = [price if price is not None else k.device.price_per_hour for k in run.pools]
    per_hour = sum(k.num_gpus * each for k, each in zip(run.pools, prices, strict=True))
    spent = per_hour * duration_s / 3600
    if run.fleet is not None:
        each = np.array([prices[one.pool] for one in run.fleet.members]) * _gpus_of_replicas(run)
        spent = float((paid_s(run.fleet, end_s) * each).sum()) / 3600
        per_hour = spent / max(duration_s, 1e-12) * 3600
    output = float(q.output_tokens[done].sum())
    return Cost(
        num_gpus=sum(pool.num_gpus for pool in run.pools), per_hour=per_hour,
        per_million_output_tokens=_ratio(spent * 1e6, output),
        per_million_tokens=_ratio(spent * 1e6, output + float(q.prompt_tokens[done].sum())),
        per_thousand_requests=_ratio(spent * 1e3, float(np.count_nonzero(done))),
    )  # fmt: skip


def _iterations(run: Run) -> Iterations:
    replicas, log = run.cluster.replicas, run.log
    rows = log.iterations[: log.used[0]]
    first = rows[rows.stage == 0]
    count = int(replicas.num_iterations.sum())
    return Iterations(
        count=count, mean_size=float(first["size"].mean()) if len(first) else 0.0,
        mean_tokens=float(replicas.tokens_computed.sum()) / max(count, 1),
        mean_duration_s=float(replicas.busy_s.sum()) / max(count, 1),
        beyond_measured=int(replicas.num_beyond_measured.sum()), kept_one_in=int(log.used[3]),
        gaps_merged=int(log.used[4]),
    )  # fmt: skip


def _warnings(run: Run, summary: Summary) -> list[str]:
    """What a reader must know before believing the figures."""
    found, counts, trend = run.scenario.slo.doubts, summary.requests, summary.saturation
    if trend is not None and trend.is_saturated:
        found.append(
            f"Saturated: {trend.arrivals_per_s:.3g} requests arrive per second, about {trend.capacity_per_s:.3g} are "
            f"taken up, and {trend.waiting_at_end:,} waited when the last one arrived. Latencies grow with the length "
            "of the run; lower the rate or add replicas."
        )
    if counts.rejected:
        found.append(_why_rejected(run))
    limit_s = run.scenario.time_limit_s
    if counts.unfinished and limit_s is None:
        waited = run.fleet is not None and run.fleet.gave_up
        why = "no replica was there for them" if waited else "the batching policy left them where they were"
        found.append(f"{counts.unfinished:,} requests were never finished: {why}.")
    elif counts.unfinished or counts.not_arrived:
        found.append(
            f"Stopped at the time limit of {limit_s:g} s: {counts.unfinished:,} requests were not "
            f"finished, {counts.not_arrived:,} had not arrived."
        )
    beyond, count = summary.iterations.beyond_measured, summary.iterations.count
    if beyond:
        found.append(
            f"{beyond:,} of {count:,} iterations ({beyond / count:.1%}) lie outside what the timing source measured; "
            "their times are extrapolated."
        )
    for share, of in ((summary.utilization.mfu, "arithmetic"), (summary.utilization.hbm, "memory bandwidth")):
        if share > 1:
            found.append(
                f"The GPUs would need {share:.0%} of their {of}: the iteration times are shorter than they can be. "
                "Check the timing source."
            )
    if run.fleet is not None:
        found.extend(run.fleet.warnings)
    if summary.iterations.kept_one_in > 1:
        kept = f"one in {summary.iterations.kept_one_in}"
        found.append(f"The table of iterations holds {kept}; sums and means per replica are exact.")
    if summary.iterations.gaps_merged:
        gaps = "Gaps between tokens were merged with neighbours of nearly equal length"
        found.append(f"{gaps}: TBT percentiles are rounded.")
    return found


def _why_rejected(run: Run) -> str:
    """What the largest of the rejected requests lacked: KV blocks, or tokens of a batch."""
    q = run.cluster.requests
    refused = np.flatnonzero(q.status == REJECTED)
    worst = q[refused[np.argmax(q.prefill_tokens[refused])]]
    replica, pool = run.cluster.replicas[worst.replica], run.pools[run.pool_of_replica[worst.replica]]
    policy, prompt, most = pool.policy, int(worst.prefill_tokens), int(replica.max_batch_tokens)
    warning = f"{refused.size:,} requests were rejected because they can never be admitted: the largest "
    reserved = {"prompt": prompt, "request": int(worst.total_tokens), "longest": int(replica.max_request_tokens)}
    tokens, kept = reserved[policy.reserves], int(replica.watermark_blocks) if policy.reserves == "prompt" else 0
    needed = -(-tokens // int(replica.block_size))
    fits = needed + kept <= replica.num_blocks
    if prompt > most and (fits or not policy.chunks_prompts):
        least = f"{warning}has {prompt:,} tokens to prefill, which {policy.name} does in one batch"
        return f"{least} of at most {most:,} tokens (batching.max_batch_tokens)."
    name = f"replica {int(worst.replica)}"
    if fits:
        return f"{warning}would fit into {name}, but {policy.name} does not admit it although nothing else runs."
    free = f", {kept:,} of which stay free" if kept else ""
    return f"{warning}needs {needed:,} KV blocks ({tokens:,} tokens), {name} has {int(replica.num_blocks):,}{free}."


def _ratio(part: float, whole: float) -> float | None:
    return float(part) / float(whole) if whole else None
