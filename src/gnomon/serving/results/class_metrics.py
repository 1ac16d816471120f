"""What each class of users got: latencies, SLO attainment, goodput, its share of the service, and how fair that is."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.serving.engine.state import FINISHED, NOT_ARRIVED, REJECTED, SHED
from gnomon.serving.results.latency import RequestTimes, Slo, slo_met
from gnomon.serving.results.percentiles import Percentiles, percentiles
from gnomon.serving.run.simulate import Run

PROMPT_PRICE, OUTPUT_PRICE = 1.0, 2.0
"""What a prompt and an output token count as service, as in the VTC paper (Sheng et al., OSDI 2024)."""


@dataclass(frozen=True)
class ClassSummary:
    """The figures of one class of users."""

    name: str
    priority: int
    weight: float
    arrived: int
    finished: int
    shed: int
    """Turned away by admission control."""
    rejected: int
    preemptions: int
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    slo: Slo | None
    output_tokens_per_s: float
    service_share: float | None
    """Its share of all service: prompt tokens plus twice the output tokens of finished requests."""


@dataclass(frozen=True)
class Fairness:
    """Jain's index over the classes: 1 where all are treated alike, 1 / classes where one gets everything."""

    service: float | None
    """Of the service that each class got over its weight."""
    latency: float | None
    """Of each class's mean end-to-end seconds per output token."""


def class_summaries(run: Run, times: RequestTimes, duration_s: float) -> tuple[list[ClassSummary], Fairness | None]:
    """Every class's figures, and how fair the whole is; nothing where all users are alike."""
    classes, q = run.requests.classes, run.cluster.requests
    if not classes:
        return [], None
    done, arrived = q.status == FINISHED, q.status != NOT_ARRIVED
    normalized_s = times.normalized_s
    service = PROMPT_PRICE * q.prompt_tokens + OUTPUT_PRICE * q.output_tokens
    served = np.bincount(q.user_class[done], weights=service[done], minlength=len(classes))
    found = []
    for number, one in enumerate(classes):
        mine = q.user_class == number
        ended = mine & done
        slo = one.slo if one.slo is not None and one.slo.is_given else run.scenario.slo
        came = int(np.count_nonzero(mine & arrived))
        became = {"finished": ended, "shed": mine & (q.status == SHED), "rejected": mine & (q.status == REJECTED)}
        told: dict[str, Any] = {name: int(np.count_nonzero(those)) for name, those in became.items()}
        told |= {name: percentiles(getattr(times, name)[ended]) for name in ("ttft_s", "tpot_s", "e2e_s")}
        found.append(
            ClassSummary(
                one.name, one.priority, one.weight, came, **told, preemptions=int(q.num_preemptions[mine].sum()),
                slo=slo_met(slo, times, ended, came, duration_s),
                output_tokens_per_s=float(q.output_tokens[ended].sum()) / max(duration_s, 1e-12),
                service_share=float(served[number] / served.sum()) if served.any() else None,
            )
        )  # fmt: skip
    weights = np.array([one.weight for one in classes])
    there = np.array([one.arrived > 0 for one in found])
    per_token = [float(np.nanmean(normalized_s[done & (q.user_class == n)])) for n in np.flatnonzero(there)
                 if found[n].finished]  # fmt: skip
    return found, Fairness(service=jain_index(served[there] / weights[there]), latency=jain_index(np.array(per_token)))


def jain_index(values: Floats) -> float | None:
    """R. Jain et al., "A Quantitative Measure of Fairness" (1984): (sum x)^2 / (n sum x^2)."""
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (values.size * squares) if squares > 0 else None
