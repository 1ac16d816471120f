"""The files of a training step and of a sweep: a page, a trace for Perfetto, and pictures as PNG."""

from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.files import written_whole
from gnomon.pipeline.memory import Curve, micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.pipeline.step import StepRecord
from gnomon.pipeline.sweeps import SweepTable
from gnomon.report.perfetto import Event, Lanes, counter_event, process_name, slice_event, thread_name, write_events
from gnomon.report.pipeline.figures import DENSE, GAP, RANK_COLOURS, binned
from gnomon.report.pipeline.heat_map import heat_grid
from gnomon.report.pipeline.text import step_text
from gnomon.report.pipeline.timeline import (
    COLOURS,
    COMPLETION,
    NAMES,
    View,
    bandwidth,
    drawn_together,
    link_use,
    timeline,
)


def write_trace(run: Run, path: str | Path, *, memory: list[Curve] | None = None) -> Path:
    """Write the trace events: a process per GPU, threads for compute and each kind of transfer, two counters.

    Transfers of one kind that wait or run side by side have lanes of their own.
    """
    threads: dict[str, int] = {"compute": 0}
    busy: defaultdict[tuple[int, str], Lanes] = defaultdict(Lanes)
    events: list[Event] = []
    tasks = run.trace.tasks
    starts = np.where(tasks.channel == 0, tasks.start, tasks.ready)
    for task in np.argsort(starts, kind="stable"):
        label, rank, start, end = run.labels[task], int(tasks.rank[task]), float(starts[task]), float(tasks.end[task])
        lane = "compute"
        if tasks.channel[task] != 0:
            lane = NAMES[label.kind]
            number = busy[rank, lane].take(start, end)
            lane = f"{lane} ({number + 1})" if number else lane
        thread = threads.setdefault(lane, len(threads))
        about = {
            "stage": label.stage,
            "throttled": bool(tasks.throttled[task]),
            "work": float(tasks.work[task]),
        }
        name = f"{NAMES[label.kind]} {label.microbatch}"
        events.append(slice_event(name, rank, thread, start, end, cat=label.kind, args=about))
    for rank in range(run.num_ranks):
        events.append(process_name(rank, f"GPU {rank}"))
        events += [thread_name(rank, number, name) for name, number in threads.items()]
    for name, curves in (("memory", memory or micro_batches_held(run)), ("egress", link_use(run))):
        for rank, curve in enumerate(curves):
            events += [
                counter_event(name, rank, at, {name: float(value)})
                for at, value in zip(curve.times, curve.values, strict=True)
            ]
    return write_events(events, path)


INK, FAINT = "#2B3440", "#D5DAE1"


def write_step(result: Any, folder: Path, **look: Any) -> None:
    """Write step.html, step.perfetto.json and step.png."""
    step: StepRecord = result.step
    result.write_page(folder / "step.html", step_text(result, **look))
    write_trace(step.run, folder / "step.perfetto.json", memory=step.memory)
    write_gantt(step.run, folder / "step.png", **look, memory=step.memory)


def write_gantt(
    run: Run,
    path: str | Path,
    *,
    view: View = "single_channel",
    show_throttling: bool = False,
    show_completion_time: bool = False,
    memory: list[Curve] | None = None,
    memory_unit: str = "micro-batches",
) -> Path:
    """Draw the step: lanes of passes and transfers, memory and egress below."""
    figure, (gantt, below, egress) = _figure(run, view)
    lanes = drawn_together(timeline(run, view), run.total_time)
    patches = _matplotlib("patches")
    height = 1.0 - GAP
    thin = 0.4 if len(lanes.bars) < DENSE else 0.0
    for bar in lanes.bars:
        low = bar.lane + height * (0.5 - bar.high)
        edge = "#B00020" if show_throttling and bar.throttled else "white"
        box = patches.Rectangle(
            (bar.start, low), bar.end - bar.start, height * (bar.high - bar.low), facecolor=COLOURS[bar.kind],
            edgecolor=edge, linewidth=1.4 if edge != "white" else thin,
        )  # fmt: skip
        gantt.add_patch(box)
        if lanes.lanes[bar.lane].name == "compute" and bar.end - bar.start > 0.012 * run.total_time:
            centre = ((bar.start + bar.end) / 2, bar.lane)
            gantt.annotate(bar.text, centre, color="white", ha="center", va="center", fontsize=7)
    gantt.set_ylim(len(lanes.lanes) - 0.5, -0.5)
    gantt.set_yticks(range(len(lanes.lanes)))
    gantt.set_yticklabels([f"GPU {lane.gpu}" if lane.name == "compute" else lane.name for lane in lanes.lanes])
    for row, lane in enumerate(lanes.lanes):
        if row and lane.name == "compute":
            gantt.axhline(row - 0.5, color=FAINT, linewidth=0.8)
    handles = [patches.Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in lanes.kinds]
    gantt.legend(
        handles=handles, ncols=len(handles), loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8
    )
    gantt.set_title(f"{run.title}: {run.total_time:.6g}, idle {run.bubble:.1%}", loc="left", pad=26, color=INK)
    if show_completion_time:
        gantt.plot(
            [run.total_time] * 2, [-0.5, len(lanes.lanes) - 0.5], color=COMPLETION, linewidth=1.6, linestyle="--"
        )
        gantt.annotate(
            f" {run.total_time:.4f}", (run.total_time, 0), ha="left", va="center", fontsize=8, color=COMPLETION,
            weight="bold",
        )  # fmt: skip
    _curves(below, memory or micro_batches_held(run), run.total_time, memory_unit)
    use = bandwidth(run)
    if use:
        _stacked(egress, use, run.total_time)
    else:
        egress.set_visible(False)
        below.tick_params(labelbottom=True)
    (egress if use else below).set_xlabel("time, in the unit of the lengths", color=INK)
    egress.set_xlim(0, run.total_time * (1.06 if show_completion_time else 1.01))
    gantt.spines[["top", "right", "left"]].set_visible(False)
    for plot in (gantt, below, egress):
        plot.spines[:].set_color(FAINT)
        plot.tick_params(color=FAINT, labelcolor=INK)
    return _save(figure, path)


def write_heat_map(table: SweepTable, path: str | Path) -> Path:
    """Draw one configuration: total time over the priorities of gradients (x) and activations (y)."""
    pyplot = _matplotlib("pyplot")
    grid = heat_grid(table)
    axis, values = grid.axis, grid.values
    figure = pyplot.figure(figsize=(8.2, 7.2), dpi=100)
    plot, scale = figure.add_axes((0.09, 0.08, 0.78, 0.80)), figure.add_axes((0.895, 0.08, 0.022, 0.80))
    image = plot.imshow(values, origin="lower", cmap="viridis_r", aspect="auto")
    for line in (plot.axhline, plot.axvline):  # Sets the exclusive tier apart.
        line(len(axis) - 1.5, color="white", linewidth=4)
    if len(axis) <= 14:
        _write_numbers(plot, values)
    best_row, best_column = grid.best
    for row, column in [] if grid.is_flat else grid.all_best:
        box = _matplotlib("patches").Rectangle(
            (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="#E4002B", linewidth=2.6, zorder=5
        )
        plot.add_patch(box)
    plot.set_xticks(range(len(axis)), axis)
    plot.set_yticks(range(len(axis)), axis)
    plot.set_xlabel("priority of grad_prop (a: exclusive)", color=INK)
    plot.set_ylabel("priority of fwd_prop (a: exclusive)", color=INK)
    plot.spines[:].set_visible(False)
    plot.tick_params(length=0, colors=INK)
    best = f"best {values[best_row, best_column]:.4f} at fwd_prop {axis[best_row]}, grad_prop {axis[best_column]}"
    figure.text(0.09, 0.905, f"{_title(table)}\n{best}; {grid.marked}", fontsize=10, color=INK, linespacing=1.5)
    bar = figure.colorbar(image, cax=scale)
    bar.set_label("total time", color=INK)
    bar.outline.set_visible(False)
    scale.tick_params(length=0, colors=INK)
    return _save(figure, path)


def _write_numbers(plot: Any, values: NDArray[np.float64]) -> None:
    """Write each value into its cell: all glyphs of one colour as one path, which is faster than texts."""
    paths = _matplotlib("path")
    glyphs = {char: _matplotlib("textpath").TextPath((0, 0), char, size=7.5) for char in "0123456789."}
    widths = {char: 4.77 if char != "." else 2.39 for char in glyphs}  # Of DejaVu Sans at that size.
    figure = plot.get_figure()
    box, (width, height) = plot.get_position(), 72 * figure.get_size_inches()
    cell = np.array([values.shape[1] / (box.width * width), values.shape[0] / (box.height * height)])
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for colour, chosen in (("white", values > middle), (INK, values <= middle)):
        vertices, codes = [np.zeros((0, 2))], [np.zeros(0, dtype=paths.Path.code_type)]
        for row, column in zip(*np.nonzero(chosen), strict=True):
            text = f"{values[row, column]:.2f}"
            at = -sum(widths[char] for char in text) / 2
            for char in text:
                vertices.append((glyphs[char].vertices + np.array([at, -2.73])) * cell + np.array([column, row]))
                codes.append(glyphs[char].codes)
                at += widths[char]
        shape = paths.Path(np.concatenate(vertices), np.concatenate(codes))
        # Not `add_patch`, which would look for the curves' extremes to scale the axes by.
        plot.add_artist(_matplotlib("patches").PathPatch(shape, facecolor=colour, linewidth=0))


def draw_heat_map(given: tuple[SweepTable, str]) -> Path:
    """Draw one configuration into a folder; for a pool of processes."""
    table, folder = given
    return write_heat_map(table, Path(folder) / heat_map_name(table))


def heat_map_name(table: SweepTable) -> str:
    """A file name that carries the parameters."""
    return "heatmap_" + "_".join(f"{key}{value:g}" for key, value in table.parameters.items()) + ".png"


def _title(table: SweepTable) -> str:
    items = [f"{key} {value:g}" for key, value in table.parameters.items()]
    return "   ".join(items[:5]) + "\n" + "   ".join(items[5:])


def _figure(run: Run, view: View) -> tuple[Any, Any]:
    pyplot = _matplotlib("pyplot")
    lanes = run.num_ranks * (2 if view == "single_channel" else 3)
    rows = (max(0.26 * lanes, 1.6), 1.1, 1.1)
    return pyplot.subplots(
        3, 1, sharex=True, figsize=(14, sum(rows) + 1.4), dpi=110, height_ratios=rows, layout="constrained"
    )


def _curves(plot: Any, curves: list[Curve], end: float, name: str) -> None:
    for rank, curve in enumerate(curves):
        colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
        times, values = np.append(curve.times, end), np.append(curve.values, curve.values[-1])
        plot.step(times, values, where="post", color=colour, linewidth=1.2, label=f"GPU {rank}")
    plot.set_ylabel(name, color=INK, fontsize=8)
    plot.set_ylim(bottom=0)
    plot.grid(color="#EEF1F4")
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)
    if len(curves) <= 8:  # Above the plot: nowhere inside is there always room.
        plot.legend(loc="lower right", bbox_to_anchor=(1, 0.96), ncols=len(curves), frameon=False, fontsize=7)


def _stacked(plot: Any, curves: dict[str, Curve], end: float) -> None:
    """The use of all links by kind, one on top of the other."""
    floor: Any = 0.0
    for kind, one in curves.items():
        curve = binned(one, end)
        times, values = np.append(curve.times, end), np.append(curve.values, curve.values[-1])
        plot.fill_between(times, floor, floor + values, step="post", color=COLOURS[kind], linewidth=0)
        floor = floor + values
    plot.set_ylabel("links in use", color=INK, fontsize=8)
    plot.set_ylim(0, 1.02)
    plot.grid(color="#EEF1F4")
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: str | Path) -> Path:
    with written_whole(path) as temporary:
        figure.savefig(temporary, format="png")
    _matplotlib("pyplot").close(figure)
    return Path(path)


def _matplotlib(module: str) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    return import_module(f"matplotlib.{module}")
