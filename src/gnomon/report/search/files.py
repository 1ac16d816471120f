"""The folder of a search: page, ranking, the winner's scenario and commands; and its answer as plain data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.convert.commands import ENGINES
from gnomon.core import units
from gnomon.core.config import dump, save
from gnomon.core.errors import GnomonError
from gnomon.core.files import write_text
from gnomon.report import look
from gnomon.report.blocks import (
    Block,
    Card,
    Command,
    Figure,
    Html,
    Line,
    Plot,
    Section,
    Table,
    View,
    lines,
    link,
    plots,
)
from gnomon.report.search import text as words
from gnomon.report.search.text import gpus
from gnomon.search.config import UNITS, SearchConfig
from gnomon.search.evaluate import Record
from gnomon.search.matrix import Matrix
from gnomon.search.slo import latency_name, price, shown
from gnomon.search.space import candidates, scenario_of
from gnomon.search.study import Found, is_on_front, latency_axes, winning_scenario
from gnomon.serving.scenario.pools import resolve

if TYPE_CHECKING:
    import polars as pl


def front_drawers(found: Found) -> dict[str, Callable[[], Figure]]:
    """One scatter per latency, with the front drawn through it; a point's `customdata` is its place in the ranking."""
    names = ("ttft_front", "tbt_front")
    return {name: partial(_scatter, found, axis) for name, axis in zip(names, latency_axes(found.search), strict=True)}


def _scatter(found: Found, axis: str) -> Figure:
    objective = found.search.objective
    ranked = [(number, one) for number, one in enumerate(found.ranked) if one.figures.get(axis) is not None]
    groups: dict[str, list[tuple[int, Record]]] = {}
    for number, one in ranked:
        apart = ", prefill and decode apart" if "layout" in one.overrides else ""
        name = f"{one.overrides['device']} {one.overrides['batching.policy']}{apart}"
        groups.setdefault(name, []).append((number, one))
    is_whole = found.search.strategy == "exhaustive"
    data = [_front_line([one for _, one in ranked], axis, objective, "front" if is_whole else "best of those measured")]
    for number, (name, members) in enumerate(groups.items()):
        xs = [_short((one.figures[axis] or 0.0) * 1e3) for _, one in members]
        ys = [_short(shown(objective, one.score or 0.0)) for _, one in members]
        mark = {"size": 9, "color": look.COLOURS[number % len(look.COLOURS)], "line": {"width": 1, "color": "#fff"}}
        more: Figure = {"text": [_hover(one) for _, one in members], "customdata": [place for place, _ in members]}
        data.append(look.dots(xs, ys, "", name=name, marker=mark, hovertemplate="%{text}<extra></extra>", **more))
    metric, _, statistic = axis.partition(" ")
    limit = getattr(found.search.slo, metric).get(statistic)
    values = [x for one in data[1:] for x in one["x"] if x > 0] + ([limit * 1e3] if limit is not None else [])
    x = look.log_axis(min(values), max(values)) if values else look.LOG_AXIS
    return look.figure(
        data, f"Against {latency_name(axis)} at capacity", 440, {"l": 62, "b": 90}, hovermode="closest",
        xaxis=x | {"title": {"text": f"{latency_name(axis)} (ms)"}},
        yaxis=look.AXIS | {"title": {"text": UNITS[objective]}},
        legend={"orientation": "h", "x": 0, "y": -0.18, "yanchor": "top"},
        shapes=[] if limit is None else [look.slo_line(limit * 1e3, textposition="end", xanchor="right", padding=3)],
    )  # fmt: skip


def space_figure(question: SearchConfig) -> tuple[Figure, list[str]]:
    """What a search will look at, before it does: the price of every placement against the tokens that its KV cache
    holds; and in words how many there are, and what does not fit."""
    groups: dict[str, dict[tuple[float, float], str]] = {}
    space, refused = candidates(question), {}
    for one in space:
        try:
            scenario = scenario_of(question, one)
            held = sum(pool.num_kv_blocks * pool.batching.block_size * pool.num_ranks for pool in resolve(scenario))
        except GnomonError as error:
            refused[one.label] = error.what
            continue
        what = dict(one.overrides)
        apart = ", prefill and decode apart" if "layout" in what else ""
        points = groups.setdefault(f"{what['device']}{apart}", {})
        points.setdefault((price(scenario).per_hour, float(held)), one.label)
    hover = "%{text}: $%{x:.2f} per hour, KV for %{y:.3s} tokens<extra></extra>"
    data = []
    for (name, points), colour in zip(groups.items(), cycle(look.COLOURS), strict=False):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        data.append(look.dots(xs, ys, colour, 10, name=name, text=list(points.values()), hovertemplate=hover))
    drawn = look.figure(
        data, "Before the search: price and memory", 440, {"l": 62, "b": 90}, hovermode="closest", showlegend=True,
        xaxis=look.AXIS | {"title": {"text": "dollars per hour"}, "rangemode": "tozero"},
        yaxis=look.AXIS | {"title": {"text": "tokens in the KV cache"}, "rangemode": "tozero", "tickformat": "~s"},
        legend={"orientation": "h", "x": 0, "y": -0.18, "yanchor": "top"},
    )  # fmt: skip
    words = [f"Configurations: {len(space):,}, of which {len(space) - len(refused):,} fit."]
    first = next(iter(refused.items()), None)
    more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
    return drawn, words + ([f"Not {first[0]}{more}: {first[1]}"] if first else [])


def _front_line(ranked: list[Record], axis: str, objective: Any, name: str) -> Figure:
    """The configurations that nothing beats in both respects, joined."""
    points = [(-(one.score or 0.0), one.figures[axis] or 0.0) for one in ranked]
    chosen = sorted(one for one, is_on in zip(points, is_on_front(points), strict=True) if is_on)
    return {
        "type": "scatter", "mode": "lines", "name": name, "hoverinfo": "skip",
        "x": [_short(latency * 1e3) for _, latency in chosen],
        "y": [_short(shown(objective, -worth)) for worth, _ in chosen],
        "line": {"color": look.DARK, "width": 1.4, "dash": "dot"},
    }  # fmt: skip


def _hover(one: Record) -> str:
    lines = [f"<b>{one.label}</b>", f"{one.capacity_per_s:.4g} requests/s on {gpus(one.num_gpus)}",
             f"${one.cost_per_hour:.2f}/h"]  # fmt: skip
    lines += [f"{latency_name(k)} {units.seconds(v)}" for k, v in one.figures.items() if v is not None]
    return "<br>".join(lines)


def _short(value: float) -> float:
    return float(f"{value:.5g}")


SMART = (
    "The smart strategy measures only configurations that may win: the front is that of the measured ones. "
    "Use --strategy exhaustive for the whole of it."
)


def write_search(result: Any, folder: str | Path) -> Path:
    """Write report.html, ranking.csv, search.yaml, and where there is a winner best.yaml and best.ENGINE.sh."""
    folder = Path(folder)
    save(result.question, folder / "search.yaml")
    write_text(folder / "ranking.csv", ranking_frame(result.found).write_csv())
    if result.best is not None:
        save(result.scenario(), folder / "best.yaml")
        for name, command in result.commands.items():
            write_text(folder / f"best.{name}.sh", command + "\n")
    result.write_page(folder / "report.html", text(result, None))
    return folder


def text(result: Any, top: int | None = 15, to: Callable[[int], str] | None = None) -> list[Block]:
    """Key figures and pictures, the ranking, the reasons, the winner and the commands that deploy it. `to`: where a
    place of the ranking leads."""
    found: Found = result.found
    blocks: list[Block] = [Line(words.question_words(found.search)), *(Card(*one) for one in words.cards(found))]
    if found.ranked:
        smart = [Html(f"<p class=more>{SMART}</p>")] if found.search.strategy == "smart" else []
        blocks.append(Section(words.HEADINGS[found.search.objective], [*plots(front_drawers(found)), *smart]))
        rows = words.ranking_rows(found, top)
        if to is not None:
            rows = [row | {"configuration": link(row["configuration"], to(at))} for at, row in enumerate(rows)]
        blocks.append(Table(rows, left=words.LEFT))
    if found.others:
        blocks.append(Table(words.reason_rows(found, words.MAX_REASONS if top else None), title="Not in the ranking"))
    blocks += lines(words.account(found))
    if found.best is None:
        return [*blocks, Line(words.nothing_qualifies(found), "warning")]
    blocks += lines(words.best_words(found))
    blocks += lines([words.capacity_words(result.capacity_interval)] if result.capacity_interval else [])
    blocks += lines([f"No command: {result.no_command}"] if result.no_command else [])
    return [*blocks, *(Command(f"With {ENGINES[name].name}", text) for name, text in result.commands.items())]


def view(result: Any) -> View:
    found, best = result.found, result.best
    return View(
        f"Best deployment: {best.label}" if best else "No configuration meets the SLO", partial(text, result),
        partial(_data, result), {"ranking": lambda: ranking_frame(found)},
        lambda: front_drawers(found) if found.ranked else {},
        lambda: dump(result.scenario() if best else result.question),
    )  # fmt: skip


def _data(result: Any) -> dict[str, Any]:
    found, best, capacity = result.found, result.best, result.capacity_interval
    return {
        "question": words.question_words(found.search), "strategy": found.search.strategy,
        "best": best.to_dict() if best else None,
        "best_scenario": winning_scenario(found.search, best).model_dump(mode="json") if best else None,
        "commands": dict(result.commands), "margins_per_s": found.margins,
        "capacity_interval": {"low": capacity.low, "high": capacity.high} if capacity else None, "runs": found.runs,
        "requests_simulated": found.simulated, "ranked": [one.to_dict() for one in found.ranked],
        "others": [one.to_dict() for one in found.others],
    }  # fmt: skip


def ranking_frame(found: Found) -> pl.DataFrame:
    """Every configuration, also those without a place."""
    import polars as pl

    objective = found.search.objective
    names = sorted({name for one in found.ranked for name in one.figures})
    rows = [
        {
            "configuration": one.label, "status": one.status, "capacity_per_s": one.capacity_per_s,
            objective: None if one.score is None else shown(objective, one.score), "num_gpus": one.num_gpus,
            "cost_per_hour": one.cost_per_hour, "limited_by": one.binding, "reason": one.reason,
            **{name.replace(" ", "_"): one.figures.get(name) for name in names},
        }
        for one in (*found.ranked, *found.others)
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def matrix_view(result: Any) -> View:
    matrix: Matrix = result.matrix
    worth = [
        {"model": model, "chosen_for": chosen, "used_for": used, "share_of_best": share}
        for (model, chosen, used), share in matrix.worth.items()
    ]
    cells = [
        {"model": model, "workload": workload, "best": found.best.to_dict() if found.best else None}
        for (model, workload), found in matrix.cells.items()
    ]
    return View(
        "How the best deployment changes with the workload", partial(_matrix_text, matrix),
        lambda: {"cells": cells, "worth_elsewhere": worth}, {"worth": lambda: worth},
        lambda: {model: partial(heat_map, matrix, model) for model in matrix.models},
        lambda: dump(next(iter(matrix.cells.values())).search),
    )  # fmt: skip


def _matrix_text(matrix: Matrix) -> list[Block]:
    """The best of every cell, then what each choice is worth elsewhere."""
    rows = words.cell_rows(matrix)
    chosen = {found.best.label for found in matrix.cells.values() if found.best is not None}
    asked = words.slo_words(next(iter(matrix.cells.values())).search)
    blocks: list[Block] = [
        Line(f"{asked}; {len(chosen)} different winners in {len(rows)} searches."),
        *(Plot(f"worth{number}", partial(heat_map, matrix, model)) for number, model in enumerate(matrix.models)),
        Table(rows, title="Best per workload"),
    ]
    for model in matrix.models:
        shares = words.worth_rows(matrix, model)
        if len(shares) > 1:
            blocks.append(Table(shares, title=f"{model}: a choice's worth, relative to the best"))
    return blocks


def heat_map(matrix: Matrix, model: str) -> Figure:
    names = matrix.workloads
    shares = [[matrix.worth.get((model, chosen, used)) for used in names] for chosen in names]
    texts = [["–" if share is None else f"{share:.0%}" for share in row] for row in shares]
    hover = "chosen for %{y}, used for %{x}: %{text} of the best there<extra></extra>"
    more = {"zmin": 0, "zmax": 1, "xgap": 2, "ygap": 2}
    data = look.heat(names, names, shares, texts, ("#F6E3E1", "#F4EFDD", "#CFE5D8"), hover, **more)
    axes = {"xaxis": look.axis("used for"), "yaxis": look.axis("chosen for", autorange="reversed")}
    return look.figure([data], model, 340, {"l": 90, "b": 50}, **axes)
