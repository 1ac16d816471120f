"""The suite: the same few workloads under several schedulers and models, as a reproducible table of capacities."""

from __future__ import annotations

from collections.abc import Callable

from gnomon.core.parallel import map_ordered
from gnomon.search.compiling import compile_for
from gnomon.search.config import BenchConfig, SearchConfig
from gnomon.search.evaluate import Record, Task, bound_of, evaluate
from gnomon.search.space import candidates
from gnomon.workload import WorkloadConfig

TENSOR_DEGREES = (1, 2, 4, 8)


def bench(
    config: BenchConfig, *, jobs: int | None = None, ray: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str, str, Record]]:  # fmt: skip
    """(model, workload, policy, record) of every combination, in order."""
    asked = [
        (model, workload, policy, _task(config, model, workload, policy))
        for model in config.models
        for workload in config.workloads
        for policy in config.policies
    ]
    compile_for(_question(config, config.models[0], config.workloads[0], config.policies, (1,)))
    rows = []
    outcomes = map_ordered(evaluate, [task for *_, task in asked], jobs=jobs, ray=ray)
    for (model, workload, policy, task), outcome in zip(asked, outcomes, strict=True):
        one = task.candidate
        failed = Record(one.label, dict(one.overrides), "failed", outcome.error)
        rows.append((model, workload, policy, outcome.value or failed))
        if on_progress is not None:
            on_progress(len(rows), len(asked))
    return rows


def _task(config: BenchConfig, model: str, workload: str, policy: str) -> Task:
    """The policy on the smallest tensor-parallel degree on which the model fits (else the largest, which explains)."""
    question = _question(config, model, workload, (policy,), TENSOR_DEGREES)
    tasks = [Task(question, one) for one in candidates(question)]
    return next((task for task in tasks if not isinstance(bound_of(task), Record)), tasks[-1])


def _question(
    config: BenchConfig, model: str, workload: str, policies: tuple[str, ...], degrees: tuple[int, ...]
) -> SearchConfig:
    return SearchConfig(
        model=model, workload=WorkloadConfig(preset=workload), slo=config.slo,
        space={"device": config.device, "tensor_parallel": degrees, "batching": list(policies)},
        settings=config.settings, effort=config.effort, seed=config.seed,
    )  # fmt: skip
