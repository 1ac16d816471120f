"""`gnomon engine`: the reference engine on this machine's GPU."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from gnomon.cli.measure.reading import as_words
from gnomon.cli.options import about, listed, verb
from gnomon.core.errors import ConfigError, GnomonError, MissingExtraError

command = click.Group("engine", help=about("engine"))


@command.command()
@listed("engine")
@verb("engine probe")
def probe(model: str, **given: Any) -> None:
    _run("probe", model, given)


@command.command()
@listed("engine")
@verb("engine serve")
def serve(model: str, **given: Any) -> None:
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
