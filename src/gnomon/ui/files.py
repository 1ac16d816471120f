"""Files of run directories, as the browser may have them: only from the folder of runs, pages only in a sandbox."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from flask import Flask, Response, abort, current_app, send_file

from gnomon.ui.run_folders import inside

ROUTE = "/run-files/"
SHOWN = {".html": "text/html", ".png": "image/png", ".svg": "image/svg+xml", ".json": "application/json",
         ".csv": "text/plain", ".yaml": "text/plain", ".jsonl": "text/plain", ".sh": "text/plain"}  # fmt: skip
"""Files that a browser shows; others are downloaded."""
ONLY_OURS = "frame-ancestors 'self'"
"""Shown within pages of this site only: another site may not have it in a frame."""
KEPT_BACK = (".pt", ".npz", ".npy", ".py")


def file_address(run: str, file: str) -> str:
    """Where the browser finds a file of a run."""
    return f"{ROUTE}{quote(run)}/{quote(file)}"


def register_files(server: Flask) -> None:
    """Serve what lies in the folder of runs."""

    def give(path: str) -> Response:
        root: Path = current_app.config["GNOMON_RUNS"]
        file = inside(root, path)
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
