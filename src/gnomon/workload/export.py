"""Requests as files: the same seed gives the same bytes, and the files read back as traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnomon.core.errors import ConfigError
from gnomon.core.files import write_frame
from gnomon.workload.requests import Requests

if TYPE_CHECKING:
    import polars as pl


def export(requests: Requests, path: str | Path) -> Path:
    """Write requests to a .csv or .parquet file that `trace.file` reads back to equal arrays.

    Columns that say nothing (no sessions, no priorities, no prefixes) are left out; so are the arrivals of a closed
    loop, which the server decides.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"cannot tell the format of {path.name!r}.", where="--out", fix="End it in .csv or .parquet.")
    frame = _frame(requests, as_text=path.suffix == ".csv")
    return write_frame(path, frame)


def _frame(requests: Requests, as_text: bool) -> pl.DataFrame:
    import polars as pl

    columns: dict[str, pl.Series | np.ndarray] = {}
    if not requests.concurrency:
        columns["arrival_s"] = requests.arrival_s
    columns["prompt_tokens"] = requests.prompt_tokens
    columns["output_tokens"] = requests.output_tokens
    if (requests.session >= 0).any():
        columns["session"] = requests.session
    if requests.priority.any():
        columns["priority"] = requests.priority
    if len(requests.prefix_hashes):
        lists = [requests.prefix(i) for i in range(len(requests))]
        columns["prefix_hashes"] = (
            pl.Series([" ".join(map(str, one)) for one in lists])
            if as_text
            else pl.Series([one.tolist() for one in lists], dtype=pl.List(pl.Int64))
        )
        columns["prefix_block_tokens"] = np.full(len(requests), requests.prefix_block_tokens)
    return pl.DataFrame(columns)
