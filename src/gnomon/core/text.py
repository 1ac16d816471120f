"""YAML and JSON from anywhere: one bounded reader, for files, flags and what a browser sends.

A few lines of YAML can stand for gigabytes (aliases), a few thousand brackets can exhaust the stack, a long row of
digits can take minutes: `parse_yaml` and `parse_json` refuse what nobody writes by hand, with the line. Both raise
DataError; whoever reads a configuration turns it into one of its own.
"""

import json
import math
from pathlib import Path
from typing import Any

import yaml

from gnomon.core.errors import DataError

MAX_BYTES = 64 * 2**20  # Of a text that is read whole.
MAX_TABLE_BYTES = 2**30  # Of a text of many rows: a trace, a recording.
MAX_YAML = 2 * 2**20  # Characters of a YAML text: reading it takes some microseconds each.
MAX_DEPTH = 64  # Of lists and mappings within each other.
MAX_NODES = 100_000  # Values in a document, aliases counted as what they stand for.
MAX_NUMBER = 2**63  # Whole numbers stay below it, as in the arrays that take them.


def read_text(path: str | Path, *, most: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file of at most `most` bytes; a DataError that names the file where it cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise DataError("no such file.", where=str(path), fix="Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {reason}.", where=str(path)) from None
    if len(data) > most:
        raise DataError(f"is larger than {most // 2**20:,} MiB.", where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot be read: not UTF-8 at byte {error.start:,}.", where=str(path)) from None


MAX_COLUMNS = 1000
"""A table of requests or measurements has a few dozen; with millions each takes kilobytes, whatever it holds."""
_HEADER_BYTES = 2**18


def check_width(table: Path | bytes, where: str) -> None:
    """Refuse a CSV with more columns than a table has, by its header: before anything else of it is read."""
    if isinstance(table, bytes):
        header = table[:_HEADER_BYTES].split(b"\n", 1)[0]
    else:
        with table.open("rb") as file:
            header = file.readline(_HEADER_BYTES)
    if header.count(b",") >= MAX_COLUMNS or len(header) == _HEADER_BYTES:
        raise DataError(f"has more than {MAX_COLUMNS:,} columns.", where=where, fix="Keep those that are needed.")


def parse_json(text: str, where: str | None = None, *, lenient: bool = False) -> Any:
    """The data in a JSON text; a DataError where it is not JSON or beyond what is read. NaN and Infinity, which Python
    writes though JSON lacks them, are refused, or None where `lenient`."""
    constant = _no_constant if lenient else _refuse_constant
    try:
        data = json.loads(text, parse_constant=constant, parse_int=_whole_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        place = f"{where or 'the text'}:{error.lineno}:{error.colno}"
        raise DataError(f"not valid JSON: {error.msg}.", where=place) from None
    except RecursionError:
        raise DataError("nested too deep.", where=where, fix=_DEPTH_FIX) from None
    except ValueError as error:
        raise DataError(f"{error}.", where=where) from None
    _check_depth(data, where)
    return data


def read_json(path: str | Path) -> Any:
    """The data in a JSON file."""
    return parse_json(read_text(path), str(path))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON has")


def _no_constant(name: str) -> None:
    return None


def _whole_number(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) >= MAX_NUMBER:
        raise ValueError(f"the number {_brief(digits)} is beyond 64 bits")
    return int(digits)


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"the number {_brief(digits)} is too large")
    return value


def _brief(digits: str) -> str:
    return digits if len(digits) <= 30 else f"{digits[:10]}... ({len(digits):,} digits)"


_DEPTH_FIX = f"At most {MAX_DEPTH} lists or mappings may stand within each other."


def _check_depth(data: Any, where: str | None) -> None:
    level, depth = [data], 0
    while level:
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        depth += 1
        if depth > MAX_DEPTH:
            raise DataError("nested too deep.", where=where, fix=_DEPTH_FIX)


def own_yaml(path: Any) -> Any:
    """What one of Gnomon's own data files says, read without looking for what could be wrong with it."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def to_yaml(data: Any) -> str:
    """Plain data as YAML, keys in their order."""
    # PyYAML's own emitter takes eight times as long as libyaml's.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, where: str | None = None) -> Any:
    """The data in a YAML text; a DataError where it is not YAML or beyond what is read."""
    return parse_yaml_with_nodes(text, where)[0]


def parse_yaml_with_nodes(text: str, where: str | None = None) -> tuple[Any, yaml.Node | None]:
    """What `parse_yaml` reads, and the document's tree, which knows the line of every key."""
    if len(text) > MAX_YAML:
        raise DataError(f"more than {MAX_YAML // 2**20} MiB of YAML.", where=where)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where or 'the text'}:{mark.line + 1}" if mark else where
        problem = error.problem or "not valid YAML"
        raise DataError(f"{problem}.", where=place, fix=getattr(error, "fix", _SYNTAX_FIX)) from None
    except yaml.YAMLError as error:  # A character that YAML does not have.
        problem = str(error).splitlines()[0]
        raise DataError(f"not valid YAML: {problem}.", where=where) from None
    except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as error:  # The 31st of February.
        raise DataError(f"a value is not what its form or its tag (!!) says: {error}.", where=where) from None


_SYNTAX_FIX = "Check the indentation and the quotes."


class _RefusedError(yaml.MarkedYAMLError):
    """What is YAML, but more of it than anybody writes."""

    def __init__(self, problem: str, mark: Any, fix: str) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.fix = fix


class _Loader(yaml.SafeLoader):
    """A safe loader that counts: depth, values, and what aliases stand for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._aliased: dict[str, tuple[int, int]] = {}
        """Of every anchor that is complete: its values and its depth."""
        self._deepest = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            values, depth = self._meaning(event)
            self._count(event, values, self._depth + depth)
            return super().compose_node(parent, index)
        anchor, before, outer = event.anchor, self._values, self._deepest
        self._depth += 1
        self._deepest = self._depth
        self._count(event, 1, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._aliased[anchor] = self._values - before, self._deepest - self._depth
        self._deepest = max(self._deepest, outer)
        return node

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """An opening bracket: the scanner reads ahead, in time that grows with the square of those that are open."""
        if self.flow_level > MAX_DEPTH:
            raise _RefusedError("nested too deep", self.get_mark(), _DEPTH_FIX)
        super().fetch_flow_collection_start(TokenClass)

    def _meaning(self, event: Any) -> tuple[int, int]:
        if event.anchor in self.anchors and event.anchor not in self._aliased:
            raise _RefusedError(f"*{event.anchor} stands within itself", event.start_mark, "Write it out.")
        return self._aliased.get(event.anchor, (0, 0))

    def _count(self, event: Any, values: int, depth: int) -> None:
        self._values += values
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            raise _RefusedError("nested too deep", event.start_mark, _DEPTH_FIX)
        if self._values > MAX_NODES:
            what = f"more than {MAX_NODES:,} values"
            raise _RefusedError(what, event.start_mark, "Aliases count as what they stand for.")

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        value = super().construct_yaml_int(node) if len(text) <= 70 else MAX_NUMBER
        if abs(value) >= MAX_NUMBER:
            raise _RefusedError(f"the number {_brief(text)} is beyond 64 bits", node.start_mark, "Give a smaller one.")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
