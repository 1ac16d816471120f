"""`gnomon train plan`: the fastest layout that fits."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.train import TrainConfig, train_plan
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[CONFIG]", required=False, type=click.Path())
@click.option("--tokens", type=float, default=None, help="Tokens of the whole run, for days and dollars (e.g. 15e12).")
@click.option("--jitter", type=click.FloatRange(0, 1), default=0.01, show_default=True,
              help="Standard deviation of a GPU's step time over its mean: a step waits for the slowest.")  # fmt: skip
@click.option("--top", type=click.IntRange(1, 100), default=10, show_default=True, help="Layouts to print.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes.  [default: all cores]")
@click.option("--out", type=click.Path(file_okay=False), default=None, help="Folder for the report and the layouts.")
@json_option
@config_options(TrainConfig)
def command(
    file: str | None, tokens: float | None, jitter: float, top: int, jobs: int | None, out: str | None, as_json: bool,
    overrides: dict[str, Any],
) -> None:  # fmt: skip
    """Find the layout that trains CONFIG (a YAML file), or what the flags say, fastest.

    What is given is kept; degrees of parallelism, virtual stages, micro-batch, sharding and recomputation that are not
    given are searched. Only layouts that fit into the GPUs' memory count.

    \b
    Examples:
      gnomon train plan --model llama-3.1-405b --gpu h100 --gpus 1024 --batch 512 --sequence 8192 --precision fp8
      gnomon train plan --model qwen3-30b-a3b --gpu b200 --gpus 64 --batch 512 --sequence 4096 --tokens 1e12
    """
    with progress("bounding layouts") as on_progress:
        result = train_plan(
            file, tokens=tokens, jitter=jitter, shown=top, jobs=jobs, on_progress=on_progress, **overrides
        )
    show(result, as_json=as_json)
    if out:
        click.echo(f"wrote {result.save(out)}", err=as_json)
