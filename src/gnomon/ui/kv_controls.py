"""Controls of the Serve page for prefill replicas of their own and for KV beyond the GPU: as fields of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.api.serving import Scenario, decider_names, router_names
from gnomon.ui.controls import Choice, Control, Number

APART, TIERS = "Prefill apart", "KV beyond the GPU"
LINKS = {"host": (50.0, 0.0005), "ssd": (7.0, 0.002), "remote": (40.0, 0.004)}
"""GB/s and seconds of latency of a tier whose size alone is given: those of the example in docs/kv-tiers.md."""

KV_CONTROLS: tuple[Control, ...] = (
    Number("prefill", "Prefill replicas", 0, least=0, most=512, whole=True, group=APART,
           help="Beside them, the replicas above only decode. 0: all do both."),
    Number("prefill_tp", "Tensor parallel", "", least=1, most=64, whole=True, optional=True, group=APART,
           help="As above if empty."),
    Choice("decider", "Prefilled there", "always", field=("disaggregation.decider", "decider"), options=decider_names,
           group=APART),
    Choice("decode_router", "Decode router", "least_outstanding", field="disaggregation.decode_router",
           options=router_names, group=APART),
    *(Number(f"{name}_gb", label, "", field=f"kv_tiers.{name}", least=0.001, optional=True, unit="GB", group=TIERS,
             help=f"{LINKS[name][0]:g} GB/s")
      for name, label in (("host", "Host memory"), ("ssd", "SSD"), ("remote", "Shared store"))),
)  # fmt: skip


def kv_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the controls say of pools and tiers, as dotted keys of a scenario."""
    found: dict[str, Any] = {}
    if values.get("prefill"):
        degree = values.get("tp") or 1
        counts = {"prefill": values["prefill"], "decode": values.get("replicas") or 1}
        degrees = {"prefill": values.get("prefill_tp") or degree, "decode": degree}
        found["pools"] = [
            {"role": role, "num_replicas": count, "replica": {"tensor_parallel": degrees[role]}}
            for role, count in counts.items()
        ]
        found |= {"num_replicas": 1, "replica.tensor_parallel": 1}
        found["disaggregation.decider.name"] = values.get("decider") or "always"
        found["disaggregation.decode_router.name"] = values.get("decode_router") or "least_outstanding"
    for name, (bandwidth, latency) in LINKS.items():
        if values.get(f"{name}_gb"):
            tier = {"size_gb": values[f"{name}_gb"], "bandwidth_gb_s": bandwidth, "latency_s": latency}
            found |= {f"kv_tiers.{name}.{key}": value for key, value in tier.items()}
    return found


def kv_values(scenario: Scenario) -> dict[str, Any]:
    """The controls that come nearest to a scenario's pools and tiers."""
    tiers = scenario.kv_tiers
    values: dict[str, Any] = {
        f"{name}_gb": one.size_gb if (one := getattr(tiers, name)) is not None else None for name in LINKS
    }
    values |= {"prefill": 0, "prefill_tp": None, "decider": "always", "decode_router": "least_outstanding"}
    pools = scenario.all_pools()
    if [pool.role for pool in pools] == ["prefill", "decode"]:
        apart, degrees = scenario.disaggregation, [pool.replica.tensor_parallel for pool in pools]
        values |= {"prefill": pools[0].num_replicas, "replicas": pools[1].num_replicas, "tp": degrees[1]}
        values |= {"prefill_tp": degrees[0] if degrees[0] != degrees[1] else None}
        values |= {"decider": apart.decider.name, "decode_router": apart.decode_router.name}
    return values
