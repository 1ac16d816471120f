"""A training step in words and plain data."""

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from gnomon.pipeline.explain import WhatIf, critical_path, idle_time, total
from gnomon.pipeline.run import Run
from gnomon.pipeline.step import StepRecord
from gnomon.pipeline.sweeps import KEYS, Sweep
from gnomon.report.blocks import Block, Line, Plot, Section, Table, View, lines, split_table
from gnomon.report.pipeline.figures import CAUSES, cause_rows, step_cards
from gnomon.report.pipeline.timeline import WORDS

COLUMNS = ("busy", "warm_up", "dependency", "communication", "contention", "cool_down")


def step_text(result: Any, **look: Any) -> list[Block]:
    step: StepRecord = result.step
    run, what_if = step.run, result.what_if
    ranks, peaks = idle_time(run), [curve.peak for curve in step.memory]
    blocks: list[Block] = [
        *step_cards(run),
        Section("Passes and transfers over time", [Plot("plot", lambda: result.drawn(**look), "tall")]),
    ]
    blocks.append(Line(f"total_time {run.total_time:.6f}   idle {run.bubble:.2%}"))
    if step.draws is not None:
        draws = percentiles(step.draws).items()
        blocks += lines(f"  {name} of {step.config.draws} draws: {value:.6g}" for name, value in draws)
    rows = [
        {"rank": str(at), **{c: asdict(rank)[c] for c in COLUMNS}, "peak memory": peak}
        for at, (rank, peak) in enumerate(zip(ranks, peaks, strict=True))
    ]
    rows.append({"rank": "all", **{c: asdict(total(ranks))[c] for c in COLUMNS}, "peak memory": max(peaks)})
    table = Table(rows, caption="Rows add up to the make-span. Memory in micro-batches.")
    blocks.append(Section("Where the time goes", [split_table(CAUSES, cause_rows(run), "figure"), table]))
    path = ", ".join(f"{kind} {value:.4g}" for kind, value in path_by_kind(run).items())
    blocks.append(Line(f"Critical path: {path}"))
    if what_if:
        links = [
            {"link": f"{w.sender}-{w.receiver}", "total_time": w.total_time, "gain": f"{w.gain:.1%}"} for w in what_if
        ]
        blocks.append(Table(links, f"If one link were {step.config.what_if:g} times as fast"))
    return [*blocks, *lines(step.notes, "note")]


def step_view(result: Any) -> View:
    step: StepRecord = result.step
    count = 1 + max(label.microbatch for label in step.run.labels)
    return View(
        f"{step.run.title}: {count} micro-batches on {step.run.num_ranks} GPUs", partial(step_text, result),
        partial(_step_data, result), {"tasks": partial(task_frame, step.run), "ranks": partial(rank_frame, step)},
        lambda: {"step": result.drawn, "priorities": result.priorities_drawn},
    )  # fmt: skip


def _step_data(result: Any) -> dict[str, Any]:
    """A step as plain data: the make-span, the idle share, every rank's time by cause, the critical path."""
    step: StepRecord = result.step
    run = step.run
    ranks = zip(idle_time(run), step.memory, strict=True)
    return {
        "total_time": run.total_time, "bubble": run.bubble,
        **({"schedule": step.schedule.name} if step.schedule else {}),
        **({"draws": percentiles(step.draws)} if step.draws is not None else {}),
        "ranks": [asdict(rank) | {"peak_memory": curve.peak} for rank, curve in ranks],
        "critical_path": path_by_kind(run), "throttled": run.throttled,
        "what_if": [asdict(row) for row in result.what_if], "notes": step.notes,
    }  # fmt: skip


def throttled_words(run: Run) -> str:
    texts = [f"{kind} {i} at stage {stage}" for kind, i, stage in run.throttled]
    return "Slowed by their receiver: " + ("; ".join(texts) or "none")


def path_by_kind(run: Run) -> dict[str, float]:
    """Time on the critical path, by what is done."""
    path: dict[str, float] = {}
    for step in critical_path(run):
        path[step.label.kind] = path.get(step.label.kind, 0.0) + step.end - step.start
    return path


def percentiles(times: Any) -> dict[str, float]:
    """What is said about many drawn steps."""
    values = np.percentile(times, (5, 50, 95, 99))
    return {"mean": float(times.mean()), **dict(zip(("p5", "p50", "p95", "p99"), map(float, values), strict=True))}


_IDLE_WORDS = {cause: words for cause, (_, _, words) in WORDS["causes"].items() if words}


def explanation(run: Run, what_if: list[WhatIf]) -> tuple[list[dict[str, Any]], dict[str, Any], list[Block]]:
    """What a step waited for: rows of the critical path, plain data, and sentences with tables."""
    path, idle = path_by_kind(run), asdict(total(idle_time(run)))
    largest = max(path, key=lambda kind: path[kind])
    causes = {name: idle[name] for name in _IDLE_WORDS}
    worst = max(causes, key=lambda name: causes[name])
    all_idle = sum(causes.values())
    sentences = [
        f"The step takes {run.total_time:.6g}; {path[largest] / run.total_time:.0%} of its critical path is"
        f" {WORDS['path'].get(largest, largest)}.",
        f"Ranks are idle {run.bubble:.1%} of the time, most of that ({causes[worst] / max(all_idle, 1e-12):.0%})"
        f" {_IDLE_WORDS[worst]}.",
    ]
    if what_if and what_if[0].gain > 0.001:
        best = what_if[0]
        gain = f"twice as fast, the step would take {best.gain:.1%} less"
        sentences.append(f"Of all links, {best.sender} to {best.receiver} matters most: {gain}.")
    elif what_if:
        sentences.append("No single link matters: none of them, twice as fast, makes the step shorter.")
    rows = _shares("on the critical path", path, WORDS["path"], run.total_time)
    idle_rows = _shares("idle time of all ranks", causes, _IDLE_WORDS, max(all_idle, 1e-12))
    links = [
        {"link": f"{w.sender} to {w.receiver}", "total_time": w.total_time, "gain": f"{w.gain:.1%}"} for w in what_if
    ]
    blocks: list[Block] = [*lines(sentences), Table(rows), Table(idle_rows)]
    if links:
        blocks.append(Table(links[:8], "If one link were twice as fast"))
    data = {
        "sentences": sentences, "total_time": run.total_time, "critical_path": path, "idle": causes,
        "faster_links": [asdict(one) for one in what_if],
    }  # fmt: skip
    return rows, data, blocks


def _shares(of: str, times: dict[str, float], words: dict[str, str], whole: float) -> list[dict[str, Any]]:
    longest_first = sorted(times.items(), key=lambda pair: -pair[1])
    return [{of: words.get(key, key), "time": s, "share": f"{s / whole:.1%}"} for key, s in longest_first]


def task_frame(run: Run) -> pl.DataFrame:
    """One row per pass and transfer, by the time at which it could begin."""
    tasks = run.trace.tasks
    labels = {"kind": "kind", "micro_batch": "microbatch", "stage": "stage"}
    columns: dict[str, Any] = {name: [getattr(one, field) for one in run.labels] for name, field in labels.items()}
    columns |= {name: np.asarray(tasks[name]) for name in ("rank", "ready", "start", "end", "work")}
    frame = pl.DataFrame(columns | {"throttled": np.asarray(tasks.throttled).astype(bool)})
    return frame.sort("ready", "rank", maintain_order=True)


def rank_frame(step: StepRecord) -> pl.DataFrame:
    times = zip(idle_time(step.run), step.memory, strict=True)
    rows = [{"rank": rank, **asdict(time), "peak_memory": curve.peak} for rank, (time, curve) in enumerate(times)]
    return pl.DataFrame(rows)


def sweep_frame(sweep: Sweep) -> pl.DataFrame:
    rows = [
        {**{key: getattr(study, key) for key in KEYS}, **{f"p_{k}": str(v) for k, v in cell._asdict().items()}}
        for study in sweep.studies
        for cell in sweep.grid
    ]
    return pl.DataFrame(rows).with_columns(pl.Series("total_time", sweep.totals.ravel()))
