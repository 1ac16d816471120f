"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnomon.core.errors import ConfigError


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to `path` only if the block succeeds.

    Missing parent folders are made. On failure the temporary file is removed and `path` is untouched. A place where
    nothing can be written is a ConfigError.
    """
    path = Path(path)
    with _writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with _writable(path):
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error.strerror or error}.", where=str(path), fix="Choose another place."
        ) from None


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` to `path` atomically."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
