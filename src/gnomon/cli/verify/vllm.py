"""`gnomon verify vllm`: recorded servers beside their simulation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.printing import json_option, print_json, print_rows

if TYPE_CHECKING:
    from gnomon.verify.vllm import Comparison, Error, Metric

_UNITS = {"ttft": "s", "tpot": "ms", "e2e": "s", "throughput": "tokens/s"}


@click.command()
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path())
@click.option("--profiles", required=True, type=click.Path(), help="Folder of kernels measured on those GPUs.")
@click.option("--device", help="GPU of the servers, where the recordings do not say.")
@click.option("--tolerance-ttft", default=0.03, show_default=True, help="Relative error allowed.")
@click.option("--tolerance-tpot", default=0.01, show_default=True)
@click.option("--tolerance-e2e", default=0.01, show_default=True)
@click.option("--tolerance-throughput", default=0.01, show_default=True)
@click.option("--html", type=click.Path(), help="Also draw both over time into this file.")
@json_option
def command(
    run_dirs: tuple[str, ...], profiles: str, device: str | None, html: str | None, as_json: bool, **allowed: float
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
    from gnomon.verify.vllm import compare

    tolerances: dict[Metric, float] = {
        "ttft": allowed["tolerance_ttft"],
        "tpot": allowed["tolerance_tpot"],
        "e2e": allowed["tolerance_e2e"],
        "throughput": allowed["tolerance_throughput"],
    }
    found = [compare(folder, profiles, device) for folder in run_dirs]
    if html:
        from gnomon.report.verify.vllm import write_page

        write_page(found, html)
    if as_json:
        print_json([_as_json(one, tolerances) for one in found])
    else:
        for one in found:
            _print(one, tolerances)
    beyond = {one.recording.name: one.beyond(tolerances) for one in found}
    if any(beyond.values()):
        for name, errors in beyond.items():
            if errors:
                listing = ", ".join(f"{e.metric} {e.statistic} ({e.relative:+.1%})" for e in errors)
                click.echo(f"{name}: beyond tolerance: {listing}.", err=True)
        sys.exit(1)


def _print(one: Comparison, tolerances: dict[Metric, float]) -> None:
    replicas = one.simulated.cluster.replicas
    click.echo(
        f"{one.recording.name}: {one.recording.model} on {one.device}, {len(one.recording.requests):,} requests, "
        f"{one.simulated.kinds[0].num_kv_blocks:,} KV blocks, {int(replicas.num_preemptions.sum()):,} pre-emptions"
    )
    rows = [_row(error, tolerances) for error in one.errors]
    if not one.recording.peer_errors:
        for row in rows:
            del row["peer"]
    print_rows(rows, right=["recorded", "simulated", "error", "peer"])


def _row(error: Error, tolerances: dict[Metric, float]) -> dict[str, Any]:
    scale = 1e3 if error.metric == "tpot" else 1.0
    return {
        "metric": error.metric,
        "of": error.statistic,
        "recorded": f"{scale * error.recorded:,.2f} {_UNITS[error.metric]}",
        "simulated": f"{scale * error.simulated:,.2f} {_UNITS[error.metric]}",
        "error": f"{error.relative:+.2%}",
        "peer": None if error.peer is None else f"{error.peer:+.1%}",
        "within": "yes" if abs(error.relative) <= tolerances[error.metric] else f"no ({tolerances[error.metric]:.0%})",
    }


def _as_json(one: Comparison, tolerances: dict[Metric, float]) -> dict[str, Any]:
    return {
        "run": one.recording.name,
        "model": one.recording.model,
        "device": one.device,
        "requests": len(one.recording.requests),
        "num_kv_blocks": one.simulated.kinds[0].num_kv_blocks,
        "preemptions": int(one.simulated.cluster.replicas.num_preemptions.sum()),
        "within": not one.beyond(tolerances),
        "notes": one.simulated.notes,
        "errors": [
            {
                "metric": e.metric,
                "of": e.statistic,
                "recorded": e.recorded,
                "simulated": e.simulated,
                "error": e.relative,
                "peer": e.peer,
                "within": abs(e.relative) <= tolerances[e.metric],
            }
            for e in one.errors
        ],
    }
