"""Folders named after devices and models, in whatever spelling."""

from collections.abc import Callable, Iterable
from pathlib import Path

from gnomon.catalog.devices import DEVICES, Device
from gnomon.catalog.model_library import MODELS
from gnomon.catalog.model_library import model as model_called
from gnomon.catalog.models import Model
from gnomon.core.errors import DataError

Names = tuple[str, str]
"""Device and model, as a path spells them."""


def folders_of(
    root: Path, folders: Iterable[Path], names: Callable[[Path], Names], model: Model, device: Device
) -> list[Path]:
    """The folders of one model on one device; those of a model of the same shape where its own name is not there."""
    found = list(folders)
    on_device = [path for path in found if DEVICES.resolve(names(path)[0]) == device.name]
    for is_match in (_has_name, _has_shape):
        matching = [path for path in on_device if is_match(names(path)[1], model)]
        if matching:
            return matching
    known = sorted({"/".join(names(path)) for path in (on_device or found)})
    raise DataError(
        f"has no profile of {model.name} on {device.name}.", where=str(root), fix=f"It has: {', '.join(known)}."
    )


def _has_name(name: str, model: Model) -> bool:
    return name == model.hf_id or MODELS.resolve(name) == (MODELS.resolve(model.name) or model.name)


def _has_shape(name: str, model: Model) -> bool:
    """Whether `name` is a known model whose kernels are the same, e.g. another fine-tuning."""
    return MODELS.resolve(name) is not None and _shape(model_called(name)) == _shape(model)


def _shape(model: Model) -> tuple[object, ...]:
    return (
        *(model.hidden_size, model.num_heads, model.num_kv_heads, model.head_dim, model.ffn_size, model.is_gated),
        *(model.vocab_size, model.qk_norm, model.mla),
        *(model.num_experts, model.experts_per_token, model.expert_ffn_size, model.shared_ffn_size),
    )
