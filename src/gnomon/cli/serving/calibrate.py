"""`gnomon calibrate`: the constants of a real server from its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.calibration import calibrate
from gnomon.api.serving import Scenario
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command(cls=SectionedCommand)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@click.option("--scenario", "file", type=click.Path(), help="Scenario of the server, a YAML file.")
@click.option("--hold-out", multiple=True, metavar="NAME", help="Predict this log instead of fitting it; repeatable.")
@click.option("--leave-out-slow", is_flag=True, help="Leave rounds with a slow host out, of the fit and of the checks.")
@click.option("--kernel-scale", is_flag=True, help="Also fit a factor on all kernel times.")
@click.option("--no-clock", is_flag=True, help="Do not look for a lower clock of the GPU.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File for the calibration (YAML).")
@json_option
@config_options(Scenario)
def command(
    logs: tuple[str, ...],
    file: str | None,
    hold_out: tuple[str, ...],
    leave_out_slow: bool,
    kernel_scale: bool,
    no_clock: bool,
    out: Path | None,
    as_json: bool,
    overrides: dict[str, Any],
) -> None:
    """Fit host time, front end and clock to what a real server left behind.

    Each LOG is one load: a step log (CSV or JSON lines: duration_s, prefill_tokens, decodes, decode_kv, running), a
    table of requests with their stamps, a file of vllm bench serve --save-detailed, SGLang's bench_serving, AIPerf,
    genai-perf or inference-perf, scrapes of /metrics, or a folder that gnomon wrote. Give logs of several loads. Any
    command takes the result with --calibration.

    \b
    Examples:
      gnomon calibrate steps-20.csv steps-60.csv --scenario server.yaml --out calibration.yaml
      gnomon calibrate runs/engine/* --hold-out llama-3-8b-chat-70 --out calibration.yaml
      gnomon simulate server.yaml --calibration calibration.yaml --rate 30
    """
    with progress("fitting") as on_progress:
        found = calibrate(
            logs, file, hold_out=hold_out, leave_out_slow=leave_out_slow, kernel_scale=kernel_scale,
            clock=not no_clock, on_progress=on_progress, **overrides,
        )  # fmt: skip
    show(found, as_json=as_json)
    if out is not None:
        click.echo(f"Use it with --calibration {found.write(out)}", err=as_json)
