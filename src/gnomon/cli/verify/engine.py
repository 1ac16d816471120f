"""`gnomon verify engine`: any recorded engine beside its simulation."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option("--scenario", type=click.Path(), help="Settings of the engine; else scenario.yaml beside each run.")
@click.option("--calibration", type=click.Path(), help="Constants of the engine, from gnomon calibrate.")
@click.option("--tolerance-ttft", default=0.10, show_default=True, help="Relative error of the mean allowed.")
@click.option("--tolerance-tpot", default=0.05, show_default=True)
@click.option("--tolerance-e2e", default=0.05, show_default=True)
@json_option
def command(
    runs: tuple[str, ...], scenario: str | None, calibration: str | None, as_json: bool, **allowed: float
) -> None:
    """Simulate recorded runs of any engine and compare latencies.

    A run is a folder or file that gnomon calibrate reads, with requests and their stamps. The engine's settings are in
    a scenario: model, GPU, batch cap, KV blocks, its own policy file (batching.file). Exit code 1 when the mean of a
    latency passes its tolerance.

    \b
    Examples:
      gnomon verify engine runs/engine/* --calibration calibration.yaml
      gnomon verify engine bench-60.json --scenario my-engine.yaml --tolerance-ttft 0.05
    """
    tolerances = {name.removeprefix("tolerance_"): value for name, value in allowed.items()}
    check("engine", *runs, scenario=scenario, calibration=calibration, tolerances=tolerances, as_json=as_json)
