"""The commands about serving: one scenario, several, why they are as they are, and what a real server left behind."""

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gnomon.api import serving as api
from gnomon.api.serving import Scenario
from gnomon.api.time import Iteration
from gnomon.cli.options import SectionedCommand, answered, config_options, listed, scenario_argument
from gnomon.cli.printing import json_option, print_json, show
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError
from gnomon.core.files import write_text

REPORT = "The report is {}/report.html; open it in a browser."


@click.command(cls=SectionedCommand)
@scenario_argument()
@listed("simulate")
@json_option
@config_options(Scenario)
def simulate(
    file: str | None, overrides: dict[str, Any], out: Path | None, extras: tuple[str, ...], formats: tuple[str, ...],
    intervals: bool | None, project: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate SCENARIO (a YAML file), or what the flags say.

    Without either: Llama-3-8B on one H200 under a chat load of 31 requests per second, about 80 % of what it can take,
    as vLLM serves it. `--engine none`: kernels only.

    \b
    Examples:
      gnomon simulate
      gnomon simulate --model llama-3-70b --tp 4 --rate 3 --out runs/70b
      gnomon simulate examples/serving/overload.yaml --json
    """
    if (extras or formats) and out is None:
        flag = f"--{extras[0]}" if extras else "--export"
        raise ConfigError("there is no folder for it.", where=flag, fix="Give one with --out DIR.")
    chosen = api.scenario(file, **overrides)
    with progress() as on_progress:
        result = api.simulate(chosen, intervals=intervals, explained=out is not None, on_progress=on_progress)
    show(result, as_json=as_json)
    if out is not None:
        with progress("writing", compiles=False):
            folder = result.save(out, extras)
            for name in formats:
                result.export(name, folder)
        click.echo(REPORT.format(folder), err=as_json)
    if project is not None:
        click.echo(f"Logged to Weights & Biases: {result.log_to_wandb(project)}", err=as_json)


@click.command(cls=SectionedCommand)
@scenario_argument()
@answered(out="Folder for capacity.json.")
@config_options(Scenario)
def capacity(file: str | None, overrides: dict[str, Any], on_progress: Any) -> Any:
    """How much load SCENARIO takes within its SLO: requests per second, users at once, $ per million tokens.

    \b
    Examples:
      gnomon capacity --model llama-3-8b --gpu h100 --slo.ttft-s 500ms --slo.tpot-s 50ms
      gnomon capacity examples/serving/closed_loop.yaml --json
    """
    from gnomon.api import load

    return load.capacity(file, on_progress=on_progress, **overrides)


@click.command(cls=SectionedCommand)
@scenario_argument()
@listed("serve")
@config_options(Scenario)
def serve(file: str | None, overrides: dict[str, Any], **options: Any) -> None:
    """Serve SCENARIO: an OpenAI-compatible server whose tokens come when the simulated engine would produce them.

    \b
    Examples:
      gnomon serve --model llama-3-8b --gpu h100
      gnomon serve examples/serving/overload.yaml --num-replicas 8 --port-per-replica
      curl localhost:8000/v1/completions -d '{"prompt": "The sun", "max_tokens": 5, "stream": true}'
    """
    from gnomon.api import serving as live

    def started(urls: list[str], model: str) -> None:
        click.echo(f"Serving {model} at {', '.join(urls)} (Ctrl-C to stop)", err=True)

    live.serve(file, on_start=started, **options, **overrides)


@click.command(cls=SectionedCommand)
@click.argument("scenarios", nargs=-1, type=click.Path())
@listed("compare")
@answered(out="Folder for the report, comparison.json and every variant's run.", said=REPORT)
@config_options(Scenario)
def compare(scenarios: tuple[str, ...], overrides: dict[str, Any], vary: tuple[str, ...], **given: Any) -> Any:
    """Run several variants on the same requests and print their paired differences.

    SCENARIOS are YAML files; the first variant is the baseline. Every request meets every variant, so that a difference
    is not luck of the draw; the 95 % intervals say what is left of it. Other flags change all variants.

    \b
    Examples:
      gnomon compare a.yaml b.yaml
      gnomon compare --vary batching.policy=vllm_v1,sarathi --vary replica.tensor_parallel=1,2
      gnomon compare --vary router=round_robin,least_outstanding --num-replicas 4 --rate 100
      gnomon compare --vary tp=4,num_replicas=4,tp=2+num_replicas=2
    """
    from gnomon.api import comparison

    return comparison.compare(*scenarios, vary=_varied(vary), **given, **overrides)


def _varied(vary: tuple[str, ...]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for text in vary:
        _, equals, values = text.partition("=")
        chosen: list[Any] = [value.strip() for value in values.split(",") if value.strip()]
        if "=" in values:
            chosen = [dict(_setting(part) for part in one.split("+")) for one in text.split(",")]
        if not equals or not chosen:
            fix = "Write FIELD=A,B, e.g. router=random,lmetric; or variants of several fields: tp=4,num_replicas=4."
            raise ConfigError(f"cannot read {text!r}.", where="--vary", fix=fix)
        field = text if "=" in values else _setting(text)[0]
        if field in found:
            raise ConfigError(f"{field} is varied twice.", where="--vary", fix="List all its values in one --vary.")
        found[field] = chosen
    return found


def _setting(text: str) -> tuple[str, str]:
    """FIELD=VALUE, with the field as a configuration calls it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"cannot read {text!r}.", where="--vary", fix="Write FIELD=VALUE, joined by +.")
    return name.strip().lstrip("-").replace("-", "_"), value.strip()


@click.command()
@click.argument("run", metavar="RUN_DIR", type=click.Path(path_type=Path))
@listed("explain")
@answered(out="Folder for explanation.json and every request's parts (parts.parquet).")
def explain(run: Path, advice: bool, on_progress: Any, **asked: Any) -> Any:
    """Say why requests of a run were slow, or why one request was.

    RUN_DIR is a folder that `gnomon simulate --out` wrote, or a scenario (a YAML file); also one of `gnomon pipeline`
    or `gnomon posttrain`: what the step waited for. The run is simulated again with accounts of every request's time.

    \b
    Examples:
      gnomon explain runs/demo
      gnomon explain runs/demo --request 812
      gnomon explain runs/demo --percentile 95 --metric ttft --no-advice
    """
    from gnomon.api import explain as explaining

    if not run.exists():
        fix = f"Make one: gnomon simulate --out {run}" if not run.suffix else "Check the path of the scenario."
        raise ConfigError("there is no such run.", where=str(run), fix=fix)
    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in asked.items() if source(name) is not ParameterSource.DEFAULT}
    return explaining.explain(run, advice=advice, on_progress=on_progress, **given)


@click.command(cls=SectionedCommand)
@scenario_argument()
@listed("check")
@answered()
@config_options(Scenario)
def check(
    file: str | None, overrides: dict[str, Any], limits: tuple[str, ...], junit: Path | None, markdown: Path | None,
    **given: Any,
) -> Any:  # fmt: skip
    """Simulate SCENARIO and hold it against limits and an earlier run; exit code 1 where it fails.

    \b
    Examples:
      gnomon check scenario.yaml --slo ttft_p99=0.5 --slo tpot_p99=0.05
      gnomon check scenario.yaml --baseline runs/main --junit check.xml --markdown check.md
    """
    from gnomon.api import check as checking

    found = checking.check(file, slo=dict(map(_limit, limits)), **given, **overrides)
    for path, text in ((junit, found.junit()), (markdown, found.markdown())):
        if path is not None:
            write_text(path, text)
    return found


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"{text!r} is no limit.", where="--slo", fix="Write it as ttft_p99=0.5.") from None


@click.command()
@click.argument("file", type=click.Path())
@json_option
def check_policy(file: str, as_json: bool) -> None:
    """Test the batching policies and routers that FILE (Python) registers against the rules they must keep.

    Small runs under a light load, a long queue, little memory, long prompts and so on. Prints what passed and what
    failed, with the reason; exit code 1 if anything failed.

    \b
    Examples:
      gnomon check-policy examples/own/shortest_first.py
    """
    found = []
    said_by: dict[str, str] = {}
    for finding in api.check_policy(file):
        found.append(finding)
        if as_json:
            continue
        mark = click.style("passed", fg="green") if finding.passed else click.style("FAILED", fg="red")
        click.echo(f"{mark}  {finding.kind} {finding.name}: {finding.test}")
        if finding.said:
            first = said_by.setdefault(finding.said, finding.test)
            click.echo(f"        {finding.said if first == finding.test else f'The same as for {first}.'}")
    failed = sum(not finding.passed for finding in found)
    if as_json:
        print_json([finding.to_dict() for finding in found])
    else:
        click.echo(f"{len(found) - failed} of {len(found)} tests passed.")
    if failed:
        sys.exit(1)


@click.command(cls=SectionedCommand)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=click.Path())
@listed("calibrate")
@json_option
@config_options(Scenario)
def calibrate(
    logs: tuple[str, ...], file: str | None, overrides: dict[str, Any], out: Path | None, as_json: bool, **given: Any
) -> None:
    """Fit host time, front end and clock to what a real server left behind.

    Each LOG is one load: a step log (CSV or JSON lines: duration_s, prefill_tokens, decodes, decode_kv, running), a
    table of requests with their stamps, a file of vllm bench serve --save-detailed, SGLang's bench_serving, AIPerf,
    genai-perf or inference-perf, scrapes of /metrics, or a folder that gnomon wrote. Give logs of several loads. Any
    command takes the result with --calibration.

    \b
    Examples:
      gnomon calibrate steps-20.csv steps-60.csv --scenario server.yaml --out calibration.yaml
      gnomon calibrate runs/engine/* --hold-out llama-3-8b-chat-70 --out calibration.yaml
      gnomon simulate server.yaml --calibration calibration.yaml --rate 30
    """
    from gnomon.api import calibration

    with progress("fitting") as on_progress:
        found = calibration.calibrate(logs, file, on_progress=on_progress, **given, **overrides)
    show(found, as_json=as_json)
    if out is not None:
        click.echo(f"Use it with --calibration {found.write(out)}", err=as_json)


@click.command(cls=SectionedCommand)
@click.argument("log", type=click.Path())
@listed("explain-gap")
@answered(out="Folder for gap.json and gap.html.")
@config_options(Scenario)
def explain_gap(log: str, file: str | None, html: Path | None, overrides: dict[str, Any], on_progress: Any) -> Any:
    """Simulate a recorded load and rank what makes the two differ.

    LOG is a file with requests and their stamps, or a folder with requests and iterations, as for gnomon calibrate.
    Compared: latencies, iterations by phase and batch size, tokens computed, cache hits, requests in flight, and the
    first request that is off.

    \b
    Examples:
      gnomon explain-gap runs/engine/llama-3-8b-chat-60 --html gap.html
      gnomon explain-gap bench.json --scenario server.yaml --calibration calibration.yaml
    """
    from gnomon.api import calibration

    found = calibration.explain_gap(log, file, **overrides)
    if html is not None:
        click.echo(f"The page is {found.write_page(html)}; open it in a browser.", err=True)
    return found


@click.command(cls=SectionedCommand)
@scenario_argument()
@listed("manifest")
@config_options(Scenario)
def manifest(file: str | None, overrides: dict[str, Any], target: str, out: Path | None) -> None:
    """Write SCENARIO, or the winner in the folder of a search, as manifests; what they cannot say is named.

    \b
    Examples:
      gnomon manifest scenario.yaml --for kubernetes > deployment.yaml
      gnomon manifest runs/search --for llm-d --out overlay
    """
    from gnomon.convert import manifests

    if file is not None and (Path(file) / "best.yaml").is_file():
        file = str(Path(file) / "best.yaml")
    made = manifests.manifest(api.scenario(file, **overrides), target)
    for name, text in made.files.items():
        if out is None:
            click.echo(f"# {name}\n{text}" if len(made.files) > 1 else text, nl=False)
        else:
            write_text(out / name, text)
    for one in made.left:
        click.echo(f"Not said: {one}", err=True)


@click.command(cls=SectionedCommand)
@listed("time")
@answered("timing", compiles=False)
@config_options(Iteration, skip=("sources", "expert_parallel"))
def time(sources: tuple[str, ...], overrides: dict[str, Any], on_progress: Any, **given: Any) -> Any:
    """Time one iteration of a batch, operator by operator.

    For every operator: its calls, seconds, share of the iteration, FLOPs and bytes on one GPU, MFU, and what limits it
    (compute, memory, network, or latency: the mere launch). With two sources, their times stand side by side.

    \b
    Examples:
      gnomon time --model llama-3-70b --gpu h100 --tp 8
      gnomon time --model qwen3-32b --gpu rtxpro6000 --tp 2 --decode 128 --kv 2048
      gnomon time --model meta-llama/Llama-3.1-8B --device rtx-4090 --source roofline --source profile --path profiles
    """
    from gnomon.api import time as timing

    more = {name: value for name, value in given.items() if value} | ({"sources": list(sources)} if sources else {})
    return timing.time(**overrides, **more)
