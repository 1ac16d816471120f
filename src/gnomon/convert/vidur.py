"""What a Vidur command line implies beyond its single options."""

from __future__ import annotations

from typing import Any

from gnomon import catalog

VIDUR_NODE = "a100_pairwise_nvlink"


def finish_vidur(values: dict[str, Any]) -> list[str]:
    """Complete a converted scenario in place; return notes for the reader."""
    notes = [
        "Vidur caps Poisson gaps at 3 / qps, which sends about 5 % more load; Gnomon does not.",
        "Times come from the roofline; for Vidur's measurements add timing.source: profile and timing.path.",
    ]
    if values.get("timing", {}).get("source") == "profile":
        notes.pop()
    # Vidur's default network is that of its default device.
    if "node" not in values and catalog.device(values["device"]).name == catalog.device("a100").name:
        values["node"] = VIDUR_NODE
    arrivals = values["workload"].get("arrivals", {}).get("process")
    if arrivals == "batch":
        notes.pop(0)
    if values["workload"].get("trace"):
        values["workload"].pop("rate", None)
        notes.pop(0)
    return notes
