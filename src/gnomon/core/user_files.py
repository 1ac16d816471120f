"""Python files of users that register policies and routers of their own."""

from __future__ import annotations

import sys
import zlib
from functools import cache
from pathlib import Path
from types import ModuleType

from gnomon.core.errors import ConfigError, GnomonError


def load_user_file(path: str | Path) -> None:
    """Run a Python file that registers something, once per process."""
    _load(str(Path(path).resolve()))


@cache
def _load(path: str) -> None:
    if not Path(path).is_file():
        raise ConfigError("no such file.", where=path, fix="Give the path of a Python file that registers your own.")
    # A module that can be found by its name: compiled code from the disk cache looks for it.
    module = ModuleType(f"gnomon_own_{Path(path).stem}_{zlib.crc32(path.encode()):08x}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    except GnomonError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(error).__name__}: {error}.", where=path, fix="Run it with python to see more."
        ) from error
