"""The roofline and communication: limits, monotony, and errors against measured kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon import catalog
from gnomon.catalog import Group
from gnomon.catalog.quantization import weight_format
from gnomon.core.errors import ConfigError
from gnomon.timing import Context, TimingConfig
from gnomon.timing.breakdown import _limit
from gnomon.timing.communication import collective_s
from gnomon.timing.operators import Decode, Elementwise, Gemm, Mixed, Operator, Prefill, stage_operators
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.timer import Timer, _limits


def roofline(name: str = "h100") -> Roofline:
    device = catalog.device(name)
    return Roofline(device, catalog.default_node(device))


@pytest.mark.parametrize("name", catalog.device_names())
def test_no_kernel_beats_the_data_sheet_by_more_than_its_clock(name: str) -> None:
    device, work = catalog.device(name), Gemm(8192, 8192)
    rows = np.array([1.0, 64.0, 8192.0])
    seconds = roofline(name).gemm_s(work, rows)
    assert (work.flops(rows) / seconds <= 1.25 * device.flops("bf16")).all()
    assert (work.bytes(rows) / seconds <= device.bandwidth_bytes_s).all()
    assert work.flops(rows)[-1] / seconds[-1] > 0.5 * device.flops("bf16")


def test_a_row_beyond_a_wave_costs_a_wave() -> None:
    seconds = roofline().gemm_s(Gemm(8192, 8192), np.arange(1.0, 4097.0))
    steps = np.diff(seconds)
    assert steps.max() > 20 * np.median(steps)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["h100", "a40", "rtx-4090"]), st.integers(64, 32768), st.integers(64, 16384))
def test_more_rows_never_take_less_time(name: str, n: int, k: int) -> None:
    seconds = roofline(name).gemm_s(Gemm(n, k), np.arange(1.0, 2049.0))
    assert (np.diff(seconds) > -1e-12).all()


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_every_operator_takes_some_time_at_every_size(name: str) -> None:
    source = roofline()
    for one in stage_operators(catalog.model(name), catalog.Parallelism(tensor_parallel=8)):
        sizes = [np.array([1.0, 100.0, 10000.0])] * (2 if one.kind.startswith("attention") else 1)
        seconds = source.seconds(one, *sizes)
        assert (seconds == 0).all() if one.is_fused else (seconds > 1e-7).all()


def test_fewer_bits_are_faster_where_the_device_has_them() -> None:
    rows = np.array([4096.0])
    full = roofline("h100").gemm_s(Gemm(8192, 8192), rows)
    in_fp8 = Gemm(8192, 8192, weight_format("fp8"))
    assert roofline("h100").gemm_s(in_fp8, rows) < 0.6 * full
    kept_in_fp8 = roofline("a100").gemm_s(in_fp8, rows)  # It has no fp8 arithmetic: stored in fp8, multiplied in bf16.
    assert kept_in_fp8 == pytest.approx(roofline("a100").gemm_s(Gemm(8192, 8192), rows), rel=0.05)
    with pytest.raises(ConfigError, match="no fp64 arithmetic"):
        catalog.device("a100").flops("fp64")


def test_a_product_without_tiles_by_hand() -> None:
    """512 rows of 1024 x 2048: the longer of computing and streaming, and of the shorter what the fourth power leaves.
    What is no product has no tiles."""
    source, work, rows = roofline(), Gemm(1024, 2048), np.array([512.0])
    c, device = source.device.roofline, source.device
    compute = 2 * 512 * 1024 * 2048 / (device.flops("bf16") * c.gemm_efficiency)
    memory = 2 * (512 * 2048 + 2048 * 1024 + 512 * 1024) / (c.gemm_bandwidth * device.bandwidth_bytes_s)
    expected = (compute**4 + memory**4) ** 0.25 + c.gemm_floor_s
    assert source.smooth_s(Operator("product", "token", 1, work), rows) == pytest.approx([expected])
    other = Operator("norm", "token", 1, Elementwise(4096.0))
    assert source.smooth_s(other, rows) == source.seconds(other, rows)


@pytest.mark.parametrize("chunk", [1.0, 64.0, 100.0])
def test_a_chunk_beside_no_decodes_is_a_prefill(chunk: float) -> None:
    """On an A100, whose kernel takes both: as long as the chunk's tiles are the longer ones."""
    source, heads = roofline("a100"), (8, 8, 128, 128, 4096.0)
    at = (np.array([chunk]), np.array([20_000.0]))
    mixed = source.mixed_s(Mixed(*heads), *at, np.zeros(1), np.zeros(1))
    assert mixed == pytest.approx(source.prefill_s(Prefill(*heads), *at))


def test_what_attention_computes_and_moves_by_hand() -> None:
    """4 heads of 8 + 8, and 64 bytes of KV a token. A chunk of 3 behind 5 tokens meets 3 x 5 + 9 / 2 keys; two decodes
    meet 7 each. Queries and outputs are 4 x 16 elements of two bytes."""
    shape, pair, query = (4, 2, 8, 8, 64.0), 2.0 * 4 * 16, 128.0
    chunk, kv, sequences, decode_kv = (np.array([one]) for one in (3.0, 5.0, 2.0, 7.0))
    assert Prefill(*shape).flops(chunk, kv) == [pair * 19.5]
    assert Prefill(*shape).bytes(chunk, kv) == [3 * query + 8 * 64]
    assert Decode(*shape).flops(sequences, decode_kv) == [pair * 14]
    assert Decode(*shape).bytes(sequences, decode_kv) == [2 * query + 14 * 64]
    assert Mixed(*shape).flops(chunk, kv, sequences, decode_kv) == [pair * 33.5]
    assert Mixed(*shape).bytes(chunk, kv, sequences, decode_kv) == [5 * query + 22 * 64]
    # A window of 4: of the chunk's queries none sees more. Entries of two tokens, the last three tokens one by one.
    assert Prefill(*shape, 4).pairs(chunk, kv) == [12.0]
    assert Prefill(*shape, 6).pairs(chunk, kv) == [1 * 5.5 + 2 * 6]
    assert Decode(*shape, 4).seen(decode_kv) == [4.0]
    assert Decode(*shape, 0, 2, 3).seen(decode_kv) == [3.5 + 3.0]
    assert Decode(*shape, 2, 2, 3).seen(decode_kv) == [2.0 + 3.0]


@pytest.mark.parametrize(
    ("kind", "compute_s", "memory_s", "expected"),
    [
        ("token", 0.24, 0.1, "latency"),
        ("token", 0.25, 0.1, "compute"),
        ("token", 0.1, 0.25, "memory"),
        ("token", 0.5, 0.5, "memory"),
        ("communication", 0.9, 0.9, "network"),
    ],
)
def test_what_limits_an_operator_of_a_second(kind: Any, compute_s: float, memory_s: float, expected: str) -> None:
    operator = Operator("one", kind, 1, Gemm(8, 8))
    assert _limit(operator, 1.0, compute_s, memory_s) == expected


@pytest.mark.parametrize(
    ("model", "dtype", "notes"),
    [
        ("llama-3-8b", "auto", 0),
        ("llama-3-8b", "bf16", 0),
        ("deepseek-v3", "auto", 1),  # its weights are in fp8 blocks
        ("deepseek-v3", "bf16", 0),
    ],
)
def test_a_precision_that_nobody_chose_is_said(model: str, dtype: str, notes: int) -> None:
    device = catalog.device("h100")
    place = (catalog.model(model), device, catalog.default_node(device), catalog.Parallelism(tensor_parallel=8))
    timer = Timer(Context(*place, TimingConfig(source="roofline", dtype=dtype)))
    assert sum("checkpoint's own precision" in note for note in timer.notes()) == notes


@pytest.mark.parametrize(
    ("kind", "highest", "expected"),
    [
        ("token", [2048], "2,048 tokens"),
        ("prompt_token", [2048], "2,048 tokens"),
        ("decode", [64], "64 decodes"),
        ("sequence", [64], "64 sequences"),
        ("attention_prefill", [512, 8192], "512 chunk, 8,192 KV"),
        ("attention_decode", [64, 8192], "64 decodes, 8,192 KV"),
        ("attention_mixed", [512, 4096, 64, 8192], "512 chunk, 4,096 KV, 64 decodes, 8,192 their KV"),
        ("communication", [3 * 2**20], "3.0 MiB"),
    ],
)
def test_limits_of_measurements_in_words(kind: Any, highest: list[float], expected: str) -> None:
    measured = tuple((1.0, float(high)) for high in highest)
    assert _limits(Operator("one", kind, 1, Gemm(8, 8)), measured) == expected


BYTES = np.array([1e3, 1e6, 1e8])


def test_four_gpus_in_nvlink_pairs_are_slower_than_in_a_dgx() -> None:
    for pairs, dgx in (("a100_pairwise_nvlink", "a100_dgx"), ("h100_pairwise_nvlink", "h100_dgx")):
        slow = collective_s("all_reduce", BYTES, Group(range(4)), catalog.node(pairs))
        fast = collective_s("all_reduce", BYTES, Group(range(4)), catalog.node(dgx))
        assert slow[-1] > 2 * fast[-1]


def test_pcie_all_reduce_is_latency_plus_bytes_over_bandwidth() -> None:
    seconds = collective_s("all_reduce", BYTES, Group(range(2)), catalog.node("rtxpro6000_pcie"))
    assert seconds == pytest.approx(23e-6 + BYTES / 16.0e9)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_collectives_grow_with_bytes_and_cost_nothing_alone(collective: str) -> None:
    node = catalog.node("h100_hgx")
    assert (collective_s(collective, BYTES, Group(range(1)), node) == 0).all()  # type: ignore[arg-type]
    for ranks in (2, 4, 8, 16):
        assert (np.diff(collective_s(collective, BYTES, Group(range(ranks)), node)) > 0).all()  # type: ignore[arg-type]


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    node = catalog.node("h100_hgx")
    both = collective_s("reduce_scatter", BYTES, Group(range(8)), node) + collective_s(
        "all_gather", BYTES / 8, Group(range(8)), node
    )
    one = collective_s("all_reduce", BYTES, Group(range(8)), node)
    assert both[-1] == pytest.approx(one[-1], rel=0.05)


def test_groups_beyond_the_node_cross_the_network() -> None:
    node = catalog.node("h100_hgx")
    assert (
        collective_s("all_reduce", BYTES, Group(range(16)), node)[-1]
        > 1.5 * collective_s("all_reduce", BYTES, Group(range(8)), node)[-1]
    )


def test_median_error_against_measured_kernels_is_below_fifteen_percent(reference: Path) -> None:
    """The devices whose measurements are CSV files; the rest is in `benchmarks/calibrate_roofline.py`."""
    pytest.importorskip("benchmarks.measured_kernels")
    from benchmarks.measured_kernels import samples_of

    for name in ("a40", "rtx-4090", "rtx-pro-6000"):
        source = roofline(name)
        errors = [source.seconds(s.operator, *s.sizes) / s.seconds - 1 for s in samples_of(name, reference)]
        median = np.median(np.abs(np.concatenate(errors)))
        assert median < 0.15
        assert median == pytest.approx(catalog.device(name).roofline_error, abs=0.005)
