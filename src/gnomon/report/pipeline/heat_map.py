"""The total time of a step over the priorities of its transfers, as a grid and as a plotly figure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.pipeline.costs import Priority
from gnomon.pipeline.sweeps import SweepTable
from gnomon.report.look import LOOK, TIME_LINE, rule
from gnomon.report.look import axis as named

Figure = dict[str, Any]
Cell = tuple[str, str]  # Priorities of fwd_prop and grad_prop, as the axes write them.


@dataclass(frozen=True)
class HeatGrid:
    """`values[row, column]`: rows by the priority of fwd_prop, columns by that of grad_prop; NaN where none was run."""

    axis: list[str]
    values: NDArray[np.float64]

    @property
    def best(self) -> tuple[int, int]:
        row, column = np.unravel_index(np.nanargmin(self.values), self.values.shape)
        return int(row), int(column)

    @property
    def all_best(self) -> list[tuple[int, int]]:
        """Every cell that is as good as the best, to the digits that are shown."""
        least = float(np.nanmin(self.values))
        return [(int(row), int(column)) for row, column in np.argwhere(self.values <= least * (1 + 1e-6))]

    @property
    def is_flat(self) -> bool:
        return len(self.all_best) == int(np.count_nonzero(~np.isnan(self.values)))

    @property
    def marked(self) -> str:
        """What a red frame says."""
        if self.is_flat:
            return "priorities do not matter here"
        count = len(self.all_best)
        return "red: the least total time" if count == 1 else f"red: the least total time, the same in {count} cells"


def heat_grid(table: SweepTable) -> HeatGrid:
    """The cells of one configuration, exclusive tiers after the weights."""
    cells = {cell_text(cell) for row in table.priorities for cell in row[:2]}
    weights = sorted((cell for cell in cells if not cell.isalpha()), key=float)
    axis = [*weights, *sorted(cell for cell in cells if cell.isalpha())]
    values = np.full((len(axis), len(axis)), np.nan)
    for (fwd, grad, _), total in zip(table.priorities, table.total_time, strict=True):
        values[axis.index(cell_text(fwd)), axis.index(cell_text(grad))] = total
    return HeatGrid(axis, values)


def cell_text(priority: str) -> str:
    """A weight in short, or the letter of a tier."""
    return priority if priority.isalpha() else f"{float(priority):g}"


def cell_texts(cell: tuple[Priority, Priority, Priority]) -> tuple[str, str, str]:
    """A cell's priorities as they are written."""
    fwd, grad, sync = (cell_text(str(one)) for one in cell)
    return fwd, grad, sync


def heat_map_figure(grid: HeatGrid, chosen: Cell | None = None) -> Figure:
    """Numbers in cells where they fit, the best in red, and `chosen` in black where it is on the grid."""
    axis, size = grid.axis, len(grid.axis)
    best = grid.all_best
    shapes = [rule(across, size - 1.5, "#FFFFFF", "solid", 4) for across in "xy"]  # Sets the exclusive tier apart.
    shapes += [] if grid.is_flat else [_box(row, column, "#E4002B") for row, column in best]
    if chosen and chosen[0] in axis and chosen[1] in axis:
        shapes.append(_box(axis.index(chosen[0]), axis.index(chosen[1]), "#1B2430", "dot"))
    values = [[None if np.isnan(value) else float(f"{value:.6g}") for value in line] for line in grid.values]
    trace: Figure = {
        "type": "heatmap", "x": axis, "y": axis, "z": values, "colorscale": "Viridis", "reversescale": True,
        "xgap": 1, "ygap": 1, "hoverongaps": False,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": "total time", "side": "right"}},
        "hovertemplate": "fwd_prop %{y}, grad_prop %{x}<br><b>%{z:.4f}</b><extra></extra>",
    }  # fmt: skip
    if size <= 14:
        trace |= {"texttemplate": "%{z:.2f}", "textfont": {"size": 10}}
    plain = {"type": "category", "showgrid": False, "zeroline": False, "fixedrange": True, "ticks": ""}
    layout = LOOK | {
        "height": 460,
        "margin": {"l": 56, "r": 8, "t": 12, "b": 48},
        "font": TIME_LINE["font"],
        "xaxis": plain | named("priority of grad_prop (a: exclusive)"),
        "yaxis": plain | named("priority of fwd_prop (a: exclusive)"),
        "shapes": shapes,
    }
    if size > 1:
        words = grid.marked[0].upper() + grid.marked[1:]
        layout["title"] = {"text": words, "x": 0, "font": {"size": 13, "color": "#1F2A37"}}
        layout["margin"] = {"l": 56, "r": 8, "t": 34, "b": 48}
    return {"data": [trace], "layout": layout}


def _box(row: int, column: int, colour: str, dash: str = "solid") -> Figure:
    return {
        "type": "rect", "x0": column - 0.47, "x1": column + 0.47, "y0": row - 0.47, "y1": row + 0.47,
        "line": {"color": colour, "width": 2.5, "dash": dash},
    }  # fmt: skip
