"""The kernels of aiconfigurator-core: read from tables of its form, and from the package where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.errors import DataError, MissingExtraError, UnknownNameError
from gnomon.timing.config import TimingConfig
from gnomon.timing.operators import Operator, stage_operators
from gnomon.timing.sources import Context, make_source, silicon

M = (1, 16, 64, 256)


def context(name: str = "llama-3-8b", gpu: str = "h100", degree: int = 1, back_end: str | None = None) -> Context:
    chosen = device(gpu)
    config = TimingConfig(source="silicon", path=back_end)
    return Context(model(name), chosen, default_node(chosen), Parallelism(tensor_parallel=degree), config)


def graph(c: Context) -> dict[str, Operator]:
    return {one.name: one for one in stage_operators(c.model, c.parallelism)}


def write(root: Path, path: str, rows: list[dict[str, object]]) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_parquet(root / path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a few kernels of one GPU in two versions of one back end."""
    root = tmp_path / "h100_sxm"
    for version, factor in (("0.9.0", 9.0), ("0.24.0", 1.0), ("0.24.0rc3", 5.0)):
        shapes = ((6144, 4096), (4096, 4096), (16384, 4096), (51200, 4096))
        rows: list[dict[str, object]] = [
            {"gemm_dtype": kind, "m": m, "n": n, "k": k, "latency": factor * scale * (0.01 + m * n * k * 1e-13)}
            for n, k in shapes
            for m in M
            for kind, scale in (("bfloat16", 1.0), ("fp8", 0.5))
        ]
        write(root, f"gemm/vllm/{version}/gemm_perf.parquet", rows)
    heads = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "kv_cache_dtype": "bfloat16"}
    prefill: list[dict[str, object]] = [
        {
            "batch_size": b,
            "isl": i,
            "step": 0,
            "window_size": w,
            "latency": (b + 10 * w) * (0.01 + 1e-7 * i * i),
            **heads,
        }
        for b in (1, 2)
        for i in (16, 128, 1024, 4096)
        for w in (0, 128)
    ]
    write(root, "attention/vllm/0.24.0/context_attention_perf.parquet", prefill)
    decode: list[dict[str, object]] = [
        {"batch_size": b, "isl": 1, "step": s, "window_size": 0, "latency": 0.01 + 1e-6 * b * s, **heads}
        for b in (1, 8, 64)
        for s in (15, 255, 4095)
    ]
    write(root, "attention/vllm/0.24.0/generation_attention_perf.parquet", decode)
    reduce: list[dict[str, object]] = [
        {"num_gpus": 2, "message_size": s, "latency": f * (0.005 + 1e-8 * s), "backend": b}
        for s in (128, 1024, 8192)
        for b, f in (("vllm_graph", 1.0), ("vllm_eager", 4.0))
    ]
    write(root, "comm/vllm/0.24.0/custom_allreduce_perf.parquet", reduce)
    gather: list[dict[str, object]] = [
        {"op_name": o, "nccl_dtype": "half", "num_gpus": 2, "message_size": s, "latency": 0.006 + 1e-8 * s}
        for o in ("all_gather", "all_reduce", "alltoall")
        for s in (256, 1024, 8192)
    ]
    write(root, "comm/nccl/2.29.2/nccl_perf.parquet", gather)
    monkeypatch.setattr(silicon, "data_folder", lambda: tmp_path)
    return root


def test_the_newest_version_counts(package: Path) -> None:
    c = context()
    operator = graph(c)["qkv_proj"]  # 6144 x 4096
    seconds = make_source(c).seconds(operator, np.array([64.0]))
    assert seconds == pytest.approx([1e-3 * (0.01 + 64 * 6144 * 4096 * 1e-13)])


def test_shapes_between_the_measured_ones_lie_between_them(package: Path) -> None:
    c = context()
    source, operator = make_source(c), graph(c)["up_proj"]  # 28672 x 4096
    assert source.measured(operator) == ((1.0, 256.0),)
    (seconds,) = source.seconds(operator, np.array([256.0]))
    assert 1e-3 * 256 * 16384 * 4096 * 1e-13 < seconds < 1e-3 * (0.01 + 256 * 51200 * 4096 * 1e-13)


def test_attention_takes_single_prompts_without_a_window(package: Path) -> None:
    c = context()
    source, operators = make_source(c), graph(c)
    assert source.measured(operators["attention_prefill"]) == ((16.0, 4096.0), (0.0, 0.0))
    prefill = source.seconds(operators["attention_prefill"], np.array([1024.0]), np.array([0.0]))
    assert prefill == pytest.approx([1e-3 * (0.01 + 1e-7 * 1024**2)])
    decode = source.seconds(operators["attention_decode"], np.array([8.0]), np.array([256.0]))
    assert decode == pytest.approx([1e-3 * (0.01 + 1e-6 * 8 * 255)])


def test_collectives_count_bytes_per_rank_and_run_in_graphs(package: Path) -> None:
    c = context(degree=2)
    source, operators = make_source(c), graph(c)
    assert source.measured(operators["attn_all_reduce"]) == ((256.0, 16384.0),)
    assert source.seconds(operators["attn_all_reduce"], np.array([2048.0])) == pytest.approx(
        [1e-3 * (0.005 + 1e-8 * 1024)]
    )
    assert source.measured(operators["logits_all_gather"]) == ((256.0, 8192.0),)


def test_what_the_package_lacks_is_said(package: Path) -> None:
    source, operators = make_source(context()), graph(context())
    assert source.measured(operators["attn_norm"]) is None
    latent = graph(context("deepseek-v3"))
    assert source.measured(latent["attention_decode"]) is None
    with pytest.raises(DataError, match="no kernels of a40"):
        make_source(context(gpu="a40"))
    with pytest.raises(UnknownNameError, match="'sglang'"):
        make_source(context(back_end="sglan"))


def test_a_table_without_a_column_is_refused(package: Path) -> None:
    write(package, "gemm/vllm/0.25.0/gemm_perf.parquet", [{"gemm_dtype": "bfloat16", "m": 1, "n": 8, "latency": 1.0}])
    with pytest.raises(DataError, match="no column 'k'"):
        make_source(context())


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    silicon.data_folder.cache_clear()
    monkeypatch.setattr(silicon, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"gnomon-sim\[silicon\]"):
        make_source(context())


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize(("gpu", "back_end"), [("h100", None), ("h200", "sglang"), ("b200", "trtllm"), ("a100", None)])
def test_the_installed_package_covers_llama(gpu: str, back_end: str | None) -> None:
    silicon.data_folder.cache_clear()
    c = context(gpu=gpu, back_end=back_end)
    source, operators = make_source(c), graph(c)
    for name in ("qkv_proj", "o_proj", "up_proj", "down_proj"):
        seconds = source.seconds(operators[name], np.array([1.0, 512.0, 8192.0]))
        work = operators[name].work
        floor = work.flops(np.array([8192.0])) / c.device.flops("bf16")
        assert (np.diff(seconds) > 0).all()
        assert floor[0] < seconds[-1] < 3 * floor[0]
    assert 0 < source.uncertainty(operators["qkv_proj"]) < 0.2
