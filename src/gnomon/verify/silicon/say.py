"""Measured servers beside their predictions: tables for the terminal, figures, and the leaderboard page."""

import html
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from gnomon.report import look, page
from gnomon.report.blocks import Block, Card, Html, Line, Plot, Section, Table
from gnomon.timing.sources.silicon.tables import ENGINES as NAMES
from gnomon.verify.findings import Findings, Progress, proof
from gnomon.verify.silicon.choose import chosen
from gnomon.verify.silicon.launch import data_text
from gnomon.verify.silicon.predict import Scored, score
from gnomon.verify.silicon.scores import GROUPS, Errors, errors_by, errors_of, per_gpu
from gnomon.verify.silicon.servers import Layout
from gnomon.verify.silicon.verdict import SETS, Verdict

ENGINES = dict(zip(NAMES, look.COLOURS, strict=False))
WORST = 12


@proof("silicon")
def prove(
    *, rows: str | None = None, sample: int | None = None, seed: int = 0, jobs: int | None = None,
    ray: str | None = None, on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """Measured servers of aiconfigurator-core (extra [silicon]) beside their simulation.

    `rows` is a condition over their fields, `sample` a number to draw with `seed`. Figures are judged only where all
    servers were simulated.
    """
    scored = score(chosen(rows, sample, seed), jobs=jobs, ray=ray, on_progress=on_progress)
    return told(Verdict(scored, rows is None and sample is None))


def told(verdict: Verdict) -> Findings:
    """One row per server; the figures of all, and by group."""
    rows = [
        {
            "id": one.server.id,
            "model": one.server.model,
            "device": one.server.device,
            "engine": one.server.engine,
            "measured_ttft_s": one.server.ttft_s,
            "predicted_ttft_s": one.prediction.ttft_s,
            "measured_tpot_s": one.server.tpot_s,
            "predicted_tpot_s": one.prediction.tpot_s,
            "problem": one.prediction.problem,
        }
        for one in verdict.scored
    ]
    failures = [line.rstrip(".") for line in verdict.worse]
    pictures = {"leaderboard.html": partial(write_page, verdict)}
    return Findings(verdict.scored, rows, verdict.to_dict(), text(verdict), failures, pictures)


def text(verdict: Verdict) -> list[Block]:
    """What the command line prints."""
    blocks: list[Block] = [Table(summary_rows(verdict), "Errors over all servers")]
    for name in GROUPS:
        rows = [{name: group, **error_row(e)} for group, e in errors_by(verdict.scored, name).items()]
        if len(rows) > 1:
            blocks.append(Table(rows, f"By {name}"))
    if verdict.ranking:
        r = verdict.ranking
        blocks.append(
            Line(
                f"Best layout under a TPOT limit: the predicted one is the measured one in {r.agreement:.0%} of "
                f"{r.choices} choices; throughput per GPU lost by following the prediction {r.median_regret:.1%} in "
                f"the median, {r.mean_regret:.1%} in the mean."
            )
        )
    blocks.append(Table(worst_rows(verdict.scored), "Farthest off"))
    if verdict.doubtful:
        rows = [{"reason": reason, "servers": n} for reason, n in Counter(verdict.doubtful.values()).items()]
        blocks.append(Table(rows, "Figures in doubt"))
    if verdict.missing:
        rows = [{"reason": reason, "servers": count} for reason, count in verdict.missing.items()]
        blocks.append(Table(rows, "Without a prediction"))
    return blocks + [Line(text, "warning") for text in verdict.worse]


def summary_rows(verdict: Verdict) -> list[dict[str, Any]]:
    """All servers, both modes, both halves, and the peers' published scores."""
    groups = {"all": list(verdict.scored)} | {name: list(filter(of, verdict.scored)) for name, of in SETS.items()}
    if doubtful := verdict.doubtful:
        groups["without those in doubt"] = [s for s in verdict.scored if s.server.id not in doubtful]
    rows = [{"servers": name, **error_row(e)} for name, group in groups.items() if (e := errors_of(group))]
    blank = dict.fromkeys(error_row(_NOTHING))
    for peer in verdict.peers:
        known = {"predicted": f"{peer['servers']:,}", "TPOT": f"{peer['tpot']:.1%}", "TTFT": f"{peer['ttft']:.1%}"}
        rows.append({"servers": f"peer: {peer['name']}", **blank, **known})
    return rows


_NOTHING = Errors(0, 0, 0, 0, 0, 0, 0, 0)


def error_row(e: Errors) -> dict[str, Any]:
    """Errors as cells: mean and median of the absolute error, and the mean error."""
    return {
        "predicted": f"{e.covered:,} of {e.servers:,}",
        "TPOT": f"{e.tpot_mape:.1%}",
        "TPOT median": f"{e.tpot_median:.1%}",
        "TPOT bias": f"{e.tpot_bias:+z.1%}",
        "TTFT": f"{e.ttft_mape:.1%}",
        "TTFT median": f"{e.ttft_median:.1%}",
        "TTFT bias": f"{e.ttft_bias:+z.1%}",
    }


def worst_rows(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """The servers with the largest errors, and what the simulation itself says about its times."""
    covered = [s for s in scored if s.prediction.problem is None]
    ranked = sorted(covered, key=lambda s: -max(abs(s.tpot_error), abs(s.ttft_error) / 2))[:WORST]
    return [
        {
            "server": one.server.id,
            "TPOT": f"{1e3 * one.server.tpot_s:.1f} ms",
            "error": f"{one.tpot_error:+z.0%}",
            "TTFT": f"{1e3 * one.server.ttft_s:,.0f} ms",
            "error ": f"{one.ttft_error:+z.0%}",
            "likely reason": likely_reason(one),
        }
        for one in ranked
    ]


def likely_reason(one: Scored) -> str:
    """In a few words, the first thing to look at."""
    if one.server.ttft_s > 5 * one.prediction.ttft_s and one.server.ttft_s > 2.0:
        return "the server queued requests that the simulated one admits at once"
    if one.prediction.ttft_s > 5 * one.server.ttft_s and one.prediction.ttft_s > 2.0:
        return "the simulated server queues requests that the real one admitted at once"
    return next((note for note in one.prediction.notes if "roofline" in note), "times of kernels or of the host")


def figures(scored: Sequence[Scored]) -> dict[str, Any]:
    covered = [s for s in scored if s.prediction.problem is None]
    return {
        "tpot": _scatter(covered, "TPOT", "tpot_s"),
        "ttft": _scatter(covered, "TTFT", "ttft_s"),
        "concurrency": _by_concurrency(covered),
        "heat_map": _heat_map(covered),
    }


def _scatter(scored: Sequence[Scored], name: str, field: str) -> dict[str, Any]:
    """Measured against predicted, both logarithmic, a colour for each engine."""
    traces: list[dict[str, Any]] = []
    for engine, colour in ENGINES.items():
        own = [s for s in scored if s.server.engine == engine]
        traces.append(
            {
                "type": "scattergl",
                "mode": "markers",
                "name": engine,
                "x": [round(1e3 * getattr(s.server, field), 3) for s in own],
                "y": [round(1e3 * getattr(s.prediction, field), 3) for s in own],
                "text": [hover(s) for s in own],
                "hovertemplate": "%{text}<br>measured %{x} ms, predicted %{y} ms<extra></extra>",
                "marker": {"color": colour, "size": 4, "opacity": 0.55},
            }
        )
    values = [1e3 * getattr(s.server, field) for s in scored] or [1.0]
    ends = [min(values), max(values)]
    line = {"mode": "lines", "x": ends, "y": ends, "showlegend": False, "line": {"color": look.DARK, "width": 1}}
    axis = look.LOG_AXIS | ({"dtick": 1} if ends[1] > 300 * ends[0] else {})
    layout = look.LOOK | {
        "title": look.title(f"{name}, measured and predicted"),
        "xaxis": axis | {"title": {"text": "measured, ms"}},
        "yaxis": axis | {"title": {"text": "predicted, ms"}},
        "margin": {"l": 60, "r": 16, "t": 48, "b": 48},
        "height": 460,
    }
    return {"data": [*traces, line | {"type": "scatter", "hoverinfo": "skip"}], "layout": layout}


def hover(one: Scored) -> str:
    s = one.server
    layout = _layout(s.layout)
    if s.prefill:
        layout = f"{s.num_prefill} prefill workers of {_layout(s.prefill)}, {s.num_decode} decode workers of {layout}"
    name = f"{s.model.split('/')[-1]} {s.precision} on {s.device}, {s.engine} {s.version or ''}"
    return html.escape(f"{name}, {layout}, {s.prompt_tokens}/{s.output_tokens}, concurrency {s.concurrency}")


def _layout(layout: Layout) -> str:
    text = f"TP {layout.tensor_parallel}"
    text += f" DP {layout.attention_groups}" if layout.attention_groups > 1 else ""
    return text + (f" EP {layout.expert_parallel}" if layout.expert_parallel > 1 else "")


BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192)


def _by_concurrency(scored: Sequence[Scored]) -> dict[str, Any]:
    """Median absolute error by the client's concurrency."""
    traces = []
    for name, field, colour in (("TPOT", "tpot_error", look.COLOURS[0]), ("TTFT", "ttft_error", look.COLOURS[1])):
        points = []
        for low, high in pairwise(BINS):
            errors = sorted(abs(getattr(s, field)) for s in scored if low <= s.server.concurrency < high)
            if errors:
                points.append((low, 100 * errors[len(errors) // 2]))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": [x for x, _ in points],
                "y": [y for _, y in points],
                "line": {"color": colour},
            }
        )
    layout = look.LOOK | {
        "title": look.title("Median error by concurrency"),
        "xaxis": look.LOG_AXIS | {"title": {"text": "requests in flight"}},
        "yaxis": look.AXIS | {"title": {"text": "%"}, "rangemode": "tozero"},
        "margin": {"l": 60, "r": 16, "t": 48, "b": 48},
    }
    return {"data": traces, "layout": layout}


def _heat_map(scored: Sequence[Scored]) -> dict[str, Any]:
    """Mean absolute TPOT error by model and system."""
    models = sorted({GROUPS["model"](s) for s in scored})
    systems = sorted({s.server.device for s in scored})
    cells: list[list[float | None]] = []
    for model in models:
        row: list[float | None] = []
        for system in systems:
            own = errors_of(s for s in scored if GROUPS["model"](s) == model and s.server.device == system)
            row.append(round(100 * own.tpot_mape, 1) if own else None)
        cells.append(row)
    heat = {
        "type": "heatmap",
        "x": systems,
        "y": models,
        "z": cells,
        "text": [["" if value is None else f"{value:.0f}" for value in row] for row in cells],
        "texttemplate": "%{text}",
        "colorscale": [[0, "#EFF5FB"], [0.5, "#F0D59B"], [1, "#C8493F"]],
        "zmin": 0,
        "zmax": 40,
        "showscale": False,
        "hovertemplate": "%{y} on %{x}: %{z} %<extra></extra>",
    }
    layout = look.LOOK | {
        "title": look.title("TPOT error by model and system, %"),
        "margin": {"l": 170, "r": 16, "t": 48, "b": 40},
        "height": 120 + 26 * len(models),
    }
    return {"data": [heat], "layout": layout}


def curves(scored: Sequence[Scored]) -> dict[str, list[dict[str, Any]]]:
    """Throughput per GPU against tokens per second and user, measured and predicted, by model, system and lengths."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in scored:
        s, p = one.server, one.prediction
        if p.problem is not None:
            continue
        name = f"{s.model.split('/')[-1]} {s.precision}, {s.device}, {s.prompt_tokens}/{s.output_tokens}"
        groups.setdefault(name, []).append(
            {
                "text": hover(one),
                "measured": [round(1 / s.tpot_s, 2), round(per_gpu(one, s.ttft_s, s.tpot_s), 1)],
                "predicted": [round(1 / p.tpot_s, 2), round(per_gpu(one, p.ttft_s, p.tpot_s), 1)],
            }
        )
    return {name: points for name, points in sorted(groups.items()) if len(points) >= 5}


def write_page(verdict: Verdict, path: str | Path) -> Path:
    """The leaderboard as one self-contained page."""
    scored = verdict.scored
    overall = errors_of(scored)
    drawn = [Plot(name, partial(dict, one)) for name, one in figures(scored).items()]
    sweeps = curves(scored)  # None in a small sample.
    chooser = data_text("curves.html").replace("@CURVES@", json.dumps(sweeps).replace("</", "<\\/")) if sweeps else ""
    covered = 0 if overall is None else overall.covered
    blocks: list[Block] = [
        *([] if overall is None else _cards(overall)),
        Section("Measured against predicted", drawn),
        Html(chooser),
        Section("Figures", text(verdict)),
    ]
    lede = (
        f"{len(scored):,} measured servers of aiconfigurator-core's silicon_sample.csv, {covered:,} predicted; "
        "the settings are those of the launch scripts; constants are fitted for each engine on half of them, "
        "its time per layer for each family of attention."
    )
    rules = data_text("launch.yaml") + "\n" + data_text("launch_disagg.yaml")
    return page.write_page(path, "Real servers, measured and predicted", blocks, lede=lede, scenario=rules)


def _cards(e: Errors) -> list[Block]:
    shown = {"TPOT error, mean": e.tpot_mape, "TPOT error, median": e.tpot_median, "TTFT error, mean": e.ttft_mape,
             "TTFT error, median": e.ttft_median}  # fmt: skip
    return [Card(name, f"{value:.1%}") for name, value in shown.items()]
