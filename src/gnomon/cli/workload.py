"""`gnomon workload`: look at, export and fit requests."""

from pathlib import Path
from typing import Any

import click
from pydantic import ConfigDict, NonNegativeInt

from gnomon.cli.options import SectionedCommand, about, config_options, listing, verb
from gnomon.cli.printing import json_option, print_json, print_lines, print_rows
from gnomon.core.config import Config, load
from gnomon.core.errors import ConfigError
from gnomon.workload.config import WorkloadConfig


class WorkloadOf(Config):
    """The part of a scenario that decides its requests; the other keys are left to `gnomon simulate`."""

    model_config = ConfigDict(extra="ignore")

    workload: WorkloadConfig = WorkloadConfig()
    seed: NonNegativeInt = 0
    """Seed of every random draw."""


scenario_argument = click.argument("scenario", required=False, type=click.Path())

command = click.Group("workload", help=about("workload"))


@command.command(cls=SectionedCommand)
@scenario_argument
@config_options(WorkloadOf)
@verb("workload show")
@json_option
def show(scenario: str | None, overrides: dict[str, Any], html: Path | None, as_json: bool) -> None:
    from gnomon.workload.describe import describe, gaps_s, histogram
    from gnomon.workload.generate import generate

    chosen = load(WorkloadOf, scenario, overrides)
    requests = generate(chosen.workload, chosen.seed)
    summary = describe(requests)
    series = {"prompt tokens": requests.prompt_tokens, "output tokens": requests.output_tokens}
    if len(gaps_s(requests)):
        series["gap (s)"] = gaps_s(requests)  # type: ignore[assignment]
    histograms = {name: histogram(values) for name, values in series.items()}
    if html is not None:
        from gnomon.report.workload import write_page

        write_page(requests, html, title=_title(chosen.workload))
    if as_json:
        print_json({**summary, "histograms": histograms})
        return
    print_lines([_title(chosen.workload), _sentence(summary)])
    print_rows(summary["percentiles"], right=list(summary["percentiles"][0])[1:] if summary["percentiles"] else [])
    for name, bins in histograms.items():
        click.echo(f"\n{name}")
        most = max((count for _, _, count in bins), default=1)
        total = sum(count for _, _, count in bins)
        for low, high, count in bins:
            bar = "█" * round(50 * count / most)
            click.echo(f"{low:>9.4g} – {high:<9.4g} {count / total:6.1%} {bar}")
    if summary["prefix_hits_by_cache"]:
        click.echo("\nprompt tokens found in a prefix cache of so many tokens")
        for row in summary["prefix_hits_by_cache"]:
            click.echo(f"{row['cache_tokens']:>21,} {row['hit_rate']:6.1%} {'█' * round(50 * row['hit_rate'])}")
    print_lines(summary["notes"], "note")
    if html is not None:
        click.echo(f"Wrote {html}")


@command.command(cls=SectionedCommand)
@scenario_argument
@config_options(WorkloadOf)
@verb("workload export")
def export(scenario: str | None, overrides: dict[str, Any], out: Path, tool: str | None) -> None:
    from gnomon.convert.load_definitions import READERS, written_load
    from gnomon.core.files import write_text
    from gnomon.workload.generate import generate
    from gnomon.workload.written import export as write
    from gnomon.workload.written import export_as

    chosen = load(WorkloadOf, scenario, overrides)
    if tool in READERS:
        write_text(out, written_load(tool, chosen.workload))
        click.echo(f"Wrote the load of {tool} to {out}")
        return
    requests = generate(chosen.workload, chosen.seed)
    if tool is None:
        write(requests, out)
    else:
        export_as(requests, tool, out)
    for note in requests.notes:
        click.echo(f"Note: {note}")
    if requests.concurrency:
        click.echo("Note: arrivals are left out: in a closed loop the server decides them.")
    click.echo(f"Wrote {len(requests):,} requests to {out}")


def _clients(as_json: bool) -> list[dict[str, Any]]:
    from gnomon.workload.clients import clients

    known = {name: one.model_dump() for name, one in clients().items()}
    return [{"client": name} | (one if as_json else {"description": one["description"]}) for name, one in known.items()]


def _presets(as_json: bool) -> list[dict[str, Any]]:
    from gnomon.workload.presets import preset_lengths, presets, statistics

    rows = []
    for name, preset in presets().items():
        row: dict[str, Any] = {"preset": name, "description": preset.description}
        for what, lengths in zip(("prompt", "output"), preset_lengths(preset, 100_000, seed=0), strict=True):
            known = statistics(lengths)
            row |= {f"{what} {key}": known[key] for key in ("mean", "p50", "p90")}
        rows.append(row | ({"source": preset.source} if as_json else {}))
    return rows


def _formats(as_json: bool) -> list[dict[str, Any]]:
    from gnomon.workload.formats import FORMATS

    known = {name: FORMATS[name] for name in FORMATS}
    return [
        {"format": name, "description": one.description, "columns": ", ".join(one.columns.values())}
        for name, one in known.items()
    ]


listing(command, "workload clients", _clients)
listing(command, "workload presets", _presets)
listing(command, "workload formats", _formats)


@command.command()
@click.argument("trace", type=click.Path())
@verb("workload fit")
@json_option
def fit(trace: str, out: Path, description: str, source: str | None, as_json: bool) -> None:
    from gnomon.core.files import write_text
    from gnomon.workload.presets import fit as fitted
    from gnomon.workload.presets import preset_yaml, quality
    from gnomon.workload.traces import read_requests

    if out.suffix != ".yaml":
        raise ConfigError("a preset is a YAML file.", where="--out", fix="End it in .yaml.")
    recorded = read_requests(trace)
    preset = fitted(
        recorded.prompt_tokens, recorded.output_tokens, description=description, source=source or Path(trace).name
    )
    write_text(out, preset_yaml(preset))
    print_rows(quality(preset, recorded.prompt_tokens, recorded.output_tokens), as_json=as_json)
    if not as_json:
        click.echo(f"Wrote {out}")


def _title(workload: WorkloadConfig) -> str:
    lengths = workload.preset or (workload.trace and Path(workload.trace.file).name) or workload.lengths.distribution
    return f"{lengths}, {workload.arrivals.process} arrivals"


def _sentence(summary: dict[str, Any]) -> str:
    parts = [f"{summary['num_requests']:,} requests"]
    if summary["requests_per_s"]:
        parts.append(f"{summary['requests_per_s']:.4g} per second over {summary['duration_s']:,.4g} s")
        parts.append(f"gaps vary by {summary['gap_cv']:.3g} of their mean")
        parts.append(
            f"{summary['prompt_tokens_per_s']:,.0f} prompt and {summary['output_tokens_per_s']:,.0f} output tokens/s"
        )
    if summary["concurrency"]:
        parts.append(f"{summary['concurrency']} in flight")
    parts.append(f"P:D {summary['prompt_to_output']:.3g}")
    if summary["num_sessions"]:
        parts.append(f"{summary['num_sessions']:,} sessions")
    if summary["turns"]:
        parts.append(f"{summary['turns']:.3g} requests each")
    if summary["wait_s"] is not None:
        parts.append(f"a tool or a user takes {summary['wait_s']:.3g} s between an answer and the next request")
    if summary["reusable_prefix_share"]:
        parts.append(f"{summary['reusable_prefix_share']:.1%} of prompt tokens were sent before")
    return "; ".join(parts) + "."
