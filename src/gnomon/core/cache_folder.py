"""Where Gnomon keeps what it can make again: $GNOMON_CACHE, the user's cache, a temporary folder, or nowhere."""

import hashlib
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

VARIABLE = "GNOMON_CACHE"


@cache
def warn_once(words: str) -> None:
    """Tell the user, once per process."""
    print(f"gnomon: {words}", file=sys.stderr)


@cache
def cache_home() -> Path | None:
    """The folder for compiled code and trained estimators; None where nothing can be kept.

    A folder that cannot be written will do if compiled code lies there already: a read-only image with a warm cache.
    """
    wanted = _wanted()
    if wanted is not None and (_can_be_used(wanted) or (wanted / _compiled()).is_dir()):
        return wanted
    other = _temporary()
    place = f"in {other}" if other else "in memory only"
    warn_once(
        f"{wanted or 'the cache folder of this user'} cannot be written: what is compiled is kept {place}. "
        f"Set {VARIABLE} to a folder that can."
    )
    return other


def _wanted() -> Path | None:
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).absolute()
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]).absolute() / "gnomon"
    try:
        return Path.home() / ".cache" / "gnomon"
    except RuntimeError:  # A user without a name and without $HOME, as containers have them.
        return None


def _can_be_used(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except (OSError, ValueError):
        return False


def _temporary() -> Path | None:
    """A folder of this user alone: code that others could write would be run."""
    if not hasattr(os, "getuid"):
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"gnomon-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = found.st_uid == os.getuid() and not found.st_mode & 0o077 and not folder.is_symlink()
    return folder if is_ours and _can_be_used(folder) else None


# What marks a source file as part of compiled code: only a change in those makes it stale.
_COMPILED_MARKS = (b"\nfrom gnomon.jit", b"\n@batching_policy(", b"\n@router(")


@cache
def _sources_hash() -> str:
    """A hash of every source file that compiled code is made from: changes when any helper changes."""
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if path.parent.name == "jit" or any(mark in text for mark in _COMPILED_MARKS):
            digest.update(str(path.relative_to(package)).encode())
            digest.update(text)
    return digest.hexdigest()[:16]


@cache
def compiled_code_folder() -> Path | None:
    """The folder of compiled code for exactly this version of the sources."""
    home = cache_home()
    return None if home is None else home / _compiled()


def _compiled() -> str:
    return f"compiled-{_sources_hash()}"
