"""`gnomon profile`: measure operators on a GPU, or say what to measure on a machine without Gnomon."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from gnomon.cli.measure.profile_import import command as import_command
from gnomon.cli.measure.profile_own import command as own_command
from gnomon.cli.measure.reading import degrees_of, readable, shapes_of
from gnomon.cli.printing import json_option, print_rows
from gnomon.core.errors import ConfigError, GnomonError, MissingExtraError
from gnomon.core.files import write_text

models_option = click.option(
    "--models", default="llama-3-8b", show_default=True, help="Names or config.json, by commas."
)
degrees_option = click.option("--tensor-parallel", "degrees", default="1,2,4,8", show_default=True)
dtype_option = click.option("--dtype", type=click.Choice(["bf16", "fp16"]), default="bf16", show_default=True)
out_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Bundle; an old one is resumed."
)
device_option = click.option("--device", required=True, help="The device's name in the catalog, e.g. h200.")


@click.group()
def command() -> None:
    """Measure operators on a GPU, in Gnomon's profile format.

    \b
    Example:
      gnomon profile all --models llama-3-8b --device h200 --out my-h200
      gnomon time --model llama-3-8b --device h200 --source profile --path my-h200
    """


@command.command()
@models_option
@degrees_option
@dtype_option
@click.option("--out", type=click.Path(path_type=Path), help="JSON file; printed if not given.")
def shapes(models: str, degrees: str, dtype: str, out: Path | None) -> None:
    """The shapes to measure, for `python -m gnomon.measure.profiling` on a machine without Gnomon.

    \b
    Example:
      gnomon profile shapes --models llama-3-8b,qwen3-32b --out shapes.json
    """
    text = json.dumps(asdict(shapes_of(models.split(","), degrees_of(degrees), dtype)), indent=1) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)


def _measuring(what: str, summary: str) -> None:
    @command.command(
        name=what,
        help=f"{summary}\n\n\b\nExample:\n  gnomon profile {what} --models llama-3-8b --device h200 --out my-h200",
    )
    @models_option
    @degrees_option
    @dtype_option
    @device_option
    @out_option
    @json_option
    def run(models: str, degrees: str, dtype: str, device: str, out: Path, as_json: bool) -> None:
        from gnomon.catalog import device as known_device

        known_device(device)
        wanted = shapes_of(models.split(","), degrees_of(degrees), dtype)
        main, limits = _profiler()
        try:
            verdict = main.measure(what, wanted, out, device, limits())
        except RuntimeError as error:
            raise GnomonError(
                str(error), fix="Run it on a machine with an NVIDIA GPU and a CUDA build of PyTorch."
            ) from None
        print_rows(
            verdict["files"], as_json=as_json, title=f"{out}: held-out error {verdict['held_out']['median']:.1%}"
        )


_measuring("compute", "Token-level operators: GEMMs, norms, activations, experts, at every tensor-parallel degree.")
_measuring("attention", "Attention: prefill with KV history, decode (even and skewed lengths), over a paged cache.")
_measuring("all", "Compute and attention.")


@command.command()
@click.option(
    "--collective", "wanted", multiple=True, help="all_reduce, all_gather, all_to_all, send_recv; may be repeated."
)
@click.option("--workers", default="2,4,8", show_default=True, help="Numbers of ranks on this node, by commas.")
@click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="nccl where there is a GPU, else gloo.")
@click.option("--node", help="The node's name in the catalog, e.g. h200_hgx.")
@click.option("--max-bytes", type=int, default=1 << 28, show_default=True)
@device_option
@out_option
def collectives(
    wanted: tuple[str, ...], workers: str, backend: str | None, node: str | None, max_bytes: int, device: str, out: Path
) -> None:
    """Collectives between this node's GPUs (torch.distributed); under torchrun, between those of several nodes.

    \b
    Example:
      gnomon profile collectives --collective all_reduce --workers 2,4,8 --device h200 --node h200_hgx --out my-h200
    """
    main, _ = _profiler()
    words = ["collectives", "--workers", workers, "--max-bytes", str(max_bytes), "--device-name", device]
    words += ["--out", str(out)]
    words += [word for name in wanted for word in ("--collective", name)]
    words += ["--backend", backend] if backend else []
    words += ["--node", node] if node else []
    raise SystemExit(main.main(words))


@command.command()
@click.option("--vocabularies", default="32000,128256,151936,201088,262208", show_default=True, help="By commas.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="CSV file.")
def sampling(vocabularies: str, out: Path) -> None:
    """Choosing tokens: drawing, top-k and top-p by sorting and by searching, penalties, log-probabilities.

    \b
    Example:
      gnomon profile sampling --out my-sampling.csv
    """
    sizes = [one.strip() for one in vocabularies.split(",")]
    if not all(one.isdigit() and int(one) > 1 for one in sizes):
        raise ConfigError(f"{vocabularies!r} are no sizes.", where="--vocabularies", fix="For example: 128256,151936.")
    _profiler()
    import torch

    from gnomon.measure.profiling.sampling import measure

    if not torch.cuda.is_available():
        raise GnomonError("no CUDA device: profiling needs a GPU.", fix="Run it on a machine with an NVIDIA GPU.")
    click.echo("\n".join(measure(out, [int(one) for one in sizes])))


@command.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--out", type=click.Path(path_type=Path), help="Bundle to which the host's rows are added.")
@json_option
def overhead(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Host time per iteration, from RUNS that `gnomon engine serve` recorded.

    \b
    Example:
      gnomon engine serve --model llama-3-8b --mix chat --load 0.5 --out runs/engine
      gnomon profile overhead runs/engine/llama-3-8b-chat-50
    """
    from gnomon.measure.profiling import overhead as fitted

    recorded = []
    for run in runs:
        with readable(run, "Give a folder that `gnomon engine serve` wrote."):
            recorded.append(fitted.read(run))
    fit = fitted.fit(recorded)
    if out is not None:
        with readable(out, "Give the folder of a bundle."):
            fitted.add_to(out, fit)
    print_rows([asdict(fit)], as_json=as_json, title="Host time outside the GPU's work")


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@json_option
def quality(bundle: Path, as_json: bool) -> None:
    """How good BUNDLE's data are: noise, outliers, steps that fall, points predicted from their neighbours.

    \b
    Example:
      gnomon profile quality my-h200
    """
    from gnomon.measure.profiling.bundle import read_rows
    from gnomon.measure.profiling.quality import assess

    with readable(bundle, "Give the folder of a bundle."):
        rows = [asdict(one) for one in assess(read_rows(bundle))]
    if not rows:
        raise ConfigError("holds no measurements.", where=str(bundle), fix="Give the folder of a bundle.")
    print_rows(rows, as_json=as_json, title=str(bundle))


command.add_command(import_command)
command.add_command(own_command, "own")


def _profiler() -> tuple[Any, Any]:
    try:
        from gnomon.measure.profiling import __main__ as main
        from gnomon.measure.profiling.session import Limits
    except ImportError:
        raise MissingExtraError("Profiling", "gpu") from None
    return main, Limits
