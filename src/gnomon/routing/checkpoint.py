"""Checkpoints of a training run: written whole, checksummed, the last few kept.

A file is a mark, the SHA-256 of what follows, and what `torch.save` wrote. One that was cut short or changed is refused
with a reason, and the one before it is used. `latest` holds the name of the newest.
"""

import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gnomon.core.errors import DataError
from gnomon.core.files import write_text, written_whole

MARK = b"gnomon checkpoint 1\n"
DIGEST_BYTES = hashlib.sha256().digest_size
LATEST = "latest"


def save(folder: Path, update: int, state: dict[str, Any], keep: int) -> Path:
    """Write `state` (tensors and plain values) as the newest checkpoint, and remove all but the last `keep`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"update-{update:06d}.pt"
    with written_whole(path) as temporary:
        temporary.write_bytes(MARK + hashlib.sha256(payload).digest() + payload)
    write_text(folder / LATEST, path.name + "\n")
    for old in found(folder)[keep:]:
        old.unlink()
    return path


def found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("update-*.pt"), reverse=True)


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint; anything but what `save` wrote is a DataError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", where=str(path)) from None
    head = len(MARK) + DIGEST_BYTES
    if not content.startswith(MARK):
        raise DataError("this is not a checkpoint of `gnomon route train`.", where=str(path))
    payload = content[head:]
    if hashlib.sha256(payload).digest() != content[len(MARK) : head]:
        raise DataError("the checkpoint is damaged: its checksum does not match.", where=str(path), fix="Use another.")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DataError(f"cannot be read: {str(error).splitlines()[0]}", where=str(path)) from None
    return state


def load_latest(folder: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole; `warn` hears of those that are not. None where there is none at all."""
    damaged = []
    for path in _newest_first(folder):
        try:
            return path, load(path)
        except DataError as error:
            damaged.append(path)
            warn(f"{error} The one before it is used.")
    if damaged:
        raise DataError("no checkpoint in this folder is whole.", where=str(folder), fix="Start over: --resume never.")
    return None


def _newest_first(folder: Path) -> list[Path]:
    """What `latest` names, then the others."""
    paths = found(folder)
    try:
        named = folder / (folder / LATEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return paths
    return [named, *(path for path in paths if path != named)] if named in paths else paths
