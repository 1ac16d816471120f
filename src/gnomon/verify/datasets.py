"""The data that checks are held against: where it is public, and how to get it."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from pydantic import Field

from gnomon.core.config import Config, build
from gnomon.core.errors import DataError, UnknownNameError
from gnomon.core.files import written_whole
from gnomon.core.text import own_yaml

MOST_BYTES = 64 * 2**20  # No file of any set comes near it.
PATIENCE_S = 20.0


class Dataset(Config):
    """One set of files, or how to make it."""

    title: str
    check: str = Field(alias="for")
    """The commands that read it."""
    licence: str
    source: str
    """Where it is public."""
    base: str = ""
    """Address that the paths of `files` are appended to."""
    into: str
    """Folder below that of $GNOMON_REFERENCE."""
    how: str
    """What to do without a network, or where there is nothing to fetch."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 by path."""


def datasets() -> dict[str, Dataset]:
    known = own_yaml(files("gnomon.verify") / "data" / "datasets.yaml")
    return {name: build(Dataset, entry, where=name) for name, entry in known.items()}


def missing(dataset: Dataset, folder: Path) -> list[str]:
    """Paths that are not there, or not as they should be."""
    return [path for path, digest in dataset.files.items() if _digest(folder / dataset.into / path) != digest]


def fetch(
    name: str, folder: Path, *, base: str | None = None, on_progress: Callable[[int, int], None] | None = None,
) -> list[Path]:  # fmt: skip
    """Fetch what is missing of a set into `folder`; files that are there and right stay. Returns what was written.

    `base` is another address to fetch from, such as a mirror.
    """
    known = datasets()
    if name not in known:
        raise UnknownNameError("data set", name, known)
    dataset = known[name]
    if not dataset.files:
        raise DataError(f"there is nothing to fetch for {name}.", where=dataset.source, fix=dataset.how)
    wanted, written = missing(dataset, folder), []
    for number, path in enumerate(wanted):
        content = _read((base or dataset.base).rstrip("/") + "/" + path, dataset)
        if hashlib.sha256(content).hexdigest() != dataset.files[path]:
            what = "the file is not the one that Gnomon's figures were made with."
            raise DataError(what, where=path, fix=dataset.how)
        target = folder / dataset.into / path
        with written_whole(target) as temporary:
            temporary.write_bytes(content)
        written.append(target)
        if on_progress:
            on_progress(number + 1, len(wanted))
    return written


def _read(address: str, dataset: Dataset) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            content: bytes = answer.read(MOST_BYTES + 1)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        what = f"{address} cannot be fetched: {reason}."
        raise DataError(what, where=dataset.source, fix=f"Without a network: {dataset.how}") from None
    if len(content) > MOST_BYTES:
        raise DataError("the file is far larger than it should be.", where=address)
    return content


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
