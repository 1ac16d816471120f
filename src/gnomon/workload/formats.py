"""Trace formats: which column means what. Adding one is an entry in formats.yaml, or `FORMATS.add` in your own file."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import yaml

from gnomon.core.registry import Registry
from gnomon.workload import agent_traces
from gnomon.workload.agent_traces import CALLS
from gnomon.workload.table import Table

TimeUnit = Literal["s", "ms", "us", "ns", "datetime"]


@dataclass(frozen=True)
class TraceFormat:
    """Columns (or JSON keys) of one kind of trace.

    Roles: `prompt` and `output` (tokens, needed), `arrival`, `session`, `priority`, `adapter` (LoRA), `prefix` (block
    hashes of the prompt: a JSON list, or numbers with spaces between) and `prefix_block_tokens`, each optional. Where
    calls wait for others: `call` (a number), `parents` (those it waits for, -1 for none), and `think` (seconds from
    their end until it is sent) or `duration` (recorded seconds of a call).
    """

    description: str
    columns: Mapping[str, str]
    time_unit: TimeUnit = "s"
    block_tokens: int = 16
    """Tokens per hashed block, where no column says it."""

    from_start: bool = False
    """Times count from the start of the run; else from an epoch, and the first request is moved to 0."""

    needs: tuple[str, ...] = ()
    """Columns by which a file of this format is told; else by those of prompt and output."""
    reader: Callable[[Table], Table] | None = None
    """Makes one row of each call, where lines of the file are something else."""
    note: str = ""
    """What must be said about what is read."""

    def fits(self, names: Collection[str]) -> bool:
        """Whether a file with these column names is of this format."""
        if self.needs:
            return all(name in names for name in self.needs)
        return self.columns["prompt"] in names and self.columns["output"] in names


def guessed(names: Collection[str]) -> TraceFormat | None:
    """A format for these columns by what they seem to mean; None where prompt or output tokens are not among them."""
    plain = {_plain(name): name for name in reversed(list(names))}
    columns = {
        role: plain[word]
        for role, words in SYNONYMS.items()
        if (word := next((one for one in words if one in plain), None)) is not None
    }
    if "prompt" not in columns or "output" not in columns:
        return None
    is_ms = columns.get("arrival", "").lower().endswith("ms")
    return TraceFormat("Guessed from the names of its columns.", columns, time_unit="ms" if is_ms else "s")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


FORMATS: Registry[TraceFormat] = Registry("trace format")
_DATA = yaml.safe_load((files("gnomon.workload") / "formats.yaml").read_text(encoding="utf-8"))
SYNONYMS: Mapping[str, list[str]] = _DATA["synonyms"]
for _name, _given in _DATA["formats"].items():
    _without = _given.pop("without", ())
    _given.setdefault("columns", {role: name for role, name in CALLS.items() if role not in _without})
    _reader = getattr(agent_traces, _given.pop("reader", ""), None)
    FORMATS.add(_name, TraceFormat(**_given | {"needs": tuple(_given.get("needs", ())), "reader": _reader}))
