"""`gnomon verify stages`: vLLM servers under stages of load."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def command(file: Path, as_json: bool) -> None:
    """Load stages of Llama-2-7B and CodeLlama-34B on H100 (vLLM 0.15, inference-perf), beside their simulation.

    FILE is vllm_stages/h100.csv. Exit code 1 where the median error of median TTFT passes 8 %, or that of TPOT 6 %.

    \b
    Example:
      gnomon verify stages reference/vllm_stages/h100.csv
    """
    check("stages", file, doing="simulating stages", as_json=as_json)
