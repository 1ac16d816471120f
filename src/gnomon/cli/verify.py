"""`gnomon verify`: one command for every proof, with its options."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from gnomon.api.verify import Verification, fetch_data, list_data, silicon_scenario, verify
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import answered, file_option, folder_option, jobs_option, together, worker_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress

MAX_ROWS = 200
option = partial(click.option, show_default=True)
PICTURES = {"html": "over_time.html", "svg": "cdf.svg", "page": "leaderboard.html"}
"""What a check can draw, by the option that names its file."""


@click.group(cls=NearGroup)
def command() -> None:
    """Hold the simulator against recorded and published results.

    Exit code 0 when a check passes, 1 when it does not, 2 when its data cannot be read.

    \b
    Example:
      gnomon verify timing --data reference/
    """


def _proof(name: str, doing: str, about: str, *options: Callable[[Any], Any]) -> None:
    """The command of a check: what it is about, and what `gnomon.verify.<name>.prove` takes, by the same names; an
    argument `given` comes first."""

    @command.command(name, help=about)
    @together(*options)
    @answered(doing)
    def run(given: tuple[Any, ...] | Path = (), **options: Any) -> Verification:
        files = {file: options.pop(flag) for flag, file in PICTURES.items() if flag in options}
        allowed = {key[10:]: options.pop(key) for key in list(options) if key.startswith("tolerance_")}
        options |= {"tolerances": allowed} if allowed else {}
        check = "roofline" if options.pop("roofline", False) else name
        if check != name:  # It takes nothing but the data.
            options = {key: options[key] for key in ("data", "on_progress")}
        found = verify(check, *(given if isinstance(given, tuple) else (given,)), **options)
        for file, path in files.items():
            if path is not None:
                found.pictures[file](path)
        return found


runs_argument = click.argument("given", metavar="RUN...", nargs=-1, required=True, type=click.Path())
file_argument = click.argument("given", metavar="FILE", type=click.Path(path_type=Path))

_proof(
    "timing", "cross-validating", """\
Held-out error of the timing estimators on measured operators.

Shuffled: five folds at random, the error between measured points. Unshuffled: ten folds of consecutive rows, the
error across gaps and beyond the ends. Errors are absolute and relative, in %. Exit code 1 when the default
estimator's mean shuffled error on any operator passes 5 %.

\b
Examples:
  gnomon verify timing --data reference/
  gnomon verify timing --data reference/ --forests
  gnomon verify timing --data reference/ --roofline --json
""",
    option("--data", type=click.Path(), envvar="GNOMON_REFERENCE", help="Folder of reference data."),
    option("--forests", is_flag=True, help="Train random forests too, on a sample of the tables (minutes)."),
    option("--roofline", is_flag=True, help="The roofline alone against every measured table instead."),
    option("--tables", "each_table", is_flag=True, help="One line per measured table rather than per operator."),
)  # fmt: skip
_proof(
    "kernels", "holding out", """\
Held-out error of every table of the silicon source, and the roofline beside them.

Every fifth point of a shape is left out and predicted from the others. Exit code 1 when the median over all tables
of a device passes 5 %, or the roofline's 20 %.

\b
Examples:
  gnomon verify kernels
  gnomon verify kernels --device gb200 --one-in 1 --json
""",
    option("--device", "given", multiple=True, help="GPUs to check; h200 and b200 if not given."),
    option("--one-in", type=click.IntRange(1), default=16, help="Shapes taken of each table."),
)  # fmt: skip
_proof(
    "vidur", "replaying", """\
Replay recorded Vidur runs and compare every batch and every time stamp.

A run directory holds run.json, requests.csv.gz and batches.csv.gz. The recorded stage times are replayed, so that
only scheduling is compared: same requests and tokens in every batch, stamps within 1e-9 s. Exit code 1 when any
run differs.

\b
Example:
  gnomon verify vidur reference/vidur/runs/*
""",
    runs_argument,
)  # fmt: skip
_proof(
    "vllm", "simulating servers", """\
Simulate recorded vLLM servers and compare latencies and throughput.

A run directory holds meta.json and requests.jsonl. The simulation gets the server's arrivals, lengths and limits,
and kernel times measured on its GPU; no constant is fitted per run. Exit code 1 when any error passes its
tolerance.

\b
Examples:
  gnomon verify vllm reference/vllm/runs/* --profiles reference/vllm/profiles
  gnomon verify vllm my-run --profiles my-profiles --device rtx-4090 --html over-time.html
""",
    runs_argument,
    option("--profiles", required=True, type=click.Path(), help="Folder of kernels measured on those GPUs."),
    option("--device", "--gpu", help="GPU of the servers, where the recordings do not say."),
    option("--tolerance-ttft", default=0.03, help="Relative error allowed."),
    option("--tolerance-tpot", default=0.01),
    option("--tolerance-e2e", default=0.01),
    option("--tolerance-throughput", default=0.01),
    file_option("--html", "Also draw both over time into this file."),
)  # fmt: skip
_proof(
    "engine", "simulating servers", """\
Simulate recorded runs of any engine and compare latencies.

A run is a folder or file that gnomon calibrate reads, with requests and their stamps. The engine's settings are in
a scenario: model, GPU, batch cap, KV blocks, its own policy file (batching.file). Exit code 1 when the mean of a
latency passes its tolerance.

\b
Examples:
  gnomon verify engine runs/engine/* --calibration calibration.yaml
  gnomon verify engine bench-60.json --scenario my-engine.yaml --tolerance-ttft 0.05
""",
    runs_argument,
    option("--scenario", type=click.Path(), help="Settings of the engine; else scenario.yaml beside each run."),
    option("--calibration", type=click.Path(), help="Constants of the engine, from gnomon calibrate."),
    option("--tolerance-ttft", default=0.1, help="Relative error allowed."),
    option("--tolerance-tpot", default=0.05),
    option("--tolerance-e2e", default=0.05),
)  # fmt: skip
_proof(
    "pipeline", "verifying", """\
Hold the pipeline simulator against FILES; exit code 1 when a value is off.

A file is a list of single runs (JSON), a sweep CSV (its configuration beside it), bubble tables (JSON), or a
PyTorch schedule CSV.

\b
Example:
  gnomon verify pipeline single_runs.json config_1_step0.1.csv zero_bubble_tables.json
""",
    click.argument("given", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE..."),
    option("--all", "most_rows", is_flag=True, callback=lambda ctx, option, is_all: None if is_all else MAX_ROWS,
           help=f"Print every row, even beyond {MAX_ROWS} per file."),
)  # fmt: skip
_proof(
    "posttrain", "verifying", """\
Hold the post-training simulator against published results; exit code 1 outside the gates.

A-E: an elastic system. V, W, Y: verl. N: NeMo-RL. R: elastic over static with defaults. S: speed.

\b
Examples:
  gnomon verify posttrain
  gnomon verify posttrain --only BE --json
""",
    option("--only", default="ABCDERSVWYN", metavar="LETTERS", help="Which sources, e.g. BE."),
    option("--data", type=click.Path(), envvar="GNOMON_REFERENCE", help="Folder of reference data (W and N)."),
    option("--calibrate-on", type=click.Choice([64, 128, 256]), default=64,
           help="B: the scale whose 7B stage seconds set the efficiencies."),
    option("--seed", default=0, help="Of the response lengths."),
)  # fmt: skip
_proof(
    "h200", "verifying", """\
Simulate measured runs of the reference engine from the H200 profile and compare latencies.

Host time is calibrated once, on the run `calibration`, for all others; the card's mean clock during each run, below
that of the profile where the power cap lowers it, is given. Exit code 1 when a mean or a P99 is beyond tolerance
(TPOT and E2E 3 %, TTFT 5 %); such a figure is marked with "!".

\b
Examples:
  gnomon verify h200
  gnomon verify h200 --only llama-3-8b-chat --svg cdf.svg
""",
    option("--runs", type=click.Path(path_type=Path, exists=True),
           help="Folder of recorded runs; the shipped ones if not given."),
    option("--profile", type=click.Path(path_type=Path, exists=True), help="Bundle; the shipped one if not given."),
    option("--only", default="", help="Only runs whose name contains this, e.g. llama-3-8b-chat."),
    file_option("--svg", "Also draw measured and simulated CDFs into this file."),
    option("--full-clock", is_flag=True, help="Simulate all runs at the profile's clock, as if there were no cap."),
)  # fmt: skip
_proof(
    "disagg", "simulating layouts", """\
Layouts of Llama-3.1-70B on H100s measured by llm-d, beside their simulation.

FILE is prism_pd_grid.json of llm-d-prism. One number per tensor-parallel degree is fitted on aggregated layouts;
those labelled disaggregated are predicted, as they ran: with pods that do both (docs/disaggregation.md). Exit code
1 when their median errors pass 10 % (TPOT, throughput) or 25 % (TTFT), or the 16-GPU layouts come in another order.

\b
Examples:
  gnomon verify disagg reference/llmd/prism_pd_grid.json
  gnomon verify disagg reference/llmd/prism_pd_grid.json --only 1P --concurrency 64 --json
""",
    file_argument,
    option("--only", default="", metavar="TEXT", help="Only layouts whose name contains this, e.g. '1P'."),
    option("--concurrency", type=click.IntRange(1), multiple=True, help="Only runs with so many requests at a time."),
    option("--as-labelled", is_flag=True,
           help="Prefill and decode apart as the labels say, which is not how they ran."),
    option("--metrics-age", "metrics_age_s", type=click.FloatRange(0), metavar="SECONDS",
           help="How old the picker's metrics become, if not 50 ms."),
)  # fmt: skip
_proof(
    "prefixes", "simulating", """\
Published effects of routing by prefixes and of KV in host memory, beside their simulation.

Qwen3-32B on 16 H100s, as llm-d published it: four settings of its endpoint picker, and KV offloaded to host memory.
Nothing is fitted. Exit code 1 where a ratio of throughputs is more than 15 % off; see docs/kv-tiers.md.

\b
Example:
  gnomon verify prefixes --json
""",
)  # fmt: skip
_proof(
    "fleet", "simulating effects", """\
Effects that are published of fleets, beside their simulation: cold starts, expert parallelism after failures,
fair scheduling that knows prefixes, scaling by forecast.

Exit code 1 where one lies beyond its tolerance; docs/fleet.md says why it does.

\b
Examples:
  gnomon verify fleet
  gnomon verify fleet --only dlpm --only cold-start
""",
    option("--only", multiple=True, metavar="NAME",
           help="Only these effects: cold-start, elastic-experts, dlpm, forecast."),
)  # fmt: skip
_proof(
    "training", "timing steps", """\
Published training steps beside their prediction: MLPerf, Megatron-Bridge, prime-rl, and steps on one H200.

Constants were fitted on the rows whose line has an even CRC-32; the others are judged. Exit code 1 where a median
error, or the order of two configurations, is beyond its bar; see docs/training.md.

\b
Example:
  gnomon verify training --data reference/
""",
    option("--data", type=click.Path(file_okay=False, path_type=Path), envvar="GNOMON_REFERENCE",
           help="Folder of references."),
)  # fmt: skip
_proof(
    "servers", "simulating servers", """\
Text servers of the ML.ENERGY leaderboard (vLLM 0.11.1, H100 and B200), beside their simulation.

FILE is servers.csv. Nothing is fitted to these servers; what their rows do not say, the lengths of prompts and how
much answers differ, is taken alike for all of a task (docs/servers.md). Lines with an odd crc32 are held out from
every choice. Exit code 1 where a figure is worse than that recorded with the release.

\b
Examples:
  gnomon verify servers reference/mlenergy/servers.csv
  gnomon verify servers reference/mlenergy/servers.csv --only "gemma-3-12b-it h100" --json
""",
    file_argument,
    option("--only", default="", metavar="TEXT", help="Only servers whose name contains this, e.g. 'Qwen3-8B h100'."),
    jobs_option,
)  # fmt: skip
_proof(
    "stages", "simulating stages", """\
Load stages of Llama-2-7B and CodeLlama-34B on H100 (vLLM 0.15, inference-perf), beside their simulation.

FILE is vllm_stages/h100.csv. Exit code 1 where the median error of median TTFT passes 8 %, or that of TPOT 6 %.

\b
Example:
  gnomon verify stages reference/vllm_stages/h100.csv
""",
    file_argument,
)  # fmt: skip


@command.command()
@click.argument("name", required=False)
@folder_option(
    "Folder for the data; set GNOMON_REFERENCE to it afterwards.  [default: $GNOMON_REFERENCE, else reference]"
)
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


def _show_server(ctx: click.Context, option: click.Parameter, server: str | None) -> None:
    import yaml

    if server is not None:
        click.echo(yaml.safe_dump(silicon_scenario(server), sort_keys=False), nl=False)
        ctx.exit()


_proof(
    "silicon", "simulating servers", """\
Simulate the measured servers of aiconfigurator-core (extra [silicon]) and compare TTFT and TPOT.

Every server gets its benchmark client, the settings of its launch script and its layout; servers of one
configuration share a simulation. What was predicted already by this version is not simulated again, so that a
stopped run goes on. Exit code 1 when a figure of the whole file is worse than the one recorded with the release.

\b
Examples:
  gnomon verify silicon --sample 200
  gnomon verify silicon --rows '"Llama" in model and device == "h200"'
  gnomon verify silicon --html leaderboard.html
  gnomon verify silicon --show ID > server.yaml && gnomon simulate server.yaml
""",
    option("--rows", metavar="EXPR", help="""Only servers that meet this, e.g. 'engine == "vllm" and gpus == 8'."""),
    option("--sample", type=click.IntRange(1, 100_000), help="A random sample of this many servers."),
    option("--seed", type=click.IntRange(0), default=0, help="Of the sample."),
    worker_options,
    file_option("--html", "Also write the leaderboard as a page.", name="page"),
    option("--show", metavar="ID", callback=_show_server, expose_value=False,
           help="Print one server as a scenario, and simulate nothing."),
)  # fmt: skip
