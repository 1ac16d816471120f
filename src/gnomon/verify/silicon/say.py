"""Measured servers beside their predictions: tables for the terminal, figures, and the leaderboard page."""

import html
import json
from collections import Counter, defaultdict
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
from gnomon.verify.silicon.servers import Layout
from gnomon.verify.silicon.verdict import GROUPS, SETS, Errors, Verdict, errors_by, errors_of, per_gpu

ENGINES = dict(zip(NAMES, look.COLOURS, strict=False))
WORST = 12
MARGIN = {"l": 60, "t": 48, "b": 48}


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
    return findings(Verdict(scored, rows is None and sample is None))


def findings(verdict: Verdict) -> Findings:
    """One row per server; the figures of all, and by group."""
    rows = [
        {
            **{name: getattr(one.server, name) for name in ("id", "model", "device", "engine")},
            "measured_ttft_s": one.server.ttft_s, "predicted_ttft_s": one.prediction.ttft_s,
            "measured_tpot_s": one.server.tpot_s, "predicted_tpot_s": one.prediction.tpot_s,
            "problem": one.prediction.problem,
        }
        for one in verdict.scored
    ]  # fmt: skip
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
    if r := verdict.ranking:
        agreement = f"the predicted one is the measured one in {r.agreement:.0%} of {r.choices} choices"
        lost = f"{r.median_regret:.1%} in the median, {r.mean_regret:.1%} in the mean"
        lost = f"throughput per GPU lost by following the prediction {lost}"
        blocks.append(Line(f"Best layout under a TPOT limit: {agreement}; {lost}."))
    blocks.append(Table(worst_rows(verdict.scored), "Farthest off"))
    for title, counts in (
        ("Figures in doubt", Counter(verdict.doubtful.values())),
        ("Without a prediction", verdict.missing),
    ):
        if counts:
            blocks.append(Table([{"reason": reason, "servers": n} for reason, n in counts.items()], title))
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
        "predicted": f"{e.covered:,} of {e.servers:,}", "TPOT": f"{e.tpot_mape:.1%}",
        "TPOT median": f"{e.tpot_median:.1%}", "TPOT bias": f"{e.tpot_bias:+z.1%}", "TTFT": f"{e.ttft_mape:.1%}",
        "TTFT median": f"{e.ttft_median:.1%}", "TTFT bias": f"{e.ttft_bias:+z.1%}",
    }  # fmt: skip


def worst_rows(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """The servers with the largest errors, and what the simulation itself says about its times."""
    covered = [s for s in scored if s.prediction.problem is None]
    ranked = sorted(covered, key=lambda s: -max(abs(s.tpot_error), abs(s.ttft_error) / 2))[:WORST]
    return [
        {
            "server": one.server.id, "TPOT": f"{1e3 * one.server.tpot_s:.1f} ms", "error": f"{one.tpot_error:+z.0%}",
            "TTFT": f"{1e3 * one.server.ttft_s:,.0f} ms", "error ": f"{one.ttft_error:+z.0%}",
            "likely reason": likely_reason(one),
        }
        for one in ranked
    ]  # fmt: skip


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
        measured, predicted = (
            [round(1e3 * getattr(one, field), 3) for one in some]
            for some in ([s.server for s in own], [s.prediction for s in own])
        )
        template = "%{text}<br>measured %{x} ms, predicted %{y} ms<extra></extra>"
        drawn = look.dots(measured, predicted, colour, 4, name=engine, text=[*map(hover, own)], hovertemplate=template)
        traces.append(drawn | {"type": "scattergl", "marker": drawn["marker"] | {"opacity": 0.55}})
    values = [1e3 * getattr(s.server, field) for s in scored] or [1.0]
    ends = [min(values), max(values)]
    traces.append(look.line(ends, ends, look.DARK, 1, showlegend=False, hoverinfo="skip"))
    axis = look.LOG_AXIS | ({"dtick": 1} if ends[1] > 300 * ends[0] else {})
    axes = {"xaxis": axis | look.axis("measured, ms"), "yaxis": axis | look.axis("predicted, ms")}
    return look.figure(traces, f"{name}, measured and predicted", 460, MARGIN, **axes)


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
        xs, ys = [x for x, _ in points], [y for _, y in points]
        traces.append(look.dots(xs, ys, colour, name=name, mode="lines+markers", line={"color": colour}, marker={}))
    layout = look.LOOK | {
        "title": look.title("Median error by concurrency"),
        "xaxis": look.LOG_AXIS | look.axis("requests in flight"),
        "yaxis": look.AXIS | look.axis("%", rangemode="tozero"),
        "margin": look.ROOM | MARGIN,
    }
    return {"data": traces, "layout": layout}


def _heat_map(scored: Sequence[Scored]) -> dict[str, Any]:
    """Mean absolute TPOT error by model and system."""
    models = sorted({GROUPS["model"](s) for s in scored})
    systems = sorted({s.server.device for s in scored})
    by_place: dict[tuple[str, str], list[Scored]] = defaultdict(list)
    for one in scored:
        by_place[GROUPS["model"](one), one.server.device].append(one)

    def error(model: str, system: str) -> float | None:
        own = errors_of(by_place[model, system])
        return round(100 * own.tpot_mape, 1) if own else None

    cells = [[error(model, system) for system in systems] for model in models]
    texts = [["" if value is None else f"{value:.0f}" for value in row] for row in cells]
    hover = "%{y} on %{x}: %{z} %<extra></extra>"
    heat = look.heat(systems, models, cells, texts, ("#EFF5FB", "#F0D59B", "#C8493F"), hover, zmin=0, zmax=40)
    height, margin = 120 + 26 * len(models), {"l": 170, "t": 48, "b": 40}
    return look.figure([heat], "TPOT error by model and system, %", height, margin)


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
