"""The source `silicon`: kernels measured on data-centre GPUs, inside the package aiconfigurator-core (extra [silicon]).

Its Parquet tables are read directly: `<system>/<family>/<back end>/<version>/<table>.parquet`, the newest version of
the chosen back end. They hold matrix products by (m, n, k), attention by heads, experts, and collectives; norms and
activations are not in them and come from the roofline. Prompts were measured without KV before them: chunks after the
first are extrapolated by the roofline's shape, and that is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from gnomon.catalog.devices import Device
from gnomon.core.errors import DataError, MissingExtraError, UnknownNameError
from gnomon.timing.sources import Context, register_source
from gnomon.timing.sources.profile.measured import Measured
from gnomon.timing.sources.profile.samples import Bundle, Key, Samples
from gnomon.timing.sources.roofline import Roofline

MS = 1e-3

SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l4": "l4",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Device -> its folder in the package."""

BACK_ENDS = ("vllm", "sglang", "trtllm")

_DTYPES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "int8": "int8_wo", "int4": "int4_wo"}


@cache
def data_folder() -> Path:
    """Where the package keeps its tables."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("The timing source silicon", "silicon")
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


@register_source("silicon")
def make(context: Context) -> Measured:
    """The measured kernels of the context's device; `timing.path` may name the back end (vllm, sglang, trtllm)."""
    c = context.config
    bundle = read_bundle(context.device, c.path or "vllm", context.dtype, context.kv_dtype)
    return Measured("silicon", bundle, Roofline(context.device, context.node), c.estimator)


def read_bundle(device: Device, back_end: str = "vllm", dtype: str = "bf16", kv_dtype: str = "bf16") -> Bundle:
    """All kernels of one device in one back end."""
    if back_end not in BACK_ENDS:
        raise UnknownNameError("back end", back_end, BACK_ENDS, where="timing.path")
    if device.name not in SYSTEMS:
        raise DataError(f"has no kernels of {device.name}.", where="silicon", fix=f"It has: {', '.join(SYSTEMS)}.")
    root = data_folder() / SYSTEMS[device.name]
    bundle = Bundle(str(root))
    _read_gemm(bundle, _newest(root / "gemm" / back_end, "gemm_perf"), _DTYPES.get(dtype, dtype))
    attention = root / "attention" / back_end
    kv = _DTYPES.get(kv_dtype, kv_dtype)
    _read_prefill(bundle, _newest(attention, "context_attention_perf"), kv)
    _read_decode(bundle, _newest(attention, "generation_attention_perf"), kv)
    _read_experts(bundle, _newest(root / "moe" / back_end, "moe_perf"), _DTYPES.get(dtype, dtype))
    _read_collectives(bundle, _newest(root / "comm" / "nccl", "nccl_perf"))
    _read_all_reduce(bundle, _newest(root / "comm" / back_end, "custom_allreduce_perf"))
    return bundle


def _newest(folder: Path, table: str) -> Path | None:
    """The table in the newest version that has it."""
    found = folder.glob(f"*/{table}.parquet")
    return max(found, key=lambda path: _version(path.parent.name), default=None)


def _version(name: str) -> tuple[float, ...]:
    """1.3.0rc20 -> (1, 3, 0, -1, 20), which is before 1.3.0 -> (1, 3, 0, 0)."""
    parts = re.findall(r"\d+|rc", name)
    return (*(-1.0 if part == "rc" else float(part) for part in parts), 0.0)


def _read(path: Path, conditions: Iterable[pl.Expr], columns: Iterable[str]) -> pl.DataFrame:
    known = pl.read_parquet_schema(path)
    missing = [name for name in (*columns, "latency") if name not in known]
    if missing:
        raise DataError(f"has no column {missing[0]!r}.", where=str(path), fix="Install a newer aiconfigurator-core.")
    return pl.scan_parquet(path).filter(*conditions, pl.col("latency") > 0).collect()


def _add(bundle: Bundle, frame: pl.DataFrame, kind: str, shape: list[str], sizes: list[pl.Expr], path: Path) -> None:
    """One entry per shape; sizes that were measured more than once are all kept."""
    for key, rows in frame.group_by(shape, maintain_order=True):
        points = rows.select(sizes).to_numpy().astype(np.float64)
        name: Key = (kind, *(int(value) for value in key))
        bundle.add(name, Samples(points, rows["latency"].to_numpy() * MS, str(path)))


def _read_gemm(bundle: Bundle, path: Path | None, dtype: str) -> None:
    if path is not None:
        frame = _read(path, [pl.col("gemm_dtype") == dtype], ("m", "n", "k"))
        _add(bundle, frame, "gemm", ["n", "k"], [pl.col("m")], path)


_HEADS = ["num_heads", "num_key_value_heads", "head_dim"]


def _read_prefill(bundle: Bundle, path: Path | None, kv_dtype: str) -> None:
    """Single prompts: batches of them cost as one, see `IterationTables`."""
    if path is not None:
        frame = _read(path, _attention_rows(path, kv_dtype, pl.col("batch_size") == 1), ("isl", "step", *_HEADS))
        _add(bundle, frame, "attention_prefill", _HEADS, [pl.col("isl"), pl.col("step")], path)


def _read_decode(bundle: Bundle, path: Path | None, kv_dtype: str) -> None:
    """`step` tokens lie before the one that is decoded."""
    if path is not None:
        frame = _read(path, _attention_rows(path, kv_dtype), ("batch_size", "step", *_HEADS))
        _add(bundle, frame, "attention_decode", _HEADS, [pl.col("batch_size"), pl.col("step") + 1], path)


def _attention_rows(path: Path, kv_dtype: str, *more: pl.Expr) -> list[pl.Expr]:
    rows = [pl.col("kv_cache_dtype") == kv_dtype, *more]
    if "window_size" in pl.read_parquet_schema(path):
        rows.append(pl.col("window_size") == 0)
    return rows


def _read_experts(bundle: Bundle, path: Path | None, dtype: str) -> None:
    """Whole layers on one rank or sliced by tensor parallelism, choices being even."""
    if path is None:
        return
    conditions = [pl.col("moe_dtype") == dtype, pl.col("moe_ep_size") == 1, pl.col("distribution") == "balanced"]
    frame = _read(path, conditions, ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"))
    frame = frame.with_columns(ffn=pl.col("inter_size") // pl.col("moe_tp_size"))
    _add(bundle, frame, "experts", ["num_experts", "topk", "hidden_size", "ffn"], [pl.col("num_tokens")], path)


_NCCL = {"all_gather": "all_gather", "alltoall": "all_to_all", "reduce_scatter": "reduce_scatter"}


def _read_collectives(bundle: Bundle, path: Path | None) -> None:
    """`message_size` counts elements of the whole buffer; ours is the bytes that one rank contributes."""
    if path is None:
        return
    frame = _read(path, [pl.col("nccl_dtype") == "half"], ("op_name", "num_gpus", "message_size"))
    whole = pl.col("message_size") * 2
    for name, collective in _NCCL.items():
        size = whole / pl.col("num_gpus") if collective == "all_gather" else whole
        _add(bundle, frame.filter(pl.col("op_name") == name), collective, ["num_gpus"], [size], path)


def _read_all_reduce(bundle: Bundle, path: Path | None) -> None:
    """The back end's own kernel, as it runs inside CUDA graphs."""
    if path is None:
        return
    frame = _read(path, [], ("num_gpus", "message_size"))
    if "backend" in frame.columns and frame["backend"].str.ends_with("_graph").any():
        frame = frame.filter(pl.col("backend").str.ends_with("_graph"))
    _add(bundle, frame, "all_reduce", ["num_gpus"], [pl.col("message_size") * 2], path)
