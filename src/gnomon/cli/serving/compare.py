"""`gnomon compare`: several variants on the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.core import units
from gnomon.core.errors import ConfigError
from gnomon.serving.scenario import Scenario

if TYPE_CHECKING:
    from gnomon.api import Comparison
    from gnomon.serving.paired import Difference

WORDS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "scheduling_delay_s": "scheduling delay"}


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Path())
@click.option(
    "--vary", multiple=True, metavar="FIELD=A,B,...", help="Values of a dotted field; several make all combinations."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for comparison.json and every variant's run.",
)
@json_option
@config_options(Scenario)
def command(
    scenarios: tuple[str, ...], overrides: dict[str, Any], vary: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Run several variants on the same requests and print their paired differences.

    SCENARIOS are YAML files; the first variant is the baseline. Every request meets every variant, so that a difference
    is not luck of the draw; the 95 % intervals say what is left of it. Other flags change all variants.

    \b
    Examples:
      gnomon compare a.yaml b.yaml
      gnomon compare --vary batching.policy=vllm_v1,sarathi --vary replica.tensor_parallel=1,2
      gnomon compare --vary router=round_robin,least_outstanding --num-replicas 4 --workload.rate 100
    """
    from gnomon import api
    from gnomon.cli.progress import progress

    with progress(quiet=as_json) as on_progress:
        comparison = api.compare(*scenarios, vary=_parsed(vary), on_progress=on_progress, **overrides)
    if as_json:
        print_json(comparison.to_dict())
    else:
        _print(comparison)
    if out is not None:
        click.echo(f"Wrote {comparison.save(out) / 'comparison.json'} and a report per variant.", err=as_json)


def _parsed(vary: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        chosen = [value.strip() for value in values.split(",") if value.strip()]
        if not equals or not chosen:
            raise ConfigError(
                f"cannot read {text!r}.", where="--vary", fix="Write FIELD=A,B, e.g. router=random,lmetric."
            )
        field = name.strip().lstrip("-").replace("-", "_")
        if field in found:
            raise ConfigError(f"{field} is varied twice.", where="--vary", fix="List all its values in one --vary.")
        found[field] = chosen
    return found


def _print(comparison: Comparison) -> None:
    rows = []
    for name, result in comparison.results.items():
        s = result.summary
        row: dict[str, Any] = {"variant": name}
        for metric in ("ttft_s", "tpot_s", "e2e_s"):
            spread = getattr(s.latency, metric)
            row[f"{WORDS[metric]} mean"] = _seconds(spread.mean)
            row[f"{WORDS[metric]} P99"] = _seconds(spread.p99)
        row |= {
            "requests/s": f"{s.throughput.requests_per_s:.4g}",
            "output tokens/s": f"{s.throughput.output_tokens_per_s:,.0f}",
            "busy": f"{s.utilization.busy:.1%}",
            "$/M output": f"{s.cost.per_million_output_tokens or float('nan'):.3g}",
        }
        if s.slo is not None:
            row["SLO met"] = f"{s.slo.attainment:.1%}"
        rows.append(row)
    print_rows(rows, right=list(rows[0])[1:])
    for name, differences in comparison.differences.items():
        table = [_difference_row(one) for one in differences]
        click.echo(f"{name} against {comparison.baseline}, request by request:")
        print_rows(table, right=list(table[0])[1:] if table else [])
    for name, result in comparison.results.items():
        for text in result.summary.warnings:
            click.echo(click.style(f"Warning, {name}: {text}", fg="yellow"))
    for note in dict.fromkeys(note for result in comparison.results.values() for note in result.summary.notes):
        click.echo(f"Note: {note}")


def _difference_row(one: Difference) -> dict[str, Any]:
    interval = None
    if one.low is not None and one.high is not None:
        interval = f"{_signed(one.low)} to {_signed(one.high)}"
    return {
        "figure": f"{WORDS[one.metric]} {one.statistic.upper() if one.statistic != 'mean' else 'mean'}",
        "difference": _signed(one.difference),
        "relative": f"{one.relative:+.1%}" if one.relative is not None else None,
        "95 % interval": interval,
        "clear": "yes" if one.is_clear else "no" if interval else None,
        "requests": f"{one.num_requests:,}",
    }


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{units.seconds(abs(value))}"


def _seconds(value: float | None) -> str | None:
    return units.seconds(value) if value is not None else None
