"""What the verbs of `gnomon profile` read: folders of measurements and lists of degrees."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnomon.core.errors import ConfigError, DataError


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


def degrees_of(text: str) -> list[int]:
    """Degrees of tensor parallelism, by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(
            f"cannot read {text[:100]!r}.", where="--tensor-parallel", fix="Give whole numbers from 1 on, e.g. 1,2,4,8."
        )
    return numbers
