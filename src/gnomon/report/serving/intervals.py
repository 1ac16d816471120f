"""Prediction intervals in words: `205 ms, 190–223`."""

import math
from typing import Any

from gnomon.core import units
from gnomon.report.blocks import Block, Table
from gnomon.serving.results.intervals import Interval, Intervals
from gnomon.timing.breakdown import NINE_OF_TEN

CAPTION = "90 % intervals: the timing source's error, a calibration's, and other requests of the same kind."
WIDTH_OF = ("latency.tpot_s.mean", "latency.e2e_s.mean")
"""The figure whose width is explained; the second where there is no first."""
WIDE = 0.1  # Half a width (of the logarithm) from which it is explained.


def words(interval: Interval, kind: str = "seconds") -> str:
    """A figure with its interval, in one unit unless it spans several."""
    if kind == "share":
        return f"{interval.value:.1%}, {100 * interval.low:.1f}–{100 * interval.high:.1f}"
    if kind != "seconds":
        return f"{_number(interval.value, 4)}, {_number(interval.low, 3)}–{_number(interval.high, 3)}"
    text = units.seconds(interval.value)
    number, _, unit = text.partition(" ")
    size = interval.value / float(number) if float(number) else 1.0
    if interval.low < size / 10:  # Of minutes only.
        return f"{text}, {units.seconds(interval.low)} – {units.seconds(interval.high)}"
    return f"{number} {unit}, {_number(interval.low / size, 3)}–{_number(interval.high / size, 3)}"


def _number(value: float, digits: int) -> str:
    """So many digits, and never a power of ten."""
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def width_words(found: Intervals, spread: float) -> str:
    """Where the width of wide intervals comes from; `spread` is the standard deviation of the timing source's error."""
    of = next((found[place] for place in WIDTH_OF if place in found), None)
    if of is None or not of.value or (half := math.log(of.high / of.value)) < WIDE:
        return ""
    alone = NINE_OF_TEN * spread
    if alone**2 > 0.5 * half**2:
        return (
            f"Most of the width is what the timing source may be off by on a whole server: ±{alone:.0%} in nine of ten "
            "cases; `gnomon calibrate` with a server's logs makes it less."
        )
    return (
        f"Most of the width is other requests of the same kind, and queues near capacity; the timing source alone "
        f"gives ±{alone:.0%}."
    )


def interval_blocks(found: Intervals, spread: float | None = None) -> list[Block]:
    """For the terminal; nothing where no interval was asked for. `spread`: as in `width_words`, where it is known."""
    rows: list[dict[str, str | None]] = []
    for metric in ("ttft", "tpot", "tbt", "e2e"):
        known = {name: found.get(f"latency.{metric}_s.{name}") for name in ("mean", "p50", "p99")}
        texts = {name: words(one) if one else None for name, one in known.items()}
        if any(texts.values()):
            rows.append({"interval": metric.upper(), **texts})
    if not rows:
        return []
    places = {
        "throughput.requests_per_s": ("requests/s", "number"),
        "throughput.output_tokens_per_s": ("output tokens/s", "number"),
        "cost.per_million_output_tokens": ("$ per million output tokens", "number"),
        "slo.attainment": ("SLO met by", "share"),
        "slo.goodput_requests_per_s": ("good requests/s", "number"),
    }
    others = "; ".join(
        f"{name} {words(found[place], kind)}" for place, (name, kind) in places.items() if place in found
    )
    why = "" if spread is None else width_words(found, spread)
    return [Table(rows, left=("interval",), caption=" ".join(part for part in (CAPTION, f"{others}.", why) if part))]


def as_data(found: Intervals) -> dict[str, Any]:
    return {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in found.items()}
