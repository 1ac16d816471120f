"""State and address: the query holds what differs from the defaults, so that a link gives the same view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

from gnomon.ui.controls import Control


def state_of(controls: Sequence[Control], query: str) -> dict[str, Any]:
    """Raw values by name: what the address says, else the default. Keys that no control has are left alone."""
    given = parse_qs(query.removeprefix("?"), keep_blank_values=True)
    return {
        one.name: one.from_query(given[one.name][-1]) if one.name in given else one.default for one in controls
    }  # fmt: skip


def query_of(controls: Sequence[Control], state: Mapping[str, Any]) -> str:
    """`?name=value&...` of what differs from the defaults; "" where nothing does."""
    texts = {one.name: one.to_query(state[one.name]) for one in controls if one.name in state}
    usual = defaults_of(controls)
    changed = {name: text for name, text in texts.items() if text != usual[name]}
    return f"?{urlencode(changed)}" if changed else ""


def defaults_of(controls: Sequence[Control]) -> dict[str, str]:
    """The defaults as they would stand in an address."""
    return {one.name: one.to_query(one.default) for one in controls}
