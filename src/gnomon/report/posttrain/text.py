"""Post-training in words and plain data: one run, policies side by side, plans."""

from functools import partial
from typing import Any

from gnomon.posttrain.simulator.record import RunRecord, StepRecord
from gnomon.posttrain.studies.compare import BASELINE, Outcome
from gnomon.posttrain.studies.plan import Planned, reasons
from gnomon.report import look
from gnomon.report.blocks import (
    Block,
    Command,
    Line,
    Plot,
    Section,
    SplitRow,
    Table,
    View,
    cell,
    in_a_row,
    lines,
    split_table,
)
from gnomon.report.posttrain.figures import CAUSES, allocation_figure, cause_rows, policies_figure, run_cards

SHARES = ("regret", "busy", "tail", "waiting", "transition", "unusable")

RATIO = f"Ratio: tokens/s over those of {BASELINE}; a shorter step that trains on fewer tokens can be below 1."


def run_view(result: Any) -> View:
    record: RunRecord = result.record
    return View(
        f"RL post-training: {record.policy} on {record.num_gpus} GPUs", partial(_run_text, record),
        partial(_run_data, record), {"steps": lambda: [step_row(step) for step in record.steps]},
    )  # fmt: skip


def _run_data(record: RunRecord) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in ("policy", "step_s", "tokens_s")},
        "tokens_s_per_gpu": record.tokens_s / record.num_gpus,
        **{name: getattr(record, name) for name in ("mfu", "dollars_per_step", "staleness")},
        "lags": {str(lag): share for lag, share in record.lags().items()}, "dropped": record.num_dropped,
        "bubbles": record.bubbles(), "gpu_time": record.shares(),
        "steps": [step_row(step) for step in record.steps], "notes": record.notes,
    }  # fmt: skip


def _run_text(record: RunRecord) -> list[Block]:
    shares = ", ".join(f"{cause} {share:.1%}" for cause, share in record.shares().items())
    bubbles = ", ".join(f"{name} {share:.0%}" for name, share in record.bubbles().items())
    lags = ", ".join(f"{lag}: {share:.1%} of groups" for lag, share in record.lags().items())
    return [
        *run_cards(record),
        Section("Who has which GPU", [Plot("allocation", lambda: allocation_figure(record), "tall")]),
        Section("Where the GPU time goes", [split_table(CAUSES, cause_rows(record), "words")]),
        Table([step_row(step) for step in record.steps], f"{record.policy} on {record.num_gpus} GPUs"),
        Line(f"step {record.step_s:.1f} s; {record.tokens_s:,.0f} tokens/s; GPU time: {shares}"),
        Line(
            f"{record.tokens_s / record.num_gpus:,.0f} tokens/s/GPU; training MFU {record.mfu:.1%};"
            f" ${record.dollars_per_step:,.2f} a step; idle while owned: {bubbles}"
        ),
        Line(f"version lag: {lags}" + (f"   {record.num_dropped} groups dropped" if record.num_dropped else "")),
        *lines(record.notes),
    ]


def step_row(step: StepRecord) -> dict[str, Any]:
    return {
        "step": step.number, "seconds": step.duration_s, "rollout ends": step.rollout_end_s,
        "log-prob": step.seconds_of("inference"), "training": step.seconds_of("actor"), "tokens/s": step.tokens_s,
        "sequences moved": step.num_moved, "pre-empted": step.num_preemptions,
        "staleness": int(step.ages.max(initial=0)), "dropped": step.num_dropped,
    }  # fmt: skip


def comparison_view(result: Any) -> View:
    c = result.config
    return View(
        f"{c.model} on {c.cluster.num_gpus} x {c.device}: policies of post-training", partial(_comparison_text, result),
        lambda: {"policies": result.summary, "notes": comparison_notes(result.outcomes)},
        {"policies": lambda: result.summary},
    )  # fmt: skip


def _comparison_text(result: Any) -> list[Block]:
    rows = [{key: f"{value:.1%}" if key in SHARES else value for key, value in row.items()} for row in result.summary]
    caption = " ".join([RATIO, "Shares of GPU time: busy, then idle by cause.", *comparison_notes(result.outcomes)])
    drawn = Plot("policies", lambda: policies_figure(result.outcomes), "short")
    bars = []
    for one in result.outcomes:
        whole, shares = one.record.duration_s * one.record.num_gpus, one.record.shares()
        parts = {cause: share * whole for cause, share in shares.items()}
        bars.append(SplitRow(one.policy, parts, whole, f"{shares['busy']:.1%} busy", " GPU s"))
    return [
        drawn,
        Table(rows, "Policies on the same lengths", caption),
        Section("Where their GPU time goes", [split_table(CAUSES, bars, "figure")]),
    ]


def comparison_notes(outcomes: list[Outcome]) -> list[str]:
    """What the oracle did, and why policies give the same digits."""
    notes = [note for one in outcomes for note in one.record.notes]
    groups: dict[Any, list[Outcome]] = {}
    for one in outcomes:
        if not one.record.follows:
            groups.setdefault(one.record.allocation(), []).append(one)
    for group in groups.values():
        names = [one.policy for one in group]
        if BASELINE in names and len(names) > 1:
            names.remove(BASELINE)
            notes.append(f"{in_a_row(names)} moved no GPU here, which gives the digits of {BASELINE}.")
        elif len(names) > 1:
            more = "; more steps may tell them apart" if len(group[0].record.steps) == 1 else ""
            notes.append(f"{in_a_row(names)} decided alike here, which gives the same digits{more}.")
    return notes


def plan_view(result: Any) -> View:
    c = result.plans[0].config
    rows = [one.row() for one in result.plans]
    return View(
        f"{c.model} on {c.cluster.num_gpus} x {c.device}: plans of post-training", partial(_plan_text, result),
        lambda: {"plans": rows, "reasons": reasons(result.plans), "commands": result.commands}, {"plans": lambda: rows},
    )  # fmt: skip


def _plan_text(result: Any) -> list[Block]:
    rows = [{"#": number, **one.row()} for number, one in enumerate(result.plans[: result.top], start=1)]
    return [
        Plot("plans", lambda: plan_figure(result.plans)),
        Table(rows, "Plans, the best first", left=("mode", "limit")),
        *lines(reasons(result.plans)),
        *(Command(name, text) for name, text in result.commands.items()),
    ]


def plan_figure(plans: list[Planned]) -> dict[str, Any]:
    """Samples per second against the mean lag of what is trained, by mode."""
    modes = list(dict.fromkeys(one.mode for one in plans))
    marks = []
    for colour, mode in zip(look.COLOURS, modes, strict=False):
        mine = [one for one in plans if one.mode == mode]
        lags, speeds = [round(one.mean_lag, 3) for one in mine], [round(one.samples_s, 3) for one in mine]
        hover = ["<br>".join(f"{name} {cell(value)}" for name, value in one.row().items()) for one in mine]
        more = {"cliponaxis": False, "text": hover, "hovertemplate": "%{text}<extra></extra>"}
        marks.append(look.dots(lags, speeds, colour, 10, name=mode, **more))
    lag, speed = look.axis("mean lag, weight updates", rangemode="tozero"), look.axis("samples/s", rangemode="tozero")
    named = "Samples per second and lag of plans"
    return look.plot(marks, named, lag, speed, showlegend=True, hovermode="closest", height=420)


def explanation(record: RunRecord) -> tuple[list[dict[str, Any]], dict[str, Any], list[Block]]:
    """What the steps waited for: rows by step, plain data, and sentences with tables."""
    waited = [step.waited_for() for step in record.steps]
    names = list(waited[0])
    mean = {name: sum(one[name] for one in waited) / len(waited) for name in names}
    first, second = sorted(mean, key=lambda name: -mean[name])[:2]
    shares = record.shares()
    idle = {name: value for name, value in shares.items() if name != "busy"}
    worst = max(idle, key=lambda name: idle[name])
    sentences = [
        f"A step takes {record.step_s:.4g} s under {record.policy}, and waits {mean[first]:.4g} s of them"
        f" ({mean[first] / record.step_s:.0%}) for {first} and {mean[second]:.4g} s for {second}.",
        f"GPUs are busy {shares['busy']:.0%} of the time; most of the rest ({idle[worst]:.0%} of all) is"
        f" {_IDLE[worst]}.",
    ]
    slowest = max(record.steps, key=lambda step: step.duration_s)
    if slowest.duration_s > 1.1 * record.step_s:
        own = slowest.waited_for()
        more = max(names, key=lambda name: own[name] - mean[name])
        sentences.append(
            f"Step {slowest.number} took {slowest.duration_s:.4g} s, most of what it took more for {more}."
        )
    rows = [
        {"step": step.number, "seconds": step.duration_s, **one} for step, one in zip(record.steps, waited, strict=True)
    ]
    gpus = [{"GPU time": name, "share": f"{share:.1%}"} for name, share in shares.items()]
    data = {"sentences": sentences, "step_s": record.step_s, "waited_for": mean, "gpu_time": shares, "steps": rows}
    blocks = [*lines(sentences), Table(rows, "What each step waited for, seconds"), Table(gpus)]
    return rows, data, blocks


_IDLE = {
    "tail": "the tail of generation: instances with nothing left to generate",
    "waiting": "the actor or inference waiting for data or for their slowest rank",
    "transition": "moving weights, work or memory",
    "unusable": "GPUs that fit no valid size",
}
