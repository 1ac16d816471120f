"""`gnomon engine`: the reference engine on this machine's GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from gnomon.core.errors import ConfigError, GnomonError, MissingExtraError

model_option = click.option(
    "--model", default="llama-3-8b", show_default=True, help="A Llama-shaped model of the catalog."
)
tokens_option = click.option(
    "--max-num-batched-tokens", type=int, default=2048, show_default=True, help="Token budget."
)
seqs_option = click.option("--max-num-seqs", type=int, default=128, show_default=True)
length_option = click.option("--max-model-len", type=int, default=8192, show_default=True)
blocks_option = click.option("--num-kv-blocks", type=int, help="KV blocks; what fits if not given.")
eager_option = click.option(
    "--eager-prefill", is_flag=True, help="Iterations with prompts run without CUDA graphs, as in many engines."
)


@click.group()
def command() -> None:
    """A compact continuous-batching engine with random weights, to hold predictions against.

    \b
    Example:
      gnomon engine probe --model llama-3-8b
      gnomon engine serve --model llama-3-8b --mix chat --load 0.3 --load 0.9 --out runs/engine
    """


@command.command()
@model_option
@tokens_option
@seqs_option
@length_option
@blocks_option
@eager_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the figures as JSON.")
def probe(model: str, eager_prefill: bool, out: Path | None, **limits: int | None) -> None:
    """Single iterations against what the hardware allows.

    \b
    Example:
      gnomon engine probe --model llama-3-8b
    """
    words = ["--out", str(out)] if out else []
    _run("probe", model, limits, words + (["--eager-prefill"] if eager_prefill else []))


@command.command()
@model_option
@tokens_option
@seqs_option
@length_option
@blocks_option
@eager_option
@click.option(
    "--mix", multiple=True, default=("chat",), show_default=True, help="chat, write or summary; may be repeated."
)
@click.option(
    "--load", multiple=True, type=float, default=(0.5,), show_default=True, help="Share of the probed capacity."
)
@click.option("--rate", type=float, help="Requests per second, instead of --load.")
@click.option(
    "--requests", type=click.Path(path_type=Path, exists=True), help="CSV: arrived_s, prompt_tokens, output_tokens."
)
@click.option("--duration-s", type=float, default=25.0, show_default=True, help="Seconds of arrivals.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Rounds over all loads, each with arrivals of its own (NAME, NAME.2, ...).",
)
@click.option("--ramp", is_flag=True, help="The rate rises from nothing to the one given, over the duration.")
@click.option("--name", help="Name of the run's folder, for a single run.")
@click.option("--token-stamps", is_flag=True, help="Also write every token's stamp.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for what is recorded.")
def serve(
    model: str, mix: tuple[str, ...], load: tuple[float, ...], rate: float | None, requests: Path | None,
    duration_s: float, seed: int, repeats: int, ramp: bool, name: str | None, token_stamps: bool, out: Path,
    eager_prefill: bool, **limits: int | None,
) -> None:  # fmt: skip
    """Serve open-loop loads and record when every request's tokens came.

    \b
    Example:
      gnomon engine serve --model llama-3-8b --mix chat --load 0.5 --out runs/engine
    """
    words = [
        "--mix",
        *mix,
        "--load",
        *map(str, load),
        "--duration-s",
        str(duration_s),
        "--seed",
        str(seed),
        "--repeats",
        str(repeats),
        "--out",
        str(out),
    ]
    words += ["--rate", str(rate)] if rate is not None else []
    words += ["--requests", str(requests)] if requests is not None else []
    words += ["--name", name] if name else []
    flags = {"--ramp": ramp, "--token-stamps": token_stamps, "--eager-prefill": eager_prefill}
    words += [flag for flag, is_set in flags.items() if is_set]
    _run("serve", model, limits, words)


def engine_shape(name: str) -> dict[str, Any]:
    """The sizes the engine needs; an error for a model that is not Llama-shaped."""
    from gnomon import catalog

    model = catalog.model(name)
    unlike = [
        what
        for what, is_so in (
            ("experts", model.is_moe),
            ("latent attention", model.mla is not None),
            ("an MLP without a gate", not model.is_gated),
            ("LayerNorm", model.norm_bias),
            ("parallel attention", model.parallel_attention),
        )
        if is_so
    ]
    if unlike:
        raise ConfigError(f"{model.name} has {', '.join(unlike)}.", where="--model", fix="Take a Llama-shaped model.")
    names = (
        "name",
        "num_layers",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "ffn_size",
        "vocab_size",
        "qk_norm",
    )
    return {field: getattr(model, field) for field in names}


def _run(what: str, model: str, limits: dict[str, int | None], words: list[str]) -> None:
    shape = engine_shape(model)
    try:
        from gnomon.measure.engine import __main__ as engine
    except ImportError:
        raise MissingExtraError("The engine", "gpu") from None
    for name, value in limits.items():
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text(json.dumps(shape), encoding="utf-8")
        if engine.main([what, "--model", str(path), *words]) != 0:
            raise GnomonError("the engine did not run.", fix="It says why above; it needs an NVIDIA GPU.")
