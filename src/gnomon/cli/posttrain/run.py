"""`gnomon posttrain run`: one policy, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.posttrain.config import Posttrain

if TYPE_CHECKING:
    from gnomon.posttrain.record import RunRecord, StepRecord


@click.command("run")
@click.argument("config", type=click.Path(dir_okay=False))
@click.option(
    "--out", type=click.Path(file_okay=False), default=None, help="Write the time line, a trace and the rest."
)
@click.option("--record", "keep", is_flag=True, help="With --out: also write every snapshot and its actions.")
@json_option
@config_options(Posttrain)
def command(config: str, out: str | None, keep: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Simulate the steps of CONFIG under its policy, and show where the time goes.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml
      gnomon posttrain run examples/posttrain/elastic.yaml --num-steps 5 --out runs/elastic
      gnomon posttrain run examples/posttrain/elastic.yaml --policy disaggregated
    """
    from gnomon.cli.progress import progress
    from gnomon.core.config import load
    from gnomon.posttrain.compare import clairvoyant
    from gnomon.posttrain.simulate import run

    loaded = load(Posttrain, config, overrides)
    with progress():
        policy = clairvoyant(loaded) if loaded.policy.name == "oracle" else None
        record = run(loaded, policy, keep_decisions=keep and out is not None)
    if policy is not None:
        record.policy, record.notes = "oracle", [f"The oracle follows {policy.name}."]
    files = _write(loaded, record, Path(out), keep) if out else []
    if as_json:
        print_json(summary(record) | {"steps": [row(step) for step in record.steps], "files": list(map(str, files))})
        return
    print_rows([row(step) for step in record.steps], title=f"{record.policy} on {record.num_gpus} GPUs")
    shares = ", ".join(f"{cause} {100 * share:.1f} %" for cause, share in record.shares().items())
    click.echo(f"step {record.step_s:.1f} s   {record.tokens_s:,.0f} tokens/s   GPU time: {shares}")
    for line in [*record.notes, *(f"wrote {file}" for file in files)]:
        click.echo(line)


def row(step: StepRecord) -> dict[str, Any]:
    """One step in figures."""
    return {
        "step": step.number,
        "seconds": step.duration_s,
        "rollout ends": step.rollout_end_s,
        "log-prob": step.seconds_of("inference"),
        "training": step.seconds_of("actor"),
        "tokens/s": step.tokens_s,
        "sequences moved": step.num_moved,
        "pre-empted": step.num_preemptions,
        "staleness": int(step.ages.max(initial=0)),
    }


def summary(record: RunRecord) -> dict[str, Any]:
    """A run in figures."""
    return {
        "policy": record.policy,
        "step_s": record.step_s,
        "tokens_s": record.tokens_s,
        "staleness": record.staleness,
        "gpu_time": record.shares(),
    }


def _write(config: Posttrain, record: RunRecord, folder: Path, keep: bool) -> list[Path]:
    from gnomon.core.config import save
    from gnomon.core.files import folder_written_whole
    from gnomon.posttrain.replay import write_decisions
    from gnomon.report.posttrain.html import write_html
    from gnomon.report.posttrain.perfetto import write_trace

    with folder_written_whole(folder, ("config.yaml", "timeline.*", "decisions.jsonl")) as new:
        files = [save(config, new / "config.yaml"), write_html(record, new / "timeline.html")]
        files.append(write_trace(record, new / "timeline.perfetto.json"))
        if keep:
            files.append(write_decisions(record, new / "decisions.jsonl"))
    return [folder / file.name for file in files]
