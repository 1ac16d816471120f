"""A failing scenario made smaller, as long as it fails in the same way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from combinations.draw import Data

MOST = 250
"""Attempts."""


def shrunk(data: Data, fails: Callable[[Data], bool], most: int = MOST) -> Data:
    """The smallest scenario found: keys are taken out, lists shortened and numbers made smaller while `fails`."""
    tries = 0
    goes_on = True
    while goes_on:
        goes_on = False
        for smaller in _smaller(data):
            if tries >= most:
                return data
            tries += 1
            if fails(smaller):
                data, goes_on = smaller, True
                break
    return data


def _smaller(data: Data) -> Iterator[Data]:
    """Scenarios with one thing less, the largest things first."""
    paths = sorted(_paths(data), key=lambda path: (len(path), -len(json.dumps(_at(data, path)))))
    for path in paths:
        yield _without(data, path)
    for path in paths:
        value = _at(data, path)
        if isinstance(value, bool) or not isinstance(value, int | float) or path[-1] == "seed":
            continue
        if isinstance(value, int) and value > 1:
            yield _with(data, path, value // 2)
            yield _with(data, path, value - 1)
        elif isinstance(value, float) and value not in (0.0, 1.0) and float(f"{value:.1g}") != value:
            yield _with(data, path, float(f"{value:.1g}"))


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [one for key, value in items for one in [(*path, key), *_paths(value, (*path, key))]]


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _without(data: Data, path: tuple[Any, ...]) -> Data:
    copy = json.loads(json.dumps(data))
    del _at(copy, path[:-1])[path[-1]]
    return copy


def _with(data: Data, path: tuple[Any, ...], value: Any) -> Data:
    copy = json.loads(json.dumps(data))
    _at(copy, path[:-1])[path[-1]] = value
    return copy
