"""Pipeline: a model on GPUs, and schedules by themselves: Gantt chart, memory, time under every priority."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dash import Dash, html, no_update
from dash.development.base_component import Component

from gnomon import catalog
from gnomon.api import pipeline as api
from gnomon.api.train import PRECISIONS, SHARDINGS, train
from gnomon.core.errors import GnomonError
from gnomon.report.pipeline.heat_map import cell_texts
from gnomon.ui.blocks import cards_and_rest, commands, graph, section
from gnomon.ui.controls import Choice, Control, ControlError, Number, Slider, Switch, Text
from gnomon.ui.pages.pieces import draw_live, not_tall, register_boxes, tall, tall_graph, tall_outputs, view_of
from gnomon.ui.scenarios import folded
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback


def _degree(name: str, label: str, most: int = 4096, default: int = 1, **more: Any) -> Number:
    return Number(name, label, default, least=1, most=most, whole=True, field=name, group="Layout", **more)


def _orders() -> dict[str, str]:
    return {USUAL: "1f1b or interleaved"} | {row["name"]: row["name"] for row in api.schedules()}


def _schedules() -> dict[str, str]:
    return {STUDY: "1f1b, greedy (priority study)"} | {row["name"]: row["name"] for row in api.schedules()}


USUAL = "usual"
OF_MODEL: tuple[Control, ...] = (
    Choice("model", "Model", "llama-3-70b", options=catalog.model_names, field="model", wide=True),
    Choice("device", "GPU", "h100", options=catalog.device_names, field="device"),
    Number("gpus", "GPUs", 64, least=1, most=1e6, whole=True, field="gpus"),
    Number("batch", "Batch", 128, least=1, most=1e6, whole=True, field="batch", help="sequences per step"),
    Number("sequence", "Tokens", 8192, least=1, most=1e7, whole=True, field="sequence", help="per sequence"),
    Choice("precision", "Products in", "bf16", options=PRECISIONS, field="precision"),
    _degree("tensor_parallel", "Tensor parallel", 64, 8),
    _degree("pipeline_parallel", "Pipeline parallel", 512, 4),
    _degree("virtual_stages", "Virtual stages", 64),
    Choice("order", "Schedule", USUAL, options=_orders, field="schedule", wide=True, group="Layout"),
    _degree("context_parallel", "Context parallel"),
    _degree("expert_parallel", "Expert parallel"),
    _degree("micro_batch", "Micro-batch", 1024, help="sequences"),
    Choice("sharding", "Copies divide", "optimizer", options=SHARDINGS, field=("sharding", "shard_gpus"),
           group="Memory"),
    Choice("recompute", "Recompute", "none", options=("none", "selective", "full"), field="recompute", group="Memory"),
    Switch("offload", "Activations wait on the host", group="Memory"),
    Number("lora_rank", "LoRA rank", 0, least=0, most=1024, whole=True, help="0 trains all weights", group="Memory"),
)  # fmt: skip


GANTT_PX, HEAT_PX, MEMORY_PX = 640, 460, 360
MODEL, SCHEDULES = "model", "schedules"
"""The tabs: a model on GPUs, and schedules with given times."""
STUDY = "study"
"""The schedule of the priority study: 1F1B whose ranks take whatever is ready."""
MAX_PASSES = 1024
"""Stages x micro-batches that a page can still draw in a second."""
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


def _length(name: str, label: str, default: float | str, most: float = 1e6, **more: Any) -> Number:
    return Number(name, label, default, group="Times of one micro-batch on one GPU", most=most, **more)


PRIORITIES = "Priorities on the links"
OF_SCHEDULES: tuple[Control, ...] = (
    Choice("schedule", "Schedule", "1f1b", options=_schedules, wide=True),
    Slider("stages", "Pipeline stages (GPUs)", 4, least=1, most=32, step=1, whole=True,
           field=("stages", "ranks")),
    Slider("n", "Micro-batches", 8, least=1, most=128, step=1, whole=True, field=("n", "microbatches")),
    Number("chunks", "Stages per GPU", 2, least=1, most=16, whole=True, field="chunks"),
    Number("limit", "Memory limit", "", optional=True, least=0.5, most=1e4, field=("memory_limit", "DataError"),
           help="Activations a GPU may hold, in micro-batches"),
    _length("fwd", "Forward", 1.0, field="fwd_len"),
    _length("bwd", "Backward", 2.0, field="bwd_len"),
    _length("wgrad", "Weight gradient", "", optional=True, field=("weight_grad_len", "a weight gradient"),
            help="Of the backward; half unless given"),
    _length("prop", "Transfer", 1.0, field="prop_len"),
    _length("latency", "Latency", 0.0, field="latency"),
    _length("sync", "Gradient sync", 2.0, field="sync_base_len"),
    _length("sync_freq", "Sync every", 1, least=1, most=128, whole=True, field="sync_freq", help="micro-batches"),
    _length("fwd_impact", "Sync slows forward by", 0.2, most=1),
    _length("bwd_impact", "Sync slows backward by", 0.2, most=1),
    PriorityText("fwd_prop", "Activations", "0.5", group=PRIORITIES),
    PriorityText("grad_prop", "Gradients", "0.5", group=PRIORITIES),
    PriorityText("grad_sync", "Gradient sync", "0.5", group=PRIORITIES,
                 help="A weight, or a letter: a goes before b, both before weights"),
    Switch("ideal", "Every transfer at full rate", group=PRIORITIES),
    Choice("view", "Link lanes", "single_channel", group="Picture",
           options={"single_channel": "one", "dual_channel": "down and up"}),
    Choice("grid", "Heat map in steps of", "0.1", options=("0.05", "0.1", "0.2", "0.25"), group="Picture"),
)  # fmt: skip
CONTROLS: tuple[Control, ...] = (
    Choice("tab", "Show", MODEL, wide=True,
           options={MODEL: "a model on GPUs", SCHEDULES: "schedules, with given times"}),
    *OF_MODEL,
    *OF_SCHEDULES,
)  # fmt: skip
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
        said = {name: value for name, value in asked.items() if value is not False and usual.get(name) != value}
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in said.items()]
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
