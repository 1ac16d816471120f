"""What a training run reports while it goes: TensorBoard scalars, a CSV row per update, and the same as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon.core.errors import MissingExtraError
from gnomon.core.files import write_frame, write_text

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
