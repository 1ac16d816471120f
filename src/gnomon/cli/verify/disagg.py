"""`gnomon verify disagg`: measured layouts, prefill and decode together and apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--only", default="", metavar="TEXT", help="Only layouts whose name contains this, e.g. '1P'.")
@click.option("--concurrency", type=click.IntRange(1), multiple=True, help="Only runs with so many requests at a time.")
@click.option(
    "--as-labelled", is_flag=True, help="Prefill and decode apart as the labels say, which is not how they ran."
)
@click.option(
    "--metrics-age",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How old the picker's metrics become, if not 50 ms.",
)
@json_option
def command(file: Path, metrics_age: float | None, **given: Any) -> None:
    """Layouts of Llama-3.1-70B on H100s measured by llm-d, beside their simulation.

    FILE is prism_pd_grid.json of llm-d-prism. One number per tensor-parallel degree is fitted on aggregated layouts;
    those labelled disaggregated are predicted, as they ran: with pods that do both (docs/disaggregation.md). Exit code
    1 when their median errors pass 10 % (TPOT, throughput) or 25 % (TTFT), or the 16-GPU layouts come in another order.

    \b
    Examples:
      gnomon verify disagg reference/llmd/prism_pd_grid.json
      gnomon verify disagg reference/llmd/prism_pd_grid.json --only 1P --concurrency 64 --json
    """
    check("disagg", file, doing="simulating layouts", metrics_age_s=metrics_age, **given)
