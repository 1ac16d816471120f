"""Collectives between GPUs (NCCL) or, for tests, between processes (gloo), through torch.distributed.

Alone on a node the ranks are started here; under `torchrun` (several nodes) this process is one of them; on a Ray
cluster every rank is a task.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnomon.measure.profiling import bundle
from gnomon.measure.profiling.machine import facts

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
SIZES = tuple(1 << power for power in range(10, 29))
Samples = dict[bundle.Key, tuple[float, float]]


def buffer_call(collective: str, num_bytes: int, device: torch.device) -> Callable[[], object]:
    """One call over a full buffer of `num_bytes` bf16 elements per rank (see docs/profile-format.md)."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    elements = max(ranks, num_bytes // 2 // ranks * ranks)
    full = torch.ones(elements, dtype=torch.bfloat16, device=device)
    part = torch.ones(elements // ranks, dtype=torch.bfloat16, device=device)
    if collective == "all_reduce":
        return lambda: dist.all_reduce(full)
    if collective == "all_gather":
        return lambda: dist.all_gather_into_tensor(full, part)
    if collective == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, full)
    if collective == "all_to_all":
        received = torch.empty_like(full)
        return lambda: dist.all_to_all_single(received, full)
    if rank == 0:
        return lambda: dist.send(full, 1)
    if rank == 1:
        return lambda: dist.recv(full, 0)
    return lambda: None


def measure_here(collective: str, sizes: Sequence[int], ranks_per_node: int, repeats: int = 20) -> Samples:
    """Measure one collective from inside an initialised process group; the slowest rank counts."""
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    measured: Samples = {}
    for size in sizes:
        call = buffer_call(collective, size, device)
        for _ in range(5):
            call()
        samples = sorted(_slowest(_once_s(call, device), device) for _ in range(repeats))
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        measured[(collective, dist.get_world_size(), ranks_per_node, size)] = (median, (high - low) / median)
    return measured


def _once_s(call: Callable[[], object], device: torch.device) -> float:
    dist.barrier()
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _slowest(seconds: float, device: torch.device) -> float:
    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value.item())


def _rank(
    rank: int, ranks: int, port: int, backend: str, wanted: Sequence[str], sizes: Sequence[int], out: str
) -> None:
    """One rank of a group on this node; rank 0 writes what was measured."""
    if backend == "nccl":
        torch.cuda.set_device(rank)
    measured = _as_rank(rank, ranks, ranks, f"127.0.0.1:{port}", backend, wanted, sizes)
    if rank == 0:
        journal = bundle.Journal(Path(out))
        for key, (seconds, spread) in measured.items():
            journal.add("collective", key, seconds, spread)


def _as_rank(
    rank: int, ranks: int, ranks_per_node: int, address: str, backend: str, wanted: Sequence[str], sizes: Sequence[int]
) -> Samples:
    place = {"init_method": f"tcp://{address}", "rank": rank, "world_size": ranks}
    return _in_group(wanted, sizes, ranks_per_node, backend, **place)


def _in_group(wanted: Sequence[str], sizes: Sequence[int], ranks_per_node: int, backend: str, **place: Any) -> Samples:
    dist.init_process_group(backend, **place)
    try:
        measured: Samples = {}
        for collective in wanted:
            measured |= measure_here(collective, sizes, ranks_per_node)
        return measured
    finally:
        dist.destroy_process_group()


def measure_on_ray(
    wanted: Sequence[str], num_nodes: int, ranks_per_node: int, sizes: Sequence[int], backend: str, address: str
) -> Samples:
    """Ranks on the nodes of a Ray cluster, a GPU (gloo: a core) each; the nodes differ."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ranks, own = num_nodes * ranks_per_node, {"CPU": 1} | ({"GPU": 1} if backend == "nccl" else {})
    names = [name for name in wanted if name != "send_recv" or ranks == 2]
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    nodes = placement_group(
        [{kind: float(count * ranks_per_node) for kind, count in own.items()}] * num_nodes, strategy="STRICT_SPREAD"
    )
    try:
        if not nodes.wait(RAY_WAIT_S):
            raise RuntimeError(f"the Ray cluster has no {num_nodes} nodes with room for {ranks_per_node} ranks each")

        def task(function: Callable[..., Any], rank: int) -> Any:
            place = PlacementGroupSchedulingStrategy(nodes, placement_group_bundle_index=rank // ranks_per_node)
            return ray.remote(num_cpus=1, num_gpus=own.get("GPU", 0), scheduling_strategy=place)(function)

        where = ray.get(task(_meeting_point, 0).remote())
        found = [
            task(_as_rank, rank).remote(rank, ranks, ranks_per_node, where, backend, names, sizes)
            for rank in range(ranks)
        ]
        measured: Samples = ray.get(found)[0]
        return measured
    except ray.exceptions.RayError as error:
        raise RuntimeError(str(error).splitlines()[-1]) from None
    finally:
        remove_placement_group(nodes)


RAY_WAIT_S = 60  # How long a cluster may take to find room for the ranks.


def _meeting_point() -> str:
    """An address of the node this runs on, with a free port."""
    import ray

    return f"{ray.util.get_node_ip_address()}:{_free_port('')}"


def torchrun_commands(num_nodes: int, ranks_per_node: int, arguments: Sequence[str]) -> list[str]:
    """What to start on each node, where there is no Ray: the same line, with the node's number."""
    return [
        f"torchrun --nnodes {num_nodes} --nproc-per-node {ranks_per_node} --node-rank {node} "
        f"--rdzv-backend c10d --rdzv-endpoint HEAD:29500 -m gnomon.measure.profiling {shlex.join(arguments)}"
        for node in range(num_nodes)
    ]


def measure_on_node(wanted: Sequence[str], workers: Sequence[int], sizes: Sequence[int], backend: str) -> Samples:
    """Start groups of ranks on this node and measure; a group of one has nothing to send and is skipped."""
    present = torch.cuda.device_count() if backend == "nccl" else os.cpu_count() or 1
    measured: Samples = {}
    for ranks in workers:
        if ranks == 1:
            continue
        if backend == "nccl" and ranks > present:
            raise RuntimeError(f"{ranks} ranks asked for, but this node has {present} GPU(s)")
        names = [name for name in wanted if name != "send_recv" or ranks == 2]
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(_rank, (ranks, _free_port(), backend, names, sizes, folder), nprocs=ranks)
            measured |= bundle.Journal(Path(folder)).rows["collective"]
    return measured


def _free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def add_parser(commands: Any) -> None:
    command = commands.add_parser("collectives")
    command.add_argument("--collective", action="append", choices=COLLECTIVES, help="may be repeated; default: all")
    command.add_argument("--nodes", type=int, default=1, help="with --ray: nodes of the cluster")
    command.add_argument("--ray", metavar="ADDRESS", help="auto, local, or the address of a Ray cluster")
    command.add_argument("--dry-run", action="store_true", help="print the torchrun command of every node")
    command.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8])
    command.add_argument("--backend", choices=("nccl", "gloo"))
    command.add_argument("--max-bytes", type=int, default=max(SIZES))
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--device-name", required=True)
    command.add_argument("--node", help="the node's name in Gnomon's catalog, e.g. h200_hgx")


def main(options: argparse.Namespace) -> int:
    wanted = options.collective or list(COLLECTIVES)
    sizes = [size for size in SIZES if size <= options.max_bytes]
    if options.dry_run:
        # The arguments of every rank that torchrun starts.
        words = ["collectives", "--device-name", options.device_name, "--out", str(options.out)]
        words += [word for name in options.collective or () for word in ("--collective", name)]
        for name in ("backend", "node", "max_bytes"):
            if getattr(options, name) is not None:
                words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
        print("\n".join(torchrun_commands(options.nodes, max(options.workers), words)))
        return 0
    backend = options.backend or ("nccl" if torch.cuda.is_available() else "gloo")
    measured: Samples = {}
    try:
        if options.ray is not None:
            for ranks in options.workers:
                measured |= measure_on_ray(wanted, options.nodes, ranks, sizes, backend, options.ray)
        elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            alone = _under_torchrun(wanted, sizes, backend)
            if alone is None:
                return 0
            measured = alone
        else:
            measured = measure_on_node(wanted, options.workers, sizes, backend)
    except (RuntimeError, ImportError, ConnectionError) as error:
        print(f"gnomon.measure.profiling: {error}", file=sys.stderr)
        return 2
    old = bundle.read_rows(options.out) if (options.out / "manifest.json").exists() else {}
    rows = bundle.merge([old, {"collective": measured}])
    about = {"device": options.device_name, "node": options.node, **facts()}
    bundle.write(options.out, rows, about | {"method": "torch.distributed, median of 20"})
    return 0


def _under_torchrun(wanted: Sequence[str], sizes: Sequence[int], backend: str) -> Samples | None:
    """Measure as one rank of a group that torchrun started; None on every rank but the first."""
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    measured = _in_group(wanted, sizes, ranks_per_node, backend)
    return measured if os.environ["RANK"] == "0" else None
