"""Questions to Gnomon as tools of an assistant (Model Context Protocol)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from gnomon.api.serving import Simulation, policy_names, router_names, simulate
from gnomon.core.errors import ConfigError, GnomonError

if TYPE_CHECKING:
    from mcp.server import MCPServer

Settings = Annotated[
    dict[str, Any],
    Field(description='More of the scenario by dotted name, e.g. {"batching.max_sequences": 128, "engine": "vllm"}'),
]
Model = Annotated[str, Field(description="Name of a model (see list_catalog), or the path of a config.json")]
Gpu = Annotated[str, Field(description="Name of a GPU (see list_catalog)")]
Rate = Annotated[float | None, Field(gt=0, description="Requests per second")]

ABOUT = (
    "Gnomon simulates LLM serving on GPUs that need not be there. Every answer says what its times rest on: measured "
    "kernels, constants calibrated to a server, or an estimate. Figures in seconds unless their name says otherwise."
)


def _asked(model: str, gpu: str, tensor_parallel: int, replicas: int, rate: float | None, settings: Any) -> Any:
    given = {"model": model, "device": gpu, "replica.tensor_parallel": tensor_parallel, "num_replicas": replicas}
    return given | ({} if rate is None else {"workload.rate": rate}) | (settings or {})


def compare_serving(
    setting: Annotated[str, Field(description="What differs, by dotted name, e.g. batching.policy or device")],
    values: Annotated[list[Any], Field(min_length=2, max_length=8, description="The values to compare")],
    model: Model = "llama-3-8b", gpu: Gpu = "h100", tensor_parallel: Annotated[int, Field(ge=1)] = 1,
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1, rate: Rate = None, settings: Settings | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The same requests under several values of one setting, a row for each."""
    rows = []
    for value in values:
        given = _asked(model, gpu, tensor_parallel, replicas, rate, settings)
        found = simulate(**{"workload.num_requests": 2000} | given | {setting: value}, intervals=False)
        rows.append({setting: value} | _figures(found))
    return rows


def time_iteration(
    model: Model = "llama-3-8b", gpu: Gpu = "h100", tensor_parallel: Annotated[int, Field(ge=1)] = 1,
    prefill_tokens: Annotated[int, Field(ge=0)] = 0, decodes: Annotated[int, Field(ge=0)] = 64,
    kv_tokens: Annotated[int, Field(ge=1, description="Length of each sequence that decodes")] = 1024,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of one iteration, and its slowest operators."""
    from gnomon.api.time import time

    found = time(
        model=model, device=gpu, tensor_parallel=tensor_parallel, prefill=prefill_tokens, decode=decodes,
        kv=kv_tokens,
    )  # fmt: skip
    (source, total), *_ = found.summary.items()
    slowest = sorted(found.operators[source], key=lambda one: -one.seconds)[:5]
    return {"seconds": total.seconds, "times_are": _basis(source, None), "notes": found.notes,
            "slowest": {one.name: one.seconds for one in slowest}}  # fmt: skip


def search_deployment(
    model: Model = "llama-3-8b",
    gpus: Annotated[list[str], Field(min_length=1, max_length=6, description="GPUs to choose from")] = ["h100"],  # noqa: B006
    tensor_parallel: Annotated[list[int], Field(min_length=1, max_length=4)] = [1, 2],  # noqa: B006
    ttft_p90_s: Annotated[float, Field(gt=0, description="Nine in ten first tokens come within")] = 1.0,
    tbt_p99_s: Annotated[float, Field(gt=0, description="99 in 100 tokens follow one another within")] = 0.1,
    workload: Annotated[str, Field(description="A preset of lengths, e.g. chat-1m or arxiv-4k")] = "chat-1m",
) -> dict[str, Any]:
    """The deployment with the most requests per second and dollar under an SLO: capacity and command. Takes a
    minute or more; capacities are of short runs."""
    from gnomon.api.search import Search, search

    found = search(
        {"model": model, "workload": {"preset": workload},
         "slo": {"ttft_s": {"p90": ttft_p90_s}, "tbt_s": {"p99": tbt_p99_s}},
         "space": {"device": gpus, "tensor_parallel": tensor_parallel},
         "effort": {"min_requests": 300, "max_requests": 1500}},
    )  # fmt: skip
    assert isinstance(found, Search)
    if found.best is None:
        return {"best": None, "why": "nothing meets the SLO"}
    interval = found.capacity_interval
    return {
        "best": found.best.label, "requests_per_s": found.best.capacity_per_s, "gpus": found.best.num_gpus,
        "capacity_90": None if interval is None else [interval.low, interval.high],
        "usd_per_hour": found.best.cost_per_hour, "limited_by": found.best.binding,
        "commands": found.commands or found.no_command,
        "ranking": [{one.label: one.capacity_per_s} for one in found.found.ranked[:5]],
    }  # fmt: skip


def list_catalog() -> dict[str, list[str]]:
    """Models, GPUs, batching policies and routers that are built in."""
    from gnomon import catalog

    return {"models": list(catalog.model_names()), "gpus": list(catalog.device_names()), "policies": policy_names(),
            "routers": router_names()}  # fmt: skip


def server(reports: str | Path = "gnomon-reports") -> MCPServer:
    """A server with one tool for each question; reports are written below `reports` where they are asked for."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise ConfigError("this needs the package mcp.", where="mcp", fix="pip install 'gnomon-sim[mcp]'") from None

    made = MCPServer("gnomon", instructions=ABOUT)

    def simulate_serving(
        model: Model = "llama-3-8b", gpu: Gpu = "h100",
        tensor_parallel: Annotated[int, Field(ge=1, description="GPUs of one replica")] = 1,
        replicas: Annotated[int, Field(ge=1, le=1024)] = 1, rate: Rate = None,
        requests: Annotated[int, Field(ge=10, le=20_000)] = 2000, settings: Settings | None = None,
        report: Annotated[bool, Field(description="Also write an HTML report, and link to it")] = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Latency, throughput, cost and capacity of a deployment under a load, with 90 % intervals."""
        given = _asked(model, gpu, tensor_parallel, replicas, rate, settings)
        return _answer(simulate(**{"workload.num_requests": requests} | given), Path(reports) if report else None)

    def with_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(tool)
        def answer(**given: Any) -> Any:
            try:
                return tool(**given)
            except GnomonError as error:
                raise ToolError(str(error)) from None

        return answer

    for tool in (simulate_serving, compare_serving, time_iteration, search_deployment, list_catalog):
        made.tool()(with_errors(tool))
    return made


def _basis(source: str, calibration: str | None) -> str:
    """What times rest on."""
    if calibration:
        return f"calibrated ({calibration})"
    return f"estimated ({source})" if source == "roofline" else f"measured ({source})"


def _figures(found: Simulation) -> dict[str, Any]:
    latency, rates, cost = found.summary.latency, found.summary.throughput, found.summary.cost
    spreads = {name: getattr(latency, name) for name in ("ttft_s", "tpot_s", "e2e_s")}
    return {name: {"p50": one.p50, "p99": one.p99} for name, one in spreads.items()} | {
        "output_tokens_per_s": rates.output_tokens_per_s,
        "usd_per_million_output_tokens": cost.per_million_output_tokens,
    }


def _answer(found: Simulation, reports: Path | None) -> dict[str, Any]:
    """The short answer: figures, intervals, what they rest on, warnings, and where the report is."""
    from gnomon.report.serving.intervals import as_data

    timers = found.run.times.timers if found.run.times else ()
    source = next((timer.source.name for timer in timers if timer is not None), "given")
    answer = _figures(found) | {
        "intervals_90": as_data(found.intervals),
        "capacity": found.headroom.to_dict(),
        "times_are": _basis(source, found.scenario.calibration),
        "warnings": found.summary.warnings,
        "notes": found.summary.notes,
    }
    if reports is not None:
        name = hashlib.sha256(repr(found.scenario).encode()).hexdigest()[:12]
        answer["report"] = (found.save(reports / name) / "report.html").resolve().as_uri()
    return answer
