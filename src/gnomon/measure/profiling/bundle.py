"""The bundle on disk: a journal while measuring, CSV files and a manifest when done (docs/profile-format.md)."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "attention": ("dtype", "heads", "kv_heads", "head_dim", "chunk", "kv", "decodes", "decode_kv"),
    "skew": (
        "dtype", "heads", "kv_heads", "head_dim", "chunk", "kv", "decodes", "long_decodes", "decode_kv", "long_kv",
    ),
    "elementwise": ("dtype", "operator", "tokens", "width"),
    "moe": ("dtype", "experts", "top_k", "hidden", "intermediate", "tokens", "activated_experts"),
    "collective": ("collective", "num_ranks", "ranks_per_node", "bytes"),
    "host": ("operator", "sequences"),
}  # fmt: skip
"""Key columns of each file; `seconds` and `spread` follow."""

CHECKS = ("mixed",)
"""Measured to check the others, kept in the journal, but in no file: chunks and decodes in one call."""
JOURNAL = "journal.jsonl"

Key = tuple[Any, ...]


class Journal:
    """Every measurement, appended as it is made, so that an interrupted profile resumes where it stopped."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.rows: dict[str, dict[Key, tuple[float, float]]] = {name: {} for name in (*COLUMNS, *CHECKS)}
        folder.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._load()

    def get(self, file: str, key: Key) -> float | None:
        row = self.rows[file].get(key)
        return row[0] if row else None

    def add(self, file: str, key: Key, seconds: float, spread: float) -> None:
        self.rows[file][key] = (seconds, spread)
        with self.path.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps([file, list(key), seconds, spread]) + "\n")

    def _load(self) -> None:
        lines = self.path.read_text(encoding="utf-8").split("\n")
        for line in lines[:-1]:  # What follows the last line end was cut off in writing.
            file, key, seconds, spread = json.loads(line)
            self.rows[file][tuple(key)] = (seconds, spread)
        whole = "".join(line + "\n" for line in lines[:-1])
        if lines[-1]:
            self.path.write_text(whole, encoding="utf-8")


def write(folder: Path, rows: Mapping[str, Mapping[Key, tuple[float, float]]], facts: Mapping[str, Any]) -> Path:
    """Write the CSV files and `manifest.json` of a bundle; returns the manifest's path."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, measured in rows.items():
        if measured and name in COLUMNS:
            path = folder / f"{name}.csv.gz"
            write_whole(path, packed((*COLUMNS[name], "seconds", "spread"), _cells(measured)))
            (folder / f"{name}.csv").unlink(missing_ok=True)  # What was plain is packed now.
            files[path.name] = {"rows": len(measured), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    manifest = {"format": "gnomon-profile", "version": 1, **facts, "files": files, "content_hash": content_hash(files)}
    write_whole(folder / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
    return folder / "manifest.json"


def content_hash(files: Mapping[str, Mapping[str, Any]]) -> str:
    lines = (f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_rows(folder: Path) -> dict[str, dict[Key, tuple[float, float]]]:
    """The rows of a finished bundle, keyed as in a journal."""
    rows: dict[str, dict[Key, tuple[float, float]]] = {name: {} for name in COLUMNS}
    for name, columns in COLUMNS.items():
        # The file of a bundle that holds these rows: packed, or plain as people write it.
        path = next((path for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if path.exists()), None)
        if path is None:
            continue
        opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")  # noqa: SIM115
        with opened as file:
            for row in csv.DictReader(file):
                key = tuple(int(row[c]) if row[c].lstrip("-").isdigit() else row[c] for c in columns)
                seconds = float(row["seconds"])
                if not 0.0 < seconds < math.inf:
                    raise ValueError(f"{path.name}: {row['seconds']} seconds, which is no measured time")
                rows[name][key] = (seconds, float(row.get("spread") or 0.0))
    return rows


def _cells(measured: Mapping[Key, tuple[float, float]]) -> list[Sequence[Any]]:
    return [(*key, f"{measured[key][0]:.5g}", f"{measured[key][1]:.3g}") for key in sorted(measured)]


def packed(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A gzipped CSV file: no name, no time, so the same bytes for the same rows."""
    text, content = io.StringIO(), io.BytesIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    with gzip.GzipFile("", "wb", 9, content, mtime=0) as file:
        file.write(text.getvalue().encode())
    return content.getvalue()


def write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def merge(
    parts: Iterable[Mapping[str, Mapping[Key, tuple[float, float]]]],
) -> dict[str, dict[Key, tuple[float, float]]]:
    """Rows of several bundles of one device; a later part replaces what an earlier one measured."""
    rows: dict[str, dict[Key, tuple[float, float]]] = {name: {} for name in COLUMNS}
    for part in parts:
        for name, measured in part.items():
            rows[name].update(measured)
    return rows
