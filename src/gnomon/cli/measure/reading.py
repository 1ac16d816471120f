"""What the verbs of `gnomon profile` read: folders of measurements, lists of degrees, and the shapes of models."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from gnomon.measure.profiling.shapes import Shapes


@contextmanager
def readable(path: Path, fix: str) -> Iterator[None]:
    """What the measuring code cannot read, in its own words (it stands alone and has no errors of Gnomon)."""
    try:
        yield
    except KeyError as error:
        raise DataError(f"there is no column or key {error}.", where=str(path), fix=fix) from None
    except (OSError, ValueError, TypeError, EOFError, zlib.error, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot be read: {reason}.", where=getattr(error, "filename", None) or str(path), fix=fix
        ) from None


def degrees_of(text: str, where: str = "--tensor-parallel") -> list[int]:
    """Degrees of tensor parallelism, or numbers of GPUs, by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(
            f"cannot read {text[:100]!r}.", where=where, fix="Give whole numbers from 1 on, e.g. 1,2,4,8."
        )
    return numbers


def shapes_of(models: list[str], degrees: list[int], dtype: str = "bf16") -> Shapes:
    """The shapes of one rank of every model at every degree it allows, each once."""
    from gnomon import catalog
    from gnomon.measure.profiling.shapes import Shapes
    from gnomon.timing.operators import Communication, Elementwise, Experts, Gemm, Prefill, stage_operators
    from gnomon.timing.sources.profile.samples import shape_keys

    found: dict[str, dict[Any, None]] = {k: {} for k in ("gemm", "head", "elementwise", "attention", "moe")}
    head_dims = set()
    for name in models:
        model = catalog.model(name)
        head_dims.add(model.head_dim)
        for degree in degrees:
            if degree not in catalog.tensor_degrees(model):
                continue
            for one in stage_operators(model, catalog.Parallelism(tensor_parallel=degree), dtype=dtype):
                if isinstance(one.work, Communication):
                    continue  # `gnomon profile collectives` measures them by their bytes.
                key = shape_keys(one)[0]
                match one.work:
                    case Gemm():
                        found["head" if one.kind == "sequence" else "gemm"][key[1:]] = None
                    case Elementwise() if not one.is_fused:
                        found["elementwise"][key] = None
                    case Prefill() if len(key) == 4:
                        found["attention"][key[1:]] = None
                    case Experts():
                        found["moe"][key[1:]] = None
    if len(head_dims) > 1:
        raise ConfigError(
            f"models with head dimensions {sorted(head_dims)} in one bundle.", fix="Profile them one by one."
        )
    return Shapes(
        dtype=dtype,
        head_dim=head_dims.pop(),
        models=[catalog.model(name).name for name in models],
        tensor_parallel=degrees,
        gemm=list(found["gemm"]),
        head=list(found["head"]),
        elementwise=list(found["elementwise"]),
        attention=list(found["attention"]),
        moe=list(found["moe"]),
    )
