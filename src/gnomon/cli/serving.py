"""The commands about serving: one scenario, several, why they are as they are, and what a real server left behind."""

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gnomon.api import serving as api
from gnomon.api.serving import Scenario
from gnomon.api.time import Iteration
from gnomon.cli.options import SectionedCommand, answered, config_options, scenario_argument, verb
from gnomon.cli.printing import json_option, print_json, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text
from gnomon.core.units import duration

REPORT = "The report is {}/report.html; open it in a browser."


@click.command(cls=SectionedCommand)
@scenario_argument()
@verb("simulate")
@json_option
@config_options(Scenario)
def simulate(
    file: str | None, overrides: dict[str, Any], out: Path | None, extras: tuple[str, ...], formats: tuple[str, ...],
    intervals: bool | None, project: str | None, as_json: bool,
) -> None:  # fmt: skip
    if (extras or formats) and out is None:
        flag = f"--{extras[0]}" if extras else "--export"
        raise ConfigError("there is no folder for it.", where=flag, fix="Give one with --out DIR.")
    chosen = api.scenario(file, **overrides)
    with progress() as on_progress:
        result = api.simulate(chosen, intervals=intervals, explained=out is not None, on_progress=on_progress)
    result.estimate()
    show(result, as_json=as_json)
    if out is not None:
        with progress("writing", compiles=False):
            folder = result.save(out, extras)
            for name in formats:
                result.export(name, folder)
        click.echo(REPORT.format(folder), err=as_json)
    if project is not None:
        click.echo(f"Logged to Weights & Biases: {result.log_to_wandb(project)}", err=as_json)


@click.command(cls=SectionedCommand)
@scenario_argument()
@answered(out="Folder for capacity.json.")
@config_options(Scenario)
@verb("capacity")
def capacity(file: str | None, overrides: dict[str, Any], on_progress: Any) -> Any:
    from gnomon.api import load

    return load.capacity(file, on_progress=on_progress, **overrides)


@click.command(cls=SectionedCommand)
@scenario_argument()
@verb("serve")
@config_options(Scenario)
def serve(file: str | None, overrides: dict[str, Any], **options: Any) -> None:
    from gnomon.api import serving as live

    def started(urls: list[str], model: str) -> None:
        click.echo(f"Serving {model} at {', '.join(urls)} (Ctrl-C to stop)", err=True)

    live.serve(file, on_start=started, **options, **overrides)


@click.command(cls=SectionedCommand)
@click.argument("scenarios", nargs=-1, type=click.Path())
@verb("compare")
@answered(out="Folder for the report, comparison.json and every variant's run.", message=REPORT)
@config_options(Scenario)
def compare(scenarios: tuple[str, ...], overrides: dict[str, Any], vary: tuple[str, ...], **given: Any) -> Any:
    from gnomon.api import comparison

    return comparison.compare(*scenarios, vary=_varied(vary), **given, **overrides)


def _varied(vary: tuple[str, ...]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for text in vary:
        _, equals, values = text.partition("=")
        chosen: list[Any] = [value.strip() for value in values.split(",") if value.strip()]
        if "=" in values:
            chosen = [dict(_setting(part) for part in one.split("+")) for one in text.split(",")]
        if not equals or not chosen:
            fix = "Write FIELD=A,B, e.g. router=random,lmetric; or variants of several fields: tp=4,num_replicas=4."
            raise ConfigError(f"cannot read {text!r}.", where="--vary", fix=fix)
        field = text if "=" in values else _setting(text)[0]
        if field in found:
            raise ConfigError(f"{field} is varied twice.", where="--vary", fix="List all its values in one --vary.")
        found[field] = chosen
    return found


def _setting(text: str) -> tuple[str, str]:
    """FIELD=VALUE, with the field as a configuration calls it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"cannot read {text!r}.", where="--vary", fix="Write FIELD=VALUE, joined by +.")
    return name.strip().lstrip("-").replace("-", "_"), value.strip()


@click.command()
@click.argument("run", metavar="RUN_DIR", type=click.Path(path_type=Path))
@verb("explain")
@answered(out="Folder for explanation.json and every request's parts (parts.parquet).")
def explain(run: Path, advice: bool, on_progress: Any, **asked: Any) -> Any:
    from gnomon.api import explain as explaining

    if not run.exists():
        fix = f"Make one: gnomon simulate --out {run}" if not run.suffix else "Check the path of the scenario."
        raise ConfigError("there is no such run.", where=str(run), fix=fix)
    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in asked.items() if source(name) is not ParameterSource.DEFAULT}
    return explaining.explain(run, advice=advice, on_progress=on_progress, **given)


@click.command(cls=SectionedCommand)
@scenario_argument()
@verb("check")
@answered()
@config_options(Scenario)
def check(
    file: str | None, overrides: dict[str, Any], limits: tuple[str, ...], junit: Path | None, markdown: Path | None,
    **given: Any,
) -> Any:  # fmt: skip
    from gnomon.api import check as checking

    found = checking.check(file, slo=dict(map(_limit, limits)), **given, **overrides)
    for path, text in ((junit, found.junit()), (markdown, found.markdown())):
        if path is not None:
            write_text(path, text)
    return found


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        found = duration(value)
        return name, float(value) if found is None else found
    except ValueError:
        fix = "Write it as ttft_p99=0.5 or ttft_p99=500ms."
        raise ConfigError(f"{text!r} is no limit.", where="--slo", fix=fix) from None


@click.command()
@click.argument("file", type=click.Path())
@json_option
@verb("check-policy")
def check_policy(file: str, as_json: bool) -> None:
    found = []
    first_test: dict[str, str] = {}
    for finding in api.check_policy(file):
        found.append(finding)
        if as_json:
            continue
        mark = click.style("passed", fg="green") if finding.passed else click.style("FAILED", fg="red")
        click.echo(f"{mark}  {finding.kind} {finding.name}: {finding.test}")
        if finding.message:
            first = first_test.setdefault(finding.message, finding.test)
            click.echo(f"        {finding.message if first == finding.test else f'The same as for {first}.'}")
    failed = sum(not finding.passed for finding in found)
    if as_json:
        print_json([finding.to_dict() for finding in found])
    else:
        click.echo(f"{len(found) - failed} of {len(found)} tests passed.")
    if failed:
        sys.exit(1)


@click.command(cls=SectionedCommand)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@verb("calibrate")
@json_option
@config_options(Scenario)
def calibrate(
    logs: tuple[str, ...], file: str | None, overrides: dict[str, Any], out: Path | None, as_json: bool, **given: Any
) -> None:
    from gnomon.api import calibration

    with progress("fitting") as on_progress:
        found = calibration.calibrate(logs, file, on_progress=on_progress, **given, **overrides)
    show(found, as_json=as_json)
    if out is not None:
        click.echo(f"Use it with --calibration {found.write(out)}", err=as_json)


@click.command(cls=SectionedCommand)
@click.argument("log", type=click.Path())
@verb("explain-gap")
@answered(out="Folder for gap.json and gap.html.")
@config_options(Scenario)
def explain_gap(log: str, file: str | None, html: Path | None, overrides: dict[str, Any], on_progress: Any) -> Any:
    from gnomon.api import calibration

    found = calibration.explain_gap(log, file, **overrides)
    if html is not None:
        click.echo(f"The page is {found.write_page(html)}; open it in a browser.", err=True)
    return found


@click.command(cls=SectionedCommand)
@scenario_argument()
@verb("manifest")
@config_options(Scenario)
def manifest(file: str | None, overrides: dict[str, Any], target: str, out: Path | None) -> None:
    from gnomon.convert import manifests

    if file is not None and (Path(file) / "best.yaml").is_file():
        file = str(Path(file) / "best.yaml")
    made = manifests.manifest(api.scenario(file, **overrides), target)
    for name, text in made.files.items():
        if out is None:
            click.echo(f"# {name}\n{text}" if len(made.files) > 1 else text, nl=False)
        else:
            write_text(out / name, text)
    for one in made.left:
        click.echo(f"Not said: {one}", err=True)


@click.command(cls=SectionedCommand)
@verb("time")
@answered("timing", compiles=False)
@config_options(Iteration, skip=("sources", "expert_parallel"))
def time(sources: tuple[str, ...], overrides: dict[str, Any], on_progress: Any, **given: Any) -> Any:
    from gnomon.api import time as timing

    more = {name: value for name, value in given.items() if value} | ({"sources": list(sources)} if sources else {})
    return timing.time(**overrides, **more)
