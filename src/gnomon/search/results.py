"""The results file: one JSON line per configuration, appended as they come, so that a search can be resumed.

A line is on disk before the search goes on. What an interrupted write left behind is cut off when the file is opened
again. The first line says which search it belongs to.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnomon import __version__
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import parse_json
from gnomon.search.config import SearchConfig


class ResultsFile:
    """Records by the key of their question. `path=None` keeps them in memory only."""

    def __init__(self, path: Path | None, search: SearchConfig) -> None:
        self.path = path
        self.known: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        header = {"gnomon": __version__, "search": fingerprint(search)}
        if path.exists():
            self._read(path, header)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(header)

    def get(self, key: str) -> dict[str, Any] | None:
        """The record under `key`, if there is one that holds: failures are tried again."""
        found = self.known.get(key)
        return None if found is None or found.get("status") == "failed" else found

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record, on disk before this returns."""
        self.known[key] = record
        if self.path is not None:
            self._append({"key": key, "record": record})

    def _append(self, line: dict[str, Any]) -> None:
        assert self.path is not None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path, header: dict[str, Any]) -> None:
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        lines = list(_parsed(whole.decode("utf-8", errors="replace").split("\n")[:-1], path))
        if not lines:
            self._append(header)
            return
        if lines[0] != header:
            fix = "Choose another folder with --out, or start again with --fresh."
            raise ConfigError("holds the results of another search (or of another version).", where=str(path), fix=fix)
        self.known = {line["key"]: line["record"] for line in lines[1:]}


def fingerprint(search: SearchConfig) -> str:
    """A hash of everything that decides the results."""
    return hashlib.sha256(search.model_dump_json().encode()).hexdigest()[:16]


def _parsed(lines: Iterable[str], path: Path) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        with suppress(DataError):
            found = parse_json(line)
            if isinstance(found, dict) and (number == 1 or {"key", "record"} <= found.keys()):
                yield found
                continue
        raise ConfigError("is not a line of results.", where=f"{path}:{number}", fix="Start again with --fresh.")
