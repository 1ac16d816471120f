"""Tables that were measured untuned, or waiting for launches: another engine takes far less at the same points.

Engines that multiply the same matrices on the same GPU agree: bf16 products within 8 % in the median on every system.
So a table that takes half as long again as another engine's, in the median over the points that both measured, did not
measure what its engine runs in serving, where kernels are tuned and launched by CUDA graphs. It is passed over, and the
provenance names it.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache

import polars as pl

from gnomon.timing.sources.silicon.tables import Table

SLOW = 1.5
"""How much longer than another engine's a table may take in the median. All tables but those that were measured untuned
lie below 1.45, those above 1.65."""
MIN_COMMON = 30  # Fewer common points than this say nothing.

Points = Callable[..., pl.DataFrame]
"""Gives one row per point of a table and what is asked of it, all columns but `latency` naming the point."""


def tuned(tables: Sequence[Table], points: Points, *asked: Hashable) -> tuple[list[Table], str]:
    """The tables to trust, in their order, and words on the first one where it is not among them."""
    kept = [one for one in tables if not _is_slow(one, tuple(tables), points, asked)]
    first = tables[0] if tables else None
    excuse = f" ({first.engine} {first.version} was measured untuned)" if first and first not in kept else ""
    return kept, excuse


@lru_cache(maxsize=1024)
def _is_slow(table: Table, others: tuple[Table, ...], points: Points, asked: tuple[Hashable, ...]) -> bool:
    mine = points(table, *asked)
    names = [column for column in mine.columns if column != "latency"]
    for other in others:
        if other.engine == table.engine:
            continue
        both = mine.join(points(other, *asked), on=names, suffix="_other")
        ratio = (both["latency"] / both["latency_other"]).median() if both.height >= MIN_COMMON else None
        if isinstance(ratio, float) and ratio > SLOW:
            return True
    return False
