"""Python files of users that register policies and routers of their own, and what goes wrong in them, in one sentence.

Loops of a function in such a file end with an error after `MAX_TURNS` turns: compiled code that loops for ever could
not be stopped.
"""

import ast
import linecache
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gnomon.core.errors import ConfigError, GnomonError

MAX_TURNS = 10_000_000  # Turns of all loops together in one call of a user's function.
OWN: list[str] = []  # Names that were registered and are not built in.


def load_user_file(path: str | Path) -> None:
    """Run a Python file that registers something, once per process."""
    _load(str(Path(path).resolve()))


@cache
def _load(path: str) -> None:
    if not Path(path).is_file():
        raise ConfigError("no such file.", where=path, fix="Give the path of a Python file that registers your own.")
    # A module that can be found by its name: compiled code from the disk cache looks for it.
    before = len(OWN)
    module = ModuleType(f"gnomon_own_{Path(path).stem}_{zlib.crc32(path.encode()):08x}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        tree = ast.parse(Path(path).read_bytes(), path)
        tree = ast.fix_missing_locations(_BoundLoops().visit(tree))
        exec(compile(tree, path, "exec"), module.__dict__)
    except (GnomonError, KeyboardInterrupt):
        raise
    except BaseException as error:  # Also one that ends the process, such as sys.exit().
        line = getattr(error, "lineno", None) or _last_line(error, path)
        what = f"{type(error).__name__}: {getattr(error, 'msg', error)}."
        fix = "Run it with python to see more."
        raise ConfigError(what, where=f"{path}:{line}" if line else path, fix=fix) from error
    if len(OWN) == before:
        fix = 'Put a decorator of gnomon.extend above a function: @router("name").'
        raise ConfigError("it registers nothing.", where=path, fix=fix)


class _BoundLoops(ast.NodeTransformer):
    """Count the turns of all loops of every function, and raise when they do not end."""

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.FunctionDef:
        """The function with a count before its body and a check in its loops; functions in it count for themselves."""
        loops = [node for node in _own_nodes(function) if isinstance(node, ast.While | ast.For)]
        for loop in loops:
            message = f"the loop in line {loop.lineno} does not end (more than {MAX_TURNS:,} turns)"
            loop.body[:0] = _at(loop, f"own_turns += 1\nassert own_turns < {MAX_TURNS}, {message!r}")
        if loops:
            first = 1 if ast.get_docstring(function, clean=False) is not None else 0
            function.body[first:first] = _at(function.body[-1], "own_turns = 0")
        self.generic_visit(function)
        return function


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function but those of functions defined in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)


def _at(place: ast.AST, code: str) -> list[ast.stmt]:
    """Statements that stand where `place` does."""
    statements = ast.parse(code).body
    for statement in statements:
        for node in ast.walk(statement):
            ast.copy_location(node, place)
    return statements


def is_own(function: Callable[..., Any]) -> bool:
    """Whether a function is a user's, not one of Gnomon."""
    return not function.__module__.startswith("gnomon.")


def plain(function: Any) -> Any:
    """A function as written, whether it was compiled or not."""
    return getattr(function, "py_func", function)


def place_of(function: Any) -> str:
    """The file and line where a function is defined."""
    code = plain(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _last_line(error: BaseException, path: str) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return lines[-1] if lines else None


def asked(function: Callable[..., Any], kind: str, *seen: Any) -> Any:
    """What a function answers that may be a user's; what such a one raises is told with its line."""
    try:
        return function(*seen)
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not is_own(function):
            raise
        raise own_error(error, function, kind) from error


def own_error(error: BaseException, function: Any, kind: str) -> ConfigError:
    """What a user's function raised, with the line of the user's file where that can be told."""
    path, name = plain(function).__code__.co_filename, plain(function).__name__
    line = _last_line(error, path)
    text = linecache.getline(path, line).strip() if line else ""
    what = str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
    return ConfigError(
        f"the {kind} {name} failed: {what}" + (f" in `{text}`." if text else "."),
        where=f"{path}:{line}" if line else place_of(function),
        fix=None if line else "GNOMON_JIT=0 runs it as plain Python and names the line.",
    )
