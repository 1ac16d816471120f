"""Run directories on disk: what kind of run each holds, told by its files, never by running again."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from flask import Flask, Response, abort, current_app, send_file

from gnomon.core.errors import DataError

MAX_DEPTH = 4
MAX_RUNS = 300  # Run directories that are listed, the newest.


@dataclass(frozen=True)
class Kind:
    """One kind of run: the files that tell it, and the page in it (if any)."""

    name: str
    marks: tuple[str, ...]
    page: str | None


@dataclass(frozen=True)
class RunFolder:
    """A run directory."""

    path: Path
    name: str
    """Its path below the folder of all runs."""
    kind: Kind
    changed_s: float

    @property
    def when(self) -> str:
        return datetime.fromtimestamp(self.changed_s).strftime("%Y-%m-%d %H:%M")

    @property
    def words(self) -> str:
        """What it says, in a line: the title of its page and what that is about."""
        if self.kind.page is None:
            return ""
        try:
            with (self.path / self.kind.page).open(encoding="utf-8", errors="replace") as file:
                found = _HEAD.search(file.read(HEAD_BYTES))
        except OSError:
            return "unfinished: it has no page"
        return ": ".join(html.unescape(one) for one in found.groups() if one) if found else ""

    @property
    def is_finished_search(self) -> bool:
        return self.kind.name == "search" and (self.path / "ranking.csv").is_file()

    @property
    def files(self) -> list[str]:
        return sorted(one.name for one in self.path.iterdir() if one.is_file() and not one.name.startswith("."))


KINDS = (
    Kind("serving", ("scenario.yaml", "summary.json"), "report.html"),
    Kind("router comparison", ("comparison.json", "comparison.csv"), "report.html"),
    Kind("comparison", ("comparison.json",), "report.html"),
    Kind("search", ("search.yaml", "results.jsonl"), "report.html"),
    Kind("matrix of searches", ("matrix.json",), "report.html"),
    Kind("post-training policies", ("policies.json",), "report.html"),
    Kind("post-training plan", ("plans.json",), "report.html"),
    Kind("training plan", ("plan.json",), "report.html"),
    Kind("training step", ("step.json", "report.html"), "report.html"),
    Kind("post-training", ("timeline.html", "config.yaml"), "timeline.html"),
    Kind("pipeline step", ("step.html",), "step.html"),
    Kind("learned router", ("metrics.csv", "checkpoints"), None),
)
_HEAD = re.compile(r"<header><h1>(.*?)</h1><p>(.*?)</p>", re.DOTALL)  # Of a report: its title, and what it is about.
HEAD_BYTES = 2**16


def runs_folder() -> Path:
    """Where this server keeps and finds run directories."""
    return current_app.config["GNOMON_RUNS"]


def find_runs(root: Path) -> list[RunFolder]:
    """Every run directory below `root`, the newest first."""
    found = [one for folder in folders(root) if (one := _recognised(root, folder)) is not None]
    return sorted(found, key=lambda one: -one.changed_s)[:MAX_RUNS]


def folders(root: Path, depth: int = 0) -> Iterator[Path]:
    """`root` and the folders below it that are looked into."""
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return
    yield root
    if depth < MAX_DEPTH:
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from folders(entry, depth + 1)


def _recognised(root: Path, folder: Path) -> RunFolder | None:
    kind = next((one for one in KINDS if all((folder / mark).exists() for mark in one.marks)), None)
    if kind is None:
        return None
    return RunFolder(folder, str(folder.relative_to(root)), kind, (folder / kind.marks[-1]).stat().st_mtime)


def open_run(root: Path, name: str) -> RunFolder:
    folder = inside(root, name)
    found = _recognised(root.resolve(), folder) if folder is not None and folder.is_dir() else None
    if found is None:
        raise DataError("there is no run directory here.", where=name, fix=f"Choose one of those in {root}.")
    return found


def inside(root: Path, name: str) -> Path | None:
    """The path `name` below `root`; None where it leads out of it, or into what is hidden there."""
    root = root.resolve()
    try:
        path = (root / name).resolve()
    except ValueError:  # A zero in it.
        return None
    is_shown = path.is_relative_to(root) and not any(part.startswith(".") for part in path.relative_to(root).parts)
    return path if is_shown else None


ROUTE = "/run-files/"
SHOWN = {".html": "text/html", ".png": "image/png", ".svg": "image/svg+xml", ".json": "application/json",
         ".csv": "text/plain", ".yaml": "text/plain", ".jsonl": "text/plain", ".sh": "text/plain"}  # fmt: skip
"""Files that a browser shows; others are downloaded."""
ONLY_OURS = "frame-ancestors 'self'"  # Shown within pages of this site only: another site may not have it in a frame.
KEPT_BACK = (".pt", ".npz", ".npy", ".py")


def file_address(run: str, file: str) -> str:
    return f"{ROUTE}{quote(run)}/{quote(file)}"


def register_files(server: Flask) -> None:
    """Serve what lies in the folder of runs."""

    def give(path: str) -> Response:
        file = inside(runs_folder(), path)
        if file is None or not file.is_file() or file.suffix in KEPT_BACK:
            abort(404)
        kind = SHOWN.get(file.suffix)
        answer = send_file(file, mimetype=kind, as_attachment=kind is None)
        # A page on disk may run its own scripts, but has no part in this site.
        answer.headers["Content-Security-Policy"] = (
            f"sandbox allow-scripts allow-downloads; default-src 'unsafe-inline' data: blob:; {ONLY_OURS}"
        )
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    server.add_url_rule(f"{ROUTE}<path:path>", "run_file", give)
