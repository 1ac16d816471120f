"""From a section of a scenario that names something registered to its spec: the one way for routers, admission control,
deciders and controllers."""

from __future__ import annotations

from typing import Any, TypeVar

from gnomon.core.errors import UnknownNameError
from gnomon.core.registry import Registry
from gnomon.core.user_files import load_user_file

S = TypeVar("S")


def chosen(registry: Registry[S], config: Any) -> S:
    """The spec of what a section names, after its `file` was loaded; options that it does not have are refused."""
    if config.file is not None:
        load_user_file(config.file)
    spec: Any = registry[config.name]
    unknown = set(config.options) - set(spec.options)
    if unknown:
        where = f"{(registry.where or registry.kind).removesuffix('.name')}.options"
        raise UnknownNameError(f"option of {registry.kind} {spec.name}", min(unknown), spec.options, where=where)
    return spec
