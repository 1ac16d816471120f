"""Where time goes, as one bar per row cut into causes: the table under a time line, on every page alike."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Causes = dict[str, tuple[str, str]]
"""By key: what a cause is called, and its colour."""


@dataclass(frozen=True)
class SplitRow:
    """One bar: `parts` by cause add up to `whole`."""

    name: str
    parts: dict[str, float]
    whole: float
    words: str
    """Said beside the bar."""
    unit: str = ""

    def share(self, cause: str) -> float:
        """Of the whole, in per cent."""
        return 100 * self.parts[cause] / self.whole

    def title(self, cause: str, label: str) -> str:
        """Said of one piece when it is pointed at."""
        return f"{label}: {self.parts[cause]:.6g}{self.unit} ({self.share(cause):.1f} %)"


def split_table(causes: Causes, rows: Sequence[SplitRow], beside: Literal["figure", "words"]) -> str:
    """The legend and the bars as HTML; `beside` is the class of what stands beside each bar."""
    legend = "".join(
        f"<li><i style='background:{colour}'></i>{html.escape(name)}</li>" for name, colour in causes.values()
    )
    body = ""
    for row in rows:
        pieces = "".join(
            f"<i style='width:{row.share(cause):.3f}%;background:{colour}'"
            f" title='{html.escape(row.title(cause, label))}'></i>"
            for cause, (label, colour) in causes.items()
        )
        name, words = html.escape(row.name), html.escape(row.words)
        body += f"<tr><th>{name}</th><td><div class=split>{pieces}</div></td><td class={beside}>{words}</td></tr>"
    return f"<ul class=legend>{legend}</ul><table class=splits>{body}</table>"
