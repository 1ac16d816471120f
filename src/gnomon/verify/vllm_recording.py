"""A recorded vLLM server: what it was started with, what it was asked, and when it answered.

A run directory holds `meta.json` (model, engine options, and where known the resolved configuration, KV blocks and
hardware), `requests.jsonl` (lengths and stamps, and optionally `prompt_token_ids`) and, where kept, `timeseries.csv`
and `peer_simulator_summary.txt`.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import DataError
from gnomon.core.text import MAX_TABLE_BYTES, parse_json, read_text
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.engine_versions import is_known
from gnomon.workload import Requests

DEFAULT_BLOCK_SIZE = 16
_COUNTS = ("input_toks", "output_toks")
_STAMPS = ("queued_ts", "first_token_ts", "last_token_ts")
_PEER_METRICS = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_PEER_LINE = re.compile(r"^(TTFT|TPOT|Latency)\s+(\w+)\s+\S+\s+\S+\s+([+-][\d.]+)%")


@dataclass(frozen=True)
class Recording:
    """The files of one run directory. Times are seconds since the first request was queued."""

    folder: Path
    meta: dict[str, Any]
    requests: Requests
    first_token_s: Floats
    last_token_s: Floats

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def model(self) -> str:
        """The model's name on Hugging Face."""
        return str(self.meta["model"])

    @property
    def version(self) -> str:
        """vLLM's version; none where it is not recorded, or not one that is known."""
        version = str(self.meta.get("vllm_version") or "")
        return version if is_known(version, engine("vllm").versions) else ""

    @property
    def device_name(self) -> str | None:
        """What the server said it ran on."""
        name = self._section("hardware").get("device_name")
        return str(name) if name else None

    def option(self, name: str, *sections: str) -> Any:
        """An engine option: as resolved by the server where that was recorded, else as given; None for neither."""
        for section in sections:
            value = self._section("resolved_config", section).get(name)
            if value is not None:
                return value
        return self._section("engine_kwargs").get(name)

    def whole(self, name: str, default: int, *sections: str) -> int:
        """An engine option that is a whole number."""
        value = self.option(name, *sections)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
            raise DataError(f"{name} is {value!r}, not a positive whole number.", where=str(self.folder / "meta.json"))
        return int(value)

    def kv_cache(self, name: str) -> Any:
        """A fact about the KV cache, None where it was not recorded."""
        found = self._section("kv_cache").get(name)
        return found if found is not None else self.option(name, "cache_config")

    @cached_property
    def series(self) -> pl.DataFrame | None:
        """The server's own time series (t, running, waiting, kv_cache_pct, gen_throughput ...), if it was kept."""
        path = self.folder / "timeseries.csv"
        if not path.is_file():
            return None
        try:
            return pl.read_csv(path)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"cannot be read: {error}.", where=str(path)) from None

    @cached_property
    def peer_errors(self) -> dict[tuple[str, str], float]:
        """Relative errors of the peer simulator by (metric, statistic), where its summary lies beside the run."""
        path = self.folder / "peer_simulator_summary.txt"
        if not path.is_file():
            return {}
        found = (_PEER_LINE.match(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())
        return {(_PEER_METRICS[m[1]], m[2].lower()): float(m[3]) / 100 for m in found if m}

    def _section(self, *path: str) -> dict[str, Any]:
        value: Any = self.meta
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}


def read_recording(folder: str | Path) -> Recording:
    """Read a run directory; a DataError names the file and what is wrong with it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("no such run directory.", where=str(folder))
    meta = _read_meta(folder / "meta.json")
    rows = _read_rows(folder / "requests.jsonl")
    table = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in (*_COUNTS, *_STAMPS)}
    order = np.argsort(table["queued_ts"], kind="stable")
    table = {name: column[order] for name, column in table.items()}
    start = table["queued_ts"][0]
    block_size = _block_size(meta, folder)
    offsets, hashes = shared_prefixes([rows[i].get("prompt_token_ids") or [] for i in order], block_size)
    requests = Requests(
        table["queued_ts"] - start, table["input_toks"].astype(np.int32), table["output_toks"].astype(np.int32),
        prefix_offsets=offsets, prefix_hashes=hashes, prefix_block_tokens=block_size,
    )  # fmt: skip
    return Recording(folder, meta, requests, table["first_token_ts"] - start, table["last_token_ts"] - start)


def shared_prefixes(prompts: list[list[int]], block_size: int) -> tuple[Ints, Ints]:
    """Offsets and hashes of the prompts' full blocks: equal hashes for equal tokens from the start of the prompt."""
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    hashes, offsets = [], [0]
    for tokens in prompts:
        before = -1
        for end in range(block_size, len(tokens) + 1, block_size):
            before = seen.setdefault((before, tuple(tokens[end - block_size : end])), len(seen))
            hashes.append(before)
        offsets.append(len(hashes))
    return np.array(offsets, np.int64), np.array(hashes, np.int64)


def _block_size(meta: dict[str, Any], folder: Path) -> int:
    """Tokens per KV block; vLLM's default where the server did not say."""
    for section in (meta.get("kv_cache"), (meta.get("resolved_config") or {}).get("cache_config")):
        size = section.get("block_size") if isinstance(section, dict) else None
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                where = str(folder / "meta.json")
                raise DataError(f"block_size is {size!r}, not a positive whole number.", where=where)
            return size
    return DEFAULT_BLOCK_SIZE


def _read_meta(path: Path) -> dict[str, Any]:
    meta = parse_json(_text(path), str(path))
    if not isinstance(meta, dict):
        raise DataError("holds no JSON object.", where=str(path))
    if not isinstance(meta.get("model"), str):
        raise DataError("does not name the model.", where=str(path), fix='It needs "model": "organisation/name".')
    if not isinstance(meta.get("engine_kwargs", {}), dict):
        raise DataError("engine_kwargs is no JSON object.", where=str(path))
    return meta


def _read_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            row = parse_json(line, where)
            _check_row(row, where)
            rows.append(row)
    if not rows:
        raise DataError("has no requests.", where=str(path))
    return rows


def _check_row(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise DataError("is no JSON object.", where=where)
    for name in (*_COUNTS, *_STAMPS):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise DataError(f"{name} is {value!r}, not a number.", where=where, fix="Leave out unfinished requests.")
    for name in _COUNTS:
        if row[name] < 1 or row[name] != int(row[name]):
            raise DataError(f"{name} is {row[name]}, not a positive whole number.", where=where)
    tokens = row.get("prompt_token_ids")
    if tokens is not None and (not isinstance(tokens, list) or len(tokens) != row["input_toks"]):
        raise DataError("prompt_token_ids is no list of input_toks tokens.", where=where)
    if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
        raise DataError("its stamps are not in order: queued_ts, first_token_ts, last_token_ts.", where=where)


def _text(path: Path) -> str:
    if not path.exists():
        fix = "A run directory holds meta.json and requests.jsonl."
        raise DataError("no such file.", where=str(path), fix=fix)
    return read_text(path, most=MAX_TABLE_BYTES)
