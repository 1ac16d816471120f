"""LLMServingSim's layout: `<device>/<model>/<variant>/tp<N>/{dense,attention,per_sequence,moe,skew}.csv`.

Times are microseconds. Attention was measured as an engine runs it: a chunk and decodes in one call. The write into
the KV cache is part of it; residual adds are part of the norms.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnomon.catalog.devices import DEVICES, Device
from gnomon.catalog.models import Model
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.timing.operators import Experts
from gnomon.timing.sources.profile.csvfile import Columns, Names, folders_of, read_csv
from gnomon.timing.sources.profile.samples import NAMED, Bundle, Samples, SkewSamples

US = 1e-6
IN_SERVER = {"rtx-4090": 0.967}
"""What a kernel takes in a server over what it takes in such a profile, by GPU. From decode iterations of the recording
`rtx4090_llama-3.1-8b`; why is not known, and servers on another GPU show nothing of the kind
(docs/vllm-validation.md)."""

OPERATORS: dict[str, list[str]] = NAMED["servingsim"]
"""A layer of dense.csv or per_sequence.csv -> the operators of our graph that it times."""

MOST_FOLDERS = 10_000  # Folders that are looked into; the tables that are published have a few dozen.
INCLUDED = ("kv_write",)  # Operators that another one's measurement contains.


def find_root(path: Path) -> Path | None:
    """`path` itself, where some `tp<N>/dense.csv` lies below it."""
    return path if next(_measured(path), None) else None


def read(root: Path, model: Model, device: Device, dtype: str, tensor_parallel: int) -> Bundle:
    """Everything that was measured for one rank."""
    folder = degree_folder(root, model, device, dtype, tensor_parallel)
    bundle, share = Bundle(str(folder)), IN_SERVER.get(device.name, 1.0)

    def add(operator: str, samples: Samples) -> None:
        bundle.add(("name", operator), replace(samples, seconds=share * samples.seconds))

    for file, size in (("dense.csv", "tokens"), ("per_sequence.csv", "sequences")):
        columns = read_csv(folder / file, ("layer", size, "time_us"))
        layers = columns.texts("layer")
        for layer, samples in {
            str(layer): _samples(columns.where(layers == layer), size) for layer in np.unique(layers)
        }.items():
            for operator in OPERATORS.get(layer, ()):
                add(operator, samples)
    for name, samples in read_attention(folder / "attention.csv").items():
        add(name, samples)
    for name in INCLUDED:
        bundle.included.add(name)
    # Experts are measured whole, on one rank: other degrees run a slice of that shape.
    experts = folder.parent / "tp1" / "moe.csv"
    if model.is_moe and experts.is_file():
        add("experts", read_experts(experts, model))
    if (folder / "skew.csv").is_file():
        kv_heads = -(-model.num_kv_heads // tensor_parallel)
        # Decodes from which on FlashAttention-2 gives every sequence and KV head one block: 0.8 of twice the SMs
        # (`num_splits_heuristic`). None on GPUs whose attention is a later version's.
        bundle.skew = replace(
            read_skew(folder / "skew.csv"),
            splits_below=0.8 * 2 * device.num_sms / kv_heads if device.roofline.prefill_tile == 64 else None,
        )
    return bundle


def degree_folder(root: Path, model: Model, device: Device, dtype: str, tensor_parallel: int) -> Path:
    """`tp<N>` of one model on one device in one variant, whatever spelling the names have."""
    suitable = folders_of(root, _degree_folders(root), _names, model, device)
    for path in suitable:
        if path.parent.name.startswith(dtype) and path.name == f"tp{tensor_parallel}":
            return path
    what = f"{model.name} was not measured in {dtype} with tensor parallelism {tensor_parallel}."
    raise DataError(what, where=str(root), fix=f"It has: {', '.join('/'.join(path.parts[-2:]) for path in suitable)}.")


def profiled_devices(root: Path, model: Model) -> list[str]:
    """The devices on which `model`, or another of its shape, was measured."""
    folders = _degree_folders(root)
    devices = sorted({name for path in folders if (name := DEVICES.resolve(_names(path)[0]))})
    found = []
    for name in devices:
        try:
            folders_of(root, folders, _names, model, DEVICES[name])
        except DataError:
            continue
        found.append(name)
    return found


def _degree_folders(root: Path) -> list[Path]:
    return sorted(_measured(root))


def _measured(root: Path) -> Iterator[Path]:
    """The folders `tp<N>` with a dense.csv below `root`; not all of a disk is searched for them."""
    for _, (folder, _, files) in zip(range(MOST_FOLDERS), os.walk(root), strict=False):
        path = Path(folder)
        if path.name.startswith("tp") and "dense.csv" in files:
            yield path


def _names(path: Path) -> Names:
    """Device and model of a folder `tp<N>`."""
    return path.parts[-5], "/".join(path.parts[-4:-2])


def read_attention(path: Path) -> dict[str, Samples]:
    """Prefill alone, decode alone, and both in one call."""
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    columns = read_csv(path, (*names, "time_us"))
    chunk, _, decodes, _ = columns.sizes(*names).T
    parts = {
        "attention_prefill": ((chunk > 0) & (decodes == 0), names[:2]),
        "attention_decode": ((chunk == 0) & (decodes > 0), names[2:]),
        "attention_mixed": ((chunk > 0) & (decodes > 0), names),
    }
    return {name: _samples(columns.where(rows), *sizes) for name, (rows, sizes) in parts.items() if rows.any()}


def read_experts(path: Path, model: Model) -> Samples:
    """The experts of one layer by tokens and the number of experts that some token chose."""
    samples = _samples(read_csv(path, ("tokens", "activated_experts", "time_us")), "tokens", "activated_experts")
    shape = (model.experts_per_token, model.hidden_size, model.expert_ffn_size, model.num_projections)
    whole = Experts(model.num_experts, model.num_experts, *shape)
    return replace(samples, measured_as=whole)


def read_skew(path: Path) -> SkewSamples:
    """Batches whose decodes have unequal KV lengths, measured beside equal ones."""
    columns = read_csv(path, ("n", "nb", "pc", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"))
    decodes, long, chunk, longest, mean = columns.sizes("n", "nb", "pc", "kv_big", "kv_mean").T

    def seconds(name: str) -> Floats:
        return columns.seconds(name, unit_s=US)

    at_mean_s, at_max_s, skewed_s = seconds("t_mean_us"), seconds("t_max_us"), seconds("t_skew_us")
    return SkewSamples(decodes, mean, longest, at_mean_s, at_max_s, skewed_s, chunk, long / decodes)


def _samples(columns: Columns, *sizes: str) -> Samples:
    return Samples(columns.sizes(*sizes), columns.seconds("time_us", unit_s=US), str(columns.path))
