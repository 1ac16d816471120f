"""`gnomon train`: a training step, and the layout that is fastest."""

from typing import Any

import click

from gnomon.api import train as api
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, answered, config_options, listed, scenario_argument


@click.group(cls=NearGroup)
def command() -> None:
    """Training a model on GPUs: how long a step takes, and whether it fits.

    \b
    Examples:
      gnomon train plan --model llama-3.1-405b --gpu h100 --gpus 1024 --batch 512 --sequence 8192 --precision fp8
      gnomon train step --model llama-3.1-70b --gpu h100 --gpus 64 --tp 4 --pp 4 --batch 128 --sequence 8192
    """


@command.command(cls=SectionedCommand)
@scenario_argument("[CONFIG]")
@click.option("--ignore-memory", is_flag=True, help="Time it even if it does not fit.")
@answered("timing", out="Folder for the figures and the configuration.", said="wrote {}")
@config_options(api.TrainConfig)
def step(file: str | None, ignore_memory: bool, overrides: dict[str, Any], on_progress: Any) -> Any:
    """Time one training step of CONFIG (a YAML file), or of what the flags say.

    What does not fit into the GPUs' memory is refused: by how much, and what would fit.

    \b
    Examples:
      gnomon train step --model llama-3-8b --gpu h100 --gpus 8 --batch 128 --sequence 8192 --precision fp8
      gnomon train step --model llama-3.1-405b --gpus 1024 --tp 8 --pp 8 --virtual-stages 8 --cp 2 --batch 512 \\
          --sequence 8192 --precision fp8
      gnomon train step --model qwen3-4b --gpu h200 --gpus 1 --framework transformers --recompute full
    """
    return api.train(file, check=not ignore_memory, **overrides)


@command.command(cls=SectionedCommand)
@scenario_argument("[CONFIG]")
@listed("train plan")
@answered("bounding layouts", out="Folder for the report and the layouts.", said="wrote {}")
@config_options(api.TrainConfig)
def plan(file: str | None, overrides: dict[str, Any], **given: Any) -> Any:
    """Find the layout that trains CONFIG (a YAML file), or what the flags say, fastest.

    What is given is kept; degrees of parallelism, virtual stages, micro-batch, sharding and recomputation that are not
    given are searched. Only layouts that fit into the GPUs' memory count.

    \b
    Examples:
      gnomon train plan --model llama-3.1-405b --gpu h100 --gpus 1024 --batch 512 --sequence 8192 --precision fp8
      gnomon train plan --model qwen3-30b-a3b --gpu b200 --gpus 64 --batch 512 --sequence 4096 --tokens 1e12
    """
    return api.train_plan(file, **given, **overrides)
