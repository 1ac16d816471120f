"""`gnomon profile own`: kernels of another engine into a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gnomon.cli.measure.reading import degrees_of, readable, shapes_of
from gnomon.cli.progress import progress
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.files import write_text


@click.command()
@click.argument("kernels", required=False, type=click.Path(path_type=Path))
@click.option("--models", default="llama-3-8b", show_default=True, help="Names or config.json, by commas.")
@click.option("--tensor-parallel", "degrees", default="1", show_default=True, help="Degrees, by commas.")
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp8"]), default="bf16", show_default=True)
@click.option("--only", default="", help="gemm, attention, elementwise, moe, by commas; all that the file times.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Write what to measure, and stop.")
@click.option("--answers", type=click.Path(path_type=Path), help="The plan's lines with seconds, from any program.")
@click.option("--device", help="The device's name in the catalog, e.g. h200.")
@click.option("--out", type=click.Path(path_type=Path), help="Bundle; an old one is resumed.")
def command(
    kernels: Path | None, models: str, degrees: str, dtype: str, only: str, plan_file: Path | None,
    answers: Path | None, device: str | None, out: Path | None,
) -> None:  # fmt: skip
    """Time the kernels of another engine: shapes in, seconds out.

    KERNELS is a Python file with gemm(dtype, m, n, k), attention(dtype, heads, kv_heads, head_dim, chunk, kv, decodes,
    decode_kv), ...: each returns seconds, or a list of repeats. A program in another language takes --plan and gives
    --answers. What is not timed comes from the roofline.

    \b
    Examples:
      gnomon profile own my_kernels.py --models llama-3-8b --device h200 --out my-engine
      gnomon profile own --models llama-3-8b --plan plan.jsonl
      gnomon profile own --answers answers.jsonl --device h200 --out my-engine
      gnomon simulate --device h200 --timing.source profile --timing.path my-engine
    """
    from gnomon.measure.profiling import own

    if (kernels is None) + (plan_file is None) + (answers is None) != 2:
        raise ConfigError("give one of KERNELS, --plan and --answers.", fix="See gnomon profile own --help.")
    names = models.split(",")
    asked = []
    if answers is None:
        kinds = [one.strip() for one in only.split(",") if one.strip()] or list(own.KINDS)
        unknown = set(kinds) - set(own.KINDS)
        if unknown:
            raise ConfigError(f"unknown kind {unknown.pop()!r}.", where="--only", fix=f"Known: {', '.join(own.KINDS)}.")
        asked = list(own.plan(shapes_of(names, degrees_of(degrees), dtype), kinds))
    if plan_file is not None:
        write_text(plan_file, "".join(json.dumps(one) + "\n" for one in asked))
        click.echo(f"{len(asked):,} shapes in {plan_file}; add seconds to each line.")
        return
    if device is None or out is None:
        raise ConfigError("a bundle needs --device and --out.", fix="For example: --device h200 --out my-engine.")
    from gnomon.catalog import device as known_device

    facts = {"device": known_device(device).name, "dtype": dtype, "models": names, "method": "own kernels"}
    if kernels is not None:
        try:
            found = own.load(kernels)
            with progress("timing kernels") as on_progress:
                own.measure(found, asked, out, on_progress)
        except Exception as error:  # Whatever a user's file does.
            raise DataError(f"{type(error).__name__}: {error}.", where=str(kernels)) from None
    else:
        assert answers is not None
        with readable(answers, "Each line is one of the plan's, with seconds."):
            own.read_answers(answers, out)
    with readable(out, "Give a folder for the bundle."):
        manifest = own.write(out, facts)
    rows = {name: about["rows"] for name, about in json.loads(manifest.read_text(encoding="utf-8"))["files"].items()}
    click.echo(f"{out}: {', '.join(f'{count:,} rows in {name}' for name, count in rows.items())}")
