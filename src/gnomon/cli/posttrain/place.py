"""`gnomon posttrain place`: the best static placement, and whether elastic scheduling pays."""

from __future__ import annotations

from typing import Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.core.errors import ConfigError
from gnomon.posttrain.config import Posttrain


@click.command("place")
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--costs", default=None, metavar="ACTOR,ROLLOUT,INFERENCE", help="Measured seconds, all on all GPUs.")
@click.option("--top", default=6, show_default=True, help="Placements to simulate.")
@click.option("--rule-only", is_flag=True, help="The rule's answer alone, without simulating placements.")
@json_option
@config_options(Posttrain)
def command(
    config: str, costs: str | None, top: int, rule_only: bool, as_json: bool, overrides: dict[str, Any]
) -> None:
    """Find GPUs for actor, rollout and inference, and say whether moving them during the step pays.

    The published rule estimates every valid placement from three stage costs; the best candidates are then simulated.

    \b
    Examples:
      gnomon posttrain place examples/posttrain/elastic.yaml
      gnomon posttrain place examples/posttrain/elastic.yaml --costs 101,224,10 --rule-only
    """
    from gnomon.cli.progress import progress
    from gnomon.core.config import load
    from gnomon.posttrain.advise import advise
    from gnomon.posttrain.place import place

    loaded = load(Posttrain, config, overrides)
    given = _costs(costs)
    if rule_only:
        if given is None:
            raise ConfigError("the rule needs stage costs.", where="--costs", fix="Give for example 101,224,10.")
        advice = advise(loaded, given)
        _show_rule(vars(advice), as_json)
        return
    with progress():
        report = place(loaded, costs=given, num_simulated=top)
    rows = [
        {
            "actor": one.actor,
            "rollout": one.rollout,
            "inference": one.inference,
            "static step s": one.static.step_s,
            "elastic step s": one.elastic.step_s if one.elastic else None,
            "speed-up": one.speedup,
        }
        for one in report.tried
    ]
    best = report.best_elastic
    if as_json:
        print_json(
            {
                "costs": vars(report.costs),
                "rule": vars(report.rule),
                "colocated_step_s": report.colocated.step_s,
                "placements": rows,
                "elastic_pays": report.elastic_pays,
            }
        )
        return
    c = report.costs
    click.echo(f"taking turns: actor {c.actor:.1f} s, rollout {c.rollout:.1f} s, inference {c.inference:.1f} s")
    _show_rule(vars(report.rule), as_json)
    print_rows(rows, title="Simulated placements", caption=f"Taking turns: {report.colocated.step_s:.1f} s.")
    if report.elastic_pays and best.elastic:
        click.echo(
            f"Elastic pays: {best.elastic.step_s:.1f} s from actor {best.actor}, rollout {best.rollout}, inference"
            f" {best.inference}; the best static choice takes {report.best_static_s:.1f} s."
        )
    else:
        click.echo(f"Elastic does not pay here: the best static choice takes {report.best_static_s:.1f} s.")


def _show_rule(advice: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(advice)
        return
    where = "taking turns on all GPUs" if advice["is_colocated"] else "side by side"
    click.echo(
        f"the rule: {where}, rollout {advice['rollout']}, inference {advice['inference']}, actor {advice['actor']}"
        f" (step {advice['step_s']:.1f} s)"
    )


def _costs(text: str | None) -> Any:
    from gnomon.posttrain.advise import StageCosts

    if text is None:
        return None
    try:
        actor, rollout, inference = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"cannot read {text!r}.", where="--costs", fix="Give three seconds: 101,224,10.") from None
    return StageCosts(actor, rollout, inference)
