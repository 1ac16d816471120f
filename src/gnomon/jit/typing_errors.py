"""What Numba says about a function that cannot be compiled, in one paragraph that names the user's line."""

import linecache
import re
from typing import Any

from gnomon.core.errors import ConfigError, nearest
from gnomon.core.user_files import place_of, plain

_LINE = re.compile(r'File "([^"\n]+)", line (\d+)')
_ATTRIBUTE = re.compile(r"Unknown attribute '(\w+)' of type (Record\((.*?)\)|\w+)", re.DOTALL)
_NAME = re.compile(r"NameError: (?:global )?name '(\w+)' is not defined")
_ADVICE = "Compiled functions know numbers, arrays and other compiled functions; GNOMON_JIT=0 runs plain Python."


def cannot_be_compiled(error: BaseException, function: Any) -> ConfigError:
    """The error of compiling a user's function, in words."""
    text = str(error)
    path, name = plain(function).__code__.co_filename, plain(function).__name__
    own = [int(line) for file, line in _LINE.findall(text) if file == path]
    reason, fix = _reason(text)
    if isinstance(error, KeyError):  # How Numba answers when a record has no such field.
        reason, fix = _no_field(str(error.args[0]), _fields_asked(error))
        pattern = rf"\.{error.args[0]}\b"
        own = [number for number, line in enumerate(linecache.getlines(path), 1) if re.search(pattern, line)][:1]
    where = f"{path}:{own[-1]}" if own else place_of(function)
    source = linecache.getline(path, own[-1]).strip() if own else ""
    shown = f" in `{source}`" if source else ""
    return ConfigError(f"{name} cannot be compiled: {reason}{shown}.", where=where, fix=fix)


def _reason(text: str) -> tuple[str, str]:
    found = _ATTRIBUTE.search(text)
    if found:
        return _no_field(found[1], re.findall(r"(\w+)\[", found[3] or ""))
    if "function or_" in text:
        return "it does not always answer with a whole number", "Return the number of a replica, from 0 on."
    found = _NAME.search(text)
    if found:
        return f"the name {found[1]!r} is not defined", "Import it, or define it above as a compiled function."
    return _first_line(text), _ADVICE


def _no_field(name: str, fields: list[str]) -> tuple[str, str]:
    near = nearest(name, fields)
    guess = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    guess = guess or "See gnomon.serving.engine.state for the fields."
    return f"there is no field {name!r}", guess


def _fields_asked(error: BaseException) -> list[str]:
    """The fields of the record type that was asked for one that it does not have."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    record = trace.tb_frame.f_locals.get("self") if trace is not None else None
    return list(getattr(record, "fields", ()))


def _first_line(text: str) -> str:
    """The first sentence that says something about the user's code, without Numba's types in full."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    boring = ("Failed in nopython mode", "During:", "File ", "<source", "Overload", "- Resolution", "In definition")
    telling = [line for line in lines if not line.startswith(boring)]
    line = next((line for line in telling if "Error: " in line), telling[0] if telling else "unknown reason")
    line = re.sub(r"(Record|Borrowed|Checked|NamedTuple|Replica|Fleet|Cluster)\(.*\)", r"\1", line)
    return line.rstrip(".:")[:200]
