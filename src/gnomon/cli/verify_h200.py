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
@json_option
def command(runs: Path | None, profile: Path | None, only: str | None, svg: Path | None, as_json: bool) -> None:
    """Simulate measured runs of the reference engine from the H200 profile and compare latencies.

    Host time is calibrated once, on the run `calibration`, for all others. Exit code 1 when a mean is beyond tolerance
    (TPOT and E2E 3 %, TTFT 5 %), or a P99 is and the run has enough requests to tell. A P99 that is off by more, but
    lies where so few requests leave it undecided, is marked with ~.

    \b
    Examples:
      gnomon verify h200
      gnomon verify h200 --only llama-3-8b-chat --svg cdf.svg
    """
    from gnomon.verify import h200

    folder, bundle = runs or h200.RUNS, profile or h200.PROFILE
    host = h200.calibrate(h200.Recording(folder / h200.CALIBRATION), bundle)
    found = [h200.compare(one, host, bundle) for one in h200.recordings(folder) if not only or only in one.name]
    if svg is not None:
        from gnomon.verify.h200_svg import write_cdfs

        write_cdfs(found, svg)
    if as_json:
        print_json({"host": host.model_dump(), "runs": {one.recording.name: _as_json(one) for one in found}})
    else:
        caption = (
            f"Errors in %. Host: {host.per_iteration_s * 1e6:.0f} µs + {host.per_sequence_s * 1e6:.1f} µs per sequence."
        )
        print_rows([_row(one) for one in found], title="Simulated against measured", caption=caption)
    beyond = [
        f"{c.recording.name} {e.metric} {e.statistic} ({e.relative:+.1%})"
        for c in found
        for e in c.errors
        if e.verdict == "beyond"
    ]
    if beyond:
        click.echo(f"Beyond tolerance: {', '.join(beyond)}.", err=True)
        sys.exit(1)


def _row(one: Comparison) -> dict[str, Any]:
    marks = {"ok": "", "unresolved": "~", "beyond": "!"}
    row: dict[str, Any] = {"run": one.recording.name, "requests": len(one.recording.requests)}
    for error in one.errors:
        row[f"{error.metric} {error.statistic}"] = f"{100 * error.relative:+.1f}{marks[error.verdict]}"
    return row


def _as_json(one: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": error.metric,
            "statistic": error.statistic,
            "measured_s": error.measured_s,
            "simulated_s": error.simulated_s,
            "error": error.relative,
            "interval_s": [error.low_s, error.high_s],
            "verdict": error.verdict,
        }
        for error in one.errors
    ]
