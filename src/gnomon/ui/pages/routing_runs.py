"""Routers on the same requests, and run directories with training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gnomon.api.comparison import Comparison, compare
from gnomon.api.serving import Scenario, Simulation
from gnomon.api.serving import scenario as new_scenario
from gnomon.core import units
from gnomon.core.errors import ConfigError
from gnomon.report.routing.curves import FILES, read_metrics
from gnomon.ui import jobs
from gnomon.ui.pages.plan_search import runs_folder
from gnomon.ui.pages.serve import link
from gnomon.ui.run_folders import folders
from gnomon.ui.scenarios import further_settings, to_scenario
from gnomon.ui.serving import requests_of
from gnomon.ui.turns import told_if_too_large

METRICS = {"e2e_s": "End to end", "ttft_s": "Time to first token", "tpot_s": "Time per output token"}
STATISTICS = {"mean": "mean", "p99": "P99"}
MAX_REQUESTS = 100_000
"""Requests that every router serves."""


@dataclass(frozen=True)
class Routed:
    """Routers by name, the baseline first."""

    scenario: Scenario
    comparison: Comparison

    @property
    def results(self) -> dict[str, Simulation]:
        """By router."""
        return self.comparison.results

    def fastest_first(self, metric: str, statistic: str) -> list[str]:
        """Routers by one figure."""
        return sorted(self.results, key=lambda name: self.figure(name, metric, statistic))

    def figure(self, name: str, metric: str, statistic: str) -> float:
        """One figure of one router; infinite where nothing finished."""
        value = getattr(getattr(self.results[name].summary.latency, metric), statistic)
        return float("inf") if value is None else value


@dataclass(frozen=True)
class View:
    """A comparison by one figure."""

    differences: dict[str, Any]
    distributions: dict[str, Any]
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class RoutersCompared:
    """What a job leaves: every view of the comparison, drawn."""

    views: dict[tuple[str, str], View]
    links: dict[str, str]
    warnings: list[str]


def asked(values: Mapping[str, Any]) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario and the routers; a mistake is raised here."""
    return scenario_of(values), names_of(values)


def run_comparison(argument: tuple[Scenario, tuple[str, ...]], report: jobs.Report) -> RoutersCompared:
    """The job."""
    scenario, names = argument
    routed = compare_routers(scenario, names, report)
    views = {}
    for metric, words in METRICS.items():
        for statistic, short in STATISTICS.items():
            order = routed.fastest_first(metric, statistic)
            views[metric, statistic] = View(
                routed.comparison.change_drawn(f"{words}, {short}", metric, statistic, order),
                routed.comparison.distributions_drawn(f"{words}, all requests", metric, order),
                router_rows(routed, metric, statistic),
            )
    return RoutersCompared(views, {name: in_serve(routed, name) for name in names}, routed.comparison.warnings)


def names_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The chosen routers, the baseline first."""
    routers: Sequence[str] = values["routers"]
    names = (values["baseline"], *(name for name in routers if name != values["baseline"]))
    if len(names) < 2:
        raise ConfigError("there is nothing to compare.", where="routers", fix="Choose another router.")
    return names


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    """The scenario that every router serves."""
    scenario = to_scenario(values)
    is_arrival_given = any(key == "workload" or "arrivals" in key for key in further_settings(values["scenario"]))
    if values["cv"] != 1 and not is_arrival_given:
        bursts = {"workload.arrivals.process": "gamma", "workload.arrivals.cv": values["cv"]}
        scenario = new_scenario(scenario, **bursts)
    if len(requests_of(scenario.workload, scenario.seed)) > MAX_REQUESTS:
        raise ConfigError(f"more than {MAX_REQUESTS:,} requests.", where="workload.num_requests", fix="Use fewer.")
    return scenario


def compare_routers(scenario: Scenario, names: Sequence[str], report: jobs.Report) -> Routed:
    """All routers on the requests of one scenario."""

    served, last = 0, 0

    def tell(done: int, total: int) -> None:
        nonlocal served, last
        served, last = served + (done < last), done
        report(served + done / total, len(names), f"{names[served]}: {done:,} of {total:,} requests served")

    with told_if_too_large():
        compared = compare(scenario, vary={"router.name": list(names)}, on_progress=tell)
    return Routed(scenario, Comparison(dict(zip(names, compared.results.values(), strict=True))))


def router_rows(routed: Routed, metric: str, statistic: str) -> list[dict[str, Any]]:
    """One row per router, the fastest first."""
    against = routed.comparison.against(metric, statistic)
    rows = []
    for name in routed.fastest_first(metric, statistic):
        summary = routed.results[name].summary
        row: dict[str, Any] = {"router": name}
        for key in METRICS:
            spread = getattr(summary.latency, key)
            row |= {f"{key[:-2].upper()} mean": _seconds(spread.mean), f"{key[:-2].upper()} P99": _seconds(spread.p99)}
        row["requests/s"] = f"{summary.throughput.requests_per_s:.4g}"
        row["busiest/mean"] = f"{_imbalance(summary.replicas):.2f}"
        if summary.prefix_hit_rate is not None:
            row["prefix hits"] = f"{summary.prefix_hit_rate:.1%}"
        row[f"against {routed.comparison.baseline}"] = _against(against.get(name))
        rows.append(row)
    return rows


def in_serve(routed: Routed, router: str) -> str:
    """The address that opens the scenario with this router in Serve."""
    return link(new_scenario(routed.scenario, **{"router.name": router}))


def _seconds(value: float | None) -> str | None:
    return None if value is None else units.seconds(value)


def _imbalance(replicas: Sequence[Any]) -> float:
    busy = [one.utilization.busy for one in replicas]
    return max(busy) * len(busy) / sum(busy) if busy and sum(busy) else 1.0


def _against(one: Any) -> str:
    if one is None or one.relative is None:
        return "–"
    sure = "" if one.is_clear else " (not clear)"
    return f"{one.relative:+z.1%}{sure}"


def metric_folders() -> dict[str, str]:
    """Run directories with metrics below the runs folder, newest first."""
    root = runs_folder()
    tables = [folder / file for folder in folders(root) for file in FILES if (folder / file).is_file()]
    tables.sort(key=lambda one: -one.stat().st_mtime)
    return {name: name for name in (str(one.parent.relative_to(root)) for one in tables)}


def tables_of(names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """The metrics of these run directories."""
    return {name: read_metrics(runs_folder() / name) for name in names}
