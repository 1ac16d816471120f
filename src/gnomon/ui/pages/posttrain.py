"""Post-training: who has which GPU when under one policy, live; and policies side by side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dash import Dash, Input, dcc, html, no_update
from dash.development.base_component import Component

from gnomon.api import posttrain as api
from gnomon.core.config import load
from gnomon.core.errors import GnomonError
from gnomon.core.text import own_yaml, to_yaml
from gnomon.report.blocks import Line
from gnomon.report.posttrain.figures import policies_height
from gnomon.ui import jobs
from gnomon.ui.blocks import cards_and_rest, commands, section, shown
from gnomon.ui.controls import ControlError, Hidden
from gnomon.ui.jobs import job_panel, register_job
from gnomon.ui.pages.forms import form, keys_of
from gnomon.ui.pages.pieces import draw_live, not_tall, register_boxes, tall, tall_graph, tall_outputs, view_of
from gnomon.ui.site_page import HIDDEN, SHOWN, Page, callback
from gnomon.ui.uploads import check_is_data

MAX_SEQUENCES = 65_536  # Sequences of all steps that a page waits for: a second or two.

EXAMPLES: dict[str, dict[str, Any]] = own_yaml(Path(__file__).with_name("posttrain_examples.yaml"))


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
HOW = "On the same lengths. A click on a policy shows its time line above."

CONTROLS = (
    *form(
        "posttrain",
        policy={"options": api.POLICIES.names},
        question={"default": COMPARE, "options": QUESTIONS},
        policies={"default": api.COMPARED, "options": api.POLICIES.names},
    ),
    Hidden("job"),
)
CLUSTER_FLAGS = ("pre", "wait", "lend")
KEYS = keys_of(CONTROLS)


def head(state: dict[str, Any]) -> list[Component]:
    links = [html.Li(dcc.Link(name, href=PAGE.link(**given))) for name, given in EXAMPLES.items()]
    return [html.Div([html.H3("Examples"), html.Ul(links, className="plain")], className="group")]


def body(state: dict[str, Any]) -> list[Component]:
    plot = tall_graph(PAGE.id("compared"), policies_height(len(api.COMPARED)), "GPUs by owner, per policy")
    how = html.P(id=PAGE.id("how"), className="more")
    compared = html.Div([how, plot, PAGE.slot("rows", "under-plot")], id=PAGE.id("comparison"), style=HIDDEN)
    return [
        view_of(PAGE), PAGE.slot("cards", "card-space"),
        section("GPU allocation", tall_graph(PAGE.id("allocation"), ALLOCATION_PX, "Allocation of GPUs over time")),
        section("Compared and planned", job_panel(PAGE, "Compare"), PAGE.slot("stale"), compared),
        PAGE.copies(), PAGE.slot("rest"),
    ]  # fmt: skip


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
        warning = "This comparison was made with other settings than the present ones."
        return [] if same else shown([Line(warning, "warning")])

    @callback(app, PAGE.output("policy", "value"), PAGE.input("compared", "clickData"), prevent_initial_call=True)
    def choose(click: dict[str, Any] | None) -> Any:
        policy = click["points"][0].get("customdata") if click else None
        return policy if policy in api.POLICIES.names() else no_update


Query = tuple[api.Posttrain, tuple[str, ...] | int, bool]
"""A configuration with policies, or with the most lag of a plan; and whether with the oracle."""


def asked(values: dict[str, Any]) -> Query:
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


def run_comparison(asked: Query, report: jobs.Report) -> api.PolicyComparison | api.PosttrainPlan:
    config, names, with_oracle = asked

    def tell(done: int, total: int) -> None:
        report(done, total, f"{done} of {total} runs")

    if isinstance(names, int):
        return api.plan_posttrain(config, max_lag=names, on_progress=tell)
    return api.compare_policies(config, policies=names, with_oracle=with_oracle, on_progress=tell)


PAGE = Page("posttrain", "Post-training", body, register, CONTROLS, head, without_effect)
