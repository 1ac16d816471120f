"""How much load a deployment takes: requests per second, users at once, and what a token costs then."""

from typing import Any

from gnomon.api.result import Progress, TableResult
from gnomon.api.serving import ScenarioLike, scenario
from gnomon.report.serving.capacity import blocks, rows
from gnomon.search.load_curve import MAX_REQUESTS, REQUESTS_PER_RANK, LoadCurve, load_curve
from gnomon.search.load_curve import capacity as highest_load
from gnomon.search.users import both_loops

__all__ = ["MAX_REQUESTS", "REQUESTS_PER_RANK", "LoadCurve", "capacity", "highest_load", "load_curve"]


def capacity(given: ScenarioLike = None, *, on_progress: Progress | None = None, **overrides: Any) -> TableResult:
    """How much load a deployment takes within its SLO: requests per second in an open loop, users in a closed one.

    gnomon.capacity(model="llama-3-8b", gpu="h100", slo={"ttft_s": 0.5, "tpot_s": 0.05})
    """
    found = both_loops(scenario(given, **overrides), on_progress or (lambda done, total: None))
    listed = rows(found)
    return TableResult("capacity", found, listed, found.to_dict() | {"loops": listed}, blocks(found))
