"""Checkpoints of a training run: written whole, checksummed, the last few kept.

A file is a mark, the SHA-256 of what follows, and what `torch.save` wrote. One that was cut short or changed is refused
with a reason, and the one before it is used. `latest` holds the name of the newest.
"""

from __future__ import annotations

import csv
import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gnomon.core.errors import DataError, MissingExtraError
from gnomon.core.files import write_frame, write_text, written_whole

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


SCALARS = {
    "reward/mean": "Mean reward per decision; with the default reward, minus the scaled time that requests spend.",
    "validation/reward": "Mean reward on traces that are never trained on, always taking the likeliest replica.",
    "validation/gain": "Validation reward less that of the policy at the start: above 0 is better than the clone.",
    "policy/policy": "The clipped objective (negative: the update improves on the policy that acted).",
    "policy/kl_reference": "KL(policy || reference): how far the leash is stretched.",
    "policy/kl_old": "KL to the policy that acted; the update ends early where it passes train.target_kl.",
    "policy/entropy": "Entropy of the choice: 0 is sure, log(replicas) is uniform.",
    "policy/ratio": "Mean probability ratio to the policy that acted; 1 before the first gradient step.",
    "policy/clipped": "Share of decisions whose ratio left the clip range.",
    "policy/passes": "Gradient steps of this update.", "critic/error": "Smooth L1 error of the critic.",
    "critic/explained": "Share of the returns' variance that the critic predicts; below 0 it is worse than the mean.",
    "weights/kl": "Weight of the leash: falls, then holds.", "weights/entropy": "Weight of the entropy.",
    "cluster/top_share": "Share of the decisions that go to the busiest replica, mean over clusters.",
    "cluster/backlog_growth": "Requests in the system late in the update over those early in it.",
    "speed/decisions_per_s": "Decisions per second while collecting.", "speed/update_s": "Seconds of the whole update.",
}  # fmt: skip
"""Every scalar and what it says; the steps of the x axis are updates."""
COLUMNS = ["update", "decisions", "gradient_steps", *SCALARS]


class MetricsLog:
    """Writes rows of metrics to `metrics.csv` and TensorBoard as they come, and to `metrics.parquet` at the end.

    After a resume, rows that the resumed run will write again are taken out first.
    """

    def __init__(self, folder: Path, resumed_at: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("training a router", "learn") from None
        self.path = folder / "metrics.csv"
        self.rows = [row for row in read_metrics(self.path) if row["update"] <= resumed_at] if resumed_at else []
        write_text(self.path, as_csv(self.rows, COLUMNS))
        self.board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at + 1 if resumed_at else None)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.board.close()
        if self.rows:
            import polars as pl

            write_frame(self.path.with_suffix(".parquet"), pl.DataFrame(self.rows, infer_schema_length=None))

    def add(self, metrics: dict[str, float]) -> None:
        """Write the metrics of one update."""
        for name in SCALARS.keys() & metrics.keys():
            self.board.add_scalar(name, metrics[name], int(metrics["update"]))
        row = {name: metrics.get(name) for name in COLUMNS}
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.csv`; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(value) if value else None for name, value in row.items()} for row in csv.DictReader(file)]


def as_csv(rows: Sequence[Mapping[str, Any]], columns: list[str]) -> str:
    """A table as text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
