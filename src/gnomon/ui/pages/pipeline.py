"""Pipeline: one training step, live: its Gantt chart with memory, and its time under every priority of transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dash import Dash, Input, Output, State, html, no_update
from dash.development.base_component import Component

from gnomon import catalog
from gnomon.api.pipeline import Priority, cell_texts, check_priority, priorities_at, schedules, takes_chunks
from gnomon.core.errors import GnomonError
from gnomon.report.pipeline.figures import CAUSES, cause_rows
from gnomon.ui.blocks import cards, graph, notice, section
from gnomon.ui.callbacks import callback
from gnomon.ui.controls import Choice, Control, Number, Slider, Switch, Text
from gnomon.ui.pages.pieces import draw_live, register_boxes, split_bars, tall, tall_graph, tall_outputs, view_of
from gnomon.ui.pages.pipeline_step import MODEL, STUDY, step_of
from gnomon.ui.site_page import Page

GANTT_PX, HEAT_PX = 640, 460


@dataclass(frozen=True)
class PriorityText(Text):
    """A weight, or the letter of an exclusive tier."""

    def read(self, raw: Any) -> Priority:
        """The weight or the letter."""
        text = super().read(raw)
        try:
            value: Priority = text if text.isalpha() else float(text)
            check_priority(self.name, value)
        except (ValueError, GnomonError):
            raise self.refuse("A weight of at least 0, or a tier letter a-z.") from None
        return value


def _schedules() -> dict[str, str]:
    return {STUDY: "1f1b, greedy (priority study)"} | {row["name"]: row["name"] for row in schedules()}


def _length(name: str, label: str, default: float | str, **more: Any) -> Number:
    return Number(name, label, default, group="Times of one micro-batch on one GPU", most=1e6, **more)


CONTROLS: tuple[Control, ...] = (
    Choice("schedule", "Schedule", "1f1b", options=_schedules, wide=True),
    Slider("stages", "Pipeline stages (GPUs)", 4, least=1, most=32, step=1, whole=True,
           field=("stages", "ranks", "pipeline_parallel")),
    Slider("n", "Micro-batches", 8, least=1, most=128, step=1, whole=True, field=("n", "microbatches")),
    Number("chunks", "Stages per GPU", 2, least=1, most=16, whole=True, field="chunks"),
    Number("limit", "Memory limit", "", optional=True, least=0.5, most=1e4, field=("memory_limit", "DataError"),
           help="Activations a GPU may hold, in micro-batches"),
    Choice("costs", "Costs from", "lengths", options={"lengths": "given times", MODEL: "a model on GPUs"}, wide=True),
    _length("fwd", "Forward", 1.0, field="fwd_len"),
    _length("bwd", "Backward", 2.0, field="bwd_len"),
    _length("wgrad", "Weight gradient", "", optional=True, field=("weight_grad_len", "a weight gradient"),
            help="Of the backward; half unless given"),
    _length("prop", "Transfer", 1.0, field="prop_len"),
    _length("latency", "Latency", 0.0, field="latency"),
    _length("sync", "Gradient sync", 2.0, field="sync_base_len"),
    Number("sync_freq", "Sync every", 1, least=1, most=128, whole=True, field="sync_freq", help="micro-batches",
           group="Times of one micro-batch on one GPU"),
    Number("fwd_impact", "Sync slows forward by", 0.2, most=1, group="Times of one micro-batch on one GPU"),
    Number("bwd_impact", "Sync slows backward by", 0.2, most=1, group="Times of one micro-batch on one GPU"),
    Choice("model", "Model", "llama-3-8b", options=catalog.model_names, field="model", wide=True, group="Model"),
    Choice("device", "GPU", "h100", options=catalog.device_names, field="device", group="Model"),
    Number("tensor_parallel", "Tensor parallel", 1, least=1, most=64, whole=True, field="tensor_parallel",
           group="Model"),
    Number("data_parallel", "Data parallel", 1, least=1, most=4096, whole=True, field="data_parallel", group="Model"),
    Number("micro_batch", "Sequences", 1, least=1, most=512, whole=True, group="Model", help="per micro-batch"),
    Number("sequence", "Tokens", 4096, least=1, most=1e6, whole=True, group="Model", help="per sequence"),
    Switch("recompute", "Recompute activations", group="Model"),
    Switch("shard_optimizer", "Shard the optimizer", group="Model"),
    PriorityText("fwd_prop", "Activations", "0.5", group="Priorities on the links"),
    PriorityText("grad_prop", "Gradients", "0.5", group="Priorities on the links"),
    PriorityText("grad_sync", "Gradient sync", "0.5", group="Priorities on the links",
                 help="A weight, or a letter: a goes before b, both before weights"),
    Switch("ideal", "Every transfer at full rate", group="Priorities on the links"),
    Choice("view", "Link lanes", "single_channel", group="Picture",
           options={"single_channel": "one", "dual_channel": "down and up"}),
    Choice("grid", "Heat map in steps of", "0.1", options=("0.05", "0.1", "0.2", "0.25"), group="Picture"),
)  # fmt: skip
FOR_LENGTHS = tuple(one.name for one in CONTROLS if one.group.startswith("Times"))
FOR_MODEL = tuple(one.name for one in CONTROLS if one.group == "Model")
OPTIONAL = ("chunks", "limit", "costs", *FOR_LENGTHS, *FOR_MODEL)


def body(state: dict[str, Any]) -> list[Component]:
    """Figures, the Gantt chart, where the time goes, the heat map."""
    return [
        view_of(PAGE),
        html.Div(id=PAGE.id("cards"), className="card-space"),
        html.Div(id=PAGE.id("notes")),
        section("Timeline", tall_graph(PAGE.id("gantt"), GANTT_PX, "Gantt chart with memory and links below")),
        section("Where the time goes", html.Div(id=PAGE.id("causes"), style={"minHeight": "154px"})),
        section(
            "Total time by priority",
            html.P("The same step under other priorities. Click a cell to see its step above.", className="more"),
            graph(PAGE.id("heat"), HEAT_PX, label="Total time over the priorities of transfers"),
        ),
    ]


def register(app: Dash) -> None:
    """Draw at every change; a click in the heat map sets the priorities."""
    outputs = {
        "gantt": tall_outputs(PAGE.id("gantt")),
        "cards": Output(PAGE.id("cards"), "children"),
        "notes": Output(PAGE.id("notes"), "children"),
        "causes": Output(PAGE.id("causes"), "children"),
        "heat": Output(PAGE.id("heat"), "figure"),
    }
    draw_live(app, PAGE, outputs, _drawn)

    @callback(
        app,
        Output(PAGE.id("fwd_prop"), "value"),
        Output(PAGE.id("grad_prop"), "value"),
        Output(PAGE.id("grad_sync"), "value"),
        Input(PAGE.id("heat"), "clickData"),
        State(PAGE.id("grid"), "value"),
        prevent_initial_call=True,
    )
    def choose(click: dict[str, Any] | None, step: str) -> Any:
        point = click["points"][0] if click else {"x": "", "y": ""}
        return priorities_at(float(step), (str(point["y"]), str(point["x"]))) or (no_update,) * 3

    register_boxes(app, PAGE, ("schedule", "costs"), OPTIONAL)


def without_effect(state: dict[str, Any]) -> set[str]:
    """Controls that the schedule and the source of costs leave without a meaning."""
    name = state["schedule"]
    hidden = set() if takes_chunks(name) else {"chunks"}
    if state["schedule"] == STUDY:
        return hidden | {"limit", "costs", "wgrad", "latency", *FOR_MODEL}
    return hidden | {*(FOR_LENGTHS if state["costs"] == MODEL else FOR_MODEL)}


def _drawn(values: dict[str, Any]) -> dict[str, Any]:
    step = step_of(values)
    figure = step.drawn(view=values["view"])
    # The place that someone has zoomed into stays when a priority changes, but not when the step itself does.
    figure["layout"]["uirevision"] = f"{values['schedule']} {values['stages']} {values['n']}"
    grid = float(values["grid"])
    chosen = cell_texts((values["fwd_prop"], values["grad_prop"], values["grad_sync"]))
    is_on_grid = priorities_at(grid, chosen[:2]) == chosen
    return {
        "gantt": tall(figure),
        "cards": cards((name, value, "") for name, value in step.cards.items()),
        "notes": [notice(text, "warning") for text in step.step.notes],
        "causes": split_bars(CAUSES, cause_rows(step.run)),
        "heat": step.priorities_drawn(grid, chosen[:2] if is_on_grid else None),
    }


PAGE = Page(
    name="pipeline",
    title="Pipeline",
    controls=CONTROLS,
    body=body,
    register=register,
    without_effect=without_effect,
)
