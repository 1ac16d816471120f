"""What a link or a file from elsewhere may say: data only, nothing outside this folder, no more than a page can do."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from gnomon.api.serving import Scenario
from gnomon.core.config import load
from gnomon.core.errors import ConfigError, DataError, GnomonError
from gnomon.core.text import parse_yaml
from gnomon.ui import uploads

MAX_REQUESTS = 200_000
"""Requests of one simulation: what the page answers within a second or two."""
MAX_RANKS = 512
"""Replicas times their data parallelism: each has arrays of its own."""
MAX_KV_BLOCKS = 2**25
"""KV blocks of all replicas, where a scenario says how many: some 80 bytes each."""
MAX_DRAFT_TOKENS = 32
"""Of speculative decoding: the tables of iterations grow with every one."""
MOST = {"pipeline_parallel": 64, "tensor_parallel": 64, "max_sequences": 2**14, "block_size": 2**12,
        "max_batch_tokens": 2**18}  # fmt: skip
"""Other fields that arrays are sized by, wherever they stand in a scenario."""
DATA_FILES = ("trace.file", "lengths.file")
"""Fields named `file` that are read as data. Every other one names Python to run (routers, policies, ...)."""


def check_is_data(given: Any, key: str = "") -> None:
    """Refuse what asks to run Python files or to read files outside the folder in which the page was started.

    `given` is what will be read as a configuration. It is looked at before that, because reading opens files.
    """
    if key.rpartition(".")[2] == "file" and not key.endswith(DATA_FILES) and given is not None:
        raise ConfigError("a page runs no Python files.", where=key, fix="Use gnomon simulate.")
    match given:
        case dict():
            for name, value in given.items():
                check_is_data(value, f"{key}.{name}".lstrip(".").replace("-", "_"))
        case list() | tuple():
            for value in given:
                check_is_data(value, key)
        case str():
            _check_text(given, key)
        case bytes() | set():
            raise ConfigError("only texts, numbers, lists and mappings are read from elsewhere.", where=key)


def _check_text(text: str, key: str) -> None:
    """A text may be a path; and an override is read as YAML once more, so it may hold further texts."""
    if not _is_near(text):
        raise ConfigError(
            f"{text} is outside the folder in which gnomon ui runs.", where=key, fix="Load it, or start there."
        )
    try:
        inner = parse_yaml(text)
    except DataError:
        return
    if inner != text:
        check_is_data(inner, key)


def _is_near(text: str) -> bool:
    """Whether a text, if it is a path, stays below the current folder or is that of an uploaded file."""
    here = Path.cwd()
    try:
        return uploads.name_of(text) is not None or (here / text).resolve().is_relative_to(here)
    except (OSError, ValueError):  # It has a zero in it, or leads around in a circle.
        return False


def read_scenario(name: str, data: bytes) -> Scenario:
    """A scenario file, read as YAML data."""
    with uploads.passing_file(data) as path:
        try:
            with suppress(DataError):  # `load` says the line.
                check_is_data(parse_yaml(data.decode("utf-8", errors="replace")))
            scenario = load(Scenario, path)
            check_size(scenario)
        except GnomonError as error:
            where = error.where.replace(str(path), name) if error.where else name
            raise ConfigError(error.what, where=where, fix=error.fix) from None
    return scenario


def check_size(scenario: Scenario) -> None:
    """Refuse more than a page can wait for, or than this machine may have memory for."""
    check_count(scenario.workload.num_requests or 0)
    ranks = blocks = 0
    for pool in scenario.all_pools():
        ranks += pool.num_ranks
        blocks += pool.num_ranks * (pool.replica.num_kv_blocks or 0)
        drafted = pool.replica.speculative.num_tokens if pool.replica.speculative else 0
        _refuse_more(drafted, MAX_DRAFT_TOKENS, "drafted tokens", "replica.speculative.num_tokens")
        for section in (pool.replica, pool.given_batching):
            for name, most in MOST.items():
                _refuse_more(getattr(section, name, None) or 0, most, name, name)
    _refuse_more(ranks, MAX_RANKS, "replicas", "num_replicas")
    _refuse_more(blocks, MAX_KV_BLOCKS, "KV blocks", "replica.num_kv_blocks")


def check_count(num_requests: int) -> None:
    """Refuse more requests than a page can wait for."""
    _refuse_more(num_requests, MAX_REQUESTS, "requests", "workload.num_requests")


def _refuse_more(count: int, most: int, what: str, where: str) -> None:
    if count > most:
        raise ConfigError(f"a page takes at most {most:,} {what}, not {count:,}.", where=where, fix="Use fewer.")
