"""`gnomon time`: the seconds of one iteration, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.printing import json_option, print_json, print_rows

if TYPE_CHECKING:
    from gnomon.catalog import Device, Model, Parallelism
    from gnomon.timing import Batch, OperatorTime, Timer, TimingConfig


@click.command()
@click.option("--model", "model_name", default="llama-3-8b", show_default=True, help="Name, or path of a config.json.")
@click.option("--device", "device_name", default="h200", show_default=True, help="See `gnomon catalog devices`.")
@click.option("--node", "node_name", default=None, help="Links between GPUs; the device's usual node if not given.")
@click.option("--tensor-parallel", type=int, default=1, show_default=True, help="GPUs that share every layer.")
@click.option("--pipeline-parallel", type=int, default=1, show_default=True, help="Stages of layers.")
@click.option("--data-parallel", type=int, default=1, show_default=True, help="Attention groups that share experts.")
@click.option("--expert-parallel", is_flag=True, help="Whole experts per GPU instead of slices of each.")
@click.option("--prefill", type=int, default=512, show_default=True, help="Prompt tokens in the iteration.")
@click.option("--prefill-kv", type=int, default=0, show_default=True, help="KV tokens before the chunk.")
@click.option("--decode", type=int, default=64, show_default=True, help="Sequences that decode a token each.")
@click.option("--kv", type=int, default=1024, show_default=True, help="KV tokens of each decoding sequence.")
@click.option("--source", "sources", multiple=True, help="Timing source; give it twice to compare.  [default: auto]")
@click.option("--engine", default="vllm", show_default=True, help="Whose kernels: vllm, sglang or trtllm.")
@click.option("--engine-version", default="", help="Its version; the newest tables if not given.")
@click.option("--expert-load", default="balanced", show_default=True, help="How tokens spread over experts.")
@click.option("--path", default=None, help="Folder of measurements, for the source profile.")
@click.option("--estimator", default="grid", show_default=True, help="How to read between measured points.")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    help="Number format of weights and multiplications; auto: the checkpoint's.",
)
@click.option(
    "--kv-dtype",
    default="auto",
    show_default=True,
    help="Number format of the KV cache; auto: the checkpoint's, else bf16.",
)
@json_option
def command(
    model_name: str,
    device_name: str,
    node_name: str | None,
    tensor_parallel: int,
    pipeline_parallel: int,
    data_parallel: int,
    expert_parallel: bool,
    prefill: int,
    prefill_kv: int,
    decode: int,
    kv: int,
    sources: tuple[str, ...],
    engine: str,
    engine_version: str,
    expert_load: str,
    path: str | None,
    estimator: str,
    dtype: str,
    kv_dtype: str,
    as_json: bool,
) -> None:
    """Time one iteration of a batch, operator by operator.

    For every operator: its calls, seconds, share of the iteration, FLOPs and bytes on one GPU, MFU, and what limits it
    (compute, memory, network, or latency: the mere launch). With two sources, their times stand side by side.

    \b
    Examples:
      gnomon time --model llama-3-70b --device h100 --tensor-parallel 8
      gnomon time --model qwen3-32b --device rtxpro6000 --tensor-parallel 2 --prefill 0 --decode 128 --kv 2048
      gnomon time --model meta-llama/Llama-3.1-8B --device rtx-4090 --source roofline --source profile --path profiles
    """
    from gnomon import catalog
    from gnomon.core.config import build
    from gnomon.timing import Batch, Context, Timer, TimingConfig

    model, device = catalog.model(model_name), catalog.device(device_name)
    given = {
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "data_parallel": data_parallel,
        "expert_parallel": expert_parallel,
    }
    parallelism = build(catalog.Parallelism, given, where="parallelism")
    parallelism.check(model)
    node = catalog.node(node_name) if node_name else catalog.default_node(device, parallelism.num_gpus)
    base = {
        "path": path,
        "estimator": estimator,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "engine": engine,
        "engine_version": engine_version,
        "expert_load": expert_load,
    }
    batch = Batch(prefill, prefill_kv, decode, kv)
    timers = []
    for source in dict.fromkeys(sources or ("auto",)):
        config = build(TimingConfig, base | {"source": source}, where="timing")
        _check_room(model, device, parallelism, config, batch)
        timers.append(Timer(Context(model, device, node, parallelism, config)))
    _report(timers, batch, as_json=as_json)


def _check_room(model: Model, device: Device, parallelism: Parallelism, config: TimingConfig, batch: Batch) -> None:
    """Refuse a batch that the model or the memory cannot hold."""
    from gnomon.catalog import plan_memory
    from gnomon.core.errors import ConfigError

    for name, length in (("prefill", batch.prefill + batch.prefill_kv), ("kv", batch.kv if batch.decode else 0)):
        if length > model.max_context_tokens:
            raise ConfigError(
                f"{length:,} tokens are more than the context of {model.name}, {model.max_context_tokens:,}.",
                where=f"--{name}",
                fix="Give a smaller number, or a config.json with a longer context.",
            )
    plan = plan_memory(
        model,
        device,
        parallelism,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        max_batched_tokens=batch.tokens,
    )
    needed = batch.prefill + batch.prefill_kv + batch.decode * batch.kv
    if needed > plan.num_kv_tokens:
        raise ConfigError(
            f"the batch needs {needed:,} KV tokens, but only {plan.num_kv_tokens:,} fit beside the weights.",
            where="--decode x --kv",
            fix="Give fewer or shorter sequences, or more tensor parallelism.",
        )


def _report(timers: list[Timer], batch: Batch, *, as_json: bool) -> None:
    from gnomon.timing.breakdown import breakdown, expected_error

    columns = {timer.source.name: breakdown(timer, batch) for timer in timers}
    notes = list(dict.fromkeys(note for timer in timers for note in timer.notes()))
    if as_json:
        print_json({name: _json(rows) for name, rows in columns.items()} | {"notes": notes})
        return
    title = _title(timers[0], batch)
    rows = _one(next(iter(columns.values()))) if len(columns) == 1 else _side_by_side(columns)
    right = [name for name in rows[0] if name not in ("operator", "limit", "from")]
    print_rows(rows, title=title, right=right)
    for timer in timers:
        times = columns[timer.source.name]
        by_formula = sum(t.seconds for t in times if t.provenance == "roofline") / sum(t.seconds for t in times)
        if 0.0 < by_formula < 1.0:
            click.echo(f"{timer.source.name}: {by_formula:.1%} of the time is the roofline's.")
        click.echo(f"{timer.source.name}: expected error {expected_error(timer, batch):.0%} per iteration.")
    for note in notes:
        click.echo(f"Note: {note}")


def _title(timer: Timer, batch: Batch) -> str:
    c, p = timer.context, timer.context.parallelism
    degrees = [f"TP {p.tensor_parallel}", f"PP {p.pipeline_parallel}"]
    degrees += [f"DP {p.data_parallel}"] if p.data_parallel > 1 else []
    degrees += ["expert parallel"] if p.expert_parallel else []
    parts = [f"{batch.prefill:,} prompt tokens"] if batch.prefill else []
    parts += [f"{batch.decode:,} decodes at {batch.kv:,} KV tokens"] if batch.decode else []
    return f"{c.model.name} on {c.device.name} ({c.node.name}), {', '.join(degrees)}: {' + '.join(parts)}"


def _one(times: list[OperatorTime]) -> list[dict[str, Any]]:
    from gnomon.core import units

    total = _total(times)
    return [
        {
            "operator": t.name,
            "calls": t.calls,
            "time": units.seconds(t.seconds),
            "share": f"{t.seconds / total.seconds:.1%}",
            "FLOPs": units.count(t.flops) if t.flops else None,
            "bytes": units.size(t.bytes),
            "MFU": f"{t.mfu:.1%}" if t.flops else None,
            "limit": t.limit,
            "from": t.provenance or None,
        }
        for t in [*times, total]
    ]


def _side_by_side(columns: dict[str, list[OperatorTime]]) -> list[dict[str, Any]]:
    """One row per operator; an operator that a source times inside another shows a dash."""
    from gnomon.core import units

    first, *others = columns
    tables = {name: {t.name: t for t in [*times, _total(times)]} for name, times in columns.items()}
    names = list(dict.fromkeys(t.name for times in columns.values() for t in times))
    rows = []
    for operator in [*names, "total"]:
        row: dict[str, Any] = {"operator": operator}
        for name, table in tables.items():
            row[name] = units.seconds(table[operator].seconds) if operator in table else None
            share = table[operator].seconds / table["total"].seconds if operator in table else None
            row[f"share {name}"] = f"{share:.1%}" if share is not None else None
        for name in others:
            both = operator in tables[first] and operator in tables[name]
            ratio = tables[name][operator].seconds / tables[first][operator].seconds if both else None
            row[f"{name} / {first}"] = f"{ratio:.2f}" if ratio is not None else None
        known = next(table[operator] for table in tables.values() if operator in table)
        rows.append(row | {"limit": known.limit})
    return rows


def _total(times: list[OperatorTime]) -> OperatorTime:
    from gnomon.timing import OperatorTime

    seconds, flops = sum(t.seconds for t in times), sum(t.flops for t in times)
    longest = max(times, key=lambda t: t.seconds)
    peak_s = sum(t.mfu * t.seconds for t in times)
    moved = sum(t.bytes for t in times if t.limit != "network")
    return OperatorTime("total", sum(t.calls for t in times), seconds, flops, moved, peak_s / seconds, longest.limit)


def _json(times: list[OperatorTime]) -> dict[str, Any]:
    from dataclasses import asdict

    total = _total(times)
    rows = [asdict(t) | {"share": t.seconds / total.seconds} for t in times]
    return {"operators": rows, "total": asdict(total)}
