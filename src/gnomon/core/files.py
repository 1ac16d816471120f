"""Files and folders that are either whole or not there."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gnomon.core.errors import ConfigError


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to `path` only if the block succeeds.

    Missing parent folders are made. On failure the temporary file is removed and `path` is untouched. A place where
    nothing can be written, or no more, is a ConfigError.
    """
    path = Path(path)
    with _writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:100]}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        with _writable(path):
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def folder_written_whole(folder: str | Path, ours: tuple[str, ...]) -> Iterator[Path]:
    """Yield a temporary folder, whose content becomes that of `folder` only if the block succeeds.

    What was in `folder` before is replaced as a whole, if it matches the patterns `ours`. A folder that holds anything
    else is refused: nothing is deleted that somebody else has put there.
    """
    folder = Path(folder)
    with _writable(folder):
        before = _replaceable(folder, ours)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary_folder(folder, within=folder.exists())
    try:
        yield temporary
        with _writable(folder):
            temporary.chmod(0o777 & ~_umask())
            if not folder.exists():
                temporary.rename(folder)
            elif temporary.parent == folder or not _exchanged(temporary, folder):
                # File by file, after what was there before has gone.
                for one in before:
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
                for one in sorted(temporary.iterdir()):
                    one.rename(folder / one.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replaceable(folder: Path, ours: tuple[str, ...]) -> list[Path]:
    """What a run has left in `folder`."""
    found = sorted(folder.iterdir()) if folder.exists() else []
    for one in found:
        if not any(fnmatch(one.name, pattern) for pattern in ours):
            fix = "Choose an empty or a new folder."
            raise ConfigError(f"holds {one.name}, which is not of a run like this.", where=str(folder), fix=fix)
    return found


def _temporary_folder(folder: Path, *, within: bool) -> Path:
    """Beside `folder`; within it where nothing may be written beside it."""
    try:
        return Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:100]}-"))
    except OSError:
        if not within:
            raise
        return Path(tempfile.mkdtemp(dir=folder, prefix="."))


def _exchanged(new: Path, old: Path) -> bool:
    """Put `new` in the place of `old`; False where the folder itself must stay: a mount, or where we are."""
    if Path.cwd().is_relative_to(old.resolve()):
        return False
    aside = Path(tempfile.mkdtemp(dir=old.parent, prefix=f".{old.name[:100]}-old-"))
    try:
        old.replace(aside)
        new.rename(old)
    except OSError:
        if not old.exists():
            aside.rename(old)
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


NOT_WRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""Reasons of the place, whatever was being written."""


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fix = "Choose another place."
        raise ConfigError(f"cannot be written: {error.strerror or error}.", where=str(path), fix=fix) from None
    except Exception as error:  # Writers of tables have errors of their own.
        if any(os.strerror(number) in str(error) for number in NOT_WRITABLE):
            raise ConfigError(f"cannot be written: {error}.", where=str(path), fix="Choose another place.") from None
        raise


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; False too for what cannot be the name of one (too long, with a zero in it)."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def write_frame(path: str | Path, frame: Any) -> Path:
    """Write a table (of Polars) whole, as its suffix says: .csv or .parquet. Polars gets an open file: it takes no path
    whose letters the locale does not have."""
    path = Path(path)
    with written_whole(path) as temporary, temporary.open("wb") as file:
        frame.write_parquet(file) if path.suffix == ".parquet" else frame.write_csv(file)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write `text` to `path` atomically."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(path)
