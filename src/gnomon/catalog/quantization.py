"""In which number formats a checkpoint keeps its weights, group by group."""

from __future__ import annotations

from functools import cache
from typing import ClassVar, Literal, get_args

from pydantic import Field, PositiveFloat

from gnomon.catalog.devices import DTYPE_BYTES, Dtype
from gnomon.catalog.library import DATA
from gnomon.core.config import Config, build
from gnomon.core.errors import UnknownNameError
from gnomon.core.text import own_yaml

WeightGroup = Literal[
    "attention",  # Projections into attention: q, k, v, and the latent ones.
    "attention_output",
    "indexer",
    "linear_attention",  # Projections into and out of linear attention.
    "dense_mlp",
    "shared_experts",
    "routed_experts",
    "router",
    "embedding",
    "head",
    "other",  # Norms, biases, convolutions.
]
GROUPS: tuple[WeightGroup, ...] = get_args(WeightGroup)
KEPT: tuple[WeightGroup, ...] = ("router", "embedding", "head", "other")
"""Groups that stay in 16 bits when engines quantise the rest."""


class WeightFormat(Config):
    """How one matrix of weights lies in memory and is multiplied."""

    name: str
    bytes_per_weight: PositiveFloat
    """Scales included."""
    product: Dtype
    """Number format of the multiplication; bf16 where the weights are only stored smaller."""


class Quantization(Config):
    """The number formats of a checkpoint."""

    name: str
    dtype: Dtype
    """The format that most of it is in, by which it is known."""
    formats: dict[WeightGroup, WeightFormat]
    """Of every group."""
    kv_dtype: Dtype | None = None
    """Number format of the KV cache that the checkpoint asks for, if it does."""

    def __getitem__(self, group: WeightGroup) -> WeightFormat:
        return self.formats[group]

    def __hash__(self) -> int:
        return hash((self.name, self.kv_dtype, *self.formats.values()))

    @property
    def is_plain(self) -> bool:
        """Whether all weights are in 16 bits."""
        return all(one.bytes_per_weight == 2.0 for one in self.formats.values())


class _Scheme(Config):
    """One way of quantising any model."""

    dtype: Dtype
    default: str
    """Format of the groups that `groups` does not name."""
    groups: dict[WeightGroup, str] = Field(default_factory=dict)
    source: str


class Checkpoint(Config):
    """How a published checkpoint is quantised."""

    shorthand: ClassVar[str | None] = "scheme"

    scheme: str
    kv_dtype: Dtype | None = None
    """The number format of the KV cache that it asks for."""

    @property
    def quantization(self) -> Quantization:
        """Its number formats."""
        return scheme(self.scheme).model_copy(update={"kv_dtype": self.kv_dtype})


class _Library(Config):
    formats: dict[str, _Format]
    schemes: dict[str, _Scheme]
    suffixes: dict[str, Checkpoint]


class _Format(Config):
    bytes_per_weight: PositiveFloat
    product: Dtype
    source: str


@cache
def _library() -> _Library:
    return build(_Library, own_yaml(DATA / "quantization.yaml"), where="quantization.yaml")


@cache
def weight_format(name: str) -> WeightFormat:
    """A number format by name: bf16, fp8, fp8_block, nvfp4, ..."""
    known = _library().formats
    if name not in known:
        raise UnknownNameError("weight format", name, known)
    return WeightFormat(name=name, bytes_per_weight=known[name].bytes_per_weight, product=known[name].product)


def split_name(name: str) -> tuple[str, Checkpoint] | None:
    """A checkpoint's name without the ending that says how it is quantised, and what the ending means."""
    suffixes = _library().suffixes
    for suffix in sorted(suffixes, key=len, reverse=True):
        if name.casefold().endswith(suffix.casefold()):
            return name[: -len(suffix)], suffixes[suffix]
    return None


def scheme_names() -> list[str]:
    """Every built-in way of quantising a model."""
    return list(_library().schemes)


def scheme_source(name: str) -> str:
    """Which checkpoint a built-in way of quantising follows."""
    return _library().schemes[name].source


@cache
def scheme(name: str) -> Quantization:
    """A built-in way of quantising any model, by name: bf16, fp8, fp8_block, nvfp4, mxfp4, int4, ..."""
    known = _library().schemes
    if name not in known:
        raise UnknownNameError("dtype", name, ["auto", *known])
    one = known[name]
    kept: dict[WeightGroup, str] = dict.fromkeys(KEPT, one.default if DTYPE_BYTES[one.dtype] >= 2 else "bf16")
    names = {**dict.fromkeys(GROUPS, one.default), **kept, **one.groups}
    formats = {group: weight_format(format_name) for group, format_name in names.items()}
    return Quantization(name=name, dtype=one.dtype, formats=formats)


BF16 = WeightFormat(name="bf16", bytes_per_weight=2.0, product="bf16")
