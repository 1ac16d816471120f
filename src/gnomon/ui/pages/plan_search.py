"""From the controls of the Plan page to a question, its search as a job, and searches that are on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import current_app

from gnomon import __version__
from gnomon.api.search import Search, SearchConfig, check, fingerprint, finished_search, search
from gnomon.core.config import build
from gnomon.ui import jobs
from gnomon.ui.controls import ControlError
from gnomon.ui.run_folders import find_runs


def question_of(values: Mapping[str, Any]) -> SearchConfig:
    """What the controls ask; names are checked."""
    limits: dict[str, Any] = {
        "ttft_s": {"p90": values["ttft"] / 1e3} if values["ttft"] else {},
        "tbt_s": {"p99": values["tbt"] / 1e3} if values["tbt"] else {},
    }
    if values["objective"] == "goodput_per_gpu":
        good = {"ttft_s": values["ttft"], "tpot_s": values["tbt"]}
        limits = {"goodput": {key: value / 1e3 for key, value in good.items() if value} or None}
    sizes = {"max_batch_tokens": values["tokens"], "max_sequences": values["sequences"]}
    space = {
        "device": values["devices"], "tensor_parallel": values["tp"], "pipeline_parallel": values["pp"],
        "num_replicas": values["replicas"],
        "batching": [{"policy": policy} | sizes for policy in values["policies"]],
    }  # fmt: skip
    data = {
        "model": values["model"], "workload": {"preset": values["workload"]}, "slo": limits, "space": space,
        "objective": values["objective"], "load": values["load"] if values["objective"] == "cost" else None,
        "strategy": values["strategy"], "effort": {"max_requests": values["effort"]}, "seed": values["seed"],
    }  # fmt: skip
    question = build(SearchConfig, data)
    check(question)
    return question


def runs_folder() -> Path:
    """Where this server keeps and finds run directories."""
    return Path(current_app.config["GNOMON_RUNS"])


def searches() -> dict[str, str]:
    """Finished searches below the runs folder, newest first, after the choice of none."""
    names = [one.name for one in find_runs(runs_folder()) if one.is_finished_search]
    return {"": "none: ask below"} | {name: name for name in names}


def opened(name: str) -> Search:
    """The search in a folder of `searches`; no other folder is looked into."""
    if name not in searches():
        raise ControlError("dir", f"There is no finished search {name!r} in the runs folder.")
    return finished_search(runs_folder() / name)


def asked(values: Mapping[str, Any]) -> tuple[SearchConfig, Path]:
    """The search and its folder; one that was cancelled goes on from what it left there."""
    question = question_of(values)
    name = f"{question.model}-{fingerprint(question)[:8]}-{__version__}".replace("/", "_")
    return question, runs_folder() / "search" / name


def run_search(argument: tuple[SearchConfig, Path], report: jobs.Report) -> Search:
    """The job: search, and leave the usual folder behind."""
    question, folder = argument
    report(0, 1, "Looking at what cannot win …")

    def tell(done: int, total: int) -> None:
        report(done, total, f"{done} of {total} configurations settled")

    found = search(question, folder=folder, on_progress=tell)
    assert isinstance(found, Search)
    found.save(folder)
    return found
