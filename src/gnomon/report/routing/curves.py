"""Training curves of run directories: any numeric column of `metrics.csv` (or .parquet) over its count of steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.report import look
from gnomon.report.serving.series import distribution
from gnomon.serving.results.paired import Difference

if TYPE_CHECKING:
    import polars as pl


Figure = dict[str, Any]

FILES = ("metrics.csv", "metrics.parquet")
STEPS = ("step", "update", "epoch", "iteration")
"""Columns that count; the first that a table has is its x axis."""
CURVE_PX = 260
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
    table = table.select([name for name, kind in table.schema.items() if kind.is_numeric()])
    if not set(STEPS) & set(table.columns):
        raise DataError("has no column of numbers that counts.", where=str(path), fix=f"Such as: {', '.join(STEPS)}.")
    return table.sort(step_of(table))


def step_of(table: pl.DataFrame) -> str:
    """The column that counts."""
    return next(name for name in STEPS if name in table.columns)


def curve_names(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Every column but those that count, in the order of the files."""
    return list(dict.fromkeys(name for table in tables.values() for name in table.columns if name not in STEPS))


def curve_figure(name: str, tables: Mapping[str, pl.DataFrame], smoothing: float = 0.0) -> Figure:
    """One column over steps, a line per run. With `smoothing` (0 to 1) an exponential mean, the raw line faint."""
    data: list[Figure] = []
    colours = run_colours(tables)
    for run, table in tables.items():
        if name not in table.columns:
            continue
        step = step_of(table)
        known = table.select(step, name).drop_nulls()
        known = known.gather_every(max(1, -(-known.height // MAX_POINTS)))
        colour = colours[run]
        if smoothing > 0:
            data.append(_line(known[step].to_list(), _finite(known[name]), run, colour) | _FAINT)
            known = known.with_columns(known[name].ewm_mean(alpha=1 - smoothing, ignore_nulls=True))
        data.append(_line(known[step].to_list(), _finite(known[name]), run, colour))
    axis = " or ".join(dict.fromkeys(step_of(table) for table in tables.values()))
    x, y = look.AXIS | {"title": {"text": axis}}, look.AXIS
    more = {"hovermode": "x unified", "showlegend": False, "uirevision": name}
    return look.figure(data, name, CURVE_PX, {"b": 40}, xaxis=x, yaxis=y, **more)


_FAINT: Figure = {"opacity": 0.3, "hoverinfo": "skip", "hovertemplate": None}


def run_colours(names: Iterable[str]) -> dict[str, str]:
    """The colour of each run's lines."""
    return {name: look.COLOURS[number % len(look.COLOURS)] for number, name in enumerate(names)}


def _line(steps: list[float], values: list[float | None], run: str, colour: str) -> Figure:
    return {
        "type": "scatter", "mode": "lines", "name": run, "x": steps, "y": values,
        "line": {"color": colour, "width": 1.6}, "hovertemplate": f"{run} %{{y:.5g}}<extra></extra>",
    }  # fmt: skip


def _finite(column: pl.Series) -> list[float | None]:
    """Gaps where a value is not finite: JSON has no NaN."""
    values = column.cast(float)
    return values.set(~values.is_finite(), None).to_list()


FASTER, SLOWER, UNCLEAR = "#3E9B6E", "#C8493F", "#B7C0CC"
ROW_PX = 26


def differences_height(count: int) -> int:
    """Pixels that `differences_figure` takes for so many variants."""
    return ROW_PX * count + 110


def differences_figure(
    title: str, baseline: str, differences: Mapping[str, Difference | None], order: Sequence[str]
) -> Figure:
    """Each variant's change against the baseline with its 95 % interval; grey where the interval holds zero."""
    names = [name for name in order if name in differences]
    found = {name: one for name in names if (one := differences[name]) is not None and one.relative is not None}
    colours = [
        UNCLEAR if not one.is_clear else FASTER if one.difference < 0 else SLOWER for one in found.values()
    ]  # fmt: skip
    share = [100 * (one.relative or 0.0) for one in found.values()]
    trace: Figure = {
        "type": "bar", "orientation": "h", "x": share, "y": list(found), "marker": {"color": colours},
        "customdata": [[one.value * 1e3, one.baseline * 1e3] for one in found.values()],
        "hovertemplate": "<b>%{y}</b>  %{x:+.1f} %<br>%{customdata[0]:.4g} ms against %{customdata[1]:.4g} ms"
        "<extra></extra>",
        "error_x": {
            "type": "data", "symmetric": False, "color": "#4A5565", "thickness": 1.2, "width": 3,
            "array": [_beyond(one, one.high) for one in found.values()],
            "arrayminus": [-_beyond(one, one.low) for one in found.values()],
        },
    }  # fmt: skip
    x = look.AXIS | {"title": {"text": f"% against {baseline}"}, "zeroline": True, "zerolinecolor": look.DARK}
    y = {"categoryorder": "array", "categoryarray": list(reversed(names)), "fixedrange": True, "ticks": ""}
    height = differences_height(len(order))
    return look.figure([trace], title, height, {"l": 150, "b": 52}, showlegend=False, bargap=0.35, xaxis=x, yaxis=y)


def _beyond(one: Difference, end: float | None) -> float:
    """From the difference to an end of its interval, in per cent of the baseline."""
    return 0.0 if end is None else 100 * (end - one.difference) / one.baseline


def distributions_figure(title: str, values: Mapping[str, Floats]) -> Figure:
    """One distribution function per variant, in seconds on a logarithmic axis."""
    data = []
    for number, (name, seconds) in enumerate(values.items()):
        curve = distribution(seconds)
        shown = curve.x > 0
        data.append(
            {"type": "scatter", "mode": "lines", "name": name,
             "x": [float(f"{one:.5g}") for one in curve.x[shown]], "y": [float(f"{one:.5g}") for one in curve.y[shown]],
             "line": {"color": look.COLOURS[number % len(look.COLOURS)], "width": 1.8},
             "hovertemplate": f"{name}: %{{y:.2%}} at most %{{x:.4g}} s<extra></extra>"}
        )  # fmt: skip
    return look.figure(
        data, title, 350, {"b": 52}, hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        xaxis=look.LOG_AXIS | {"title": {"text": "s"}}, yaxis=look.AXIS | {"tickformat": ".0%", "range": [0, 1.02]},
    )  # fmt: skip
