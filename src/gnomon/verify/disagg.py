"""Aggregated and disaggregated layouts of one model, measured by llm-d's benchmark, beside their simulation.

Rows that are labelled disaggregated are simulated as they ran, or as labelled where that is asked for; what was fitted
is said in docs/disaggregation.md.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import read_json
from gnomon.report.blocks import Table, lines
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.verify.findings import Findings, Progress, each, proof

ROUNDS = 10  # Requests of a run for each that is under way at a time.
# Of September 2025: vLLM uses FlashInfer's all-reduce by default since February 2026 (pull request 34299). Each pod
# is a server with its own front end.
SETTINGS: dict[str, Any] = {
    "model": "llama-3.1-70b", "device": "h100", "engine": "vllm", "sampling": {"temperature": 0},
    "timing": {"dtype": "bf16", "all_reduce": ""}, "front_end": {"per_replica": True},
}  # fmt: skip
MEMORY, PICKED_MEMORY, PICKED_BLOCK = 0.95, 0.9, 128
"""Shares of the GPUs' memory: the benchmark's default for aggregated pods (46 requests under way with TP 4 and 2.9 with
TP 2 need it), and vLLM's for the others, whose commands do not say any; theirs say blocks of 128 tokens."""
SERVICE, PICKER = "random", "llmd"  # Routers: of the aggregated pods, and of the others.
SEEDS = (0, 1, 2)
"""Each run is simulated with these, and the means are taken: behind the picker, whose ties are drawn, the throughput of
one run of 640 requests differs by 11 % from seed to seed."""
GOALS = {"tpot": 0.10, "throughput": 0.10, "ttft": 0.25}  # Medians of relative errors over the disaggregated layouts.
ORDERED_AT = (64, 128)


@dataclass(frozen=True)
class Measured:
    """One run: a layout under a number of requests at a time."""

    layout: str
    prefill: tuple[int, int] | None
    """Replicas and their tensor parallelism; None where the layout is aggregated."""
    decode: tuple[int, int]
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float
    output_tokens_s: float

    @property
    def num_gpus(self) -> int:
        return sum(count * degree for count, degree in (self.prefill or (0, 0), self.decode))

    @property
    def ran(self) -> str:
        """The pods as they ran: layouts that differ in their labels only are one."""
        counts: dict[int, int] = {}
        for count, degree in (self.prefill or (0, 0), self.decode):
            counts[degree] = counts.get(degree, 0) + count
        pods = " + ".join(f"{count} TP{degree}" for degree, count in sorted(counts.items()) if count)
        return f"{pods} behind the picker" if self.prefill else pods


@dataclass(frozen=True)
class Predicted:
    measured: Measured
    ttft_s: float
    tpot_s: float
    output_tokens_s: float

    @property
    def errors(self) -> dict[str, float]:
        m = self.measured
        return {
            "tpot": self.tpot_s / m.tpot_s - 1,
            "throughput": self.output_tokens_s / m.output_tokens_s - 1,
            "ttft": self.ttft_s / m.ttft_s - 1,
        }


def read_runs(path: str | Path) -> list[Measured]:
    rows = read_json(path)
    try:
        runs = [_measured(row) for row in rows]
        if not runs:
            raise ValueError("it is empty")
        return sorted(runs, key=lambda one: (one.prefill is None, one.layout, one.concurrency))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "Name llmd/prism_pd_grid.json."
        raise DataError(f"this is no file of measured layouts: {error!r}.", where=str(path), fix=fix) from None


def _measured(row: dict[str, Any]) -> Measured:
    figures, load, name = row["metrics"], row["workload"], str(row["configuration"])
    if row["architecture"] == "disaggregated":
        prefill: tuple[int, int] | None = (int(row["prefill_node_count"]), int(row["prefill_tp"]))
        decode = (int(row["decode_node_count"]), int(row["decode_tp"]))
    else:
        count, degree = name.split(" TP")
        prefill, decode = None, (int(count), int(degree))
    return Measured(
        layout=name.split(": ")[-1], prefill=prefill, decode=decode, concurrency=int(load["concurrency"]),
        prompt_tokens=int(load["input_tokens"]), output_tokens=int(load["output_tokens"]),
        ttft_s=float(figures["ttft"]["mean"]) / 1e3, tpot_s=float(figures["tpot"]) / 1e3,
        output_tokens_s=float(figures["request_rate"]) * int(load["output_tokens"]),
    )  # fmt: skip


def scenario_of(
    one: Measured, added_s: dict[int, float], *, as_labelled: bool = False, metrics_age_s: float | None = None
) -> Scenario:
    """A run as a scenario; `added_s`: seconds that the aggregated pods' collectives add, by tensor parallelism;
    `metrics_age_s`: how often the endpoint picker looks at the pods, if not as by its default."""
    preset = build(Scenario, SETTINGS).timing.host
    host = preset.model_dump(exclude_unset=True) if preset else {}
    roles = ("prefill", "decode") if as_labelled else ("both", "both")
    pods = [(roles[0], *one.prefill), (roles[1], *one.decode)] if one.prefill else [("both", *one.decode)]
    exposed_s, memory = host.get("exposed_s", 0.0), PICKED_MEMORY if one.prefill else MEMORY
    pools = []
    for role, count, degree in pods:
        slower = host | {"exposed_s": exposed_s + (0.0 if one.prefill else added_s.get(degree, 0.0))}
        replica = {"tensor_parallel": degree, "memory_utilization": memory}
        pools.append({"role": role, "num_replicas": count, "replica": replica, "timing": {"host": slower}})
    router: dict[str, Any] = {"name": PICKER if one.prefill else SERVICE}
    if one.prefill and metrics_age_s is not None:
        router["options"] = {"report_interval_s": metrics_age_s}
    more: dict[str, Any] = {"batching": {"block_size": PICKED_BLOCK}} if one.prefill else {}
    if as_labelled and one.prefill:
        more["disaggregation"] = {"decode_router": router}
    lengths = {"distribution": "fixed", "prompt": one.prompt_tokens, "output": one.output_tokens}
    loop = {"process": "closed_loop", "concurrency": one.concurrency}
    workload = {"num_requests": ROUNDS * one.concurrency, "lengths": lengths, "arrivals": loop}
    return build(Scenario, {**SETTINGS, **more, "router": router, "pools": pools, "workload": workload})


def predict(
    one: Measured, added_s: dict[int, float], *, as_labelled: bool = False, metrics_age_s: float | None = None
) -> Predicted:
    """Simulate a run, once per seed."""
    scenario = scenario_of(one, added_s, as_labelled=as_labelled, metrics_age_s=metrics_age_s)
    found = [summarize(run(scenario.model_copy(update={"seed": seed}))) for seed in SEEDS]
    return Predicted(
        one,
        ttft_s=statistics.mean(each.latency.ttft_s.mean or 0.0 for each in found),
        tpot_s=statistics.mean(each.latency.tpot_s.mean or 0.0 for each in found),
        output_tokens_s=statistics.mean(each.throughput.output_tokens_per_s for each in found),
    )


def medians(found: list[Predicted]) -> dict[str, float]:
    """Median relative errors, without their sign."""
    return {name: statistics.median(abs(one.errors[name]) for one in found) for name in GOALS} if found else {}


def repeat_spread(runs: Sequence[Measured]) -> float:
    """How far the throughput of two measured runs of the same pods under the same load lies apart, at most: layouts
    that differ by less than this were not told apart by the measurement."""
    alike: dict[tuple[str, int], list[float]] = {}
    for one in runs:
        alike.setdefault((one.ran, one.concurrency), []).append(one.output_tokens_s)
    return max(max(some) / min(some) - 1 for some in alike.values())


@dataclass(frozen=True)
class Pods:
    """What pods that ran alike made of a load: output tokens per second, means over their rows."""

    name: str
    measured: float
    simulated: float


def order(found: list[Predicted], concurrency: int, num_gpus: int = 16) -> list[Pods]:
    """The pods labelled disaggregated of so many GPUs, and the aggregated 4 TP4, the fastest as measured first."""
    some: dict[str, list[Predicted]] = {}
    for one in found:
        m = one.measured
        if m.concurrency == concurrency and m.num_gpus == num_gpus and (m.prefill or m.layout == "4 TP4"):
            some.setdefault(m.ran, []).append(one)
    pods = []
    for name, rows in some.items():
        measured = statistics.mean(one.measured.output_tokens_s for one in rows)
        pods.append(Pods(name, measured, statistics.mean(one.output_tokens_s for one in rows)))
    return sorted(pods, key=lambda one: -one.measured)


def swapped(pods: list[Pods], spread: float) -> list[str]:
    """Pairs that the measurement tells apart and the simulation puts the other way round."""
    return [
        f"{fast.name} {fast.measured / slow.measured - 1:+.0%} over {slow.name}, "
        f"simulated {fast.simulated / slow.simulated - 1:+.0%}"
        for i, fast in enumerate(pods)
        for slow in pods[i + 1 :]
        if fast.measured > (1 + spread) * slow.measured and fast.simulated <= slow.simulated
    ]


@proof("disagg")
def prove(
    file: str | Path, *, only: str = "", concurrency: Sequence[int] = (), as_labelled: bool = False,
    metrics_age_s: float | None = None, on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """Aggregated and disaggregated layouts that llm-d measured; `only` those whose name contains it. The latter as they
    ran, or `as_labelled`; `metrics_age_s` is how old the picker's metrics become, if not 50 ms."""
    runs = read_runs(file)
    wanted = [one for one in runs if only in one.layout and (not concurrency or one.concurrency in concurrency)]
    if not wanted:
        known = ", ".join(sorted({one.layout for one in runs}))
        raise ConfigError("no layout is left.", where="--only", fix=f"Known: {known}.")
    # Seconds that the site's collectives add to an iteration, by tensor parallelism: what one request at a time in one
    # aggregated replica takes longer for a token than it does here.
    alone = [one for one in runs if not one.prefill and one.concurrency == 1 and one.decode[0] == 1]
    added_s = {one.decode[1]: max(0.0, one.tpot_s - predict(one, {}).tpot_s) for one in alone}
    found = [
        predict(one, added_s, as_labelled=as_labelled, metrics_age_s=metrics_age_s) for one in each(wanted, on_progress)
    ]
    return findings(found, added_s, repeat_spread(runs))


def findings(found: list[Predicted], added_s: dict[int, float], spread: float) -> Findings:
    """A row for every layout, medians of both kinds, and the order of the 16-GPU layouts that differ by more than
    `spread`."""
    apart = [one for one in found if one.measured.prefill]
    together = [one for one in found if not one.measured.prefill]
    scores = {"aggregated": medians(together), "disaggregated": medians(apart)}
    orders = {at: order(found, at) for at in ORDERED_AT}
    failures = [
        f"{name} of the disaggregated layouts: median error {error:.1%}, goal {GOALS[name]:.0%}"
        for name, error in scores["disaggregated"].items()
        if error > GOALS[name]
    ]
    failures += [f"order at {at} requests: {pair}" for at, pods in orders.items() for pair in swapped(pods, spread)]
    fitted = ", ".join(f"TP {degree} {added * 1e3:.1f} ms" for degree, added in sorted(added_s.items()))
    rows = [_row(one) for one in found]
    summary = [
        {"layouts": name, "runs": len(some)} | {k: f"{v:.1%}" for k, v in scores[name].items()}
        for name, some in (("aggregated", together), ("disaggregated", apart))
        if some
    ]
    data = {
        "rows": rows, "medians": scores, "added_s": added_s, "repeat_spread": spread,
        "orders": {str(k): [asdict(one) for one in v] for k, v in orders.items()},
    }  # fmt: skip
    ranks = [
        {"requests": at, "pods": one.name, "measured": round(one.measured), "simulated": round(one.simulated)}
        for at, pods in orders.items()
        for one in pods
    ]
    closer = f"Runs of the same pods and load lie up to {spread:.0%} apart: pairs closer than that are not judged."
    blocks = [
        Table(_shown(found), "Errors of the simulation in %", "By requests at a time."),
        Table(summary, "Median error, without sign"),
        Table(ranks, "Output tokens/s of 16 GPUs, the fastest as measured first", closer),
        *lines([f"Fitted on aggregated pods, one request at a time: an iteration takes longer by {fitted}."]),
        *lines(failures, "warning"),
    ]
    return Findings(found, rows, data, blocks, failures)


def _row(one: Predicted) -> dict[str, Any]:
    m = one.measured
    return {
        "layout": m.layout, "concurrency": m.concurrency, "gpus": m.num_gpus,
        "measured_tpot_s": m.tpot_s, "tpot_s": one.tpot_s, "measured_ttft_s": m.ttft_s, "ttft_s": one.ttft_s,
        "measured_output_tokens_s": m.output_tokens_s, "output_tokens_s": one.output_tokens_s,
    } | {f"{name}_error": error for name, error in one.errors.items()}  # fmt: skip


def _shown(found: list[Predicted]) -> list[dict[str, Any]]:
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for one in found:
        for name, error in one.errors.items():
            row = table.setdefault((one.measured.layout, name), {"layout": one.measured.layout, "figure": name})
            row[str(one.measured.concurrency)] = f"{100 * error:+z.0f}"
    return list(table.values())
