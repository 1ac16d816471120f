"""The doc strings under the fields of a class, read from its source when somebody asks for help.

Pydantic can read them too, but does so for every class when it is made, whether there is help to print or not. Names
that can be registered are not listed by hand: `{gnomon.serving.routers.ROUTERS}` in a doc string asks the registry.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from importlib import import_module
from itertools import pairwise


def field_doc(cls: type, name: str) -> str:
    """The doc string under the field `name` of a class, or of the base that has it; empty where there is none."""
    for one in cls.__mro__:
        if name in inspect.get_annotations(one):
            return _with_names(_docs_in(one.__module__).get((one.__qualname__, name), ""))
    return ""


def _with_names(text: str) -> str:
    """The text with every `{module.REGISTRY}` in it replaced by the names that are registered there."""
    return re.sub(r"\{([\w.]+)\.([A-Z]+)\}", lambda m: ", ".join(getattr(import_module(m[1]), m[2]).names()), text)


@cache
def _docs_in(module: str) -> dict[tuple[str, str], str]:
    """Doc strings in a module, by class and field."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # A session without a file, or a program without its sources.
        return {}
    return {
        (qualified, field.target.id): inspect.cleandoc(text.value.value)
        for qualified, cls in _classes(tree)
        for field, text in pairwise(cls.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _classes(tree: ast.AST, prefix: str = "") -> list[tuple[str, ast.ClassDef]]:
    """Every class in a tree with its qualified name."""
    found: list[tuple[str, ast.ClassDef]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found += [(prefix + node.name, node), *_classes(node, f"{prefix}{node.name}.")]
        elif isinstance(node, ast.FunctionDef):
            found += _classes(node, f"{prefix}{node.name}.<locals>.")
    return found
