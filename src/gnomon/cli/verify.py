"""`gnomon verify`: one command for every proof, with its options."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gnomon.api.verify import fetch_data, list_data, silicon_scenario, verify
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import worker_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress


@click.group(cls=NearGroup)
def command() -> None:
    """Hold the simulator against recorded and published results.

    Exit code 0 when a check passes, 1 when it does not, 2 when its data cannot be read.

    \b
    Example:
      gnomon verify timing --data reference/
    """


def _run(
    name: str, *given: Any, as_json: bool, doing: str = "verifying", pictures: Mapping[str, Path | None] | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """Run a check, draw the pictures for which a file is named, print what was found; exit code 1 where it does not
    pass."""
    with progress(doing) as on_progress:
        found = verify(name, *given, on_progress=on_progress, **options)
    for picture, path in (pictures or {}).items():
        if path is not None:
            found.pictures[picture](path)
    show(found, as_json=as_json)
    if not found.passed:
        click.echo(f"Beyond tolerance: {', '.join(found.findings.failures)}.", err=True)
        sys.exit(1)


@command.command(
    "timing", short_help="Operator times: held-out error of the estimators, and the roofline against measured kernels."
)
@click.option("--data", type=click.Path(), envvar="GNOMON_REFERENCE", help="Folder of reference data.")
@click.option("--forests", is_flag=True, help="Train random forests too, on a sample of the tables (minutes).")
@click.option("--roofline", is_flag=True, help="The roofline alone against every measured table instead.")
@click.option("--tables", "each_table", is_flag=True, help="One line per measured table rather than per operator.")
@json_option
def timing(data: str | None, forests: bool, roofline: bool, each_table: bool, as_json: bool) -> None:
    """Held-out error of the timing estimators on measured operators.

    Shuffled: five folds at random, the error between measured points. Unshuffled: ten folds of consecutive rows, the
    error across gaps and beyond the ends. Errors are absolute and relative, in %. Exit code 1 when the default
    estimator's mean shuffled error on any operator passes 5 %.

    \b
    Examples:
      gnomon verify timing --data reference/
      gnomon verify timing --data reference/ --forests
      gnomon verify timing --data reference/ --roofline --json
    """
    if roofline:
        _run("roofline", data=data, as_json=as_json)
    else:
        _run("timing", doing="cross-validating", data=data, forests=forests, each_table=each_table, as_json=as_json)


@command.command(
    "kernels", short_help="Measured kernels: every table of the silicon source held out, and the roofline beside."
)
@click.option("--device", "devices", multiple=True, help="GPUs to check; h200 and b200 if not given.")
@click.option("--one-in", type=click.IntRange(1), default=16, show_default=True, help="Shapes taken of each table.")
@json_option
def kernels(devices: tuple[str, ...], one_in: int, as_json: bool) -> None:
    """Held-out error of every table of the silicon source, and the roofline beside them.

    Every fifth point of a shape is left out and predicted from the others. Exit code 1 when the median over all tables
    of a device passes 5 %, or the roofline's 20 %.

    \b
    Examples:
      gnomon verify kernels
      gnomon verify kernels --device gb200 --one-in 1 --json
    """
    _run("kernels", *devices, doing="holding out", one_in=one_in, as_json=as_json)


@command.command("vidur", short_help="Scheduling semantics: recorded Vidur runs, batch by batch.")
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path())
@json_option
def vidur(run_dirs: tuple[str, ...], as_json: bool) -> None:
    """Replay recorded Vidur runs and compare every batch and every time stamp.

    A run directory holds run.json, requests.csv.gz and batches.csv.gz. The recorded stage times are replayed, so that
    only scheduling is compared: same requests and tokens in every batch, stamps within 1e-9 s. Exit code 1 when any
    run differs.

    \b
    Example:
      gnomon verify vidur reference/vidur/runs/*
    """
    _run("vidur", *run_dirs, doing="replaying", as_json=as_json)


@command.command("vllm", short_help="Latencies: real vLLM servers, request by request.")
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path())
@click.option("--profiles", required=True, type=click.Path(), help="Folder of kernels measured on those GPUs.")
@click.option("--device", "--gpu", help="GPU of the servers, where the recordings do not say.")
@click.option("--tolerance-ttft", default=0.03, show_default=True, help="Relative error allowed.")
@click.option("--tolerance-tpot", default=0.01, show_default=True)
@click.option("--tolerance-e2e", default=0.01, show_default=True)
@click.option("--tolerance-throughput", default=0.01, show_default=True)
@click.option("--html", type=click.Path(path_type=Path), help="Also draw both over time into this file.")
@json_option
def vllm(
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
    _run(
        "vllm", *run_dirs, doing="simulating servers", profiles=profiles, device=device, tolerances=tolerances,
        pictures={"over_time.html": html}, as_json=as_json,
    )  # fmt: skip


@command.command(
    "engine", short_help="Latencies: recorded runs of any engine, with settings and a calibration of your own."
)
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option("--scenario", type=click.Path(), help="Settings of the engine; else scenario.yaml beside each run.")
@click.option("--calibration", type=click.Path(), help="Constants of the engine, from gnomon calibrate.")
@click.option("--tolerance-ttft", default=0.10, show_default=True, help="Relative error of the mean allowed.")
@click.option("--tolerance-tpot", default=0.05, show_default=True)
@click.option("--tolerance-e2e", default=0.05, show_default=True)
@json_option
def engine(
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
    _run("engine", *runs, scenario=scenario, calibration=calibration, tolerances=tolerances, as_json=as_json)


MAX_ROWS = 200


@command.command("pipeline", short_help="Training pipelines: published schedules and bubbles.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE...")
@click.option("--all", "show_all", is_flag=True, help=f"Print every row, even beyond {MAX_ROWS} per file.")
@json_option
def pipeline(files: tuple[str, ...], show_all: bool, as_json: bool) -> None:
    """Hold the pipeline simulator against FILES; exit code 1 when a value is off.

    A file is a list of single runs (JSON), a sweep CSV (its configuration beside it), bubble tables (JSON), or a
    PyTorch schedule CSV.

    \b
    Example:
      gnomon verify pipeline single_runs.json config_1_step0.1.csv zero_bubble_tables.json
    """
    _run("pipeline", *files, most_rows=None if show_all else MAX_ROWS, as_json=as_json)


@command.command("posttrain", short_help="RL post-training: published results.")
@click.option("--only", default="ABCDES", metavar="LETTERS", help="Which sources, e.g. BE.  [default: ABCDES]")
@click.option(
    "--calibrate-on",
    type=click.Choice(["64", "128", "256"]),
    default="64",
    show_default=True,
    help="B: the scale whose 7B stage seconds set the efficiencies.",
)
@click.option("--seed", default=0, show_default=True, help="Of the response lengths.")
@json_option
def posttrain(only: str, calibrate_on: str, seed: int, as_json: bool) -> None:
    """Hold the post-training simulator against published results A-E; exit code 1 outside the gates.

    \b
    Examples:
      gnomon verify posttrain
      gnomon verify posttrain --only BE --json
    """
    _run("posttrain", only=only, calibrate_on=int(calibrate_on), seed=seed, as_json=as_json)


@command.command("h200", short_help="The reference engine on an H200: simulated and measured.")
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
def h200(only: str | None, svg: Path | None, **given: Any) -> None:
    """Simulate measured runs of the reference engine from the H200 profile and compare latencies.

    Host time is calibrated once, on the run `calibration`, for all others; the card's mean clock during each run, below
    that of the profile where the power cap lowers it, is given. Exit code 1 when a mean or a P99 is beyond tolerance
    (TPOT and E2E 3 %, TTFT 5 %); such a figure is marked with "!".

    \b
    Examples:
      gnomon verify h200
      gnomon verify h200 --only llama-3-8b-chat --svg cdf.svg
    """
    _run("h200", only=only or "", pictures={"cdf.svg": svg}, **given)


@command.command("fetch", short_help="The data that checks are held against: what is where, and how to get it.")
@click.argument("name", required=False)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Folder for the data; set GNOMON_REFERENCE to it afterwards.  [default: $GNOMON_REFERENCE, else reference]",
)  # fmt: skip
@click.option("--mirror", metavar="URL", help="Fetch from here instead of the public place.")
@json_option
def fetch(name: str | None, out: Path | None, mirror: str | None, as_json: bool) -> None:
    """List the data sets, or fetch one of them by NAME.

    Files are checked by their SHA-256, and those that are there already are not fetched again. Sets that cannot be
    fetched say how to get or record them.

    \b
    Examples:
      gnomon verify fetch
      gnomon verify fetch vidur-profiling --out reference
      GNOMON_REFERENCE=reference gnomon verify timing
    """
    folder = out or Path(os.environ.get("GNOMON_REFERENCE") or "reference")
    if name is None:
        show(list_data(folder), as_json=as_json)
        return
    with progress("fetching") as on_progress:
        written = fetch_data(name, folder, base=mirror, on_progress=on_progress)
    click.echo(f"{len(written)} files fetched; {folder} is complete. Set GNOMON_REFERENCE={folder} to use it.")


@command.command("disagg", short_help="Prefill and decode together and apart: layouts measured by llm-d.")
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
def disagg(file: Path, metrics_age: float | None, **given: Any) -> None:
    """Layouts of Llama-3.1-70B on H100s measured by llm-d, beside their simulation.

    FILE is prism_pd_grid.json of llm-d-prism. One number per tensor-parallel degree is fitted on aggregated layouts;
    those labelled disaggregated are predicted, as they ran: with pods that do both (docs/disaggregation.md). Exit code
    1 when their median errors pass 10 % (TPOT, throughput) or 25 % (TTFT), or the 16-GPU layouts come in another order.

    \b
    Examples:
      gnomon verify disagg reference/llmd/prism_pd_grid.json
      gnomon verify disagg reference/llmd/prism_pd_grid.json --only 1P --concurrency 64 --json
    """
    _run("disagg", file, doing="simulating layouts", metrics_age_s=metrics_age, **given)


@command.command("prefixes", short_help="Routing by prefixes and KV in host memory: effects that llm-d published.")
@json_option
def prefixes(as_json: bool) -> None:
    """Published effects of routing by prefixes and of KV in host memory, beside their simulation.

    Qwen3-32B on 16 H100s, as llm-d published it: four settings of its endpoint picker, and KV offloaded to host memory.
    Nothing is fitted. Exit code 1 where a ratio of throughputs is more than 15 % off; see docs/kv-tiers.md.

    \b
    Example:
      gnomon verify prefixes --json
    """
    _run("prefixes", doing="simulating", as_json=as_json)


@command.command("fleet", short_help="Fleets: published effects of cold starts, failures and fairness.")
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only these effects: cold-start, elastic-experts, dlpm, forecast."
)
@json_option
def fleet(only: tuple[str, ...], as_json: bool) -> None:
    """Effects that are published of fleets, beside their simulation: cold starts, expert parallelism after failures,
    fair scheduling that knows prefixes, scaling by forecast.

    Exit code 1 where one lies beyond its tolerance; docs/fleet.md says why it does.

    \b
    Examples:
      gnomon verify fleet
      gnomon verify fleet --only dlpm --only cold-start
    """
    _run("fleet", doing="simulating effects", only=only, as_json=as_json)


@command.command("silicon", short_help="Real deployments: thousands of measured servers of today's models.")
@click.option("--rows", metavar="EXPR", help="""Only servers that meet this, e.g. 'engine == "vllm" and gpus == 8'.""")
@click.option("--sample", type=click.IntRange(1, 100_000), help="A random sample of this many servers.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sample.")
@worker_options
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write the leaderboard as a page.")
@click.option("--show", "shown", metavar="ID", help="Print one server as a scenario, and simulate nothing.")
@json_option
def silicon(html: Path | None, shown: str | None, **given: Any) -> None:
    """Simulate the measured servers of aiconfigurator-core (extra [silicon]) and compare TTFT and TPOT.

    Every server gets its benchmark client, the settings of its launch script and its layout; servers of one
    configuration share a simulation. What was predicted already by this version is not simulated again, so that a
    stopped run goes on. Exit code 1 when a figure of the whole file is worse than the one recorded with the release.

    \b
    Examples:
      gnomon verify silicon --sample 200
      gnomon verify silicon --rows '"Llama" in model and device == "h200"'
      gnomon verify silicon --html leaderboard.html
      gnomon verify silicon --show ID > server.yaml && gnomon simulate server.yaml
    """
    import yaml

    if shown is not None:
        click.echo(yaml.safe_dump(silicon_scenario(shown), sort_keys=False), nl=False)
        return
    _run("silicon", doing="simulating servers", pictures={"leaderboard.html": html}, **given)


@command.command("training", short_help="Training steps: MLPerf, Megatron-Bridge and others, seconds and memory.")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), envvar="GNOMON_REFERENCE", help="Folder of references."
)
@json_option
def training(data: Path | None, as_json: bool) -> None:
    """Published training steps beside their prediction: MLPerf, Megatron-Bridge, prime-rl, and steps on one H200.

    Constants were fitted on the rows whose line has an even CRC-32; the others are judged. Exit code 1 where a median
    error, or the order of two configurations, is beyond its bar; see docs/training.md.

    \b
    Example:
      gnomon verify training --data reference/
    """
    _run("training", data=data, doing="timing steps", as_json=as_json)


@command.command(
    "servers", short_help="Real vLLM servers of the ML.ENERGY leaderboard: time between tokens, throughput."
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--only", default="", metavar="TEXT", help="Only servers whose name contains this, e.g. 'Qwen3-8B h100'.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; as many as there are cores if not given.")
@json_option
def servers(file: Path, **given: Any) -> None:
    """Text servers of the ML.ENERGY leaderboard (vLLM 0.11.1, H100 and B200), beside their simulation.

    FILE is servers.csv. Nothing is fitted to these servers; what their rows do not say, the lengths of prompts and how
    much answers differ, is taken alike for all of a task (docs/servers.md). Lines with an odd crc32 are held out from
    every choice. Exit code 1 where a figure is worse than that recorded with the release.

    \b
    Examples:
      gnomon verify servers reference/mlenergy/servers.csv
      gnomon verify servers reference/mlenergy/servers.csv --only "gemma-3-12b-it h100" --json
    """
    _run("servers", file, doing="simulating servers", **given)


@command.command(
    "stages", short_help="Real vLLM servers under stages of load: time to the first token, time per token."
)
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def stages(file: Path, as_json: bool) -> None:
    """Load stages of Llama-2-7B and CodeLlama-34B on H100 (vLLM 0.15, inference-perf), beside their simulation.

    FILE is vllm_stages/h100.csv. Exit code 1 where the median error of median TTFT passes 8 %, or that of TPOT 6 %.

    \b
    Example:
      gnomon verify stages reference/vllm_stages/h100.csv
    """
    _run("stages", file, doing="simulating stages", as_json=as_json)
