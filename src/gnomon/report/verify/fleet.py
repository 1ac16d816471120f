"""Published effects of fleets beside their simulation, in a table."""

from __future__ import annotations

from dataclasses import asdict

from gnomon.report.blocks import Table, lines
from gnomon.report.verify.told import Told
from gnomon.verify.fleet import Effect


def told(found: list[Effect]) -> Told:
    """A row for every figure; those beyond their tolerance fail."""
    rows = [asdict(one) | {"distance": one.distance, "is_reproduced": one.is_reproduced} for one in found]
    failures = [
        f"{one.name}, {one.figure}: {one.simulated:.4g}, published {one.published:.4g} ({one.distance:+z.0%})"
        for one in found
        if not one.is_reproduced
    ]
    shown = [
        {
            "effect": one.name,
            "figure": one.figure,
            "published": f"{one.published:,.4g}",
            "simulated": f"{one.simulated:,.4g}",
            "distance": f"{one.distance:+z.1%}",
            "rule": f"within {one.tolerance:.0%}" if one.nothing is None else f"at least {one.least:,.4g}",
        }
        for one in found
    ]
    settings = dict.fromkeys(f"{one.name}: {one.setting}. {one.source}." for one in found)
    return Told(
        rows=rows,
        data={"effects": rows},
        blocks=[Table(shown, "Published effects"), *lines(list(settings)), *lines(failures, "warning")],
        failures=failures,
    )
