"""A training step in words and tables."""

from functools import partial
from importlib.resources import files
from typing import Any

from gnomon.core.text import own_yaml
from gnomon.core.units import GB
from gnomon.report import look
from gnomon.report.blocks import Block, Card, Causes, Command, Line, Plot, Section, SplitRow, Table, View, lines
from gnomon.report.blocks import split_table as bars
from gnomon.training.memory import memory_over_time
from gnomon.training.plan import TrainPlan
from gnomon.training.step import TrainStep

ABOUT: dict[str, str] = own_yaml(files("gnomon.report") / "training.yaml")  # What each part of a step is.
USEFUL = ("products", "experts", "attention")


def step_view(result: Any) -> View:
    step: TrainStep = result.step
    c = step.config
    return View(
        f"{c.shape.name} on {c.gpus:,} x {c.device}", partial(_step_text, result), partial(step_data, step),
        {"time": lambda: step_data(step)["time"], "memory": lambda: step_data(step)["memory"]},
    )  # fmt: skip


def step_data(step: TrainStep) -> dict[str, Any]:
    memory = step.memory
    return {
        **{name: getattr(step, name) for name in ("step_s", "tokens_per_s", "tokens_per_gpu_s")},
        "tflops_per_gpu_s": step.flops_per_gpu_s / 1e12,
        "mfu": step.mfu,
        "peak_memory_gb": memory.peak_bytes / GB,
        "device_memory_gb": memory.device_bytes / GB,
        "fits": step.fits,
        "data_parallel": step.config.data_parallel,
        "micro_batches": step.config.num_microbatches,
        "phases_s": step.phases,
        "time": [
            {"part": part, "seconds": seconds, "share": seconds / step.step_s, "what": ABOUT[part]}
            for part, seconds in step.parts.items()
        ],
        "memory": [{"part": part, "GB": size / GB} for part, size in memory.parts.items()],
        "ranks_gb": [peak / GB for peak in memory.peaks],
        "notes": step.notes,
    }


def _step_text(result: Any) -> list[Block]:
    step: TrainStep = result.step
    data, c = step_data(step), step.config
    head = (
        f"step {step.step_s:.4g} s   {step.tokens_per_gpu_s:,.0f} tokens/s/GPU"
        f"   {data['tflops_per_gpu_s']:,.0f} TFLOP/s/GPU   MFU {step.mfu:.1%}"
        f"   peak memory {data['peak_memory_gb']:.1f} of {data['device_memory_gb']:.1f} GB"
    )
    layout = (
        f"{c.gpus} GPUs: tensor {c.tensor_parallel} x pipeline {c.pipeline_parallel} x context {c.context_parallel}"
        f" x data {c.data_parallel}; {c.num_microbatches} micro-batches of {c.micro_batch} x {c.sequence:,} tokens"
    )
    rows = [row | {"share": f"{row['share']:.1%}"} for row in data["time"]]
    slowest = "The slowest pipeline rank. MFU: over the peak of the products' number format."
    time = Table(rows, caption=slowest, left=("part", "what"))
    drawn = Plot("memory", lambda: memory_figure(step))
    memory: list[Block] = [bars(*memory_bars(step), "figure"), drawn, Table(data["memory"])]
    return [
        Line(head),
        Line(layout),
        Card("step", f"{step.step_s:.4g} s", f"{c.num_microbatches} micro-batches"),
        Card("tokens/s/GPU", f"{step.tokens_per_gpu_s:,.0f}", f"{step.tokens_per_s:,.0f} in all"),
        Card("MFU", f"{step.mfu:.1%}", f"{data['tflops_per_gpu_s']:,.0f} TFLOP/s/GPU"),
        Card("peak memory", f"{data['peak_memory_gb']:.1f} GB", f"of {data['device_memory_gb']:.1f} GB"),
        *lines([] if step.fits else [result.misfit], "warning"),
        Section("Where the time goes", [bars(*time_bars(step), "figure"), time]),
        Section(f"Memory of a GPU of pipeline rank {step.memory.fullest} at its peak", memory),
        *lines(step.notes, "note"),
    ]


def time_bars(step: TrainStep) -> tuple[Causes, list[SplitRow]]:
    """The parts of the slowest rank's step."""
    causes = {part: (ABOUT[part], look.COLOURS[at % len(look.COLOURS)]) for at, part in enumerate(step.parts)}
    words = f"{_useful(step):.0%} products and attention"
    return causes, [SplitRow("step", dict(step.parts), step.step_s, words, " s")]


def memory_bars(step: TrainStep) -> tuple[Causes, list[SplitRow]]:
    """What fills the fullest GPU, and what is left of its memory."""
    memory = step.memory
    sizes = {part: size / GB for part, size in memory.parts.items() if size > 0}
    sizes["allocator and context"] = (memory.reserved_bytes - memory.peak_bytes) / GB
    whole = max(memory.device_bytes, memory.reserved_bytes) / GB
    sizes["free"] = max(0.0, whole - sum(sizes.values()))
    causes = {part: (part, look.COLOURS[at % len(look.COLOURS)]) for at, part in enumerate(sizes)}
    causes["free"] = ("free", "#E6E9EE")
    words = f"{memory.reserved_bytes / GB:.1f} of {memory.device_bytes / GB:.1f} GB"
    return causes, [SplitRow(f"rank {memory.fullest}", sizes, whole, words, " GB")]


def memory_figure(step: TrainStep) -> dict[str, Any]:
    """Memory of the fullest pipeline rank over the step by part, the totals of the others, and the GPU's memory."""
    assert step.run is not None
    curves = memory_over_time(step.config, step.run)
    fullest = curves[step.memory.fullest]
    colours = dict(zip(fullest.parts, look.COLOURS, strict=False))
    traces: list[dict[str, Any]] = [
        look.line(
            look.short(fullest.times), look.short(sizes / GB), colours[part], 0, name=part, stackgroup="fullest",
            fillcolor=colours[part], hovertemplate=f"{part}: %{{y:.1f}} GB<extra></extra>",
        )
        for part, sizes in fullest.parts.items() if sizes.max() > 0.0
    ]  # fmt: skip
    others = [(rank, curve) for rank, curve in enumerate(curves) if rank != step.memory.fullest]
    for rank, curve in others:
        hover = {"name": "other ranks", "hovertemplate": f"rank {rank}: %{{y:.1f}} GB<extra></extra>"}
        drawn = look.line(look.short(curve.times), look.short(curve.total / GB), "#7A8594", 1, **hover)
        traces.append(drawn | {"showlegend": rank == others[0][0]})
    limit = step.memory.device_bytes / GB
    ran = 1 + max(label.microbatch for label in step.run.labels)
    every = ran == step.config.num_microbatches
    words = "seconds" if every else f"seconds ({ran} of {step.config.num_microbatches} micro-batches)"
    named = {"label": look.words("memory of a GPU", look.RED) | {"yanchor": "top"}}
    layout = look.LOOK | {
        "height": 360,
        "margin": {"l": 64, "r": 16, "t": 44, "b": 48},
        "xaxis": look.AXIS | look.axis(words),
        "yaxis": look.AXIS | look.axis(f"GB of a GPU of rank {step.memory.fullest}", rangemode="tozero"),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "shapes": [look.rule("y", limit, look.RED) | named],
    }
    return {"data": traces, "layout": layout}


DEGREES = {
    "TP": "tensor_parallel", "PP": "pipeline_parallel", "VP": "virtual_stages", "CP": "context_parallel",
    "EP": "expert_parallel", "micro-batch": "micro_batch",
}  # fmt: skip
LEFT = ("sharding", "recompute", "the same")


def layout_row(step: TrainStep) -> dict[str, Any]:
    c = step.config
    return {
        **{name: getattr(c, field) for name, field in DEGREES.items()}, "DP": c.data_parallel, "sharding": c.sharding,
        "recompute": c.recompute, "step s": f"{step.step_s:.4g}", "tokens/s/GPU": f"{step.tokens_per_gpu_s:,.0f}",
        "MFU": f"{step.mfu:.1%}", "GB": f"{step.memory.peak_bytes / GB:.1f}",
    }  # fmt: skip


def plan_view(result: Any) -> View:
    found: TrainPlan = result.plan
    win = found.winner
    degrees = [f"{name} {getattr(win.config, field)}" for name, field in DEGREES.items()]
    layout = ", ".join(one for one in degrees if not one.endswith(" 1")) or "data parallel"
    title = f"Fastest layout: {layout}; {win.tokens_per_gpu_s:,.0f} tokens/s/GPU"
    return View(title, partial(_plan_text, result), partial(_plan_data, result))


def _plan_data(result: Any) -> dict[str, Any]:
    found, job = result.plan, result.job
    return {
        "layouts": found.num_layouts, "fitting": found.num_fitting,
        "best": [layout_row(step) | {"step_s": step.step_s} for step in found.best],
        "front": [layout_row(step) | {"step_s": step.step_s} for step in found.front],
        "schedules": schedule_rows(found), "limits": limits(found.winner), "commands": result.commands,
        "job": vars(job) if job else None, "notes": found.notes,
    }  # fmt: skip


def schedule_rows(found: TrainPlan) -> list[dict[str, Any]]:
    return [
        {
            "schedule": step.config.schedule,
            "VP": step.config.num_stages // step.config.pipeline_parallel,
            "step s": f"{step.step_s:.4g}",
            "tokens/s/GPU": f"{step.tokens_per_gpu_s:,.0f}",
            "bubble": f"{step.parts.get('bubble', 0.0) / step.step_s:.1%}",
            "GB": f"{step.memory.peak_bytes / GB:.1f}",
            "fits": step.fits,
        }
        for step in found.schedules
    ]


def limits(step: TrainStep) -> str:
    """What takes the most time beside the products, in words."""
    beside = {part: s for part, s in step.parts.items() if part not in USEFUL}
    part, seconds = max(beside.items(), key=lambda item: item[1])
    rest = f"most of the rest is {ABOUT[part]} ({seconds / step.step_s:.0%})"
    return f"{_useful(step):.0%} of the step are products and attention; {rest}."


def _useful(step: TrainStep) -> float:
    return sum(step.parts.get(part, 0.0) for part in USEFUL) / step.step_s


def _plan_text(result: Any) -> list[Block]:
    """The layouts, what limits the best, its commands, days and dollars."""
    found, job = result.plan, result.job
    win = found.winner
    rows = _each_once([{"#": number, **layout_row(step)} for number, step in enumerate(found.best, start=1)])
    unused = [name for name in DEGREES if all(row[name] == 1 for row in rows) and name in ("VP", "CP", "EP")]
    rows = [{name: cell for name, cell in row.items() if name not in unused} for row in rows]
    caption = f"{found.num_fitting:,} of {found.num_layouts:,} layouts fit into {win.memory.device_bytes / GB:.0f} GB."
    if "the same" in rows[0]:
        caption += " The same: context parallel x micro-batch with the same work for each GPU."
    layouts: list[Block] = [Plot("front", lambda: front_figure(found)), Table(rows, caption=caption, left=LEFT)]
    c = found.asked
    asked = f"{c.shape.name} on {c.gpus:,} x {c.device}, {c.batch_size:,} x {c.sequence:,} tokens a step, {c.precision}"
    blocks: list[Block] = [Section(asked, layouts), Line(limits(win))]
    if found.schedules:
        why = "Fitting counts what lies unused between blocks, and the context, too."
        other = Table(schedule_rows(found), caption=why, left=("schedule",))
        blocks.append(Section("The best layout under other schedules", [other]))
    if job is not None:
        whole = f"{job.tokens:.3g} tokens take {job.days:,.1f} days and ${job.dollars:,.0f}"
        steps = f"{job.p50_s:.4g} s in the median and {job.p99_s:.4g} s at P99 of GPUs that vary"
        blocks.append(Line(f"{whole}; a step takes {steps}."))
    blocks += [Command(name, command) for name, command in result.commands.items()]
    return [*blocks, *lines(found.notes, "note")]


def _each_once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Layouts that give each GPU the same work, longer pieces of fewer sequences or the other way round, in one row."""
    cut = ("#", "CP", "micro-batch", "DP")
    shown: dict[str, dict[str, Any]] = {}
    for row in rows:
        first = shown.setdefault(str([cell for name, cell in row.items() if name not in cut]), row | {"the same": ""})
        if first["#"] != row["#"]:
            first["the same"] += f"{', ' * bool(first['the same'])}CP {row['CP']} x {row['micro-batch']}"
    return list(shown.values()) if any(row["the same"] for row in shown.values()) else rows


def front_figure(found: TrainPlan) -> dict[str, Any]:
    """Memory of a GPU against tokens per second, with the front drawn through it."""
    front = sorted(found.front, key=lambda step: step.memory.peak_bytes)
    known = [step.config for step in front]
    marks = [
        _points(front, "front: no other is faster with less memory", look.BLUE, "lines+markers"),
        _points([step for step in found.best if step.config not in known], "others", look.GREY, "markers"),
    ]
    limit = look.slo_line(
        found.winner.memory.device_bytes / GB, text="memory of a GPU", textposition="start", xanchor="right", padding=4
    )
    return look.plot(
        [one for one in marks if one["x"]], "Memory and speed of layouts",
        look.axis("peak memory of the fullest GPU, GB", rangemode="tozero"),
        look.axis("tokens/s/GPU", rangemode="tozero"),
        height=420, showlegend=True, hovermode="closest", shapes=[limit],
    )  # fmt: skip


def _points(steps: list[TrainStep], name: str, colour: str, mode: str) -> dict[str, Any]:
    memory = [round(step.memory.peak_bytes / GB, 2) for step in steps]
    speed = [round(step.tokens_per_gpu_s, 2) for step in steps]
    rows = [layout_row(step).items() for step in steps]
    hover = ["<br>".join(f"{name} {cell}" for name, cell in row if cell != 1) for row in rows]
    more: dict[str, Any] = {"mode": mode, "line": {"color": colour}, "text": hover}
    return look.dots(memory, speed, colour, name=name, hovertemplate="%{text}<extra></extra>", **more)
