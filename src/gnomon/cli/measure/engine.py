"""`gnomon engine`: the reference engine on this machine's GPU."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from gnomon.cli.options import together
from gnomon.core.errors import ConfigError, GnomonError, MissingExtraError

engine_options = together(
    click.option("--model", default="llama-3-8b", show_default=True, help="A Llama-shaped model of the catalog."),
    click.option("--max-num-batched-tokens", type=int, default=2048, show_default=True, help="Token budget."),
    click.option("--max-num-seqs", type=int, default=128, show_default=True),
    click.option("--max-model-len", type=int, default=8192, show_default=True),
    click.option("--num-kv-blocks", type=int, help="KV blocks; what fits if not given."),
    click.option("--eager-prefill", is_flag=True,
                 help="Iterations with prompts run without CUDA graphs, as in many engines."),
    click.option("--eager", is_flag=True, help="No iteration runs as a CUDA graph."),
    click.option("--temperature", type=float, help="Of all requests; 0, the default, takes the likeliest token."),
    click.option("--top-p", type=float, help="Of all requests, by sorting the vocabulary."),
    click.option("--repetition-penalty", type=float, help="Of all requests, counted anew in every step."),
)  # fmt: skip


@click.group()
def command() -> None:
    """A compact continuous-batching engine with random weights, to hold predictions against.

    \b
    Example:
      gnomon engine probe --model llama-3-8b
      gnomon engine serve --model llama-3-8b --mix chat --load 0.3 --load 0.9 --out runs/engine
    """


@command.command()
@engine_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the figures as JSON.")
def probe(model: str, **given: Any) -> None:
    """Single iterations against what the hardware allows.

    \b
    Example:
      gnomon engine probe --model llama-3-8b
    """
    _run("probe", model, given)


@command.command()
@engine_options
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
def serve(model: str, **given: Any) -> None:
    """Serve open-loop loads and record when every request's tokens came.

    \b
    Example:
      gnomon engine serve --model llama-3-8b --mix chat --load 0.5 --out runs/engine
    """
    _run("serve", model, given)


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
    names = ("name", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size",
             "qk_norm")  # fmt: skip
    return {field: getattr(model, field) for field in names}


def _run(what: str, model: str, given: dict[str, Any]) -> None:
    """Run the engine with what was given, as words of its own command line: it stands alone."""
    shape = engine_shape(model)
    try:
        from gnomon.measure.engine import __main__ as engine
    except ImportError:
        raise MissingExtraError("The engine", "gpu") from None
    words = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            words += [flag, *map(str, value)]
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text(json.dumps(shape), encoding="utf-8")
        if engine.main([what, "--model", str(path), *words]) != 0:
            raise GnomonError("the engine did not run.", fix="It says why above; it needs an NVIDIA GPU.")
