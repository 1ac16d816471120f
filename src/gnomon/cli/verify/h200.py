"""`gnomon verify h200`: the reference engine on an H200 beside its simulation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.printing import json_option, print_json, print_rows

if TYPE_CHECKING:
    from gnomon.verify.h200 import Comparison


@click.command()
@click.option(
    "--runs",
    type=click.Path(path_type=Path, exists=True),
    help="Folder of recorded runs; the shipped ones if not given.",
)
@click.option("--profile", type=click.Path(path_type=Path, exists=True), help="Bundle; the shipped one if not given.")
@click.option("--only", help="Only runs whose name contains this, e.g. llama-3-8b-chat.")
@click.option("--svg", type=click.Path(path_type=Path), help="Also draw measured and simulated CDFs into this file.")
@click.option("--full-clock", is_flag=True, help="Simulate all runs at the profile's clock, as if there were no cap.")
@json_option
def command(
    runs: Path | None, profile: Path | None, only: str | None, svg: Path | None, full_clock: bool, as_json: bool
) -> None:
    """Simulate measured runs of the reference engine from the H200 profile and compare latencies.

    Host time is calibrated once, on the run `calibration`, for all others; the card's mean clock during each run, below
    that of the profile where the power cap lowers it, is given. Exit code 1 when a mean or a P99 is beyond tolerance
    (TPOT and E2E 3 %, TTFT 5 %); such a figure is marked with "!".

    \b
    Examples:
      gnomon verify h200
      gnomon verify h200 --only llama-3-8b-chat --svg cdf.svg
    """
    from gnomon.verify import h200

    folder, bundle = runs or h200.RUNS, profile or h200.PROFILE
    host = h200.calibrate(h200.Recording(folder / h200.CALIBRATION), bundle, full_clock=full_clock)
    wanted = [one for one in h200.runs_in(folder) if not only or only in one[0].name]
    found = [h200.compare(one, host, bundle, full_clock=full_clock) for one in wanted]
    if svg is not None:
        from gnomon.report.verify.h200 import write_cdfs

        write_cdfs(found, svg)
    if as_json:
        print_json({"host": host.model_dump(), "runs": {one.name: _as_json(one) for one in found}})
    else:
        caption = (
            f"Errors in %. Host: {host.per_iteration_s * 1e6:.0f} µs, {host.per_sequence_s * 1e6:.2f} µs per sequence. "
            f"! = beyond tolerance (mean and P99: TPOT and E2E 3 %, TTFT 5 %)."
        )
        print_rows([_row(one) for one in found], title="Simulated against measured", caption=caption)
    beyond = [f"{c.name} {e.metric} {e.statistic} ({e.relative:+.1%})" for c in found for e in c.errors if e.is_beyond]
    if beyond:
        click.echo(f"Beyond tolerance: {', '.join(beyond)}.", err=True)
        sys.exit(1)


def _row(one: Comparison) -> dict[str, Any]:
    row: dict[str, Any] = {"run": one.name, "requests": one.num_requests, "clock": f"{one.clock:.3f}"}
    for error in one.errors:
        row[f"{error.metric} {error.statistic}"] = f"{100 * error.relative:+.1f}{'!' if error.is_beyond else ''}"
    return row


def _as_json(one: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": error.metric,
            "statistic": error.statistic,
            "measured_s": error.measured_s,
            "simulated_s": error.simulated_s,
            "error": error.relative,
            "is_beyond": error.is_beyond,
        }
        for error in one.errors
    ]
