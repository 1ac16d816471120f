"""`gnomon train step`: one training step."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.train import TrainConfig, train
from gnomon.cli.options import SectionedCommand, config_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[CONFIG]", required=False, type=click.Path())
@click.option(
    "--out", type=click.Path(file_okay=False), default=None, help="Folder for the figures and the configuration."
)
@click.option("--ignore-memory", is_flag=True, help="Time it even if it does not fit.")
@json_option
@config_options(TrainConfig)
def command(file: str | None, out: str | None, ignore_memory: bool, as_json: bool, overrides: dict[str, Any]) -> None:
    """Time one training step of CONFIG (a YAML file), or of what the flags say.

    What does not fit into the GPUs' memory is refused: by how much, and what would fit.

    \b
    Examples:
      gnomon train step --model llama-3-8b --gpu h100 --gpus 8 --batch 128 --sequence 8192 --precision fp8
      gnomon train step --model llama-3.1-405b --gpus 1024 --tp 8 --pp 8 --virtual-stages 8 --cp 2 --batch 512 \\
          --sequence 8192 --precision fp8
      gnomon train step --model qwen3-4b --gpu h200 --gpus 1 --framework transformers --recompute full
    """
    with progress("timing"):
        result = train(file, check=not ignore_memory, **overrides)
    show(result, as_json=as_json)
    if out:
        click.echo(f"wrote {result.save(out)}", err=as_json)
