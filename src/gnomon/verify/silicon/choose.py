"""Which servers are looked at: a condition over their fields, a random sample, one by its id."""

import ast
from difflib import get_close_matches
from typing import Any

from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.streams import stream
from gnomon.verify.silicon.launch import evaluate
from gnomon.verify.silicon.servers import Server, servers

FIELDS = (
    "id", "family", "model", "device", "engine", "version", "precision", "mode", "prompt_tokens", "output_tokens",
    "concurrency", "date", "gpus", "num_prefill", "num_decode",
)  # fmt: skip


def chosen(rows: str | None = None, sample: int | None = None, seed: int = 0) -> list[Server]:
    """The servers that meet the condition `rows`, or `sample` of them drawn at random."""
    found = [s for s in servers() if rows is None or _meets(s, rows)]
    if not found:
        raise ConfigError(f"no server meets {rows!r}.", where="--rows", fix=f"Fields: {', '.join(FIELDS)}.")
    if sample is None or sample >= len(found):
        return found
    drawn = stream(seed, "verify silicon").choice(len(found), size=sample, replace=False)
    return [found[i] for i in sorted(drawn)]


def by_id(name: str) -> Server:
    known = {s.id: s for s in servers()}
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.3)
        fix = f"Nearest: {', '.join(near)}." if near else "The ids are in the first column of silicon_sample.csv."
        raise ConfigError(f"no measured server is called {name!r}.", where="--show", fix=fix)
    return known[name]


def _meets(server: Server, condition: str) -> bool:
    """Conditions are comparisons joined by `and`, `or` and `not`: `engine == "vllm" and concurrency >= 64`."""

    def field(name: str) -> Any:
        if name not in FIELDS:
            raise UnknownNameError("field", name, FIELDS, where="--rows")
        return server.layout.num_gpus if name == "gpus" else "" if (value := getattr(server, name)) is None else value

    try:
        return bool(evaluate(ast.parse(condition, mode="eval").body, field))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        fix = """Compare fields and join with and, or, not: --rows 'engine == "vllm" and "Llama" in model'."""
        raise ConfigError(f"cannot read the condition {condition!r}.", where="--rows", fix=fix) from None
