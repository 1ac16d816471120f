"""`gnomon pipeline`: training steps in schedules, sweeps of priorities, and the schedules themselves."""

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gnomon.api import pipeline as api
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, about, listed, listing, verb
from gnomon.cli.printing import json_option, print_json, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text

command = NearGroup("pipeline", help=about("pipeline"))

SPELLING = {"token_normalize_func": lambda token: token.replace("_", "-")}
"""Context settings under which `--num_groups` is `--num-groups`, as older scripts write it."""

STEP = (
    "n", "stages", "fwd_len", "bwd_len", "prop_len", "grad_prop_len", "sync_base_len", "fwd_impact", "bwd_impact",
    "sync_freq", "schedule", "dispatch", "chunks", "weight_grad_len", "overlap_len", "latency", "jitter", "draws",
    "seed", "memory_limit", "what_if",
)  # fmt: skip
"""Options that are fields of a step."""


def _step_of(given: dict[str, Any]) -> dict[str, Any]:
    step = {name: value for name in STEP if (value := given[name]) is not None}
    if given["model"]:
        stages = given["stages"] or 4
        asked = {"model": given["model"], "gpu": given["gpu"], "gpus": given["tp"] * stages, "tp": given["tp"]}
        words = " ".join(f"--{name} {value}" for name, value in asked.items())
        fix = f"Run: gnomon train step {words} --pp {stages}, or gnomon train plan."
        raise ConfigError("a model's step is timed by gnomon train.", where="--model", fix=fix)
    step |= {name: _number(value, "--priority") for name, value in _pairs(given["priorities"], "--priority")}
    step |= dict(_pairs(given["tiers"], "--tier"))
    for name, _ in _pairs((*given["priorities"], *given["tiers"]), "--priority"):
        if name not in api.TRANSFERS:
            raise ConfigError(f"there is no transfer {name!r}.", fix=f"Known: {', '.join(api.TRANSFERS)}.")
    if given["stragglers"]:
        pairs = _pairs(given["stragglers"], "--straggler")
        step["stragglers"] = {int(_number(rank, "--straggler")): _number(by, "--straggler") for rank, by in pairs}
    if given["link_speed"]:
        step["link_speed"] = {name: _number(speed, "--link") for name, speed in _pairs(given["link_speed"], "--link")}
    if given["costs"]:
        step["costs"] = api.read_costs(given["costs"])
    return step | ({"ideal": True} if given["ideal"] else {})


def _warn_of_legacy(given: dict[str, Any]) -> None:
    if given["sync_solo_w"] is not None:
        click.echo("--sync-solo-w has no effect: a lone grad_sync always has the whole link.", err=True)


def _pairs(texts: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"{text!r} is not NAME=VALUE.", where=option, fix="For example: fwd_prop=0.5")
    return [(name.strip(), value.strip()) for name, _, value in (text.partition("=") for text in texts)]


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number.", where=option) from None


@command.command(cls=SectionedCommand, context_settings=SPELLING)
@verb("pipeline run")
@json_option
def run(**given: Any) -> None:
    _warn_of_legacy(given)
    with progress("running"):
        step = api.pipeline(_step_of(given))
    files = _written(step, given)
    if given["as_json"]:
        print_json(step.to_dict() | {"files": [str(file) for file in files]})
        return
    show(step, as_json=False)
    if given["show_throttling"]:
        click.echo(step.throttled_words())
    for file in files:
        click.echo(f"wrote {file}")


def _written(step: api.PipelineStep, given: dict[str, Any]) -> list[Path]:
    if not given["out"] and not given["open_page"]:
        return []
    look = {name: given[name] for name in ("view", "show_throttling", "show_completion_time")}
    folder = step.save(given["out"] or "outputs/pipeline", **look)
    if given["open_page"]:
        click.launch((folder / "step.html").resolve().as_uri())
    return sorted(folder.glob("step.*"))


@command.command(context_settings=SPELLING)
@verb("pipeline sweep", "pipeline csv")
def sweep(output: Path | None, **given: Any) -> None:
    path = output or Path("outputs/data") / f"{_stamped(given['config_path'])}.csv"
    _run_sweep(given, path)


def _stamped(config_path: str) -> str:
    """The configuration's name and the time, for files that belong to one sweep."""
    return f"{Path(config_path).stem}_{datetime.now():%Y%m%d-%H%M%S}"


def _run_sweep(given: dict[str, Any], path: Path) -> None:
    _warn_of_legacy(given)
    chosen = {name: given[name] for name in ("step", "jobs", "ray", "yes")}
    with progress("sweeping") as on_progress:
        done = api.sweep(given["config_path"], workspace=path.parent, on_progress=on_progress, **chosen)
    done.sweep.write(path)
    click.echo(f"wrote {path}: {done.summary['runs']} runs, best {done.summary['best']:.4f}")


def _draw(csv: Path, folder: Path, jobs: int | None) -> None:
    with progress("drawing") as on_progress:
        files = api.draw_heat_maps(csv, folder, jobs=jobs, on_progress=on_progress)
    click.echo(f"wrote {len(files)} heat maps to {folder}")


@command.command(context_settings=SPELLING)
@click.argument("csv", type=click.Path(exists=True, dir_okay=False), metavar="FILE.csv")
@verb("pipeline plot")
def plot(csv: str, folder: Path, jobs: int | None, no_show: bool) -> None:
    _draw(Path(csv), folder, jobs)


@command.command("all", context_settings=SPELLING)
@listed("pipeline sweep")
@verb("pipeline all")
def sweep_and_plot(out: Path, **given: Any) -> None:
    name = _stamped(given["config_path"])
    path = out / "data" / f"{name}.csv"
    _run_sweep(given, path)
    _draw(path, out / "heatmaps" / name, given["jobs"])


listing(command, "pipeline schedules", lambda as_json: api.schedules())


@command.command(context_settings=SPELLING)
@click.argument("schedule", metavar="NAME|FILE.csv")
@verb("pipeline convert")
def convert(schedule: str, n: int, stages: int, chunks: int, memory_limit: float | None, output: str | None) -> None:
    text = api.schedule_csv(schedule, stages=stages, n=n, chunks=chunks, memory_limit=memory_limit)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text)
    click.echo(f"wrote {output}: {len(text.splitlines())} ranks")
