"""Post-training: who has which GPU when under one policy, live; and policies side by side."""

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, dcc, html, no_update
from dash.development.base_component import Component

from gnomon import catalog
from gnomon.api import posttrain as api
from gnomon.core.config import load
from gnomon.core.errors import GnomonError
from gnomon.core.text import to_yaml
from gnomon.report.blocks import Line
from gnomon.report.posttrain.figures import policies_height
from gnomon.ui import jobs
from gnomon.ui.blocks import cards_and_rest, commands, section, shown
from gnomon.ui.controls import Choice, Choices, Control, ControlError, Hidden, Number, Slider, Switch, Text
from gnomon.ui.jobs import job_panel, register_job
from gnomon.ui.pages.pieces import draw_live, not_tall, register_boxes, tall, tall_graph, tall_outputs, view_of
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback
from gnomon.ui.uploads import check_is_data

KEYS = {
    "model": "model", "device": "device", "nodes": "cluster.num_nodes", "gpus": "cluster.gpus_per_node",
    "actor": "cluster.component_placement.actor", "rollout": "cluster.component_placement.rollout",
    "inference": "cluster.component_placement.inference", "policy": "policy.name",
    "pre": "cluster.use_pre_process_policy", "wait": "cluster.use_wait_before_last_iter_policy",
    "lend": "cluster.lend_inference", "prompts": "algorithm.rollout_batch_size", "samples": "algorithm.group_size",
    "minibatches": "algorithm.n_minibatches", "staleness": "algorithm.staleness",
    "logprobs": "algorithm.recompute_logprobs",
    "lengths": "lengths.distribution", "mean": "lengths.mean", "shape": "lengths.shape",
    "correlation": "lengths.group_correlation", "longest": "lengths.max_response",
    "rollout_tp": "rollout.tensor_parallel", "running": "rollout.max_running_requests",
    "actor_tp": "actor.tensor_parallel", "actor_share": "actor.efficiency",
    "inference_tp": "inference.tensor_parallel", "inference_share": "inference.efficiency",
    "migration": "transitions.migration_s", "switch": "transitions.switch_s", "steps": "num_steps", "seed": "seed",
}  # fmt: skip
"""The field behind each control."""
MAX_SEQUENCES = 65_536
"""Sequences of all steps that a page waits for: a second or two."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "8 GPUs, 1.5B": {"steps": 2},
    "8 GPUs, equal lengths": {
        "prompts": 256, "minibatches": 8, "running": 32, "lengths": "fixed", "mean": 3000,
    },
    "64 GPUs, 7B, long tail": {
        "model": "qwen2.5-7b", "nodes": 8, "actor": "0-15", "rollout": "16-55", "inference": "56-63", "prompts": 512,
        "samples": 16, "mean": 9000, "longest": 27_648, "rollout_tp": 2, "running": 128, "actor_tp": 4,
        "inference_tp": 2,
    },
}  # fmt: skip
"""What differs from the page's defaults; the same as examples/posttrain/{small,flat,elastic}.yaml."""


def config_of(values: Mapping[str, Any]) -> api.Posttrain:
    flat = {key: values[name] for name, key in KEYS.items() if values[name] not in (None, "")}
    check_is_data(flat)
    config = load(api.Posttrain, None, flat)
    if config.algorithm.num_sequences * config.num_steps > MAX_SEQUENCES:
        most = MAX_SEQUENCES // (config.algorithm.group_size * config.num_steps)
        raise ControlError("prompts", f"A page simulates at most {most:,} prompts of this many samples and steps.")
    return config


ALLOCATION_PX = 760
COMPARE, PLAN = "compare", "plan"
QUESTIONS = {COMPARE: "Policies on this placement", PLAN: "Modes, splits and layouts for these GPUs"}
PLACEMENT = "cluster.component_placement"
HOW = "On the same lengths. A click on a policy shows its time line above."


def _number(name: str, label: str, default: Any, group: str, *, most: float, **more: Any) -> Number:
    return Number(name, label, default, group=group, field=KEYS[name], most=most, **more)


def _count(name: str, label: str, default: int, group: str, *, most: float, **more: Any) -> Number:
    return _number(name, label, default, group, most=most, least=1, whole=True, **more)


CONTROLS: tuple[Control, ...] = (
    Choice("policy", "Policy", "elastic", wide=True, options=api.POLICIES.names,
           field=("policy.name", "scheduling policy")),
    Switch("pre", "Rollout also starts on the actor's GPUs", default=True, wide=True),
    Switch("wait", "Wait before the last mini-batch", wide=True),
    Switch("lend", "Rollout also starts on the inference GPUs", wide=True),
    Choice("model", "Model", "qwen2.5-1.5b", options=catalog.model_names, field="model", wide=True, group="Cluster"),
    Choice("device", "GPU", "h100", options=catalog.device_names, field="device", group="Cluster", wide=True),
    _count("nodes", "Nodes", 1, "Cluster", most=64),
    _count("gpus", "GPUs per node", 8, "Cluster", most=64),
    Text("actor", "Actor", "0-1", field=(f"{PLACEMENT}.actor", PLACEMENT), group="Placement: GPUs of each component"),
    Text("rollout", "Rollout", "2-6", field=f"{PLACEMENT}.rollout", group="Placement: GPUs of each component"),
    Text("inference", "Inference", "7", field=f"{PLACEMENT}.inference", group="Placement: GPUs of each component",
         help="Such as 0-3,8 or all"),
    Switch("logprobs", "Recompute log-probabilities", default=True, group="Placement: GPUs of each component"),
    _count("prompts", "Prompts", 64, "Step", most=65_536),
    _count("samples", "Samples per prompt", 8, "Step", most=512),
    _count("minibatches", "Mini-batches", 4, "Step", most=256),
    _count("steps", "Steps", 1, "Step", most=20),
    _number("staleness", "Staleness", 0, "Step", most=8, help="Above 0: generation goes on beside training"),
    Choice("lengths", "Distribution", "gamma", options=("gamma", "lognormal", "fixed"), group="Lengths"),
    _number("shape", "Shape", 3.1, "Lengths", least=0.05, most=1000, help="Small: a long tail"),
    Slider("mean", "Mean tokens", 8000, least=100, most=30_000, log=True, field=KEYS["mean"], group="Lengths"),
    _count("longest", "Longest response", 16_384, "Lengths", most=1_000_000),
    _number("correlation", "Group correlation", 0.5, "Lengths", most=0.999),
    _count("rollout_tp", "Rollout TP", 1, "Components", most=64),
    _count("running", "Max running", 64, "Components", most=100_000),
    _count("actor_tp", "Actor TP", 1, "Components", most=64),
    _number("actor_share", "Actor efficiency", 1.0, "Components", least=0.001, most=2),
    _count("inference_tp", "Inference TP", 1, "Components", most=64),
    _number("inference_share", "Inference efficiency", 1.0, "Components", least=0.001, most=2),
    _number("migration", "Migration", 4.0, "Components", most=1e4, unit="s"),
    _number("switch", "Switch", "", "Components", most=1e4, unit="s", optional=True, help="Empty: by the actor's size"),
    _number("seed", "Seed", 0, "Components", most=2**31, whole=True),
    Choice("question", "Question", COMPARE, options=QUESTIONS, wide=True, group="Comparison"),
    Number("lag", "Most lag of a plan", 1, most=8, least=0, whole=True, group="Comparison",
           help="Weight updates from a first token to its training"),
    Choices("policies", "Policies", api.COMPARED, options=api.POLICIES.names, wide=True, group="Comparison"),
    Switch("oracle", "With the oracle, which knows every length", wide=True, group="Comparison"),
    Hidden("job"),
)  # fmt: skip
CLUSTER_FLAGS = ("pre", "wait", "lend")


def head(state: dict[str, Any]) -> list[Component]:
    links = [html.Li(dcc.Link(name, href=PAGE.link(**given))) for name, given in EXAMPLES.items()]
    return [html.Div([html.H3("Examples"), html.Ul(links, className="plain")], className="group")]


def body(state: dict[str, Any]) -> list[Component]:
    plot = tall_graph(PAGE.id("compared"), policies_height(len(api.COMPARED)), "GPUs by owner, per policy")
    how = html.P(id=PAGE.id("how"), className="more")
    compared = html.Div([how, plot, PAGE.slot("rows", "under-plot")], id=PAGE.id("comparison"), style=HIDDEN)
    return [
        view_of(PAGE),
        PAGE.slot("cards", "card-space"),
        section("GPU allocation", tall_graph(PAGE.id("allocation"), ALLOCATION_PX, "Allocation of GPUs over time")),
        section("Compared and planned", job_panel(PAGE, "Compare"), PAGE.slot("stale"), compared),
        PAGE.copies(),
        PAGE.slot("rest"),
    ]


def register(app: Dash) -> None:
    outputs = {"allocation": tall_outputs(PAGE.id("allocation")), **PAGE.outputs("cards", "rest", "copies")}
    draw_live(app, PAGE, outputs, _drawn, _live())
    _register_comparison(app)
    register_job(app, PAGE, run_comparison, asked)
    register_boxes(app, PAGE, ("policy",), CLUSTER_FLAGS)


def _live() -> dict[str, Input]:
    return {name: one for name, one in PAGE.inputs().items() if name in KEYS}


def without_effect(state: dict[str, Any]) -> tuple[str, ...]:
    """Options of another policy than the chosen one."""
    return () if api.POLICIES[state["policy"]].cluster_flags else CLUSTER_FLAGS


def _drawn(values: dict[str, Any]) -> dict[str, Any]:
    config = config_of(values)
    result = api.posttrain(config)
    return {
        "allocation": tall(result.drawings["allocation"]),
        **cards_and_rest(result.text()),
        "copies": commands({"gnomon posttrain run FILE": to_yaml(config.model_dump(mode="json", exclude_unset=True))}),
    }


def _register_comparison(app: Dash) -> None:
    @callback(
        app,
        output={**PAGE.outputs("how", "rows", comparison="style"), "plot": tall_outputs(PAGE.id("compared"))},
        inputs=[PAGE.input("finished", "data")],
        prevent_initial_call=True,
    )
    def show(job: str | None) -> dict[str, Any]:
        if not job:
            return {"comparison": HIDDEN, "plot": not_tall(), "rows": no_update, "how": no_update}
        found = jobs.result(job)
        plot, how = ("plans", "") if isinstance(found, api.PosttrainPlan) else ("policies", HOW)
        return {"comparison": SHOWN, "plot": tall(found.drawings[plot]), "rows": shown(found.text()), "how": how}

    @callback(app, PAGE.output("stale", "children"), PAGE.input("finished", "data"), _live(), prevent_initial_call=True)
    def say_if_stale(job: str | None, raw: dict[str, Any]) -> Any:
        if not job or jobs.status(job).state != "done":
            return []
        try:
            asked = _compared(config_of(PAGE.read(raw)))
        except GnomonError:
            return []
        found = jobs.result(job)
        same = isinstance(found, api.PosttrainPlan) or asked == found.config
        said = "This comparison was made with other settings than the present ones."
        return [] if same else shown([Line(said, "warning")])

    @callback(app, PAGE.output("policy", "value"), PAGE.input("compared", "clickData"), prevent_initial_call=True)
    def choose(click: dict[str, Any] | None) -> Any:
        policy = click["points"][0].get("customdata") if click else None
        return policy if policy in api.POLICIES.names() else no_update


Asked = tuple[api.Posttrain, tuple[str, ...] | int, bool]
"""A configuration with policies, or with the most lag of a plan; and whether with the oracle."""


def asked(values: dict[str, Any]) -> Asked:
    if values["question"] == PLAN:
        return config_of(values), int(values["lag"]), False
    if not values["policies"]:
        raise ControlError("policies", "Choose at least one.")
    config = config_of(values)
    api.check_policies(config, values["policies"])
    return _compared(config), values["policies"], values["oracle"]


def _compared(config: api.Posttrain) -> api.Posttrain:
    """What a comparison depends on: everything but the policy that is shown."""
    return config.model_copy(update={"policy": type(config.policy)()})


def run_comparison(asked: Asked, report: jobs.Report) -> api.PolicyComparison | api.PosttrainPlan:
    """The job: every policy on the same lengths, or a plan."""
    config, names, with_oracle = asked

    def tell(done: int, total: int) -> None:
        report(done, total, f"{done} of {total} runs")

    if isinstance(names, int):
        return api.plan_posttrain(config, max_lag=names, on_progress=tell)
    return api.compare_policies(config, policies=names, with_oracle=with_oracle, on_progress=tell)


PAGE = Page("posttrain", "Post-training", body, register, CONTROLS, head, without_effect)
