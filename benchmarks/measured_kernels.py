"""Measured kernels as samples of our operators: Vidur's CSVs, vLLM profiles, and the silicon tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl

from gnomon import catalog
from gnomon.core.arrays import Floats
from gnomon.timing.operators import (
    Decode,
    Experts,
    Gemm,
    Operator,
    Prefill,
    mixed_attention,
    stage_operators,
)

VIDUR = {
    "emb": "embedding",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "attn_pre_proj": "qkv_proj",
    "attn_rope": "rotary",
    "attn_post_proj": "o_proj",
    "mlp_up_proj": "up_proj",
    "mlp_act": "act",
    "mlp_down_proj": "down_proj",
}
VLLM = {
    "embedding": "embedding",
    "layernorm": "attn_norm",
    "qkv_proj": "qkv_proj",
    "qk_norm": "qk_norm",
    "rotary_emb": "rotary",
    "o_proj": "o_proj",
    "gate_up_proj": "up_proj",
    "act_fn": "act",
    "down_proj": "down_proj",
    "final_layernorm": "final_norm",
    "lm_head": "lm_head",
    "sampler": "sampler",
}


@dataclass(frozen=True)
class Sample:
    """One operator measured at several sizes."""

    data: str
    operator: Operator
    sizes: tuple[Floats, ...]
    seconds: Floats


def samples_of(device: str, reference: Path) -> list[Sample]:
    """Everything that was measured on a catalogued device."""
    readers: dict[str, list[Callable[[], Iterator[Sample]]]] = {
        "a100-80gb": [
            lambda: _vidur_mlp(reference, "a100"),
            lambda: _vidur_attention(reference),
            lambda: _silicon("a100_sxm", "vllm/0.14.0"),
        ],
        "h100": [lambda: _vidur_mlp(reference, "h100"), lambda: _silicon("h100_sxm", "vllm/0.24.0")],
        "a40": [lambda: _vidur_mlp(reference, "a40")],
        "h200": [lambda: _silicon("h200_sxm", "vllm/0.24.0")],
        "b200": [lambda: _silicon("b200_sxm", "vllm/0.24.0")],
        "b300": [lambda: _silicon("b300_sxm", "vllm/0.24.0")],
        "gb200": [lambda: _silicon("gb200", "vllm/0.24.0")],
        "gb300": [lambda: _silicon("gb300", "vllm/0.24.0")],
        "l40s": [lambda: _silicon("l40s", "vllm/0.24.0")],
        "rtx-4090": [lambda: _vllm(reference, "RTX4090")],
        "rtx-pro-6000": [lambda: _vllm(reference, "RTXPRO6000")],
    }
    return [sample for reader in readers[device] for sample in reader()]


DEVICES = ("a100-80gb", "h100", "a40", "h200", "b200", "b300", "gb200", "gb300", "l40s", "rtx-4090", "rtx-pro-6000")


def _operators(model: str, tensor_parallel: int) -> dict[str, Operator]:
    parallelism = catalog.Parallelism(tensor_parallel=tensor_parallel)
    return {one.name: one for one in stage_operators(catalog.model(model), parallelism)}


def _floats(frame: pl.DataFrame, column: str) -> Floats:
    return frame[column].to_numpy().astype(np.float64)


def _vidur_mlp(reference: Path, device: str) -> Iterator[Sample]:
    for path in sorted((reference / "vidur/data/profiling/compute" / device).glob("*/*/mlp.csv")):
        frame = pl.read_csv(path)
        for (ranks,), rows in sorted(frame.group_by(["num_tensor_parallel_workers"])):
            operators = _operators(f"{path.parent.parent.name}/{path.parent.name}", ranks)
            for theirs, ours in VIDUR.items():
                if f"time_stats.{theirs}.median" in frame.columns:
                    seconds = _floats(rows, f"time_stats.{theirs}.median") * 1e-3
                    yield Sample("Vidur MLP", operators[ours], (_floats(rows, "num_tokens"),), seconds)


def _vidur_attention(reference: Path) -> Iterator[Sample]:
    frame = pl.read_csv(reference / "vidur/data/attention_llama2-70b_a100_tp2_measured.csv.gz")
    operators = _operators("meta-llama/Llama-2-70b-hf", 2)
    for is_prefill, name, size in ((True, "prefill", "prefill_chunk_size"), (False, "decode", "batch_size")):
        rows = frame.filter(pl.col("is_prefill") == is_prefill)
        sizes = (_floats(rows, size), _floats(rows, "kv_cache_size"))
        seconds = _floats(rows, f"time_stats.attn_{name}.median") * 1e-3
        yield Sample("Vidur attention", operators[f"attention_{name}"], sizes, seconds)


def _vllm(reference: Path, device: str) -> Iterator[Sample]:
    for folder in sorted((reference / "vllm/profiles" / device).glob("*/*/bf16/tp*")):
        model = f"{folder.parents[2].name}/{folder.parents[1].name}"
        operators = _operators(model, int(folder.name[2:]))
        for file, size in (("dense", "tokens"), ("per_sequence", "sequences")):
            for (layer,), rows in sorted(pl.read_csv(folder / f"{file}.csv").group_by(["layer"])):
                seconds = _floats(rows, "time_us") * 1e-6
                yield Sample("vLLM profile", operators[VLLM[layer]], (_floats(rows, size),), seconds)
        attention = pl.read_csv(folder / "attention.csv")
        prefills = attention.filter((pl.col("n_decode") == 0) & (pl.col("prefill_chunk") > 0))
        decodes = attention.filter(pl.col("prefill_chunk") == 0)
        for rows, name, first, second in (
            (prefills, "attention_prefill", "prefill_chunk", "kv_prefill"),
            (decodes, "attention_decode", "n_decode", "kv_decode"),
        ):
            sizes = (_floats(rows, first), _floats(rows, second))
            yield Sample("vLLM profile", operators[name], sizes, _floats(rows, "time_us") * 1e-6)
        rows = attention.filter((pl.col("n_decode") > 0) & (pl.col("prefill_chunk") > 0))
        sizes = tuple(_floats(rows, size) for size in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
        mixed = mixed_attention(list(operators.values()))
        yield Sample("vLLM profile", mixed, sizes, _floats(rows, "time_us") * 1e-6)


def _silicon(system: str, version: str) -> Iterator[Sample]:
    """Matrices of 512 and more (models have no smaller ones), and attention with heads of 128 in 16 bits."""
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        return
    folder = Path(found.submodule_search_locations[0]) / "systems" / "data" / system
    gemms = pl.read_parquet(folder / "gemm" / version / "gemm_perf.parquet").filter(
        (pl.col("gemm_dtype") == "bfloat16") & (pl.col("n") >= 512) & (pl.col("k") >= 512)
    )
    for (n, k), rows in sorted(gemms.group_by(["n", "k"])):
        operator = Operator("gemm", "token", 1, Gemm(n, k))
        yield Sample("silicon GEMM", operator, (_floats(rows, "m"),), _floats(rows, "latency") * 1e-3)
    for kind, file in (("prefill", "context"), ("decode", "generation")):
        rows = pl.read_parquet(folder / "attention" / version / f"{file}_attention_perf.parquet").filter(
            (pl.col("head_dim") == 128) & (pl.col("kv_cache_dtype") == "bfloat16") & (pl.col("num_heads") >= 4)
        )
        if "window_size" in rows.columns:
            rows = rows.filter(pl.col("window_size") == 0)
        yield from _silicon_attention(rows, kind)
    yield from _silicon_experts(folder / "moe" / version / "moe_perf.parquet")


def _silicon_experts(path: Path) -> Iterator[Sample]:
    """Evenly routed experts in 16 bits, slices of 128 and more."""
    if not path.exists():
        return
    rows = pl.read_parquet(path).filter(
        (pl.col("moe_dtype") == "bfloat16")
        & (pl.col("distribution") == "balanced")
        & (pl.col("inter_size") >= 128 * pl.col("moe_tp_size"))
    )
    shape = ["num_experts", "moe_ep_size", "topk", "hidden_size", "inter_size", "moe_tp_size"]
    for (experts, ep, per_token, hidden, ffn, tp), group in sorted(rows.group_by(shape)):
        work = Experts(experts, experts // ep, per_token, hidden, ffn // tp, 3)
        operator = Operator("experts", "token", 1, work)
        yield Sample("silicon MoE", operator, (_floats(group, "num_tokens"),), _floats(group, "latency") * 1e-3)


def _silicon_attention(rows: pl.DataFrame, kind: str) -> Iterator[Sample]:
    is_prefill = kind == "prefill"
    chosen = pl.col("batch_size") == 1 if is_prefill else pl.col("batch_size") <= 512
    for (heads, kv_heads), group in sorted(rows.filter(chosen).group_by(["num_heads", "num_key_value_heads"])):
        shape = (heads, kv_heads or heads, 128, 128, (kv_heads or heads) * 512.0)
        if is_prefill:
            operator = Operator("attention_prefill", "attention_prefill", 1, Prefill(*shape))
            sizes = (_floats(group, "isl"), _floats(group, "step"))
        else:
            operator = Operator("attention_decode", "attention_decode", 1, Decode(*shape))
            sizes = (_floats(group, "batch_size"), _floats(group, "step") + 1.0)
        yield Sample("silicon attention", operator, sizes, _floats(group, "latency") * 1e-3)
