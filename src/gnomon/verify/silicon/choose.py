"""Which servers are looked at: a condition over their fields, a random sample, one by its id."""

import ast
import operator
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.streams import stream
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
    """The server called `name`."""
    known = {s.id: s for s in servers()}
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.3)
        fix = f"Nearest: {', '.join(near)}." if near else "The ids are in the first column of silicon_sample.csv."
        raise ConfigError(f"no measured server is called {name!r}.", where="--show", fix=fix)
    return known[name]


def _meets(server: Server, condition: str) -> bool:
    """Conditions are comparisons joined by `and`, `or` and `not`: `engine == "vllm" and concurrency >= 64`."""
    try:
        tree = ast.parse(condition, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _unreadable(condition) from None
    return bool(_evaluate(tree, server, condition))


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def _evaluate(node: ast.expr, server: Server, condition: str) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_evaluate(part, server, condition) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_evaluate(part, server, condition) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, server, condition)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            try:
                return _COMPARE[type(op)](_evaluate(left, server, condition), _evaluate(right, server, condition))
            except TypeError:
                raise _unreadable(condition) from None
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_evaluate(part, server, condition) for part in parts]
        case ast.Name(id="gpus"):
            return server.layout.num_gpus
        case ast.Name(id=name) if name in FIELDS:
            return getattr(server, name) or "" if name == "version" else getattr(server, name)
        case ast.Name(id=name):
            raise UnknownNameError("field", name, FIELDS, where="--rows")
    raise _unreadable(condition)


def _unreadable(condition: str) -> ConfigError:
    return ConfigError(
        f"cannot read the condition {condition!r}.",
        where="--rows",
        fix="""Compare fields and join with and, or, not: --rows 'engine == "vllm" and "Llama" in model'.""",
    )
