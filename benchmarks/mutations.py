"""What a mutant is: one operator, constant or comparison of one file, changed."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
NO_DECISIONS = ("strict", "frozen", "slots", "kw_only", "maxsize", "order", "repr", "compare", "align")
"""Arguments of `zip`, `dataclass`, `field`, `lru_cache` and `dtype` that no result depends on; they are left alone."""


@dataclass(frozen=True)
class Mutant:
    """One change of one expression of one module."""

    module: str
    line: int
    before: str
    after: str
    span: tuple[int, int]
    """First and last character in the file."""
    source: str
    """Hash of the function it is in, or of the file."""
    function: str = ""
    """The function it is in (`Class.method`), or nothing."""
    number: int = 0
    """Which one, of equal changes in one function."""

    @property
    def key(self) -> str:
        """What a result is kept under: it holds as long as the function is the same."""
        return f"{self.source}:{self.lot}"

    @property
    def lot(self) -> str:
        """What it is drawn by."""
        return f"{self.module}:{self.function}:{self.before}:{self.after}:{self.number}"


class _Finder(ast.NodeVisitor):
    """Every expression that can be changed, with its changed form; annotations, messages and docs are left alone."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr, ast.expr, str, ast.AST | None]] = []
        self.scope: list[str] = []
        self.function = ""
        self.body: ast.AST | None = None

    def _note(self, node: ast.expr, other: ast.expr) -> None:
        self.found.append((node, other, self.function, self.body))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in NO_DECISIONS:
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for i, op in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[i] = COMPARISONS[type(op)]()
            self._note(node, other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_type = isinstance(node.op, ast.BitOr)
        if type(node.op) in OPERATORS and not _is_text(node):
            self._note(node, ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
        if not is_type:
            self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._note(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._note(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._note(node, ast.Constant(not value))
        elif isinstance(value, int | float):
            self._note(node, ast.Constant(value + 1 if isinstance(value, int) else value * 2.0 or 1.0))

    def visit_Raise(self, node: ast.Raise) -> None:
        """What a message says is not held by tests."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)):
            self.visit(part)
        outer, self.function, body = self.function, ".".join([*self.scope, node.name]), self.body
        self.body = body or node
        self.scope += [node.name, "<locals>"]
        for part in node.body:
            self.visit(part)
        self.scope, self.function, self.body = self.scope[:-2], outer, body

    def visit_Assert(self, node: ast.Assert) -> None:
        """Never fails as long as the code is right."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text."""


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def mutants_of(module: str, text: str) -> Iterator[Mutant]:
    """Every mutant of one file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    finder = _Finder()
    finder.visit(ast.parse(text))
    seen: Counter[tuple[str, str, str]] = Counter()
    for node, other, function, body in finder.found:
        assert node.end_lineno is not None and node.end_col_offset is not None
        span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
        before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(other))
        if before != after:
            source = hashlib.sha256((ast.unparse(body) if body else text).encode()).hexdigest()[:12]
            yield Mutant(module, node.lineno, before, after, span, source, function, seen[function, before, after])
            seen[function, before, after] += 1
