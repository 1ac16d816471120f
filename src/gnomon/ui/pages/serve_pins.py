"""Pinned results: their controls' state as queries, joined into one text that stands in the address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gnomon.core.errors import GnomonError
from gnomon.report.serving.compare import variant_row
from gnomon.report.serving.figures import COLOURS
from gnomon.ui.controls import Control, defaults_of, query_of, state_of

if TYPE_CHECKING:
    from gnomon.api.serving import Summary

MAX_PINS = 4
_BETWEEN = ";"
"""Never part of a query, which spells it %3B."""
NOW = "now"


def pinned(pins: str | None) -> dict[int, str]:
    """The queries of the pinned results by their places; a place gives a colour, and stays when another is emptied."""
    return {place: query for place, query in enumerate((pins or "").split(_BETWEEN)[:MAX_PINS]) if query}


def with_pin(controls: Sequence[Control], pins: str, raw: Mapping[str, Any]) -> str:
    """The pins and the present state in the first free place, unless it is pinned already or there is no room."""
    query, found = query_of(controls, raw) or "?", pinned(pins)
    free = next((place for place in range(MAX_PINS) if place not in found), None)
    return _joined(found if query in found.values() or free is None else found | {free: query})


def without_pin(pins: str, place: int) -> str:
    """The pins without one of them."""
    return _joined({other: query for other, query in pinned(pins).items() if other != place})


def _joined(found: Mapping[int, str]) -> str:
    return _BETWEEN.join(found.get(place, "") for place in range(max(found, default=-1) + 1))


def colours(pins: str) -> list[str]:
    """Of the present result, always the same, and of the pinned ones by their places."""
    return [COLOURS[0], *(COLOURS[1 + place] for place in pinned(pins))]


def states(controls: Sequence[Control], pins: str, raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The present state and the pinned ones, each under a name that says what tells it apart."""
    shown = [raw, *(state_of(controls, query) for query in pinned(pins).values())]
    texts = [{one.name: one.to_query(state[one.name]) for one in controls} for state in shown]
    usual = defaults_of(controls)
    varying = [name for name in usual if len({text[name] for text in texts}) > 1]
    named: dict[str, Mapping[str, Any]] = {}
    for number, (state, text) in enumerate(zip(shown, texts, strict=True)):
        words = ", ".join(f"{name} {text[name] or '–'}" for name in varying)
        label = (f"{NOW}: {words}" if words else NOW) if number == 0 else words or f"pin {number}"
        named[label if label not in named else f"{label} ({number})"] = state
    return named


def comparison_row(summary: Summary) -> dict[str, Any]:
    """The figures by which deployments are compared: those of `gnomon compare`, and what an hour costs."""
    row = variant_row("", summary) | {"$/h": f"{summary.cost.per_hour:,.2f}"}
    del row["variant"]
    return row


def failed_row(error: GnomonError) -> dict[str, Any]:
    """The row of a pinned state that cannot be simulated any more."""
    return {"TTFT mean": str(error)}
