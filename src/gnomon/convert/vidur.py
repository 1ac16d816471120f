"""What a Vidur command line implies beyond its single options."""

from __future__ import annotations

from typing import Any

from gnomon import catalog
from gnomon.serving.routers import ROUTERS

VIDUR_NODE = "a100_pairwise_nvlink"


def finish_vidur(values: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Complete a converted scenario in place; return notes for the reader."""
    # Vidur's default network is that of its default device.
    if "node" not in values and catalog.device(values["device"]).name == catalog.device("a100").name:
        values["node"] = VIDUR_NODE
    notes = []
    if ROUTERS[values.setdefault("router", {"name": "round_robin"})["name"]].numbers is not None:
        notes.append("the router is the policy that comes with Gnomon until router.checkpoint names another.")
    if values["workload"].get("arrivals", {}).get("process") == "poisson":
        notes.append("Vidur caps Poisson gaps at 3 / qps, which sends about 5 % more load; Gnomon does not.")
    if values["timing"].get("source") != "profile":
        notes.append(
            "times are measured kernels where the extra [silicon] is installed, else the roofline's; for Vidur's own "
            "measurements set timing.source: profile and timing.path."
        )
    return notes
