"""The files of a training step and of a sweep: a page, a trace for Perfetto, and pictures as PNG."""

import re
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
from gnomon.report.pipeline.figures import step_figure
from gnomon.report.pipeline.heat_map import heat_grid
from gnomon.report.pipeline.text import step_text
from gnomon.report.pipeline.timeline import NAMES, link_use


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
        about = {"stage": label.stage, "throttled": bool(tasks.throttled[task]), "work": float(tasks.work[task])}
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
LINES = {"solid": "-", "dash": "--"}


def write_step(result: Any, folder: Path, **look: Any) -> None:
    step: StepRecord = result.step
    result.write_page(folder / "step.html", step_text(result, **look))
    write_trace(step.run, folder / "step.perfetto.json", memory=step.memory)
    write_gantt(step.run, folder / "step.png", **look, memory=step.memory)


def write_gantt(run: Run, path: str | Path, **look: Any) -> Path:
    """Draw the step as the page does; `look` as `step_figure` takes it."""
    figure = step_figure(run, **look)
    layout, end = figure["layout"], figure["layout"]["xaxis"]["range"][1]
    canvas = _matplotlib("pyplot").figure(figsize=(14, layout["height"] / 80), dpi=110)
    plots: dict[str, Any] = {}
    for name in (name for name in layout if name.startswith("yaxis")):
        low, high = (0.06 + 0.86 * share for share in layout[name]["domain"])
        plots[f"y{name[5:]}"] = canvas.add_axes((0.07, low, 0.91, high - low), sharex=plots.get("y"))
    floor: Any = 0.0
    for trace in figure["data"]:
        plot, colour = plots[trace.get("yaxis", "y")], trace.get("fillcolor") or trace.get("line", {}).get("color")
        if trace["type"] == "bar":
            _draw_bars(plot, trace, 0.012 * end)
        elif "stackgroup" in trace:
            level = floor + np.array(trace["y"])
            plot.fill_between(trace["x"], floor, level, step="post", color=colour, linewidth=0)
            floor = level
        else:
            gpu = trace["hovertemplate"].partition(":")[0]
            plot.step(trace["x"], trace["y"], where="post", color=colour, linewidth=1.2, label=gpu)
    gantt = plots["y"]
    for line in layout["shapes"]:
        ends = [line["x0"], line["x1"]], [line["y0"], line["y1"]]
        ends = ([0, end], ends[1]) if line["y0"] == line["y1"] else ends
        gantt.plot(*ends, color=line["line"]["color"], linewidth=0.8, linestyle=LINES[line["line"]["dash"]])
    for note in layout["annotations"]:
        text = note["text"].replace("<b>", " ").replace("</b>", "")
        gantt.annotate(text, (note["x"], note["y"]), va="center", fontsize=8, color=note["font"]["color"])
    for name, plot in plots.items():
        _set_axis(plot, layout[f"yaxis{name[1:]}"])
    gantt.legend(ncols=8, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8)
    if run.num_ranks <= 8:  # Above the plot: nowhere inside is there always room.
        plots["y2"].legend(loc="lower right", bbox_to_anchor=(1, 0.96), ncols=8, frameon=False, fontsize=7)
    gantt.set_title(f"{run.title}: {run.total_time:.6g}, idle {run.bubble:.1%}", loc="left", pad=26, color=INK)
    gantt.set_xlim(0, end)
    list(plots.values())[-1].set_xlabel(layout["xaxis"]["title"]["text"], color=INK)
    return _save(canvas, path)


def _set_axis(plot: Any, axis: dict[str, Any]) -> None:
    if "range" in axis:
        plot.set_ylim(*axis["range"])
    else:
        plot.set_ylim(bottom=0)
    if "tickvals" in axis:
        plot.set_yticks(axis["tickvals"], [re.sub("<[^>]*>", "", text) for text in axis["ticktext"]])
    plot.set_ylabel(axis.get("title", {}).get("text", "").replace("<br>", "\n"), color=INK, fontsize=8)
    if axis.get("showgrid"):
        plot.grid(color="#EEF1F4")
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)
    plot.spines[:].set_color(FAINT)
    plot.tick_params(color=FAINT, labelcolor=INK)


def _draw_bars(plot: Any, trace: dict[str, Any], narrow: float) -> None:
    edge = trace["marker"]["line"]
    plot.barh(
        trace["y"], trace["x"], left=trace["base"], height=trace["width"], color=trace["marker"]["color"],
        edgecolor=edge["color"], linewidth=edge["width"], label=trace["name"],
    )  # fmt: skip
    for start, length, at, text in zip(trace["base"], trace["x"], trace["y"], trace["text"] or (), strict=False):
        if length > narrow:
            colour = trace["textfont"]["color"]
            plot.annotate(text, (start + length / 2, at), color=colour, ha="center", va="center", fontsize=7)


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
    name = "_".join(["heatmap", *(f"{key}{value:g}" for key, value in table.parameters.items())])
    return write_heat_map(table, Path(folder) / f"{name}.png")


def _title(table: SweepTable) -> str:
    items = [f"{key} {value:g}" for key, value in table.parameters.items()]
    return "   ".join(items[:5]) + "\n" + "   ".join(items[5:])


def _save(figure: Any, path: str | Path) -> Path:
    with written_whole(path) as temporary:
        figure.savefig(temporary, format="png")
    _matplotlib("pyplot").close(figure)
    return Path(path)


def _matplotlib(module: str) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    return import_module(f"matplotlib.{module}")
