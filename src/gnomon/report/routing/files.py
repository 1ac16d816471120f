"""The folder of a comparison of routers: report.html, comparison.csv, comparison.parquet, comparison.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.core import units
from gnomon.core.arrays import Floats
from gnomon.core.config import dump
from gnomon.core.errors import DataError
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report import look
from gnomon.report.blocks import Block, Card, Figure, Line, Plot, Section, Table, View, plots
from gnomon.report.page import write_page
from gnomon.report.serving.figures import distribution
from gnomon.routing.compare import LEAST_OUTSTANDING, RouteComparison, Verdict, interval
from gnomon.serving.results.paired import Difference

if TYPE_CHECKING:
    import polars as pl

    from gnomon.routing import online
    from gnomon.routing.config import RouteConfig
    from gnomon.routing.suite_goals import SuiteVerdict

FILES = ("metrics.csv", "metrics.parquet")
STEPS = ("step", "update", "epoch", "iteration")  # Columns that count; the first that a table has is its x axis.
CURVE_PX = 260
MAX_POINTS = 2000  # Of one line; longer tables are thinned evenly.


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
    return {name: look.COLOURS[number % len(look.COLOURS)] for number, name in enumerate(names)}


def _line(steps: list[float], values: list[float | None], run: str, colour: str) -> Figure:
    return look.line(steps, values, colour, name=run, hovertemplate=f"{run} %{{y:.5g}}<extra></extra>")


def _finite(column: pl.Series) -> list[float | None]:
    """Gaps where a value is not finite: JSON has no NaN."""
    values = column.cast(float)
    return values.set(~values.is_finite(), None).to_list()


def write_online(blocks: Sequence[online.Block], config: RouteConfig, path: str | Path) -> Path:
    """The page of a policy that learned while a simulation ran: regret over time, and both clusters' rewards."""
    safe, last = config.online.safe, blocks[-1]
    steps = [float(one.decisions) for one in blocks]
    rewards = {"policy": [one.reward for one in blocks], safe: [one.safe_reward for one in blocks]}
    colours = run_colours(rewards)

    def drawn(title: str, lines: list[Figure], unit: str) -> Figure:
        axes = {"xaxis": look.AXIS | {"title": {"text": "decisions"}}, "yaxis": look.AXIS | {"title": {"text": unit}}}
        return look.figure(lines, title, CURVE_PX, {"b": 40}, hovermode="x unified", **axes)

    regret = _line(steps, [100 * one.regret for one in blocks], "regret", look.COLOURS[0])
    both = [_line(steps, list(values), name, colours[name]) for name, values in rewards.items()]
    num_safe = sum(one.is_safe for one in blocks)
    shown: list[Block] = [
        Card("regret", f"{last.regret:+.1%}"),
        Card(f"blocks decided by {safe}", f"{num_safe} of {len(blocks)}"),
        Plot("regret", lambda: drawn(f"Regret so far against {safe}", [regret], "%")),
        Plot("rewards", lambda: drawn("Mean reward of a block's decisions", both, "reward")),
        Line(f"Regret is what was lost against {safe} on the same requests, as a share of its own reward; below 0 the "
             "policy has won. It includes what exploring costs."),
    ]  # fmt: skip
    return write_page(path, "A router that learns while it routes", shown)


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
    for (name, seconds), colour in zip(values.items(), cycle(look.COLOURS), strict=False):
        curve, hover = distribution(seconds), f"{name}: %{{y:.2%}} at most %{{x:.4g}} s<extra></extra>"
        x, y = (look.short(some[curve.x > 0]) for some in (curve.x, curve.y))
        data.append(look.line(x, y, colour, 1.8, name=name, hovertemplate=hover))
    return look.figure(
        data, title, 350, {"b": 52}, hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        xaxis=look.LOG_AXIS | {"title": {"text": "s"}}, yaxis=look.AXIS | {"tickformat": ".0%", "range": [0, 1.02]},
    )  # fmt: skip


STATISTICS = {"mean": "mean", "P50": "p50", "P99": "p99"}
COLUMNS = {f"{m.upper()} {words}": f"{m}_{s}_s" for m in ("e2e", "ttft") for words, s in STATISTICS.items()}

GOAL_NOTE = (
    "yes or NO: with the whole interval. open: the goal lies inside the interval; more seeds (--num-seeds) tell."
)


def ranked(comparison: RouteComparison, scenario: str) -> list[str]:
    names = [one.name for one in comparison.contenders]
    return sorted(names, key=lambda name: comparison.mean(scenario, name, "e2e_mean_s"))


def suite_blocks(verdicts: list[SuiteVerdict]) -> list[Block]:
    losses = []
    for one in verdicts:
        for cell in one.losses:
            where = {"router": one.router, "cell": cell.scenario, "figure": one.goal.words, "against": cell.baseline}
            losses.append(where | {"worse by": interval(cell.worse)})
    table = [Table(losses, "Losses", "Cells in which a goal's usual limit is missed in the mean.")] if losses else []
    return [*table, *(Line(one.sentence) for one in verdicts)]


def scenario_rows(comparison: RouteComparison, scenario: str) -> list[dict[str, Any]]:
    """One row per contender: figures as means over the seeds, differences paired by seed."""
    roles = {one.name: one.role for one in comparison.contenders}
    best = comparison.best_heuristic(scenario)
    rows = []
    for name in ranked(comparison, scenario):
        mark = {"policy": " *", "teacher": " (own rule)", "bound": " (knows lengths)", "heuristic": ""}[roles[name]]
        row: dict[str, Any] = {"router": name + mark}
        row |= {title: units.seconds(comparison.mean(scenario, name, figure)) for title, figure in COLUMNS.items()}
        row["requests/s"] = f"{comparison.mean(scenario, name, 'requests_per_s'):.4g}"
        if None not in comparison.values(scenario, name, "goodput_per_s"):
            row["goodput/s"] = f"{comparison.mean(scenario, name, 'goodput_per_s'):.4g}"
        row["fairness"] = f"{comparison.mean(scenario, name, 'fairness'):.2f}"
        row["imbalance"] = f"{comparison.mean(scenario, name, 'imbalance'):.2f}"
        if roles.get(LEAST_OUTSTANDING) == "heuristic":
            row["vs least_outstanding"] = interval(comparison.against(scenario, name, LEAST_OUTSTANDING))
            row["P99 TTFT vs least_outstanding"] = interval(
                comparison.against(scenario, name, LEAST_OUTSTANDING, "ttft_p99_s")
            )
        row[f"vs {best}"] = interval(comparison.against(scenario, name, best))
        rows.append(row)
    return rows


MARKS = {
    "policy": "* a learned policy.",
    "teacher": "(own rule): made by hand here, no baseline; policies add to gateway.",
    "bound": "(knows lengths): knows every output length, which no real router does; not the best possible.",
}


def notes(comparison: RouteComparison, scenario: str) -> str:
    """What the marks mean, and which routers gave the same digits."""
    roles = {one.role for one in comparison.contenders}
    groups: dict[tuple[float, ...], list[str]] = {}
    for name in ranked(comparison, scenario):
        groups.setdefault(tuple(comparison.values(scenario, name, "e2e_mean_s")), []).append(name)
    alike = [" and ".join(names) for names in groups.values() if len(names) > 1]
    same = [f"{names} sent every request to the same replica here." for names in alike]
    return " ".join([*(words for role, words in MARKS.items() if role in roles), *same])


def about(comparison: RouteComparison, scenario: str) -> str:
    given = comparison.scenarios[scenario]
    replicas = sum(pool.num_replicas for pool in given.all_pools())
    seeds = len({row.seed for row in comparison.rows if row.scenario == scenario})
    finished = [row.finished for row in comparison.rows if row.scenario == scenario]
    return f"{given.model} on {replicas} replicas, {max(finished):,} requests x {seeds} seeds"


def goal_rows(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    return [
        {
            "policy": one.policy, "scenario": one.goal.scenario, "goal": one.goal.words, "against": one.baseline,
            "measured": f"{one.measured.mean:+z.1%}",
            "95 % interval": f"{one.measured.low:+z.1%} to {one.measured.high:+z.1%}", "met": one.word,
        }
        for one in verdicts
    ]  # fmt: skip


COLOURS = {"policy": "#B4512B", "teacher": "#D9A441", "heuristic": "#5B7C99", "bound": "#B9C2CC"}


def view(result: Any) -> View:
    comparison: RouteComparison = result.comparison
    suite = [{"sentence": one.sentence, "met": one.is_met} for one in result.suite_goals]
    return View(
        f"{len(comparison.contenders)} routers compared", partial(_text, result),
        lambda: dict(comparison.to_dict() | {"goals": goal_rows(result.goals), "suite": suite}),
        {"runs": lambda: [asdict(row) for row in comparison.rows]},
        lambda: {
            f"{name} {figure}": partial(bars, comparison, name, figure)
            for name, figure in product(comparison.scenarios, FIGURES)
        },
        lambda: "\n".join(f"# {name}\n{dump(one)}" for name, one in comparison.scenarios.items()),
    )  # fmt: skip


def _text(result: Any) -> list[Block]:
    """A picture of all, pictures and a table per scenario, then the goals."""
    comparison, verdicts = result.comparison, result.goals
    met, still_open = (sum(verdict.word == word for verdict in verdicts) for word in ("yes", "open"))
    goals = f"{met} of {len(verdicts)}" + (f", {still_open} open" if still_open else "")
    seeds = len({row.seed for row in comparison.rows})
    sentence = (
        f"Scenarios: {len(comparison.scenarios)}. Held-out seeds: {seeds}. Every router gets the same requests. "
        "Differences are paired by seed, with 95 % intervals."
    )
    blocks: list[Block] = [Line(sentence), *([Card("goals met", goals)] if verdicts else [])]
    blocks.append(Section("Every router in every scenario", [Plot("overview", lambda: overview(comparison), "short")]))
    for number, name in enumerate(comparison.scenarios):
        drawn = plots({f"{figure}_{number}": partial(bars, comparison, name, figure) for figure in FIGURES})
        rows = Table(scenario_rows(comparison, name), caption=notes(comparison, name))
        blocks.append(Section(f"{name}: {about(comparison, name)}", [*drawn, rows]))
    judged = [Table(goal_rows(verdicts), "Goals", GOAL_NOTE)] if verdicts else []
    return [*blocks, *judged, *suite_blocks(result.suite_goals)]


def write_comparison(result: Any, folder: str | Path) -> Path:
    import polars as pl

    with folder_written_whole(folder, ("comparison.*", "report.html")) as temporary:
        frame = pl.DataFrame([asdict(row) for row in result.comparison.rows])
        write_frame(temporary / "comparison.csv", frame)
        write_frame(temporary / "comparison.parquet", frame)
        everything = result.comparison.to_dict() | {"goals": goal_rows(result.goals)}
        write_text(temporary / "comparison.json", json.dumps(everything, indent=1))
        result.write_page(temporary / "report.html")
    return Path(folder)


def overview(comparison: RouteComparison) -> Figure:
    """A heat map: the change of the mean E2E latency against the best heuristic of each scenario, in per cent."""
    scenarios, names = list(comparison.scenarios), [one.name for one in comparison.contenders]
    best = {scenario: comparison.best_heuristic(scenario) for scenario in scenarios}

    def change(scenario: str, name: str) -> float:
        base = comparison.mean(scenario, best[scenario], "e2e_mean_s")
        return round(100 * (comparison.mean(scenario, name, "e2e_mean_s") / base - 1), 1)

    cells = [[change(scenario, name) for scenario in scenarios] for name in names]
    text = [[f"{value:+z.0f}" for value in row] for row in cells]
    more = {"zmin": -25, "zmid": 0, "zmax": 25, "xgap": 1, "ygap": 1}
    hover = "%{y} on %{x}: %{z:+.1f} %<extra></extra>"
    heat = look.heat(scenarios, names, cells, text, ("#2F6FB5", "#F4F6F8", "#C8493F"), hover, **more)
    title, height = "Mean E2E latency against the best heuristic, %", 160 + 26 * len(names)
    whole = {"automargin": True, "dtick": 1, "ticks": ""}  # Every name, as wide as it is.
    axes = {"xaxis": whole, "yaxis": whole | {"autorange": "reversed"}}
    return look.figure([heat], title, height, {"l": 150, "r": 60, "b": 60}, **axes)


FIGURES = {"e2e_mean_s": "mean E2E latency", "ttft_p99_s": "P99 TTFT"}


def bars(comparison: RouteComparison, scenario: str, figure: str) -> Figure:
    """One bar per router, the fastest at the top, with the seeds as dots."""
    roles = {one.name: one.role for one in comparison.contenders}
    names = ranked(comparison, scenario)[::-1]
    means = [comparison.mean(scenario, name, figure) for name in names]
    seeds = [(value, name) for name in names for value in comparison.values(scenario, name, figure)]
    colours, hidden = [COLOURS[roles[name]] for name in names], {"showlegend": False}
    drawn = look.bars(means, names, colours, hovertemplate="%{y}: %{x:.4g} s<extra></extra>", **hidden)
    values, at = [value for value, _ in seeds], [name for _, name in seeds]
    dots = look.dots(values, at, "#6B7A8C", 5, hovertemplate="one seed: %{x:.4g} s<extra></extra>", **hidden)
    x = look.AXIS | look.axis("seconds", rangemode="tozero")
    y, height = {"automargin": True, "dtick": 1}, 120 + 18 * len(names)
    return look.figure([drawn, dots], FIGURES[figure], height, {"l": 120}, xaxis=x, yaxis=y)
