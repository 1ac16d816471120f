"""`gnomon train`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

import click

from gnomon.cli.lazy import LazyGroup

COMMANDS = {
    "step": "One training step: seconds, tokens per second, memory, and where the time goes.",
    "plan": "The fastest layout that fits, days and dollars, and flags for trainers.",
}


@click.group(cls=LazyGroup, table=COMMANDS, package="gnomon.cli.train")
def command() -> None:
    """Training a model on GPUs: how long a step takes, and whether it fits.

    \b
    Examples:
      gnomon train plan --model llama-3.1-405b --gpu h100 --gpus 1024 --batch 512 --sequence 8192 --precision fp8
      gnomon train step --model llama-3.1-70b --gpu h100 --gpus 64 --tp 4 --pp 4 --batch 128 --sequence 8192
    """
