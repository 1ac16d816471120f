"""Vidur's layout: `compute/<device>/<model>/{mlp,attention}.csv` and `network/<node>/{all_reduce,send_recv}.csv`.

Times are milliseconds (the median of the repeats), `size` is bytes. A file `attention*<device>*.csv[.gz]` beside the
layout is read too when its columns are of the model and the degree that are asked for.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnomon.catalog.devices import DEVICES, Device
from gnomon.catalog.library import folded
from gnomon.catalog.model_library import MODELS
from gnomon.catalog.model_library import model as model_called
from gnomon.catalog.models import Model
from gnomon.catalog.nodes import NODES, Node
from gnomon.core.errors import DataError
from gnomon.timing.sources.profile.csvfile import Columns, folders_of, read_csv
from gnomon.timing.sources.profile.samples import NAMED, Bundle, Samples, collective_key

MS = 1e-3

OPERATORS: dict[str, list[str]] = NAMED["vidur"]  # A column of mlp.csv -> the operators of our graph that it times.


def find_root(path: Path) -> Path | None:
    """The folder that holds `compute`, at `path` or one below it."""
    for root in (path, path / "profiling", path / "data" / "profiling"):
        if (root / "compute").is_dir():
            return root
    return None


def read(root: Path, model: Model, device: Device, node: Node, tensor_parallel: int) -> Bundle:
    """Everything that was measured for one rank."""
    profiled = (path.parent for path in sorted((root / "compute").glob("*/*/*/mlp.csv")))
    folder = folders_of(root, profiled, lambda path: (path.parts[-3], "/".join(path.parts[-2:])), model, device)[0]
    bundle = Bundle(str(folder))
    degrees = read_mlp(folder / "mlp.csv")
    if tensor_parallel not in degrees:
        what = f"tensor parallelism {tensor_parallel} was not measured."
        raise DataError(what, where=str(folder / "mlp.csv"), fix=f"It has: {', '.join(map(str, degrees))}.")
    for name, samples in degrees[tensor_parallel].items():
        for operator in OPERATORS[name]:
            bundle.add(("name", operator), samples)
    for path in attention_files(root, folder):
        for name, samples in read_attention(path, model, tensor_parallel).items():
            bundle.add(("name", name), samples)
    for path, collective in network_files(root, node):
        for (num_ranks, per_node), samples in read_network(path, collective).items():
            bundle.add(collective_key(collective, num_ranks, per_node), samples)
    return bundle


def read_mlp(path: Path) -> dict[int, dict[str, Samples]]:
    """The operators of mlp.csv by tensor-parallel degree and by their names there."""
    columns = read_csv(path, ("num_tokens", "num_tensor_parallel_workers"))
    names = [name for name in OPERATORS if columns.has(f"time_stats.{name}.median")]
    if not names:
        columns.require("time_stats.mlp_up_proj.median")
    degrees = columns.sizes("num_tensor_parallel_workers")[:, 0]
    found = {}
    for degree in np.unique(degrees):
        rows = columns.where(degrees == degree)
        tokens = rows.sizes("num_tokens")
        found[int(degree)] = {name: Samples(tokens, *_timed(rows, name)) for name in names}
    return found


def attention_shape(path: Path) -> tuple[Model, int, Device]:
    """The model, degree and device of an attention file: from its columns, and from the names on its path."""
    columns = read_csv(path, ("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers"))
    hidden, heads, kv_heads, degree = (
        int(value) for value in columns.sizes("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers")[0]
    )
    words = [*path.parts[-4:-1], *path.name.split("_")]
    gpu = next((name for word in words if (name := DEVICES.resolve(word))), None)
    if gpu is None:
        raise DataError("does not say on which device it was measured.", where=str(path), fix="Put it into its name.")
    # Several models share these numbers; the one that the path names comes first.
    spelled = folded(str(path))
    for name in sorted(MODELS.names, key=lambda name: folded(name) not in spelled):
        shape = model_called(name)
        if (shape.hidden_size, shape.num_heads, shape.num_kv_heads) == (hidden, heads, kv_heads):
            return shape, degree, DEVICES[gpu]
    raise DataError(f"is of no known model ({heads} heads of {hidden}).", where=str(path))


def read_attention(path: Path, model: Model | None, tensor_parallel: int | None) -> dict[str, Samples]:
    """Prefill and decode; nothing where the file is of another shape."""
    sizes = ("batch_size", "prefill_chunk_size", "kv_cache_size", "num_tensor_parallel_workers")
    columns = read_csv(path, (*sizes, "is_prefill", "n_embd", "n_q_head", "n_kv_head"))
    if model is not None:
        shape = (model.hidden_size, model.num_heads, model.num_kv_heads)
        columns = columns.where(np.all(columns.sizes("n_embd", "n_q_head", "n_kv_head") == shape, axis=1))
    if tensor_parallel is not None:
        columns = columns.where(columns.sizes("num_tensor_parallel_workers")[:, 0] == tensor_parallel)
    is_prefill = np.char.lower(columns.texts("is_prefill")) == "true"
    found = {}
    if is_prefill.any():
        rows = columns.where(is_prefill)
        sizes_of = rows.sizes("prefill_chunk_size", "kv_cache_size")
        found["attention_prefill"] = Samples(sizes_of, *_timed(rows, "attn_prefill"))
    if not is_prefill.all():
        rows = columns.where(~is_prefill)
        found["attention_decode"] = Samples(rows.sizes("batch_size", "kv_cache_size"), *_timed(rows, "attn_decode"))
    return found


def read_network(path: Path, collective: str) -> dict[tuple[int, int], Samples]:
    """One collective by (ranks, ranks per node)."""
    columns = read_csv(path, ("size", "num_workers", "devices_per_node"))
    groups = columns.sizes("num_workers", "devices_per_node")
    found = {}
    for ranks, per_node in np.unique(groups, axis=0):
        rows = columns.where((groups[:, 0] == ranks) & (groups[:, 1] == per_node))
        found[int(ranks), int(per_node)] = Samples(rows.sizes("size"), *_timed(rows, collective))
    return found


def attention_files(root: Path, folder: Path) -> Iterator[Path]:
    """The layout's own attention file, and those beside the layout whose names carry the device."""
    if (folder / "attention.csv").is_file():
        yield folder / "attention.csv"
    for beside in (root, root.parent):
        yield from sorted(beside.glob(f"attention*{folder.parts[-3]}*.csv*"))


def network_files(root: Path, node: Node) -> Iterator[tuple[Path, str]]:
    """The collectives that were measured in a node of this name."""
    for folder in sorted((root / "network").glob("*")):
        if NODES.resolve(folder.name) != node.name:
            continue
        for stem, collective in (("all_reduce", "all_reduce"), ("allreduce", "all_reduce"), ("send_recv", "send_recv")):
            if (folder / f"{stem}.csv").is_file():
                yield folder / f"{stem}.csv", collective


def _timed(columns: Columns, name: str) -> tuple[np.ndarray, str, np.ndarray | None]:
    """The median times of one operator, where they are from, and their relative spread."""
    seconds = columns.seconds(f"time_stats.{name}.median", unit_s=MS)
    std = f"time_stats.{name}.std"
    spread = columns.spread(std) * MS / seconds if columns.has(std) else None
    return seconds, str(columns.path), spread
