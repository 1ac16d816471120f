"""What surrounds the plots of the Serve page, as HTML.

Not as components: sixty of them take the browser longer than a plot, at every move of a slider.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gnomon.api.serving import Scenario, Simulation
from gnomon.report.serving import text as words
from gnomon.report.serving.html import card, key_figures, message
from gnomon.ui.scenarios import as_command, as_server, as_yaml

if TYPE_CHECKING:
    from gnomon.api.serving import Intervals

COPIES = {"yaml": ("Scenario file", as_yaml), "command": ("Command line", as_command), "server": ("Server", as_server)}


def texts(result: Simulation, intervals: Intervals | None) -> dict[str, str]:
    """The HTML of every place on the page, by the place's name."""
    return {
        **figure_texts(result, intervals),
        "headline": _headline(result.scenario),
        "copies": "".join(_copy(name, label, write(result.scenario)) for name, (label, write) in COPIES.items()),
        "notes": "".join(message("note", text) for text in (*_kv(result), *result.summary.notes)),
    }


def figure_texts(result: Simulation, intervals: Intervals | None = None, of: int = 0) -> dict[str, str]:
    """The key figures, with intervals where they are known; those of a preview `of` so many requests say so."""
    said = message("note", f"Preview: the first {of:,} requests.") if of else _warnings(result)
    style = "cards passing" if of else "cards"
    return {"figures": f"<div class=strip>{said}</div><div class='{style}'>{_cards(result, intervals)}</div>"}


def _kv(result: Simulation) -> list[str]:
    """Where KV came from and went to, where pools have roles or KV has tiers."""
    rows = dict(words.figure_rows(result.summary))
    return [f"{name}: {rows[name]}." for name in ("KV moved", "KV tiers") if name in rows]


def _headline(scenario: Scenario) -> str:
    """What is simulated."""
    lede = f"{words.workload_words(scenario)}; {words.policy_words(scenario)}."
    return f"<h1>{escape(words.title(scenario))}</h1><p>{escape(lede)}</p>"


def _warnings(result: Simulation) -> str:
    """What must be known before the figures are believed; else how it went, so that nothing below moves."""
    if result.summary.warnings:
        return "".join(message("warning", text) for text in result.summary.warnings)
    rows = dict(words.figure_rows(result.summary))
    return message("note", f"{rows['requests']}; batches: {rows['batches']}. Iteration times: {rows['timing']}.")


def _cards(result: Simulation, intervals: Intervals | None) -> str:
    cost = result.summary.cost
    gpus = "1 GPU" if cost.num_gpus == 1 else f"{cost.num_gpus} GPUs"
    thousand = f"${cost.per_thousand_requests:.3g}" if cost.per_thousand_requests is not None else "–"
    hour = (f"{gpus} per hour", f"${cost.per_hour:,.2f}", f"{thousand} per 1,000 requests")
    return "".join(card(*one) for one in (*key_figures(result.summary, intervals=intervals), hour))


def _copy(name: str, label: str, text: str) -> str:
    """Text with a button that copies it."""
    id = f"serve-copy-{name}"
    button = (
        f'<button type=button class="button copy" id={id}-copy data-copy={id} aria-label="Copy {label}">Copy</button>'
    )
    head = f"<div class=copy-head><span>{escape(label)}</span>{button}</div>"
    return f"<div class=copy-box>{head}<pre id={id} tabindex=0>{escape(text)}</pre></div>"
