"""The kernels of aiconfigurator-core: read from tables of its form, and from the package where it is installed."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError, MissingExtraError
from gnomon.timing.config import TimingConfig
from gnomon.timing.operators import Elementwise, Operator
from gnomon.timing.sources import Context, make_source, silicon
from gnomon.timing.sources.silicon import source, tables
from gnomon.timing.sources.silicon.source import Silicon
from gnomon.timing.timer import Timer

M = (1, 16, 64, 256)
ONE = np.array([1.0])


def context(name: str = "llama-3-8b", gpu: str = "h100", degree: int = 1, **settings: Any) -> Context:
    chosen = device(gpu)
    config = TimingConfig(source="silicon", **settings)
    return Context(model(name), chosen, default_node(chosen), Parallelism(tensor_parallel=degree), config)


def source_of(c: Context) -> Silicon:
    source = make_source(c)
    assert isinstance(source, Silicon)
    return source


def graph(c: Context) -> dict[str, Operator]:
    return {one.name: one for one in c.operators()}


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
    monkeypatch.setattr(tables, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(silicon, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(source, "data_folder", lambda: tmp_path)
    return root


def test_the_newest_version_counts(package: Path) -> None:
    c = context()
    operator = graph(c)["qkv_proj"]  # 6144 x 4096
    seconds = source_of(c).seconds(operator, np.array([64.0]))
    assert seconds == pytest.approx([1e-3 * (0.01 + 64 * 6144 * 4096 * 1e-13)])
    assert source_of(c).provenance(operator) == "measured in vllm 0.24.0"


@pytest.mark.parametrize(
    ("asked", "taken", "words"),
    [
        ("0.9.0", 9.0, "vllm 0.9.0"),
        ("0.9.0.post1", 9.0, "vllm 0.9.0, not 0.9.0.post1"),
        ("0.10.2", 1.0, "vllm 0.24.0, not 0.10.2"),
        ("0.24.0", 1.0, "vllm 0.24.0"),
    ],
)
def test_the_asked_version_counts_or_the_newest(package: Path, asked: str, taken: float, words: str) -> None:
    c = context(engine_version=asked)
    operator = graph(c)["qkv_proj"]
    assert source_of(c).seconds(operator, ONE) == pytest.approx([taken * 1e-3 * (0.01 + 6144 * 4096 * 1e-13)])
    assert source_of(c).provenance(operator) == f"measured in {words}"


def test_another_engine_stands_in_and_is_named(package: Path) -> None:
    c = context(engine="sglang")
    assert source_of(c).provenance(graph(c)["qkv_proj"]) == "measured in vllm 0.24.0, other engine"


def test_a_time_that_falls_when_work_grows_is_left_out_and_named(package: Path) -> None:
    sizes = (1, 2, 3, 4, 5, 6, 7, 8)
    rows: list[dict[str, object]] = [
        {"gemm_dtype": "bfloat16", "m": m, "n": 6144, "k": 4096, "latency": 0.03 if m in (2, 4) else 0.01 + 1e-4 * m}
        for m in sizes
    ]
    write(package, "gemm/vllm/0.25.0/gemm_perf.parquet", rows)
    c = context()
    source, operator = source_of(c), graph(c)["qkv_proj"]
    seconds = source.seconds(operator, np.array([2.0, 4.0]))
    assert seconds == pytest.approx([1e-3 * (0.01 + 2e-4), 1e-3 * (0.01 + 4e-4)], rel=1e-3)
    assert any("qkv_proj at 2, 4" in note for note in source.notes())


def quantize_tables(package: Path, engine: str, factor: float, has_scales: bool = True) -> None:
    """1 us and what 8 TB/s take; finding the scales as long again. 30 points, so that engines can just be compared."""
    for name, more in (("scale_matrix", 1.0), ("computescale", 1.0))[: 2 if has_scales else 1]:
        rows: list[dict[str, object]] = [
            {"m": m, "k": k, "quant_dtype": "fp8", "latency": factor * more * (1e-3 + 3e-3 * m * k / 8e6)}
            for m in (1, 4, 16, 64, 256, 1024)
            for k in (1024, 2048, 4096, 8192, 16384)
        ]
        write(package, f"quantize/{engine}/1.0/{name}_perf.parquet", rows)


def fp8_products(package: Path, engine: str, version: str, factor: float = 1.0) -> None:
    rows: list[dict[str, object]] = [
        {"gemm_dtype": "fp8", "m": m, "n": n, "k": 4096, "latency": factor * 0.02}
        for m in (1, 4, 16, 64, 128, 256)
        for n in (512, 1024, 2048, 4096, 6144, 8192)
    ]
    write(package, f"gemm/{engine}/{version}/gemm_perf.parquet", rows)


def test_fp8_products_lose_the_quantising_that_norms_do(package: Path) -> None:
    """What the engine's own tables say of finding scales and quantising [16, 4096]."""
    fp8_products(package, "vllm", "0.25.0")
    quantize_tables(package, "vllm", 1.0)
    c = context(dtype="fp8")
    part = 2.0 * (1e-6 + 3e-6 * 16 * 4096 / 8e6)
    assert source_of(c).seconds(graph(c)["qkv_proj"], np.array([16.0])) == pytest.approx([0.02e-3 - part])
    between = source_of(c).seconds(graph(c)["qkv_proj"], np.array([32.0]))
    assert 0.02e-3 - 2.0 * (1e-6 + 3e-6 * 64 * 4096 / 8e6) < between[0] < 0.02e-3 - part
    assert "o_quantize" in graph(c)


def test_quantising_is_another_engines_where_an_engine_measured_it_slow_or_in_part(package: Path) -> None:
    fp8_products(package, "sglang", "0.5.14")
    quantize_tables(package, "sglang", 10.0, has_scales=False)
    quantize_tables(package, "vllm", 1.0)
    c = context(dtype="fp8", engine="sglang")
    part = 2.0 * (1e-6 + 3e-6 * 16 * 4096 / 8e6)
    assert source_of(c).seconds(graph(c)["qkv_proj"], np.array([16.0])) == pytest.approx([0.02e-3 - part])
    assert source_of(c).provenance(graph(c)["o_quantize"]) == (
        "measured in vllm 1.0, other engine (sglang 1.0 was measured untuned)"
    )


@pytest.mark.parametrize(("factor", "is_passed_over"), [(1.4, False), (1.7, True)])
def test_products_that_another_engine_runs_far_faster_are_passed_over_and_named(
    package: Path, factor: float, is_passed_over: bool
) -> None:
    fp8_products(package, "trtllm", "1.2.0", factor)
    fp8_products(package, "vllm", "0.25.0")
    c = context(dtype="fp8", engine="trtllm")
    words = "vllm 0.25.0, other engine (trtllm 1.2.0 was measured untuned)" if is_passed_over else "trtllm 1.2.0"
    assert source_of(c).provenance(graph(c)["qkv_proj"]) == f"measured in {words}"
    seconds = 0.02e-3 * (1.0 if is_passed_over else factor)
    assert source_of(c).seconds(graph(c)["qkv_proj"], np.array([16.0])) == pytest.approx([seconds])


def test_shapes_between_the_measured_ones_lie_between_them(package: Path) -> None:
    c = context()
    source, operator = source_of(c), graph(c)["up_proj"]  # 28672 x 4096
    assert source.measured(operator) == ((1.0, 256.0),)
    (seconds,) = source.seconds(operator, np.array([256.0]))
    assert 1e-3 * 256 * 16384 * 4096 * 1e-13 < seconds < 1e-3 * (0.01 + 256 * 51200 * 4096 * 1e-13)


def test_attention_takes_single_prompts_without_a_window(package: Path) -> None:
    c = context()
    source, operators = source_of(c), graph(c)
    assert source.measured(operators["attention_prefill"]) == ((16.0, 4096.0), (0.0, 0.0))
    prefill = source.seconds(operators["attention_prefill"], np.array([1024.0]), np.array([0.0]))
    assert prefill == pytest.approx([1e-3 * (0.01 + 1e-7 * 1024**2)])
    decode = source.seconds(operators["attention_decode"], np.array([8.0]), np.array([256.0]))
    assert decode == pytest.approx([1e-3 * (0.01 + 1e-6 * 8 * 255)])


def test_collectives_count_bytes_per_rank_and_run_in_graphs(package: Path) -> None:
    c = context(degree=2)
    source, operators = source_of(c), graph(c)
    assert source.measured(operators["attn_all_reduce"]) == ((256.0, 16384.0),)
    assert source.seconds(operators["attn_all_reduce"], np.array([2048.0])) == pytest.approx(
        [1e-3 * (0.005 + 1e-8 * 1024)]
    )
    assert source.measured(operators["logits_all_gather"]) == ((256.0, 8192.0),)


def test_flashinfers_all_reduce_is_that_of_tensorrt_llm_where_it_is_faster(package: Path) -> None:
    """vLLM's own takes 5 us at all three sizes, FlashInfer's 3, 3 and 9."""
    rows: list[dict[str, object]] = [
        {"num_gpus": 2, "message_size": s, "latency": latency, "implementation": "trtllm"}
        for s, latency in ((128, 0.003), (1024, 0.003), (8192, 0.009))
    ]
    write(package, "comm/trtllm/1.3.0rc20/custom_allreduce_perf.parquet", rows)
    own, fused = context(degree=2), context(degree=2, all_reduce="flashinfer")
    sizes = np.array([256.0, 2048.0, 16384.0])
    plain, faster = (source_of(c).seconds(graph(c)["attn_all_reduce"], sizes) for c in (own, fused))
    assert plain == pytest.approx([1e-3 * (0.005 + 1e-8 * s) for s in (128, 1024, 8192)])
    assert faster == pytest.approx([0.003e-3, 0.003e-3, plain[2]])
    provenance = source_of(fused).provenance(graph(fused)["attn_all_reduce"])
    assert provenance == "measured in vllm 0.24.0, or FlashInfer's as in trtllm 1.3.0rc20"


def test_what_the_package_lacks_is_said(package: Path) -> None:
    source = source_of(context())
    gate = Operator("output_gate", "token", 1, Elementwise(100.0))
    assert source.measured(gate) is None
    assert source.provenance(gate) == "roofline"
    c = context("deepseek-v3")
    assert source_of(c).measured(graph(c)["attention_decode"]) is None
    with pytest.raises(DataError, match="no kernels of a40"):
        make_source(context(gpu="a40"))
    with pytest.raises(ConfigError, match="engine"):
        build(TimingConfig, {"engine": "sglan"}, where="timing")


def latent_tables(package: Path) -> None:
    """The kernel alone in sglang, the whole module in vllm."""
    base = {"num_heads": 16, "kv_cache_dtype": "bfloat16", "mla_dtype": "bfloat16", "isl": 1}
    sizes = [(b, s) for b in (1, 8, 64) for s in (16, 256, 4096)]
    kernel: list[dict[str, object]] = [
        {**base, "batch_size": b, "step": s - 1, "latency": 0.01 + 1e-6 * b * s} for b, s in sizes
    ]
    module: list[dict[str, object]] = [
        {
            **base,
            "gemm_type": "bfloat16",
            "op_name": "module",
            "batch_size": b,
            "step": s,
            "latency": 0.2 + 1e-6 * b * s,
        }
        for b, s in sizes
    ]
    write(package, "mla/sglang/0.5.14/generation_mla_perf.parquet", kernel)
    write(package, "mla/vllm/0.24.0/mla_generation_module_perf.parquet", module)


def test_latent_attention_is_the_kernel_or_the_module_less_its_projections(package: Path) -> None:
    latent_tables(package)
    eight, kv = np.array([8.0]), np.array([256.0])
    c = context("deepseek-v3", degree=8, engine="sglang")
    decode = graph(c)["attention_decode"]
    assert source_of(c).seconds(decode, eight, kv) == pytest.approx([1e-3 * (0.01 + 1e-6 * 8 * 256)])
    assert source_of(context("deepseek-v3", degree=8)).seconds(decode, eight, kv) == pytest.approx(
        source_of(context("deepseek-v3", degree=8, dtype="bf16")).seconds(decode, eight, kv)
    )  # Both from the module in 16 bits.
    c = context("deepseek-v3", degree=8, dtype="bf16")
    source, operators = source_of(c), graph(c)
    projections = sum(float(source.seconds(operators[name], eight)[0]) for name in ("qkv_a_proj", "q_b_proj", "o_proj"))
    assert source.seconds(decode, eight, kv) == pytest.approx([1e-3 * (0.2 + 1e-6 * 8 * 256) - projections])
    assert source.provenance(decode) == "measured in vllm 0.24.0, its module less the projections"


@pytest.mark.parametrize(("factor", "is_passed_over"), [(1.3, False), (1.7, True)])
def test_a_module_that_waited_for_launches_is_passed_over(package: Path, factor: float, is_passed_over: bool) -> None:
    for engine, version, times in (("vllm", "0.24.0", factor), ("trtllm", "1.3.0", 1.0)):
        rows: list[dict[str, object]] = [
            {
                "num_heads": heads,
                "kv_cache_dtype": "bfloat16",
                "mla_dtype": "bfloat16",
                "isl": 1,
                "gemm_type": "bfloat16",
                "op_name": "module",
                "batch_size": b,
                "step": s,
                "latency": times * (0.2 + 1e-6 * b * s),
            }
            for heads in (16, 32)
            for b in (1, 2, 4, 8, 64)
            for s in (16, 256, 1024, 4096)
        ]
        write(package, f"mla/{engine}/{version}/mla_generation_module_perf.parquet", rows)
    c = context("deepseek-v3", degree=8)
    found = source_of(c).provenance(graph(c)["attention_decode"])
    assert found == (
        "measured in trtllm 1.3.0, other engine, its module less the projections (vllm 0.24.0 was measured untuned)"
        if is_passed_over
        else "measured in vllm 0.24.0, its module less the projections"
    )


def test_experts_by_load_and_slice(package: Path) -> None:
    shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_dtype": "bfloat16"}
    rows: list[dict[str, object]] = [
        {**shape, "num_tokens": t, "moe_tp_size": tp, "moe_ep_size": 1, "distribution": load, "latency": f * t / tp}
        for t in (1, 16, 256)
        for tp in (1, 2)
        for load, f in (("balanced", 0.01), ("power_law_1.2", 0.03))
    ]
    write(package, "moe/vllm/0.24.0/moe_perf.parquet", rows)
    for load, expected in (("balanced", 0.08), ("power_law_1.2", 0.24)):
        c = context("qwen3-30b-a3b", degree=2, expert_load=load)
        assert source_of(c).seconds(graph(c)["experts"], np.array([16.0])) == pytest.approx([1e-3 * expected])
    c = context("qwen3-30b-a3b", degree=4)  # A quarter of each expert was not measured: scaled by the roofline.
    (quarter,) = source_of(c).seconds(graph(c)["experts"], np.array([256.0]))
    assert 0.5e-3 * 1.28 / 2 < quarter < 1e-3 * 1.28
    assert "scaled from 128 of 128 experts" in source_of(c).provenance(graph(c)["experts"])


def test_tritons_experts_on_hopper_are_tensorrt_llms_own_table(package: Path) -> None:
    """There `moe_torch_flow` is OpenAI's Triton kernel; vLLM's of that name had answered for it."""
    shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_dtype": "bfloat16"}
    rest = {"moe_tp_size": 1, "moe_ep_size": 1, "distribution": "power_law_1.01"}
    for name, kernel, factor in (
        ("trtllm/1.3.0rc20", "moe_torch_flow", 0.01),
        ("vllm/0.24.0", "vllm_triton_experts", 0.02),
    ):
        rows: list[dict[str, object]] = [
            {**shape, **rest, "num_tokens": t, "kernel_source": kernel, "latency": factor * t} for t in (1, 16, 256)
        ]
        write(package, f"moe/{name}/moe_perf.parquet", rows)
    c = context("qwen3-30b-a3b", engine="trtllm", expert_kernel="triton")
    assert source_of(c).seconds(graph(c)["experts"], np.array([16.0])) == pytest.approx([0.16e-3])


def test_fewer_of_the_same_experts_take_no_longer(package: Path) -> None:
    """One token over eight ranks was measured slower than over four; what others chose differs in nothing."""
    shape = {"hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_dtype": "bfloat16"}
    times = {4: (0.02, 0.05, 0.4), 8: (0.036, 0.048, 0.2)}
    rows: list[dict[str, object]] = [
        {**shape, "num_tokens": t, "moe_tp_size": 1, "moe_ep_size": ep, "distribution": "power_law_1.01", "latency": ms}
        for ep, all_ms in times.items()
        for t, ms in zip((1, 4, 64), all_ms, strict=True)
    ]
    write(package, "moe/vllm/0.24.0/moe_perf.parquet", rows)
    for ep, expected in ((4, times[4]), (8, (0.02, 0.048, 0.2))):
        c = context("qwen3-30b-a3b")
        c = replace(c, parallelism=Parallelism(tensor_parallel=ep, expert_parallel=True))
        found = source_of(c).seconds(graph(c)["experts"], np.array([1.0, 4.0, 64.0]))
        assert found == pytest.approx(1e-3 * np.array(expected))


def test_a_table_without_a_column_is_refused(package: Path) -> None:
    write(package, "gemm/vllm/0.25.0/gemm_perf.parquet", [{"gemm_dtype": "bfloat16", "m": 1, "n": 8, "latency": 1.0}])
    c = context()
    with pytest.raises(DataError, match="no column 'k'"):
        source_of(c).samples(graph(c)["qkv_proj"])


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tables.data_folder.cache_clear()
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[silicon\]"):
        make_source(context())


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize(
    ("gpu", "engine"), [("h100", "vllm"), ("h200", "sglang"), ("b200", "trtllm"), ("a100", "vllm")]
)
def test_the_installed_package_covers_llama(gpu: str, engine: str) -> None:
    tables.data_folder.cache_clear()
    c = context(gpu=gpu, engine=engine)
    source, operators = source_of(c), graph(c)
    for name in ("qkv_proj", "o_proj", "up_proj", "down_proj"):
        seconds = source.seconds(operators[name], np.array([1.0, 512.0, 8192.0]))
        work = operators[name].work
        floor = work.flops(np.array([8192.0])) / c.device.flops("bf16")
        assert (np.diff(seconds) > 0).all()
        assert floor[0] < seconds[-1] < 3 * floor[0]
    assert 0 < source.uncertainty(operators["qkv_proj"]) < 0.2


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize(
    ("engine", "inside"), [("vllm", set()), ("sglang", {"kv_write"}), ("trtllm", {"rotary", "kv_write"})]
)
def test_what_was_measured_with_attention_over_heads_takes_no_time_of_its_own(engine: str, inside: set[str]) -> None:
    tables.data_folder.cache_clear()
    c = context(gpu="h200", engine=engine)
    source, operators = source_of(c), graph(c)
    for name in ("rotary", "kv_write"):
        assert (source.seconds(operators[name], np.array([64.0]))[0] == 0.0) == (name in inside)


def test_auto_takes_silicon_where_it_is_installed_and_says_so(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timer(name: str, gpu: str) -> Timer:
        chosen, cut = device(gpu), Parallelism(tensor_parallel=8)
        return Timer(Context(model(name), chosen, default_node(chosen), cut, TimingConfig()))

    assert timer("llama-3-8b", "h100").source.name == "roofline"  # GNOMON_SILICON=0, as in all other tests.
    monkeypatch.delenv("GNOMON_SILICON")
    found = timer("llama-3-8b", "h100")
    assert found.source.name == "silicon"
    assert any("timing.source: auto found aiconfigurator-core" in note for note in found.notes())
    assert timer("llama-3-8b", "a40").source.name == "roofline"
    assert timer("llama-3-8b", "h200").source.name == "profile"


def test_experts_that_another_engine_runs_far_faster_are_passed_over(package: Path) -> None:
    shape = {"hidden_size": 2048, "topk": 8, "num_experts": 128, "moe_dtype": "bfloat16", "moe_ep_size": 1}
    for engine, version, factor in (("vllm", "0.24.0", 3.0), ("sglang", "0.5.14", 1.0)):
        rows: list[dict[str, object]] = [
            {
                **shape,
                "inter_size": i,
                "num_tokens": t,
                "moe_tp_size": tp,
                "distribution": d,
                "latency": factor * 0.1 * t,
            }
            for i in (512, 768, 1024)
            for t in (1, 16, 256, 1024)
            for tp in (1, 2, 4, 8)
            for d in ("balanced", "power_law_1.01")
        ]
        write(package, f"moe/{engine}/{version}/moe_perf.parquet", rows)
    c = context("qwen3-30b-a3b", degree=2)
    words = "measured in sglang 0.5.14, other engine (vllm 0.24.0 was measured untuned)"
    assert source_of(c).provenance(graph(c)["experts"]) == words
    assert source_of(c).seconds(graph(c)["experts"], np.array([16.0])) == pytest.approx([1.6e-3])


def test_norms_are_those_of_an_h200_by_the_ratio_to_its_roofline(package: Path) -> None:
    c = context()
    source, norm, rows = source_of(c), graph(c)["attn_norm"], np.array([64.0, 4096.0])
    assert source.provenance(norm) == "measured for Gnomon, scaled from 4096 wide on h200"
    on_h200 = Timer(Context(c.model, device("h200"), default_node(device("h200")), c.parallelism, TimingConfig()))
    ratio = on_h200.seconds(norm, rows) / on_h200.roofline.seconds(norm, rows)
    formula = Timer(c, "roofline").seconds(norm, rows)
    assert source.seconds(norm, rows) == pytest.approx(ratio * formula, rel=0.02)


def test_a_larger_group_in_one_node_is_scaled_from_a_measured_one(package: Path) -> None:
    c = context(degree=4)  # Two GPUs were measured.
    source, operator, size = source_of(c), graph(c)["attn_all_reduce"], np.array([4096.0])
    assert source.provenance(operator) == "measured in vllm 0.24.0, scaled from 2 GPUs"
    two = context(degree=2)
    formula = [Timer(one, "roofline").seconds(graph(one)["attn_all_reduce"], size)[0] for one in (c, two)]
    expected = 1e-3 * (0.005 + 1e-8 * 2048) * formula[0] / formula[1]
    assert source.seconds(operator, size) == pytest.approx([expected], rel=0.05)


def test_mamba2_stands_on_gated_delta_nets_and_says_so(package: Path) -> None:
    shape = {"num_k_heads": 8, "num_v_heads": 128, "head_k_dim": 128, "head_v_dim": 64, "phase": "generation"}
    rows: list[dict[str, object]] = [
        {**shape, "batch_size": b, "num_tokens": b, "kernel_source": source, "latency": 0.002 * b}
        for b in (1, 8, 64)
        for source in ("causal_conv1d_update", "fused_recurrent")
    ]
    write(package, "linear_attention/vllm/0.24.0/gdn_perf.parquet", rows)
    convolution = {"n_groups": 8, "nheads": 128, "d_state": 128, "head_dim": 64, "phase": "generation"}
    only = [
        {**convolution, "batch_size": b, "num_tokens": b, "kernel_source": "causal_conv1d_update", "latency": 0.001}
        for b in (1, 8, 64)
    ]
    write(package, "linear_attention/trtllm/1.3.0/mamba2_perf.parquet", list(only))
    c = context("nemotron-3-super-120b-a12b")
    source, operator = source_of(c), graph(c)["linear_decode"]
    assert source.provenance(operator) == "measured in vllm 0.24.0, of gated delta nets"
    assert source.seconds(operator, np.array([8.0])) == pytest.approx([2 * 0.002e-3 * 8])


def test_experts_with_copies_are_those_measured_so(package: Path) -> None:
    """Measured as halves of experts of 4096, which is as wide as those of 2048 that the model has."""
    shape = {"hidden_size": 7168, "inter_size": 4096, "topk": 8, "num_experts": 256, "moe_dtype": "nvfp4"}
    rows: list[dict[str, object]] = [
        {
            **shape,
            "num_tokens": t,
            "moe_tp_size": 2,
            "moe_ep_size": 8,
            "num_slots": slots,
            "distribution": "power_law_1.01_eplb",
            "latency": 0.01 * t * slots / 256,
        }
        for t in (1, 16, 256)
        for slots in (256, 288)
    ]
    write(package, "moe/trtllm/1.3.0/wideep_moe_perf.parquet", rows)
    chosen = device("h100")
    cut = Parallelism(tensor_parallel=8, expert_parallel=True)
    config = TimingConfig(source="silicon", engine="trtllm", dtype="nvfp4", expert_load="power_law_1.01_eplb")
    c = Context(model("deepseek-v3"), chosen, default_node(chosen), cut, config)
    assert source_of(c).seconds(graph(c)["experts"], np.array([16.0])) == pytest.approx([1e-3 * 0.16 * 288 / 256])
    assert source_of(c).provenance(graph(c)["experts"]) == "measured in trtllm 1.3.0"


def test_copies_that_another_engine_measured_stand_for_no_other(package: Path) -> None:
    """SGLang's experts with copies are its own evenly loaded ones. Under even load a table's tokens chose experts of
    one rank alone: of a group over eight ranks eight times as many take as long."""
    shape = {"hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256, "moe_dtype": "nvfp4"}
    at = (1, 16, 256, 4096)
    placed: dict[str, object] = {**shape, "moe_tp_size": 1, "moe_ep_size": 8}
    copied = [
        {**placed, "num_tokens": t, "num_slots": 288, "distribution": "power_law_1.01_eplb", "latency": 9.0} for t in at
    ]
    write(package, "moe/trtllm/1.3.0/wideep_moe_perf.parquet", list(copied))
    rows = [
        {**placed, "num_tokens": t, "distribution": d, "latency": f * t, "kernel_source": "x"}
        for d, f in (("balanced", 0.01), ("power_law_1.01", 0.005))
        for t in at
    ]
    write(package, "moe/sglang/0.5.14/moe_perf.parquet", list(rows))
    chosen = device("h100")
    cut = Parallelism(tensor_parallel=8, expert_parallel=True)

    def seconds(load: str) -> float:
        config = TimingConfig(source="silicon", engine="sglang", dtype="nvfp4", expert_load=load)
        c = Context(model("deepseek-v3"), chosen, default_node(chosen), cut, config)
        return float(source_of(c).seconds(graph(c)["experts"], np.array([2048.0]))[0])

    assert seconds("balanced") == pytest.approx(1e-3 * 0.01 * 2048 / 8)
    assert 1.0 <= seconds("power_law_1.01_eplb") / seconds("balanced") < 1.5, "fewer of them are chosen, each by more"
    assert seconds("power_law_1.01") == pytest.approx(1e-3 * 0.005 * 2048)


def test_attention_over_chosen_blocks_is_its_module_less_the_projections(package: Path) -> None:
    rows: list[dict[str, object]] = [
        {
            "num_heads": 8,
            "kv_cache_dtype": "bfloat16",
            "mla_dtype": "bfloat16",
            "gemm_type": "bfloat16",
            "architecture": "MiniMaxM3ForCausalLM",
            "op_name": "msa_module",
            "batch_size": b,
            "isl": isl,
            "step": step,
            "latency": 0.3 + 1e-6 * b * (isl + step),
        }
        for b, isl, step in [
            *((b, 1, s) for b in (1, 8, 64) for s in (16, 256, 4096)),
            *((1, i, 0) for i in (16, 256, 4096)),
        ]
    ]
    for phase in ("context", "generation"):
        of_phase = [row for row in rows if (row["step"] == 0) == (phase == "context")]
        write(package, f"msa/vllm/0.24.0/msa_{phase}_module_perf.parquet", of_phase)
    c = context("minimax-m3", degree=8, dtype="bf16")
    source, operators = source_of(c), graph(c)
    eight = np.array([8.0])
    projections = sum(float(source.seconds(operators[name], eight)[0]) for name in ("qkv_proj", "o_proj"))
    expected = 1e-3 * (0.3 + 1e-6 * 8 * 257) - projections
    assert source.seconds(operators["attention_decode"], eight, np.array([256.0])) == pytest.approx([expected])
    assert source.provenance(operators["indexer_decode"]) == "part of attention"
    assert source.seconds(operators["qk_norm"], eight) == 0.0


def test_launches_show_beside_a_table_that_is_itself_passed_over(package: Path) -> None:
    """vLLM's short prompts all take 1 ms; TensorRT-LLM's take a tenth of it, but its long ones three times as long."""
    for engine, version, floor, per_token in (("vllm", "0.24.0", 1.0, 1e-3), ("trtllm", "1.3.0", 0.1, 3e-3)):
        rows: list[dict[str, object]] = [
            {
                "num_heads": heads,
                "kv_cache_dtype": "bfloat16",
                "mla_dtype": "bfloat16",
                "gemm_type": "bfloat16",
                "architecture": "DeepseekV32ForCausalLM",
                "op_name": "module",
                "batch_size": 1,
                "isl": isl,
                "step": step,
                "latency": max(floor, per_token * isl),
            }
            for heads in (8, 16, 32)
            for isl in (16, 64, 256, 1024, 2048, 4096, 8192, 16384)
            for step in (0, 128, 2048)
        ]
        write(package, f"sparse_attention/{engine}/{version}/dsa_context_module_perf.parquet", rows)
    c = context("deepseek-v3.2", degree=8, dtype="bf16")
    source, prefill = source_of(c), graph(c)["attention_prefill"]
    assert source.provenance(prefill).endswith("its module less the projections, without its launches")
    assert source.measured(prefill) == ((1024.0, 16384.0), (0.0, 2048.0))


def test_notes_say_which_tables_answered(package: Path) -> None:
    fp8_products(package, "sglang", "0.5.14")
    c = context(engine="sglang")
    source = source_of(c)
    for operator in c.operators():
        source.measured(operator)
    (note, *_) = source.notes()
    assert note.startswith("silicon: measured in vllm 0.24.0 unless said otherwise")
    assert "attn_norm" in note and "measured for Gnomon" in note
    assert "residual_add" not in note  # Part of its neighbour's kernel.
    mixtral = context("mixtral-8x7b")
    source = source_of(mixtral)
    for operator in mixtral.operators():
        source.measured(operator)
    assert any("experts" in one and "roofline" in one for one in source.notes()), "what nobody measured"


def test_compressed_attention_is_its_modules_less_the_projections_and_streams_are_measured(package: Path) -> None:
    """DeepSeek-V4: two modules by the kind of layer, each of two models; another model's rows stay out."""
    sizes = [*((b, 1, s) for b in (1, 8, 64) for s in (16, 256, 4096)), *((1, i, 0) for i in (16, 256, 4096))]
    for kind, base in (("csa", 0.4), ("hca", 0.3)):
        rows: list[dict[str, object]] = [
            {
                "num_heads": 16,
                "kv_cache_dtype": "fp8",
                "mla_dtype": "bfloat16",
                "gemm_type": "fp8_block",
                "architecture": "DeepseekV4ForCausalLM",
                "model": f"deepseek-ai/DeepSeek-V4-{name}",
                "op_name": f"dsv4_{kind}_module",
                "batch_size": b,
                "isl": isl,
                "step": step,
                "latency": factor * (base + 1e-6 * b * (isl + step)),
            }
            for name, factor in (("Pro", 1.0), ("Flash", 10.0))
            for b, isl, step in sizes
        ]
        for phase in ("context", "generation"):
            of_phase = [row for row in rows if (row["step"] == 0) == (phase == "context")]
            path = f"sparse_attention/vllm/0.24.0/dsv4_{kind}_{phase}_module_perf.parquet"
            write(package, path, of_phase)
    streams: list[dict[str, object]] = [
        {"op_name": op, "num_tokens": t, "num_sites": 2, "hc_mult": 4, "hidden_size": 7168, "latency": each * t}
        for op, each in (("pre", 0.001), ("post", 0.002))
        for t in (1, 16, 256)
    ]
    write(package, "mhc/vllm/0.24.0/mhc_module_perf.parquet", streams)
    c = context("deepseek-v4-pro", degree=8, kv_dtype="fp8")
    source, operators = source_of(c), graph(c)
    eight, kv = np.array([8.0]), np.array([256.0])
    names = ("qkv_a_proj", "q_b_proj", "o_proj")
    projections = sum(float(source.seconds(operators[name], eight)[0]) for name in names)
    for kind, base in (("csa", 0.4), ("hca", 0.3)):
        expected = 1e-3 * (base + 1e-6 * 8 * 257) - projections
        assert source.seconds(operators[f"{kind}_decode"], eight, kv) == pytest.approx([expected])
    assert source.provenance(operators["csa_decode"]) == "measured in vllm 0.24.0, its module less the projections"
    inside = ("o_a_proj", "csa_compressor_proj", "hca_compressor_proj", "indexer_q_proj", "indexer_decode")
    assert {source.provenance(operators[name]) for name in inside} == {"part of attention"}
    assert source.seconds(operators["streams_in"], np.array([16.0])) == pytest.approx([16e-6])
    assert source.seconds(operators["streams_out"], np.array([16.0])) == pytest.approx([32e-6])
    assert source.provenance(operators["streams_out"]) == "measured in vllm 0.24.0"
    flash = context("deepseek-v4-flash", degree=4)
    provenance = source_of(flash).provenance(graph(flash)["streams_in"])
    assert provenance == "measured in vllm 0.24.0, scaled from 7168 wide"
    # A layer with a window alone is taken for one that reads its few compressed entries too.
    assert source_of(flash).provenance(graph(flash)["window_decode"]).startswith("measured in vllm 0.24.0, its module")
