"""Hold the catalog's links against measured collectives, and print the straight line that fits each group best.

GNOMON_REFERENCE=DIR python -m benchmarks.calibrate_links
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.cli.printing import json_option, print_rows
from gnomon.core.arrays import Floats
from gnomon.timing.communication import collective_s
from gnomon.timing.operators import Collective

VIDUR_NODES = ("a100_dgx", "h100_dgx", "a100_pairwise_nvlink", "h100_pairwise_nvlink", "a40_pairwise_nvlink")
SILICON_NODES = {
    "a100_hgx": "a100_sxm/comm/vllm/0.14.0",
    "h100_hgx": "h100_sxm/comm/vllm/0.24.0",
    "h200_hgx": "h200_sxm/comm/vllm/0.24.0",
    "b200_hgx": "b200_sxm/comm/vllm/0.24.0",
}


@dataclass(frozen=True)
class Measured:
    """One collective of one group on one node."""

    node: str
    data: str
    collective: Collective
    num_ranks: int
    per_node: int
    num_bytes: Floats
    seconds: Floats


def vidur(reference: Path) -> Iterator[Measured]:
    """Medians over ranks."""
    for node in VIDUR_NODES:
        for collective in ("all_reduce", "send_recv"):
            path = reference / f"vidur/data/profiling/network/{node}/{collective}.csv"
            if not path.exists():
                continue
            frame = pl.read_csv(path)
            for (ranks, per_node), rows in sorted(frame.group_by(["num_workers", "devices_per_node"])):
                rows = rows.group_by("size").agg(pl.col(f"time_stats.{collective}.median").median().alias("ms"))
                num_bytes, seconds = rows["size"].to_numpy().astype(float), rows["ms"].to_numpy() * 1e-3
                yield Measured(node, "Vidur", collective, ranks, per_node, num_bytes, seconds)  # type: ignore[arg-type]


def silicon() -> Iterator[Measured]:
    """vLLM's custom all-reduce in CUDA graphs; the tables count bf16 elements."""
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        return
    root = Path(found.submodule_search_locations[0]) / "systems" / "data"
    for node, folder in SILICON_NODES.items():
        frame = pl.read_parquet(root / folder / "custom_allreduce_perf.parquet")
        for (ranks,), rows in sorted(frame.filter(pl.col("backend") == "vllm_graph").group_by(["num_gpus"])):
            num_bytes, seconds = rows["message_size"].to_numpy() * 2.0, rows["latency"].to_numpy() * 1e-3
            yield Measured(node, "silicon", "all_reduce", ranks, ranks, num_bytes, seconds)


def row(one: Measured) -> dict[str, object]:
    """The catalog's error, and the line with the least relative squares."""
    node = catalog.node(one.node)
    group = catalog.Group.spread(one.num_ranks, one.per_node, node)
    errors = collective_s(one.collective, one.num_bytes, group, node) / one.seconds - 1.0
    line = np.stack([np.ones_like(one.num_bytes), one.num_bytes], axis=1) / one.seconds[:, None]
    constant, per_byte = np.linalg.lstsq(line, np.ones_like(one.seconds), rcond=None)[0]
    return {
        "node": one.node,
        "data": one.data,
        "collective": one.collective,
        "GPUs": one.num_ranks,
        "per node": one.per_node,
        "points": one.seconds.size,
        "median error": f"{np.median(np.abs(errors)):.1%}",
        "bias (median)": f"{np.median(errors):+.1%}",
        "best line": f"{constant * 1e6:.1f} µs + bytes / {1e-9 / per_byte:.1f} GB/s",
    }


@click.command()
@json_option
def main(as_json: bool) -> None:
    reference = Path(os.environ.get("GNOMON_REFERENCE", "reference"))
    rows = [row(one) for one in (*vidur(reference), *silicon())]
    print_rows(rows, as_json=as_json, right=("GPUs", "per node", "points", "median error", "bias (median)"))


if __name__ == "__main__":
    main()
