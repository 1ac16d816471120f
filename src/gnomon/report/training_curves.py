"""Training curves of run directories: any numeric column of `metrics.csv` (or .parquet) over its `step` column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.core.errors import DataError

if TYPE_CHECKING:
    import polars as pl

Figure = dict[str, Any]

FILES = ("metrics.csv", "metrics.parquet")
STEP = "step"
COLOURS = ("#2F6FB5", "#E08A2E", "#3E9B6E", "#C8493F", "#7B61A8", "#8A94A3", "#B58A2F", "#2FA0B5")
MAX_POINTS = 2000
"""Of one line; longer tables are thinned evenly."""


def read_metrics(folder: str | Path) -> pl.DataFrame:
    """The numeric columns of a run's metrics, by step."""
    import polars as pl

    folder = Path(folder)
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"has no {' and no '.join(FILES)}.", where=str(folder), fix="Name the directory of a run.")
    try:
        table = pl.read_csv(path, infer_schema_length=None) if path.suffix == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"cannot be read: {str(error).splitlines()[0]}.", where=str(path)) from None
    if STEP not in table.columns or not table.schema[STEP].is_numeric():
        raise DataError(f"has no column {STEP!r} of numbers.", where=str(path))
    return table.select([name for name, kind in table.schema.items() if kind.is_numeric()]).sort(STEP)


def curve_names(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Every column but the step, in the order of the files."""
    return list(dict.fromkeys(name for table in tables.values() for name in table.columns if name != STEP))


def curve_figure(name: str, tables: Mapping[str, pl.DataFrame], smoothing: float = 0.0) -> Figure:
    """One column over steps, a line per run. With `smoothing` (0 to 1) an exponential mean, the raw line faint."""
    data: list[Figure] = []
    for number, (run, table) in enumerate(tables.items()):
        if name not in table.columns:
            continue
        known = table.select(STEP, name).drop_nulls()
        known = known.gather_every(max(1, -(-known.height // MAX_POINTS)))
        colour = COLOURS[number % len(COLOURS)]
        if smoothing > 0:
            data.append(_line(known[STEP].to_list(), _finite(known[name]), run, colour) | _FAINT)
            known = known.with_columns(known[name].ewm_mean(alpha=1 - smoothing, ignore_nulls=True))
        data.append(_line(known[STEP].to_list(), _finite(known[name]), run, colour))
    layout = {
        "title": {"text": name, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 8},
                  "font": {"size": 14, "color": "#1F2A37"}},
        "height": 260,
        "margin": {"l": 58, "r": 16, "t": 44, "b": 40},
        "font": {"family": "Inter, system-ui, sans-serif", "size": 12, "color": "#4A5565"},
        "plot_bgcolor": "#FFFFFF", "paper_bgcolor": "#FFFFFF",
        "hovermode": "x unified",
        "showlegend": False,
        "xaxis": {"title": {"text": STEP}, "gridcolor": "#EBEEF2", "zeroline": False, "linecolor": "#C5CCD6"},
        "yaxis": {"gridcolor": "#EBEEF2", "zeroline": False, "linecolor": "#C5CCD6"},
    }  # fmt: skip
    return {"data": data, "layout": layout}


_FAINT: Figure = {"opacity": 0.3, "hoverinfo": "skip", "hovertemplate": None}


def _line(steps: list[float], values: list[float | None], run: str, colour: str) -> Figure:
    return {
        "type": "scatter", "mode": "lines", "name": run, "x": steps, "y": values,
        "line": {"color": colour, "width": 1.6}, "hovertemplate": f"{run} %{{y:.5g}}<extra></extra>",
    }  # fmt: skip


def _finite(column: pl.Series) -> list[float | None]:
    """Gaps where a value is not finite: JSON has no NaN."""
    values = column.cast(float)
    return values.set(~values.is_finite(), None).to_list()
