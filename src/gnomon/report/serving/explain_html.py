"""The section of a report that says why: sentences, pictures, tables."""

from __future__ import annotations

import html
from typing import Any

from gnomon.report.blocks import Table
from gnomon.report.page import table
from gnomon.report.serving import explain_figures as figures
from gnomon.report.serving import explain_text as words
from gnomon.serving.results.explain import slowest
from gnomon.serving.results.latency_breakdown import accounts
from gnomon.serving.results.summary import Summary
from gnomon.serving.run.simulate import Run
from gnomon.timing import SOURCES

PERCENTILE = 99.0


def why_section(run: Run, summary: Summary) -> tuple[str, dict[str, Any]]:
    """The section as HTML, and its figures by name; nothing for a run whose accounts were not kept."""
    found = accounts(run) if run.cluster.breakdown.size else None
    if found is None or not found.ids.size:
        return "", {}
    slow = slowest(found, "e2e", PERCENTILE)
    worst = int(slow.rows[found.values_s("e2e")[slow.rows].argmax()])
    drawn = {
        "why_causes": figures.causes_figure(found),
        "why_ttft": figures.causes_figure(found, "ttft"),
        "why_slowest": figures.slowest_figure(found, slow),
        "why_neighbours": figures.neighbours_figure(found, worst),
    }
    if not SOURCES[run.pools[0].timing.source].gives_iterations:
        drawn["why_roofline"] = figures.roofline_figure(run)
    texts = words.slow_sentences(found, slow)
    texts += [line.text for line in words.missed_blocks(found) if not isinstance(line, Table)]
    story = words.request_sentences(found, int(found.ids[worst]))
    tables = [one for one in words.slow_blocks(found, slow) if isinstance(one, Table)]
    plots = "".join(f"<div id={name} class=plot></div>" for name in drawn)
    body = (
        f"<section><h2>Why</h2><p class=why>{html.escape(' '.join(texts))}</p>"
        f"<p class=why>{html.escape(' '.join(story))}</p><div class=plots>{plots}</div>"
        f"{''.join(table(one.rows, one.left, one.title) for one in tables)}"
        "<p class=more>`gnomon explain` on this folder also simulates what would help.</p></section>"
    )
    return body, drawn
