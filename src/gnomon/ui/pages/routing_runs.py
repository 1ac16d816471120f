"""Routers on the same requests, and run directories with training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gnomon.api.comparison import Comparison, compare
from gnomon.api.serving import Scenario
from gnomon.api.serving import scenario as new_scenario
from gnomon.core.errors import ConfigError
from gnomon.report.routing.curves import FILES, read_metrics
from gnomon.report.serving.compare import variant_row
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
    """The job: every router on the same requests, and all views of that."""
    scenario, names = argument
    found = compare_routers(scenario, names, report)
    views = {}
    for metric, words in METRICS.items():
        for statistic, short in STATISTICS.items():
            order = sorted(names, key=lambda name: _figure(found, name, metric, statistic))
            views[metric, statistic] = View(
                found.change_drawn(f"{words}, {short}", metric, statistic, order),
                found.distributions_drawn(f"{words}, all requests", metric, order),
                [_row(found, name, metric, statistic) for name in order],
            )
    links = {name: link(new_scenario(scenario, **{"router.name": name})) for name in names}
    return RoutersCompared(views, links, found.warnings)


def _figure(found: Comparison, name: str, metric: str, statistic: str) -> float:
    """One figure of one router; infinite where nothing finished."""
    value = getattr(getattr(found.summary[name].latency, metric), statistic)
    return float("inf") if value is None else value


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


def compare_routers(scenario: Scenario, names: Sequence[str], report: jobs.Report) -> Comparison:
    """All routers on the requests of one scenario, by their names."""
    served, last = 0, 0

    def tell(done: int, total: int) -> None:
        nonlocal served, last
        served, last = served + (done < last), done
        report(served + done / total, len(names), f"{names[served]}: {done:,} of {total:,} requests served")

    with told_if_too_large():
        compared = compare(scenario, vary={"router.name": list(names)}, on_progress=tell)
    return Comparison(dict(zip(names, compared.results.values(), strict=True)))


def _row(found: Comparison, name: str, metric: str, statistic: str) -> dict[str, Any]:
    """A router's figures, how evenly it loads the replicas, and what it gains on the baseline."""
    summary = found.summary[name]
    busy = [one.utilization.busy for one in summary.replicas]
    row = {"router": name} | variant_row(name, summary)
    for column in ("variant", "busy", "$/M output", "output tokens/s"):
        del row[column]
    row["busiest/mean"] = f"{max(busy) * len(busy) / sum(busy) if sum(busy) else 1.0:.2f}"
    if summary.prefix_hit_rate is not None:
        row["prefix hits"] = f"{summary.prefix_hit_rate:.1%}"
    one = found.against(metric, statistic).get(name)
    sure = "" if one is None or one.is_clear else " (not clear)"
    told = "–" if one is None or one.relative is None else f"{one.relative:+z.1%}{sure}"
    return row | {f"against {found.baseline}": told}


def metric_folders() -> dict[str, str]:
    """Run directories with metrics below the runs folder, newest first."""
    root = runs_folder()
    tables = [folder / file for folder in folders(root) for file in FILES if (folder / file).is_file()]
    tables.sort(key=lambda one: -one.stat().st_mtime)
    return {name: name for name in (str(one.parent.relative_to(root)) for one in tables)}


def tables_of(names: Sequence[str]) -> dict[str, pl.DataFrame]:
    """The metrics of these run directories."""
    return {name: read_metrics(runs_folder() / name) for name in names}
