"""Python files of users that register policies and routers of their own."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path

from gnomon.core.errors import ConfigError, GnomonError


def load_user_file(path: str | Path) -> None:
    """Run a Python file that registers something, once per process."""
    _load(str(Path(path).resolve()))


@cache
def _load(path: str) -> None:
    if not Path(path).is_file():
        raise ConfigError("no such file.", where=path, fix="Give the path of a Python file that registers your own.")
    try:
        runpy.run_path(path)
    except GnomonError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(error).__name__}: {error}.", where=path, fix="Run it with python to see more."
        ) from error
