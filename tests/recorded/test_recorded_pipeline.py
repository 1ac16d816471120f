"""Every schedule and study as recorded: the order of passes, the make-span, the memory."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute
from gnomon.pipeline.explain import idle_time, total
from gnomon.pipeline.memory import activations
from gnomon.pipeline.step import StepConfig, run_step
from gnomon.pipeline.study import Study, simulate
from gnomon.pipeline.zoo import SCHEDULES, Plan, make
from recorded_kit import check_recorded

PLANS = {
    "3x7": Plan(3, 7),
    "4x8": Plan(4, 8),
    "4x9-uneven": Plan(4, 9, forward=1.0, input_grad=1.3, weight_grad=0.7, hop=0.1),
    "6x12-chunks3": Plan(6, 12, chunks=3, forward=2.0, input_grad=1.5, weight_grad=1.1),
    "4x10-limit": Plan(4, 10, forward=1.0, input_grad=1.2, weight_grad=0.9, hop=0.05, memory_limit=5.0,
                       weight_grad_memory=0.4),
    "5x3": Plan(5, 3, input_grad=1.4),
    "1x4": Plan(1, 4),
}  # fmt: skip
COSTS = StepCosts(forward=1.0, input_grad=1.2, weight_grad=0.8, send=0.15, sync=0.6)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules(name: str, plan: str) -> None:
    try:
        schedule = make(name, PLANS[plan])
    except GnomonError as error:
        check_recorded("schedules", f"{name} {plan}", {"refused": str(error).splitlines()[0]})
        return
    orders = [" ".join(str(one) for one in actions) for actions in schedule.ranks]
    run = execute(schedule, COSTS, record=False)
    check_recorded(
        "schedules",
        f"{name} {plan}",
        {
            "order": hashlib.sha256("\n".join(orders).encode()).hexdigest()[:12],
            "total": run.total_time,
            "peaks": [curve.peak for curve in activations(run)],
        },
    )


STUDIES: dict[str, dict[str, Any]] = {
    "5 stages": {"stages": 5, "n": 9},
    "2 stages": {"stages": 2, "n": 3},
    "slow links": {"prop_len": 0.7, "sync_base_len": 2.0},
    "seldom": {"sync_freq": 3, "n": 12},
    "strict": {"dispatch": "strict", "stages": 5, "n": 7, "prop_len": 0.3},
    "forward first": {"fwd_prop": "a", "grad_prop": 0.3, "stages": 6},
    "sync first": {"grad_sync": "a", "sync_freq": 2, "stages": 4},
    "no impact": {"fwd_impact": 0.5, "bwd_impact": 0.0, "stages": 4},
    "ideal": {"ideal": True},
}


@pytest.mark.parametrize("name", STUDIES)
def test_studies(name: str) -> None:
    run = simulate(Study(**STUDIES[name]))
    tasks = run.trace.tasks
    found = {"total": run.total_time, "busy": run.busy, "spans": run.spans, "ends": float(np.sum(tasks.end**2))}
    check_recorded("studies", name, {**found, "throttled": len(run.throttled)})


STEPS: dict[str, dict[str, Any]] = {
    "uneven costs": {
        "stages": 3, "n": 6, "schedule": "1f1b",
        "costs": {"forward": [1.0, 1.5, 0.5], "send": [0.2, 0.1, 0.3], "send_grad": 0.25, "sync": 0.4, "sync_freq": 2,
                  "fwd_impact": 0.3, "bwd_impact": 0.1, "grad_sync": "a", "stragglers": {1: 1.2},
                  "link_speed": {"0-1": 0.5}, "latency": 0.05},
    },
    "jitter": {"stages": 3, "n": 5, "schedule": "1f1b", "jitter": 0.1, "draws": 3, "seed": 4},
    "lengths": {"stages": 3, "n": 6, "schedule": "zb-h2", "weight_grad_len": 0.7, "latency": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    record = run_step(build(StepConfig, STEPS[name]))
    found: dict[str, Any] = {"total": record.run.total_time, "peaks": [curve.peak for curve in record.memory]}
    if record.draws is not None:
        found["draws"] = record.draws
    check_recorded("steps", name, found)


@pytest.mark.parametrize("name", ["uneven costs", "lengths"])
def test_explanations(name: str) -> None:
    ranks = idle_time(run_step(build(StepConfig, STEPS[name])).run)
    rows = [[*asdict(one).values(), one.idle] for one in (*ranks, total(ranks))]
    check_recorded("explanations", name, {f"rank {number}": row for number, row in enumerate(rows)})
