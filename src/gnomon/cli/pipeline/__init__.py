"""`gnomon pipeline`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

import click

from gnomon.cli.lazy import LazyGroup

COMMANDS = {
    "run": "Run one training step and show where its time goes.",
    "sweep": "Run the priority study over all combinations of a configuration.",
    "plot": "Draw the heat maps of a sweep.",
    "all": "Sweep and heat maps in one go.",
    "schedules": "The schedules that are built in.",
    "convert": "Write a schedule as PyTorch CSV, or check one.",
}


@click.group(cls=LazyGroup, table=COMMANDS, package="gnomon.cli.pipeline")
def command() -> None:
    """Pipeline-parallel training: schedules, contention, priorities.

    A model on GPUs, and which schedule and layout is best for it: gnomon train.

    \b
    Examples:
      gnomon pipeline run                                  the communication-priority study
      gnomon pipeline run --tier grad_prop=a --open        gradients first, and look at it
      gnomon pipeline run --schedule zb-h1 --stages 8 -n 32
      gnomon pipeline all -c examples/pipeline/sweep.json  every configuration, with heat maps
    """
