"""What `gnomon pipeline run` prints and writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.pipeline.options import training_of
from gnomon.cli.printing import print_json, print_rows

if TYPE_CHECKING:
    from gnomon.pipeline.run import Run
    from gnomon.pipeline.step import TrainingFigures


def show(given: dict[str, Any], run: Run, more: dict[str, Any], figures: TrainingFigures | None = None) -> None:
    """Print what became of a step, as tables or JSON, and write its pictures where asked."""
    from dataclasses import asdict

    from gnomon.pipeline.explain import critical_path, faster_links, idle_time, total
    from gnomon.pipeline.memory import micro_batches_held

    ranks = idle_time(run)
    peaks = [curve.peak for curve in (figures.memory if figures else micro_batches_held(run))]
    path: dict[str, float] = {}
    for step in critical_path(run):
        path[step.label.kind] = path.get(step.label.kind, 0.0) + step.end - step.start
    what_if = faster_links(run, given["what_if"]) if given["what_if"] else []
    files = _write(given, run, figures)
    if given["as_json"]:
        print_json(
            {
                "total_time": run.total_time,
                "bubble": run.bubble,
                **more,
                "ranks": [asdict(rank) | {"peak_memory": peak} for rank, peak in zip(ranks, peaks, strict=True)],
                "critical_path": path,
                "throttled": run.throttled,
                "what_if": [asdict(row) for row in what_if],
                **({"training": _training(figures)} if figures else {}),
                "files": [str(file) for file in files],
            }
        )
        return
    unit = " s" if figures else ""
    click.echo(f"total_time {run.total_time:.6f}{unit}   idle {100 * run.bubble:.2f} %")
    if figures:
        click.echo("   ".join(f"{name} {value:.4g}" for name, value in _training(figures).items() if name != "fits"))
    for name, value in more.get("draws", {}).items():
        click.echo(f"  {name} of {given['draws']} draws: {value:.6g}")
    columns = ("busy", "warm_up", "dependency", "communication", "contention", "cool_down")
    rows = [
        {"rank": str(at), **{c: asdict(rank)[c] for c in columns}, "peak memory": peak}
        for at, (rank, peak) in enumerate(zip(ranks, peaks, strict=True))
    ]
    rows.append({"rank": "all", **{c: asdict(total(ranks))[c] for c in columns}, "peak memory": max(peaks)})
    memory = "GB" if figures else "micro-batches"
    print_rows(rows, title="Where the time goes", caption=f"Rows add up to the make-span. Memory in {memory}.")
    click.echo("Critical path: " + ", ".join(f"{kind} {value:.4g}" for kind, value in path.items()))
    if given["show_throttling"]:
        texts = [f"{kind} {i} at stage {stage}" for kind, i, stage in run.throttled]
        click.echo("Slowed by their receiver: " + ("; ".join(texts) or "none"))
    if what_if:
        title = f"If one link were {given['what_if']:g} times as fast"
        print_rows(
            [{"link": f"{w.sender}-{w.receiver}", "total_time": w.total_time, "gain %": 100 * w.gain} for w in what_if],
            title=title,
        )
    for file in files:
        click.echo(f"wrote {file}")


def _training(figures: TrainingFigures) -> dict[str, Any]:
    return {
        "step_s": figures.step_s,
        "samples_per_s": figures.samples_per_s,
        "tokens_per_s": figures.tokens_per_s,
        "mfu": figures.mfu,
        "peak_memory_gb": float(figures.peak_bytes.max()) / 1e9,
        "fits": figures.fits,
    }


def _write(given: dict[str, Any], run: Run, figures: TrainingFigures | None) -> list[Path]:
    if not given["out"] and not given["open_page"]:
        return []
    from gnomon.report.pipeline.figures import training_cards
    from gnomon.report.pipeline.html import write_html
    from gnomon.report.pipeline.perfetto import write_trace

    folder = Path(given["out"] or "outputs/pipeline")
    drawing = {name: given[name] for name in ("view", "show_throttling", "show_completion_time")}
    memory: dict[str, Any] = {"memory": figures.memory, "memory_unit": "GB"} if figures else {}
    facts = training_cards(figures, training_of(given), run.num_ranks) if figures else {}
    files = [write_html(run, folder / "step.html", **drawing, **memory, facts=facts)]
    files.append(write_trace(run, folder / "step.perfetto.json", memory=memory.get("memory")))
    files += _write_png(run, folder / "step.png", drawing | memory)
    if given["open_page"]:
        click.launch(files[0].resolve().as_uri())
    return files


def _write_png(run: Run, path: Path, drawing: dict[str, Any]) -> list[Path]:
    """The PNG, or a word about the missing package."""
    from gnomon.core.errors import MissingExtraError
    from gnomon.report.pipeline.png import write_gantt

    try:
        return [write_gantt(run, path, **drawing)]
    except MissingExtraError as error:
        click.echo(f"no {path.name}: {error}", err=True)
        return []


def percentiles(times: Any) -> dict[str, float]:
    """What is said about many drawn steps."""
    import numpy as np

    values = np.percentile(times, (5, 50, 95, 99))
    return {"mean": float(times.mean()), **dict(zip(("p5", "p50", "p95", "p99"), map(float, values), strict=True))}
