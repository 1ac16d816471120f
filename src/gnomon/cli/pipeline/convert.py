"""`gnomon pipeline convert`: schedules to and from PyTorch CSV."""

from __future__ import annotations

import click

from gnomon.api.pipeline import schedule_csv
from gnomon.cli.pipeline.options import SPELLING, option
from gnomon.core.files import write_text


@click.command(context_settings=SPELLING)
@click.argument("schedule", metavar="NAME|FILE.csv")
@option("-n", "--num-groups", "n", type=int, default=8, help="Micro-batches.")
@option("--stages", type=int, default=4, help="Pipeline ranks.")
@option("--chunks", type=int, default=2, help="Stages per rank, for interleaved.")
@option("--memory-limit", type=float, default=None, help="Activations a rank may hold, in micro-batches.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), default=None, help="CSV file; prints if not given.")
def command(schedule: str, n: int, stages: int, chunks: int, memory_limit: float | None, output: str | None) -> None:
    """Write a built-in schedule as PyTorch pipelining CSV, or check a CSV file and write it in normal form.

    A file that is no training step, or that would deadlock, is refused; the error names the cycle.

    \b
    Examples:
      gnomon pipeline convert dualpipe-v --stages 4 -n 10 -o dualpipev.csv
      gnomon pipeline convert my_schedule.csv
    """
    text = schedule_csv(schedule, stages=stages, n=n, chunks=chunks, memory_limit=memory_limit)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text)
    click.echo(f"wrote {output}: {len(text.splitlines())} ranks")
