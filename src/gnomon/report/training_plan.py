"""A training plan in words, tables, a picture of memory against speed, and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnomon.core.units import GB
from gnomon.report import look
from gnomon.report.blocks import Block, Command, Line, Plot, Section, Table, lines
from gnomon.report.page import write_page
from gnomon.report.training import ABOUT
from gnomon.training.plan import Job, TrainPlan
from gnomon.training.step import TrainStep

DEGREES = {
    "TP": "tensor_parallel",
    "PP": "pipeline_parallel",
    "VP": "virtual_stages",
    "CP": "context_parallel",
    "EP": "expert_parallel",
    "micro-batch": "micro_batch",
}
LEFT = ("sharding", "recompute")


def layout_row(step: TrainStep) -> dict[str, Any]:
    """One layout: degrees, and what they give."""
    c = step.config
    return {
        **{name: getattr(c, field) for name, field in DEGREES.items()},
        "DP": c.data_parallel,
        "sharding": c.sharding,
        "recompute": c.recompute,
        "step s": f"{step.step_s:.4g}",
        "tokens/s/GPU": f"{step.tokens_per_gpu_s:,.0f}",
        "MFU": f"{100 * step.mfu:.1f} %",
        "GB": f"{step.memory.peak_bytes / GB:.1f}",
    }


def plan_data(found: TrainPlan, job: Job | None, commands: dict[str, str]) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "layouts": found.num_layouts,
        "fitting": found.num_fitting,
        "best": [layout_row(step) | {"step_s": step.step_s} for step in found.best],
        "front": [layout_row(step) | {"step_s": step.step_s} for step in found.front],
        "schedules": schedule_rows(found),
        "limits": limits(found.winner),
        "commands": commands,
        "job": vars(job) if job else None,
        "notes": found.notes,
    }


def schedule_rows(found: TrainPlan) -> list[dict[str, Any]]:
    """The best layout under every schedule."""
    return [
        {
            "schedule": step.config.schedule,
            "VP": step.config.num_stages // step.config.pipeline_parallel,
            "step s": f"{step.step_s:.4g}",
            "tokens/s/GPU": f"{step.tokens_per_gpu_s:,.0f}",
            "bubble": f"{100 * step.parts.get('bubble', 0.0) / step.step_s:.1f} %",
            "GB": f"{step.memory.peak_bytes / GB:.1f}",
            "fits": step.fits,
        }
        for step in found.schedules
    ]


def limits(step: TrainStep) -> str:
    """What takes the most time beside the products, in words."""
    beside = {part: s for part, s in step.parts.items() if part not in ("products", "experts", "attention")}
    part, seconds = max(beside.items(), key=lambda item: item[1])
    useful = sum(step.parts.get(part, 0.0) for part in ("products", "experts", "attention")) / step.step_s
    return (
        f"{useful:.0%} of the step are products and attention; most of the rest is {ABOUT[part]}"
        f" ({seconds / step.step_s:.0%})."
    )


def plan_blocks(found: TrainPlan, job: Job | None, commands: dict[str, str]) -> list[Block]:
    """The layouts, what limits the best, its commands, days and dollars."""
    win = found.winner
    rows = [layout_row(step) for step in found.best]
    unused = [name for name in DEGREES if all(row[name] == 1 for row in rows) and name in ("VP", "CP", "EP")]
    rows = [{name: cell for name, cell in row.items() if name not in unused} for row in rows]
    caption = f"{found.num_fitting:,} of {found.num_layouts:,} layouts fit into {win.memory.device_bytes / GB:.0f} GB."
    blocks: list[Block] = [Table(rows, _title(found), caption, left=LEFT), Line(limits(win))]
    if found.schedules:
        blocks.append(Table(schedule_rows(found), "The best layout under other schedules", left=("schedule",)))
    if job is not None:
        blocks.append(
            Line(
                f"{job.tokens:.3g} tokens take {job.days:,.1f} days and ${job.dollars:,.0f}; a step takes"
                f" {job.p50_s:.4g} s in the median and {job.p99_s:.4g} s at P99 of GPUs that vary."
            )
        )
    blocks += [Line(f"{name}: {command}") for name, command in commands.items()]
    return [*blocks, *lines(found.notes, "note")]


def _title(found: TrainPlan) -> str:
    c = found.asked
    return f"{c.shape.name} on {c.gpus:,} x {c.device}, {c.batch_size:,} x {c.sequence:,} tokens a step, {c.precision}"


def front_figure(found: TrainPlan) -> dict[str, Any]:
    """Memory of a GPU against tokens per second, with the front drawn through it."""
    front = sorted(found.front, key=lambda step: step.memory.peak_bytes)
    other = [step for step in found.best if step not in found.front]
    marks = [
        _points(front, "front: no other is faster with less memory", look.COLOURS[0], "lines+markers"),
        _points(other, "others", look.COLOURS[5], "markers"),
    ]
    limit = found.winner.memory.device_bytes / GB
    line = {"type": "line", "x0": limit, "x1": limit, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"color": look.COLOURS[3], "dash": "dash", "width": 1.5}}  # fmt: skip
    layout = look.LOOK | {
        "title": {"text": "Memory and speed of layouts", "x": 0, "font": {"size": 14}},
        "height": 420,
        "margin": {"l": 64, "r": 16, "t": 44, "b": 48},
        "xaxis": look.AXIS | {"title": {"text": "peak memory of the fullest GPU, GB"}, "rangemode": "tozero"},
        "yaxis": look.AXIS | {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [line],
        "annotations": [
            {
                "x": limit,
                "y": 1,
                "yref": "paper",
                "text": "memory of a GPU",
                "xanchor": "right",
                "showarrow": False,
                "font": {"size": 11, "color": look.COLOURS[3]},
            }
        ],
    }
    return {"data": [one for one in marks if one["x"]], "layout": layout}


def _points(steps: list[TrainStep], name: str, colour: str, mode: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": mode, "name": name, "marker": {"color": colour, "size": 9},
        "line": {"color": colour},
        "x": [round(step.memory.peak_bytes / GB, 2) for step in steps],
        "y": [round(step.tokens_per_gpu_s, 2) for step in steps],
        "text": [
            "<br>".join(f"{name} {cell}" for name, cell in layout_row(step).items() if cell != 1) for step in steps
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def write_plan(found: TrainPlan, job: Job | None, commands: dict[str, str], path: str | Path) -> Path:
    """The page of a plan."""
    told = [block.text for block in plan_blocks(found, job, {}) if isinstance(block, Line) and block.kind == "plain"]
    fastest, front = ([layout_row(step) for step in steps] for steps in (found.best, found.front))
    blocks: list[Block] = [
        Plot("front", lambda: front_figure(found)),
        Table(fastest, "Fastest layouts", left=LEFT),
        Table(front, "Front of memory and speed", left=LEFT),
        Table(schedule_rows(found), "The best layout under other schedules", left=("schedule",)),
        *(Command(name, text) for name, text in commands.items()),
    ]
    return write_page(path, _title(found), [Section("", blocks), *lines(found.notes, "note")], lede=" ".join(told))
