"""`gnomon verify vllm`: recorded servers beside their simulation."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path())
@click.option("--profiles", required=True, type=click.Path(), help="Folder of kernels measured on those GPUs.")
@click.option("--device", "--gpu", help="GPU of the servers, where the recordings do not say.")
@click.option("--tolerance-ttft", default=0.03, show_default=True, help="Relative error allowed.")
@click.option("--tolerance-tpot", default=0.01, show_default=True)
@click.option("--tolerance-e2e", default=0.01, show_default=True)
@click.option("--tolerance-throughput", default=0.01, show_default=True)
@click.option("--html", type=click.Path(path_type=Path), help="Also draw both over time into this file.")
@json_option
def command(
    run_dirs: tuple[str, ...], profiles: str, device: str | None, html: Path | None, as_json: bool, **allowed: float
) -> None:
    """Simulate recorded vLLM servers and compare latencies and throughput.

    A run directory holds meta.json and requests.jsonl. The simulation gets the server's arrivals, lengths and limits,
    and kernel times measured on its GPU; no constant is fitted per run. Exit code 1 when any error passes its
    tolerance.

    \b
    Examples:
      gnomon verify vllm reference/vllm/runs/* --profiles reference/vllm/profiles
      gnomon verify vllm my-run --profiles my-profiles --device rtx-4090 --html over-time.html
    """
    tolerances = {name.removeprefix("tolerance_"): value for name, value in allowed.items()}
    check(
        "vllm", *run_dirs, doing="simulating servers", profiles=profiles, device=device, tolerances=tolerances,
        pictures={"over_time.html": html}, as_json=as_json,
    )  # fmt: skip
