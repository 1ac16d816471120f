"""One iteration, operator by operator: as text, as a table, as a picture."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import cycle
from typing import Any

from gnomon.core import units
from gnomon.report import look
from gnomon.report.blocks import Block, Figure, Line, Table, View, lines
from gnomon.timing.breakdown import Batch, OperatorTime, total
from gnomon.timing.sources import Context

Times = Mapping[str, list[OperatorTime]]


def view(result: Any) -> View:
    times: Times = result.operators
    data = {name: as_data(rows) for name, rows in times.items()}
    rows = [{"source": name, **row} for name, one in data.items() for row in one["operators"]]
    return View(
        title(result.iteration.model, result.timers[0].context, result.batch), partial(_text, result),
        lambda: data | {"notes": result.notes}, {"operators": lambda: rows},
        lambda: {"operators": lambda: shares_figure(times)},
    )  # fmt: skip


def _text(result: Any) -> list[Block]:
    times: Times = result.operators
    rows = _one(next(iter(times.values()))) if len(times) == 1 else _side_by_side(times)
    found: list[Block] = [Table(rows, title=result.title)]
    for name, error in result.expected_error.items():
        by_formula = sum(t.seconds for t in times[name] if t.provenance == "roofline") / total(times[name]).seconds
        if 0.0 < by_formula < 1.0:
            found.append(Line(f"{name}: {by_formula:.1%} of the time is the roofline's."))
        found.append(Line(f"{name}: a server's iteration is within ±{error:.0%} of it in nine of ten cases."))
    return [*found, *lines(result.notes, "note")]


def title(asked: str, context: Context, batch: Batch) -> str:
    """What is timed, in a line; the model by the name that it was asked for."""
    p = context.parallelism
    degrees = [f"TP {p.tensor_parallel}", f"PP {p.pipeline_parallel}"]
    degrees += [f"DP {p.data_parallel}"] if p.data_parallel > 1 else []
    degrees += ["expert parallel"] if p.expert_parallel else []
    parts = [f"{batch.prefill:,} prompt tokens"] if batch.prefill else []
    parts += [f"{batch.decode:,} decodes at {batch.kv:,} KV tokens"] if batch.decode else []
    place = f"{context.device.name} ({context.node.name}), {', '.join(degrees)}"
    return f"{asked} on {place}: {' + '.join(parts)}"


def _one(times: list[OperatorTime]) -> list[dict[str, Any]]:
    whole = total(times)
    return [
        {
            "operator": t.name, "calls": t.calls, "time": units.seconds(t.seconds),
            "share": f"{t.seconds / whole.seconds:.1%}", "FLOPs": units.count(t.flops) if t.flops else None,
            "bytes": units.size(t.bytes), "MFU": f"{t.mfu:.1%}" if t.flops else None, "limit": t.limit,
            "from": t.provenance or None,
        }
        for t in [*times, whole]
    ]  # fmt: skip


def _side_by_side(columns: Times) -> list[dict[str, Any]]:
    """One row per operator; an operator that a source times inside another shows a dash."""
    first, *others = columns
    tables = {name: {t.name: t for t in [*times, total(times)]} for name, times in columns.items()}
    names = list(dict.fromkeys(t.name for times in columns.values() for t in times))
    rows = []
    for operator in [*names, "total"]:
        row: dict[str, Any] = {"operator": operator}
        for name, table in tables.items():
            row[name] = units.seconds(table[operator].seconds) if operator in table else None
            share = table[operator].seconds / table["total"].seconds if operator in table else None
            row[f"share {name}"] = f"{share:.1%}" if share is not None else None
        for name in others:
            both = operator in tables[first] and operator in tables[name]
            ratio = tables[name][operator].seconds / tables[first][operator].seconds if both else None
            row[f"{name} / {first}"] = f"{ratio:.2f}" if ratio is not None else None
        known = next(table[operator] for table in tables.values() if operator in table)
        rows.append(row | {"limit": known.limit})
    return rows


def as_data(times: list[OperatorTime]) -> dict[str, Any]:
    """One source's operators and their total as plain data."""
    whole = total(times)
    return {"operators": [asdict(t) | {"share": t.seconds / whole.seconds} for t in times], "total": asdict(whole)}


def shares_figure(times: Times) -> Figure:
    """The seconds of every operator, stacked per source."""
    names = list(dict.fromkeys(t.name for rows in times.values() for t in rows))
    data = [
        look.bars(
            [sum(t.seconds for t in rows if t.name == name) * 1e3 for rows in times.values()], list(times), colour,
            name=name, hovertemplate=f"{name} %{{x:.4g}} ms<extra></extra>",
        )
        for name, colour in zip(names, cycle(look.COLOURS), strict=False)
    ]  # fmt: skip
    axes = {"xaxis": look.AXIS | {"title": {"text": "ms"}}, "yaxis": {"automargin": True}}
    return look.figure(data, "One iteration", 160 + 60 * len(times), {"l": 80}, barmode="stack", **axes)
