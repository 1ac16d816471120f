"""Pipeline: a model on GPUs, and schedules by themselves: Gantt chart, memory, time under every priority."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dash import Dash, html, no_update
from dash.development.base_component import Component

from gnomon.api import pipeline as api
from gnomon.api.train import PRECISIONS, SHARDINGS, train
from gnomon.core.errors import GnomonError
from gnomon.report.pipeline.heat_map import cell_texts
from gnomon.ui.blocks import cards_and_rest, commands, graph, section
from gnomon.ui.controls import Choice, ControlError, Text
from gnomon.ui.pages.forms import form
from gnomon.ui.pages.pieces import draw_live, not_tall, register_boxes, tall, tall_graph, tall_outputs, view_of
from gnomon.ui.scenarios import folded
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback


def _orders() -> dict[str, str]:
    return {USUAL: "1f1b or interleaved"} | {row["name"]: row["name"] for row in api.schedules()}


def _schedules() -> dict[str, str]:
    return {STUDY: "1f1b, greedy (priority study)"} | {row["name"]: row["name"] for row in api.schedules()}


USUAL = "usual"
_OPTIONS = {"precision": {"options": PRECISIONS}, "sharding": {"options": SHARDINGS}}
OF_MODEL = form("model_on_gpus", order={"default": USUAL, "options": _orders}, **_OPTIONS)

GANTT_PX, HEAT_PX, MEMORY_PX = 640, 460, 360
MODEL, SCHEDULES = "model", "schedules"  # The tabs: a model on GPUs, and schedules with given times.
STUDY = "study"  # The schedule of the priority study: 1F1B whose ranks take whatever is ready.
MAX_PASSES = 1024  # Stages x micro-batches that a page can still draw in a second.
LENGTHS = {
    "fwd": "fwd_len", "bwd": "bwd_len", "prop": "prop_len", "sync": "sync_base_len", "sync_freq": "sync_freq",
    "fwd_impact": "fwd_impact", "bwd_impact": "bwd_impact",
}  # fmt: skip
"""The field of a step behind each control of lengths."""


@dataclass(frozen=True)
class PriorityText(Text):
    """A weight, or the letter of an exclusive tier."""

    def read(self, raw: Any) -> api.Priority:
        text = super().read(raw)
        try:
            value: api.Priority = text if text.isalpha() else float(text)
            api.check_priority(self.name, value)
        except (ValueError, GnomonError):
            raise self.refuse("A weight of at least 0, or a tier letter a-z.") from None
        return value


OF_SCHEDULES = form("schedules", PriorityText, schedule={"options": _schedules})
TABS = {MODEL: "a model on GPUs", SCHEDULES: "schedules, with given times"}
CONTROLS = (Choice("tab", "Show", MODEL, wide=True, options=TABS), *OF_MODEL, *OF_SCHEDULES)
OF_TABS = {MODEL: tuple(one.name for one in OF_MODEL), SCHEDULES: tuple(one.name for one in OF_SCHEDULES)}


def body(state: dict[str, Any]) -> list[Component]:
    """Figures; of a model its memory over the step; of a schedule its Gantt chart and the heat map of priorities; where
    the time goes."""
    priorities = html.P("The same step under other priorities. Click a cell to see its step above.", className="more")
    heat = graph(PAGE.id("heat"), HEAT_PX, label="Total time over the priorities of transfers")
    memory = tall_graph(PAGE.id("over_time"), MEMORY_PX, "Memory of a GPU by part")
    gantt = tall_graph(PAGE.id("gantt"), GANTT_PX, "Gantt chart with memory and links below")
    styles = _styles(state["tab"])
    return [
        view_of(PAGE),
        PAGE.slot("cards", "card-space"),
        html.Div(section("Memory over the step", memory), id=PAGE.id("tab", MODEL), style=styles[MODEL]),
        html.Div(
            [section("Timeline", gantt), section("Total time by priority", priorities, heat)],
            id=PAGE.id("tab", SCHEDULES), style=styles[SCHEDULES],
        ),
        PAGE.copies(),
        PAGE.slot("rest"),
    ]  # fmt: skip


def _styles(tab: str) -> dict[str, Any]:
    return {name: SHOWN if name == tab else HIDDEN for name in OF_TABS}


def register(app: Dash) -> None:
    outputs = {
        **{name: tall_outputs(PAGE.id(name)) for name in ("gantt", "over_time")},
        **PAGE.outputs("cards", "rest", "copies", heat="figure"),
        "tabs": {name: PAGE.output(f"tab-{name}", "style") for name in OF_TABS},
    }
    draw_live(app, PAGE, outputs, _drawn)

    clicked = [PAGE.input("heat", "clickData"), PAGE.state("grid")]

    @callback(app, [PAGE.output(name, "value") for name in api.TRANSFERS], clicked, prevent_initial_call=True)
    def choose(click: dict[str, Any] | None, step: str) -> Any:
        point = click["points"][0] if click else {"x": "", "y": ""}
        return api.priorities_at(float(step), (str(point["y"]), str(point["x"]))) or (no_update,) * 3

    register_boxes(app, PAGE, ("schedule", "tab"), (*OF_TABS[MODEL], *OF_TABS[SCHEDULES]))


def without_effect(state: dict[str, Any]) -> set[str]:
    """Controls of the other tab, and those that the schedule leaves without a meaning."""
    if state["tab"] == MODEL:
        return set(OF_TABS[SCHEDULES])
    hidden = {*OF_TABS[MODEL], *(() if api.takes_chunks(state["schedule"]) else ("chunks",))}
    return hidden | ({"limit", "wgrad", "latency"} if state["schedule"] == STUDY else set())


def step_of(values: Mapping[str, Any]) -> api.PipelineStep:
    if values["stages"] * values["n"] > MAX_PASSES:
        most = MAX_PASSES // values["stages"]
        raise ControlError("n", f"A page draws at most {most:,} micro-batches of {values['stages']} stages.")
    step = {name: values[name] for name in ("n", "stages", "ideal", *api.TRANSFERS)}
    step |= {field: values[name] for name, field in LENGTHS.items()}
    if values["schedule"] != STUDY:
        step |= {"schedule": values["schedule"], "memory_limit": values["limit"]}
        step |= {"weight_grad_len": values["wgrad"], "latency": values["latency"]}
        if api.takes_chunks(values["schedule"]):
            step["chunks"] = values["chunks"]
    return api.pipeline(step)


def _drawn(values: dict[str, Any]) -> dict[str, Any]:
    kept = dict.fromkeys(("cards", "rest", "copies", "heat"), no_update)
    kept |= {"gantt": not_tall(), "over_time": not_tall(), "tabs": _styles(values["tab"])}
    if values["tab"] == MODEL:
        # Figures, time and memory by part, memory over the step, the same as a command.
        asked = {name: values[name] for name in OF_TABS[MODEL] if name != "order"}
        if values["order"] != USUAL:
            asked["schedule"] = values["order"]
        result = train(asked, check=False)
        usual = {"virtual_stages": 1, "context_parallel": 1, "expert_parallel": 1, "micro_batch": 1, "lora_rank": 0}
        changed = {name: value for name, value in asked.items() if value is not False and usual.get(name) != value}
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in changed.items()]
        copies = commands({"Command line": folded(["gnomon train step", *flags])})
        over_time = tall(result.drawings["memory"])
        return kept | cards_and_rest(result.text()) | {"over_time": over_time, "copies": copies}
    return kept | _schedule_drawn(values)


def _schedule_drawn(values: dict[str, Any]) -> dict[str, Any]:
    step = step_of(values)
    figure = step.drawn(view=values["view"])
    # The place that someone has zoomed into stays when a priority changes, but not when the step itself does.
    figure["layout"]["uirevision"] = f"{values['schedule']} {values['stages']} {values['n']}"
    grid = float(values["grid"])
    chosen = cell_texts((values["fwd_prop"], values["grad_prop"], values["grad_sync"]))
    is_on_grid = api.priorities_at(grid, chosen[:2]) == chosen
    return {
        "gantt": tall(figure),
        **cards_and_rest(step.text()),
        "copies": commands({"Command line": _command(values)}),
        "heat": step.priorities_drawn(grid, chosen[:2] if is_on_grid else None),
    }


def _command(values: dict[str, Any]) -> str:
    flags = {"--stages": "stages", "-n": "n", "--chunks": "chunks", "--memory-limit": "limit"}
    flags |= {f"--{field.replace('_', '-')}": name for name, field in LENGTHS.items()}
    flags |= {"--weight-grad-len": "wgrad", "--latency": "latency"}
    usual = {one.name: one.default for one in OF_SCHEDULES}
    words = [] if values["schedule"] == STUDY else [f"--schedule {values['schedule']}"]
    words += [f"{flag} {values[name]:g}" for flag, name in flags.items() if values[name] not in (None, usual[name])]
    for name in api.TRANSFERS:
        kind = "tier" if str(values[name]).isalpha() else "priority"
        words += [f"--{kind} {name}={values[name]}"] if str(values[name]) != usual[name] else []
    return folded(["gnomon pipeline run", *words, *(["--ideal"] if values["ideal"] else [])])


PAGE = Page("pipeline", "Pipeline", body, register, CONTROLS, without_effect=without_effect)
