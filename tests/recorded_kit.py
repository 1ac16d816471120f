"""Results that were recorded once: whoever changes one says so, by recording it anew and in the CHANGELOG.

Hand-worked tables say what is right; these notice what changes. `GNOMON_RECORD=1 pytest tests/recorded -n 0`
writes them anew; the difference of `tests/recorded/` is then for a reader to judge.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "recorded"
IS_RECORDING = os.environ.get("GNOMON_RECORD") == "1"


@cache
def _recorded(subject: str) -> dict[str, Any]:
    path = FOLDER / f"{subject}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def check_recorded(subject: str, case: str, found: dict[str, Any]) -> None:
    """Compare with what was recorded: numbers to ten digits, all else exactly."""
    known, found = _recorded(subject), {name: shortened(_plain(value)) for name, value in found.items()}
    if IS_RECORDING:
        known[case] = found
        lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(known.items()))
        (FOLDER / f"{subject}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    assert case in known, f"nothing recorded for {case}: see tests/recorded_kit.py"
    assert list(found) == list(known[case])
    for name, value in known[case].items():
        assert found[name] == _near(value), f"{case}: {name}"


HEAD, LONG = 4, 8
"""Numbers of a list of more than eight that are recorded as they are."""


def shortened(value: Any) -> Any:
    """A long list of numbers as its head, its length, its sum and a sum in which every place has a weight of its own:
    nobody checks forty numbers, and these change with any of them."""
    if not isinstance(value, list) or len(value) <= LONG or not all(type(one) in (int, float) for one in value):
        return value
    weights = [(place * 7919 + 101) % 997 / 997 for place in range(len(value))]
    weighed = sum(abs(one) * weight for one, weight in zip(value, weights, strict=True))
    return _plain([*value[:HEAD], len(value), sum(value), weighed])


def _near(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_list = isinstance(value, list) and value and not isinstance(value[0], str | list | bool)
    return pytest.approx(value, rel=1e-9, abs=1e-15) if is_number or is_list else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.11g}") if isinstance(value, float) else value
