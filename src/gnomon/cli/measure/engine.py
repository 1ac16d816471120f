"""`gnomon engine`: the reference engine on this machine's GPU."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from gnomon.cli.measure.reading import as_words
from gnomon.cli.options import listed
from gnomon.core.errors import ConfigError, GnomonError, MissingExtraError


@click.group()
def command() -> None:
    """A compact continuous-batching engine with random weights, to hold predictions against.

    \b
    Example:
      gnomon engine probe --model llama-3-8b
      gnomon engine serve --model llama-3-8b --mix chat --load 0.3 --load 0.9 --out runs/engine
    """


@command.command()
@listed("engine")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the figures as JSON.")
def probe(model: str, **given: Any) -> None:
    """Single iterations against what the hardware allows.

    \b
    Example:
      gnomon engine probe --model llama-3-8b
    """
    _run("probe", model, given)


@command.command()
@listed("engine", "engine serve")
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
    unlike = {
        "experts": model.is_moe, "latent attention": model.mla is not None, "LayerNorm": model.norm_bias,
        "an MLP without a gate": not model.is_gated, "parallel attention": model.parallel_attention,
    }  # fmt: skip
    if any(unlike.values()):
        what = f"{model.name} has {', '.join(name for name, is_so in unlike.items() if is_so)}."
        raise ConfigError(what, where="--model", fix="Take a Llama-shaped model.")
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text(json.dumps(shape), encoding="utf-8")
        if engine.main([what, "--model", str(path), *as_words(given)]) != 0:
            raise GnomonError("the engine did not run.", fix="It says why above; it needs an NVIDIA GPU.")
