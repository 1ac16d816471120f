"""What is made of measurements before anything is read between them, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from gnomon import catalog
from gnomon.catalog import Group, Parallelism
from gnomon.catalog.quantization import weight_format
from gnomon.core.config import build
from gnomon.core.errors import DataError, GnomonError
from gnomon.timing import Context, Timer
from gnomon.timing.config import CAPTURE_SIZES, TimingConfig, captured_sizes
from gnomon.timing.iteration import SKEW_BINS
from gnomon.timing.operators import (
    Communication,
    Decode,
    Elementwise,
    Experts,
    Gemm,
    Operator,
    Prefill,
    Recurrence,
    Sampling,
    num_kernels,
    stage_operators,
)
from gnomon.timing.sources import ANY
from gnomon.timing.sources.profile import measured as profile
from gnomon.timing.sources.profile import native
from gnomon.timing.sources.profile.csvfile import read_csv
from gnomon.timing.sources.profile.measured import Measured
from gnomon.timing.sources.profile.samples import Bundle, Samples, SkewSamples, shape_keys
from gnomon.timing.sources.profile.servingsim import read_attention
from gnomon.timing.sources.profile.shapes import BETWEEN_ERROR, from_neighbours
from gnomon.timing.sources.profile.skew import skew_table
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon import collectives, exchange, latent, quantizing
from gnomon.timing.sources.silicon.attention import ONE_BLOCK, waiting_for_the_longest
from gnomon.timing.sources.silicon.exchange import exchange_rows, node_ranks
from gnomon.timing.sources.silicon.kernels import nearest
from gnomon.timing.sources.silicon.source import Silicon
from gnomon.timing.sources.silicon.tables import Table


def samples(sizes: list[Any], seconds: list[float]) -> Samples:
    return Samples(np.array(sizes, float), np.array(seconds), "here")


def product(n: int, k: int) -> Operator:
    return Operator("product", "gemm", 1, Gemm(n, k))


def table(folder: Path, rows: list[dict[str, Any]]) -> Table:
    path = folder / "gemm" / "vllm" / "0.24.0" / "measured.parquet"
    path.parent.mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(path)
    return Table(path, "vllm", "")


def test_prompts_alone_decodes_alone_and_both_are_kept_apart(tmp_path: Path) -> None:
    rows = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", "16,0,0,0,1", "0,0,2,64,2", "16,0,2,64,3"]
    rows += ["1,0,0,0,1", "0,0,1,64,2", "1,0,1,64,3", "0,0,0,0,4"]  # The last is nothing at all: left out.
    (tmp_path / "attention.csv").write_text("\n".join(rows) + "\n")
    found = read_attention(tmp_path / "attention.csv")
    assert {name: one.sizes.tolist() for name, one in found.items()} == {
        "attention_prefill": [[16, 0], [1, 0]],
        "attention_decode": [[2, 64], [1, 64]],
        "attention_mixed": [[16, 0, 2, 64], [1, 0, 1, 64]],
    }
    assert found["attention_mixed"].seconds == pytest.approx([3e-6] * 2)


def test_a_shape_that_was_measured_is_taken_as_it_is() -> None:
    bundle = Bundle("here")
    for n in (512, 1000, 1024):
        bundle.add(("gemm", n, 64), samples([[1], [2]], [n * 1e-6, n * 2e-6]))
    found = from_neighbours(bundle, product(1000, 64), lambda *_: np.ones(2))
    assert found is bundle.samples["gemm", 1000, 64]
    assert from_neighbours(bundle, product(1000, 256), lambda *_: np.ones(2)) is None, "four times as deep"


def test_neighbours_count_by_the_square_of_their_distance() -> None:
    """1024 lies one octave from 2048 and half an octave from 1448 (724 x 2): weights 1 to 4. The formula says 1 s for
    all of them, so that the answer is the mean of the logarithms."""
    bundle = Bundle("here")
    bundle.add(("gemm", 2048, 64), samples([[1], [2]], [8.0, 8.0]))
    bundle.add(("gemm", round(1024 * 2**0.5), 64), samples([[1], [4]], [1.0, 1.0]))
    found = from_neighbours(bundle, product(1024, 64), lambda *_: np.ones(1))
    assert found is not None
    assert found.is_between
    assert found.sizes.tolist() == [[1.0]], "where both were measured"
    assert found.seconds == pytest.approx([8.0**0.2], rel=1e-3)


def test_what_another_kernel_contains_has_any_size() -> None:
    source = SimpleNamespace(bundle=Bundle("here", included={"rotary", "attention_decode"}))
    assert Measured.measured(source, Operator("rotary", "elementwise", 1, Gemm(1, 1))) == (ANY,)  # type: ignore[arg-type]
    inside = Operator("attention_decode", "attention_decode", 1, Gemm(1, 1))
    assert Measured.measured(source, inside) == (ANY, ANY)  # type: ignore[arg-type]


@pytest.mark.parametrize(("third", "kept"), [(1.6, [3, 4, 5]), (1.7, [2, 3, 4, 5])])
def test_prompts_that_wait_for_launches_are_left_out(third: float, kept: list[int]) -> None:
    """Nothing changes up to 1.6 times the shortest: of those the longest stays. Another engine takes a tenth."""
    given = samples([[1, 0], [2, 0], [3, 0], [4, 0], [5, 0]], [1.0, 1.1, third, 3.0, 4.0])
    found, is_changed = latent._without_launches(given, 0.1)
    assert is_changed
    assert found.sizes[:, 0].tolist() == kept
    assert latent._without_launches(given, 0.9) == (given, False), "another engine takes as long"


@pytest.mark.parametrize(("jump", "kept"), [(4.1, [1, 2]), (4.0, [1, 2, 4])])
def test_batches_beyond_the_largest_graph_are_left_out(jump: float, kept: list[int]) -> None:
    """From two to four sequences, more than twice the batch's growth is a jump, seen where both have KV 8 and 16."""
    sizes = [(1, 8), (1, 16), (2, 8), (2, 16), (2, 32), (4, 8), (4, 16)]
    seconds = [1.0, 1.0, 1.0, 1.0, 9.0, jump, jump]
    found = latent._inside_graphs(samples(sizes, seconds))
    assert np.unique(found.sizes[:, 0]).tolist() == kept


def test_the_nearest_shape_is_scaled_by_the_roofline() -> None:
    """From 300 columns it is farther to 100 than to 400, whose times fall to three quarters."""
    bundle = Bundle("here")
    for n in (100, 400):
        bundle.add(("gemm", n, 64), samples([[1], [2]], [n * n * 1e-9, n * n * 2e-9]))
    kernels: Any = SimpleNamespace(bundle=bundle, left_out={})
    roofline: Any = SimpleNamespace(seconds=lambda operator, tokens: operator.work.n * tokens)
    table: Any = SimpleNamespace(name="a table")
    found = nearest(kernels, product(300, 64), table, roofline, lambda key: Gemm(int(key[1]), int(key[2])))
    assert found is not None
    assert found.samples.seconds == pytest.approx([0.75 * 160e-6, 0.75 * 320e-6])
    assert found.samples.is_between


def test_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    times = [0.5, 0.0, -1.0, float("inf"), float("nan"), 2.0]
    measured = table(tmp_path / "one", [{"m": m, "latency": one} for m, one in enumerate(times)])
    assert measured.rows("m", "latency").rows() == [(0, 0.5), (5, 2.0)]
    with pytest.raises(DataError, match="no column 'n'"):
        measured.rows("m", "n")
    other = table(tmp_path / "two", [{"m": 1, "transmit_us": 0.0}])
    assert other.rows("transmit_us").rows() == [(1, 0.0)], "a table that counts its seconds otherwise"


def test_points_that_tell_whether_a_module_was_measured_tuned(tmp_path: Path) -> None:
    """Decodes of up to 16 sequences and 4096 tokens; single prompts from 2048 tokens on. The fastest of each counts, in
    16 bits, without the layers that skip part of it."""
    same = {"num_heads": 8, "gemm_type": "bfloat16", "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    ways = [("module", same, 3.0), ("module", same, 2.0), ("module_skip", same, 1.0)]
    ways += [("module", {**same, "mla_dtype": "fp8"}, 0.5), ("module", {**same, "kv_cache_dtype": "fp8"}, 0.25)]

    def measured(sizes: list[tuple[int, int, int]]) -> Table:
        rows = [
            {"op_name": name, **kind, "batch_size": b, "isl": i, "step": s, "latency": each * (b + i + s)}
            for name, kind, each in ways
            for b, i, s in sizes
        ]
        return table(tmp_path / str(len(sizes)), rows)

    decodes = measured([(1, 1, 64), (16, 1, 4096), (17, 1, 64), (16, 1, 4097)])
    prompts = measured([(1, 2047, 0), (1, 2048, 0), (2, 2048, 0)])
    names = ["num_heads", "batch_size", "isl", "step", "gemm_type", "latency"]
    found = (
        latent._points(decodes, latent._Form("mla", "mla_generation_module_perf", True), "bfloat16", "")
        .select(names)
        .sort("step")
    )
    assert found.rows() == [(8, 1, 1, 64, "bfloat16", 2.0 * 66), (8, 16, 1, 4096, "bfloat16", 2.0 * 4113)]
    found = latent._points(prompts, latent._Form("mla", "mla_context_module_perf", True), "bfloat16", "").select(names)
    assert found.rows() == [(8, 1, 2048, 0, "bfloat16", 2.0 * 2049)]
    plain = latent._points(prompts, latent._Form("mla", "context_mla_perf", False), "fp8", "")
    assert sorted(plain.columns) == sorted(set(names) - {"gemm_type"})
    assert plain["latency"].to_list() == [0.25 * 2049]


@pytest.mark.parametrize(
    ("rows", "dispatch_us", "combine_us"),
    [
        (  # One row for each phase.
            [
                {"phase": "dispatch", "ep_size": 16, "topk": 8, "num_tokens": 4, "transmit_us": 5.0, "notify_us": 2.0},
                {"phase": "combine", "ep_size": 16, "topk": 8, "num_tokens": 4, "transmit_us": 6.0, "notify_us": 0.5},
            ],
            7.0,
            6.5,
        ),
        (  # In milliseconds; preparing belongs to dispatching; the fastest kernel counts.
            [
                {"op_name": f"alltoall_{name}", "moe_ep_size": 16, "topk": 8, "num_tokens": 4, "latency": ms}
                | {"kernel_source": kernel, "moe_dtype": "bf16"}
                for kernel, each in (("a", 1.0), ("b", 2.0))
                for name, ms in (("prepare", 0.001 * each), ("dispatch", 0.005 * each), ("combine", 0.007 * each))
            ],
            6.0,
            7.0,
        ),
        (  # Two nodes of eight, short.
            [{"node_num": 2, "num_topk": 8, "num_token": 4, "dispatch_avg_t_us": 3.0, "combine_avg_t_us": 4.0}],
            3.0,
            4.0,
        ),
        (  # And wide; the faster setting counts.
            [
                {"node_num": 2, "num_topk": 8, "num_token": 4, "dispatch_transmit_us": 3.0 * each}
                | {"dispatch_notify_us": 1.0, "combine_transmit_us": 5.0 * each, "combine_notify_us": 2.0}
                for each in (2.0, 1.0)
            ],
            4.0,
            7.0,
        ),
    ],
)
def test_the_forms_of_measured_exchanges(
    rows: list[dict[str, Any]], dispatch_us: float, combine_us: float, tmp_path: Path
) -> None:
    measured = table(tmp_path, [{**row, "hidden_size": 64} for row in rows])
    for phase, us in (("dispatch", dispatch_us), ("combine", combine_us)):
        (found,) = exchange_rows(measured, phase, 8).rows(named=True)
        assert found == pytest.approx({"tokens": 4, "ranks": 16, "width": 64, "choices": 8, "seconds": us * 1e-6})


def test_finding_scales_is_read_between_widths_and_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measured for widths of 64 and 256, and for 1, 4 and 16 rows. Straight lines over logarithms: 2 rows lie halfway
    from 1 to 4, a width of 128 halfway from 64 to 256. Four times the most rows take four times as long."""
    grid = (np.log([64.0, 256.0]), np.log([1.0, 4.0, 16.0]), np.array([[1.0, 2.0, 4.0], [3.0, 6.0, 12.0]]))
    monkeypatch.setattr(quantizing, "_row_wise", lambda system, engine: grid)
    rows = np.array([0.5, 1.0, 2.0, 4.0, 16.0, 64.0])
    narrow, wide = np.array([1.0, 1.0, 1.5, 2.0, 4.0, 16.0]), np.array([3.0, 3.0, 4.5, 6.0, 12.0, 48.0])
    for width, expected in ((32, narrow), (64, narrow), (128, (narrow + wide) / 2), (256, wide), (999, wide)):
        assert quantizing.row_wise_s(tmp_path, "vllm", rows, width) == pytest.approx(expected)
    monkeypatch.setattr(quantizing, "_row_wise", lambda system, engine: None)
    assert quantizing.row_wise_s(tmp_path, "vllm", rows, 64).tolist() == [0.0] * 6


def test_the_error_of_an_operator_is_that_of_measurements_left_out() -> None:
    """Twice the roofline wherever it was measured: nothing is missed. Of fewer than ten measurements nothing is known
    but what the roofline says of itself; what is read between shapes adds the error of that."""
    device = catalog.device("h100")
    roofline = Roofline(device, catalog.default_node(device))
    operator = product(1024, 1024)
    tokens = np.arange(1.0, 13.0)
    bundle = Bundle("here", included={"rotary"})
    bundle.add(("gemm", 1024, 1024), samples(tokens[:, None].tolist(), 2.0 * roofline.seconds(operator, tokens)))
    source = Measured("mine", bundle, roofline)
    assert source.uncertainty(operator) == source.uncertainty(operator) == pytest.approx(0.0, abs=1e-9)
    near = product(1024, 1536)
    assert source.samples(near).is_between  # type: ignore[union-attr]
    assert source.uncertainty(near) == pytest.approx(source.uncertainty(operator) + BETWEEN_ERROR, abs=0.01)
    bundle.add(
        ("gemm", 64, 64), samples(tokens[:9, None].tolist(), 2.0 * roofline.seconds(product(64, 64), tokens[:9]))
    )
    assert source.uncertainty(product(64, 64)) == roofline.uncertainty(operator) > 0.0
    assert source.uncertainty(Operator("rotary", "token", 1, Gemm(3, 3))) == 0.0


def test_kernels_that_are_launched_one_by_one() -> None:
    """Two layers with a product and a layer of experts (seven kernels) each; what is fused is launched with another,
    and decodes are not of an iteration with a prompt."""
    experts = Experts(8, 8, 2, 64, 24, 3)
    launched = [
        Operator("product", "token", 2, Gemm(8, 8)),
        Operator("experts", "token", 2, experts),
        Operator("attention_prefill", "attention_prefill", 2, Prefill(1, 1, 8, 8, 2.0)),
    ]
    left_out = [
        Operator("norm", "token", 2, Elementwise(8.0), is_fused=True),
        Operator("attention_decode", "attention_decode", 2, Decode(1, 1, 8, 8, 2.0)),
        Operator("draft", "decode", 2, Gemm(8, 8)),
    ]
    assert num_kernels(launched + left_out) == 2 + 2 * 7 + 2


def named(*names: str) -> list[Operator]:
    """Two of each, every one a single kernel."""
    return [Operator(name, "token", 2, Elementwise(8.0)) for name in names]


def test_tensorrt_llm_launches_rotation_and_norms_with_others() -> None:
    """Its attention over heads rotates and writes KV itself, that over latents does not; a norm ends the all-reduce."""
    heads = named("attn_norm", "qkv_proj", "rotary", "kv_write", "mlp_norm", "final_norm")
    latents, reduce = named("attn_norm", "qkv_a_proj", "rotary", "kv_write", "mlp_norm"), named("attn_all_reduce")
    assert (num_kernels(heads), num_kernels(heads, "trtllm"), num_kernels(heads, "sglang")) == (12, 8, 12)
    assert num_kernels(heads + reduce, "trtllm") == 6
    assert (num_kernels(latents, "trtllm"), num_kernels(latents + reduce, "trtllm")) == (10, 8)


def test_tensorrt_llm_launches_experts_in_one_call_but_for_tritons_thirteen_kernels_which_count_twice() -> None:
    """Quantising and the call; routing, quantising and the call."""
    four = [Operator("experts", "token", 2, Experts(8, 8, 2, 64, 24, 3, weight_format("mxfp4")))]
    assert [num_kernels(four, "trtllm", kernel) for kernel in ("triton", "trtllm", "cutlass", "")] == [52, 4, 6, 14]
    assert [num_kernels(four, engine, kernel) for engine, kernel in (("vllm", "triton"), ("sglang", "trtllm"))] == [
        14,
        14,
    ]


def test_prompts_in_graphs_leave_attention_to_be_launched() -> None:
    """Over latents with its projections, but for the last; over heads alone."""
    latents = named(
        "attn_norm", "qkv_a_proj", "latent_norm", "q_b_proj", "kv_b_proj", "rotary", "kv_write", "o_proj", "experts"
    )
    heads = named("qkv_proj", "rotary", "kv_write", "attention_prefill", "o_proj", "act")
    assert num_kernels(latents, "trtllm", "", True) == 12
    assert num_kernels(heads, "trtllm", "", True) == 2


def test_the_longest_of_a_batch_runs_on_with_one_share_of_the_bandwidth() -> None:
    """8 KV heads, 148 SMs: 16 sequences are cut over several SMs each; from 19 on each head of each has one block, and
    the longest takes 148 of the blocks' times, whatever its skew and with or without a prompt beside it."""
    table = waiting_for_the_longest(np.array([0.0, 16.0, 37.0, 148.0]), 8, 148)
    assert table.shape == (4, 2 * SKEW_BINS) and (table == table[:, :1]).all()
    assert table[:, 0] == pytest.approx([0.0, 0.0, 0.5, 0.125])


def test_operators_that_engines_launch_as_several_kernels() -> None:
    """A product in scaled blocks quantises first (2); one on a second stream waits and is waited for (2), in blocks 3;
    latents that are expanded for each head take 8, compressed ones 3; the recurrence of linear attention takes 28,
    penalties counted anew 20, and sorting the vocabulary 10."""
    blocks = Gemm(8, 8, weight_format("fp8_block"))
    several = [
        (Operator("product", "token", 1, blocks), 2),
        (Operator("shared", "token", 1, Gemm(8, 8), is_beside=True), 2),
        (Operator("shared", "token", 1, blocks, is_beside=True), 3),
        (Operator("attention_prefill", "attention_prefill", 1, Prefill(4, 4, 12, 8, 2.0)), 8),
        (Operator("attention_prefill", "attention_prefill", 1, Prefill(4, 1, 12, 8, 2.0)), 3),
        (Operator("linear_prefill", "prompt_token", 1, Recurrence("gdn", 1, 1, 8, 8, 4)), 28),
        (Operator("penalties", "sequence", 1, Sampling("penalties", 100)), 20),
        (Operator("top_k_top_p", "sequence", 1, Sampling("sort", 100)), 10),
    ]
    assert [num_kernels([operator]) for operator, _ in several] == [count for _, count in several]


@pytest.mark.parametrize(
    ("at", "seconds", "expected"),
    [
        ([1, 2, 3], [5.0, 7.0, 9.0], (3.0, 2.0)),
        ([4, 4], [5.0, 7.0], (6.0, 0.0)),  # of one size: a constant
        ([1, 2, 3], [9.0, 7.0, 5.0], (7.0, 0.0)),  # falling: a constant
        ([1, 2, 3], [1.0, 4.0, 7.0], (0.0, 30 / 14)),  # from below zero: through it, (1 + 8 + 21) / (1 + 4 + 9)
        ([0, 1, 2], [0.0, 2.0, 4.0], (0.0, 2.0)),
    ],
)
def test_host_time_is_a_line_that_is_nowhere_below_zero(
    at: list[float], seconds: list[float], expected: tuple[float, float]
) -> None:
    assert native._line(np.array(at, float), np.array(seconds)) == pytest.approx(expected, abs=1e-12)


def test_two_gpus_of_different_pairs_are_not_two_of_one_pair() -> None:
    """GPUs 0 and 1 are a pair. What was measured of four holds for four, pairs or not."""

    def keys(ranks: list[int], node: str) -> Any:
        work = Communication("all_reduce", Group(ranks), 2.0)
        return shape_keys(Operator("all_reduce", "communication", 1, work), catalog.node(node))

    assert keys([0, 1], "h100_pairwise_nvlink") == (("all_reduce", 2),)
    assert keys([1, 2], "h100_pairwise_nvlink") == ()
    assert keys([0, 1, 2, 3], "h100_pairwise_nvlink") == (("all_reduce", 4),)
    assert keys([1, 2], "h100_dgx") == (("all_reduce", 2),)


def test_skew_by_eighths_of_what_the_mean_lacks() -> None:
    """Means of 7/8 and 1/2 of the longest: the second and the fifth eighth. A quarter and three quarters of the way to
    the longest's time. Between them on straight lines, beyond them as the nearest."""
    one = np.ones(2)
    skew = SkewSamples(8 * one, np.array([7.0, 4.0]), 8 * one, one, 2 * one, np.array([1.25, 1.75]), 0 * one, one)
    table = skew_table(skew, np.array([1.0, 99.0]))
    expected = [0.25, 0.25, 0.25 + 0.5 / 3, 0.25 + 1.0 / 3, 0.75, 0.75, 0.75, 0.75]
    assert table == pytest.approx(np.array([expected * 2] * 2)), "the same for decodes beside a chunk"
    ends = skew_table(replace(skew, mean_kv=np.array([8.0, 1e-9])), np.ones(1))
    assert ends is not None and ends[0, [0, 7]] == pytest.approx([0.25, 0.75])


def test_amounts_of_work_that_measurements_are_priced_by() -> None:
    """A chunk of 4 behind 10 tokens: 4 x (10 + 2) pairs, 14 tokens of KV; 3 decodes that read 7 each: 21, and 3."""
    prefill, decode = np.array([[4.0, 10.0]]), np.array([[3.0, 7.0]])
    assert profile._prefill(prefill).tolist() == [[1, 48, 14]]
    assert profile._decode(decode).tolist() == [[1, 21, 3]]
    assert profile._mixed(np.hstack([prefill, decode])).tolist() == [[1, 48, 14, 21, 3]]


def test_measurements_of_one_shape_are_joined() -> None:
    """Their spread is known only where it is known of all."""
    bundle, key = Bundle("here"), ("gemm", 8, 8)
    one, two = (Samples(np.ones((1, 1)), np.ones(1), "here", np.full(1, spread)) for spread in (0.1, 0.2))
    bundle.add(key, one)
    bundle.add(key, two)
    joined = bundle.samples[key]
    assert joined.spread is not None and joined.spread.tolist() == [0.1, 0.2]
    bundle.add(key, samples([[2]], [3.0]))
    assert bundle.samples[key].spread is None
    assert bundle.samples[key].seconds.tolist() == [1.0, 1.0, 3.0]


def test_bf16_and_fp16_take_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("dtype,n,k,m,seconds\n" + "".join(f"{one},8,8,1,0.5\n" for one in ("bf16", "fp16", "fp8", "fp8")))
    columns = read_csv(path, ("dtype", "n", "k", "m", "seconds"))
    assert [len(native._of_dtype(columns, one)) for one in ("bf16", "fp16", "fp8", "int8")] == [2, 2, 2, 0]


def test_widths_of_element_wise_kernels() -> None:
    """docs/profile-format.md. Gemma 3 has norms before and behind, and of queries and keys: 5376 wide, 32 heads and 16
    KV heads of 128, 21504 in the MLP. Phi-2's activation has no gate: 10240 wide."""
    operators = stage_operators(catalog.model("gemma-3-27b"), catalog.Parallelism())
    found = {one.name: shape_keys(one) for one in operators if isinstance(one.work, Elementwise)}
    norms = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "final_norm")
    assert {name: found.pop(name) for name in norms} == dict.fromkeys(norms, (("add_norm", 5376), ("norm", 5376)))
    assert found.pop("act")[0] == ("activation", 21504)
    assert found == {
        "embedding": (("embedding", 5376),),
        "qk_norm": (("qk_norm", (32 + 16) * 128),),
        "rotary": (("rotary", (32 + 16) * 128),),
        "kv_write": (("kv_write", 2 * 16 * 128),),
        "residual_add": (("add", 5376),),
        "sampler": (("sampler", 262208),),
    }
    plain = {one.name: one for one in stage_operators(catalog.model("phi-2"), catalog.Parallelism())}
    assert shape_keys(plain["act"])[1] == ("activation_plain", 10240)


@pytest.mark.parametrize(("system", "ranks"), [("gb200", 4), ("gb300", 4), ("h100", 8), ("b200", 8)])
def test_gpus_of_what_tables_call_a_node(system: str, ranks: int) -> None:
    assert node_ranks(system) == ranks


def test_experts_are_measured_by_their_rows_and_asked_by_tokens() -> None:
    """Two of eight experts lie here, and a token takes two: of 100 tokens, 50 choices come here, as many as 25 tokens
    would bring to a rank with all experts. Measured from 10 to 1000 of those: 40 to 4000 tokens."""
    work = Experts(8, 2, 2, 64, 24, 3)
    bundle = Bundle("here")
    bundle.add(("experts", 2, 2, 64, 24), samples([[10, 2], [100, 2], [1000, 2]], [1e-5, 2e-5, 3e-5]))
    device = catalog.device("h100")
    source = Measured("mine", bundle, Roofline(device, catalog.default_node(device)))
    assert source.measured(Operator("experts", "token", 1, work)) == (pytest.approx((40.0, 4000.0)),)


@pytest.mark.parametrize(("device", "bandwidth"), [("h200", 4.8 / 4.8), ("h100", 3.352 / 4.8)])
def test_experts_without_tiles_of_their_own_wait_for_memory(device: str, bandwidth: float) -> None:
    """16 experts on each of eight ranks: up to 16 tokens 7 % longer on an H200, beyond it 55 %; waiting takes as long
    on an H100, whose memory takes longer itself. Products in FP8 have other tiles."""
    tokens = np.array([16.0, 17.0, 512.0])
    slower = {"bf16": [1 + 0.07 * bandwidth, *[1 + 0.55 * bandwidth] * 2], "fp8_block": [1.0, 1.0, 1.0]}
    for dtype, expected in slower.items():
        found = []
        for tiles in ("default", "tuned"):
            config = build(TimingConfig, {"source": "roofline", "dtype": dtype, "expert_tiles": tiles})
            layout = Parallelism(tensor_parallel=8, expert_parallel=True)
            here = catalog.device(device)
            context = Context(catalog.model("qwen3-235b-a22b"), here, catalog.default_node(here), layout, config)
            timer = Timer(context)
            experts = next(one for one in timer.operators(0) if isinstance(one.work, Experts))
            found.append(timer.seconds(experts, tokens))
        assert found[0] / found[1] == pytest.approx(expected, rel=1e-6)


def test_deepgemm_converts_scales_in_every_call() -> None:
    """4096 rows of a weight: 1.3 + 5.7 + 2.66 microseconds. Of 16 experts of 1,536: 8 bytes for each of 16 x 3072 x 32
    and 16 x 4096 x 12 scales at 0.56 x 8 TB/s, beside 2 x 11.3 microseconds; Triton's kernel takes scales as they are.
    16 tokens, spread evenly, choose 16 of 16 x 128 rows: 2,032 are computed at 0.6 of the peak and moved in vain."""
    here = catalog.device("b200")
    layout = Parallelism(tensor_parallel=8, expert_parallel=True)
    shown = ("o_proj", "experts", "router")

    def added(tokens: float = 1e6, **settings: Any) -> dict[str, float]:
        found = []
        for more in (settings, {}):
            given = {"source": "roofline", "dtype": "fp8_block", "expert_load": "balanced", **more}
            config = build(TimingConfig, given)
            timer = Timer(Context(catalog.model("qwen3-235b-a22b"), here, catalog.default_node(here), layout, config))
            operators = {one.name: one for one in timer.operators(0)}
            found.append([float(timer.seconds(operators[name], np.array([tokens]))[0]) for name in shown])
        return {name: 1e6 * (after - before) for name, after, before in zip(shown, *found, strict=True)}

    moved = 8 * 16 * (3072 * 32 + 4096 * 12) / (0.56 * here.bandwidth_bytes_s) * 1e6
    alone, grouped = 1.3 + 5.7 + 0.65e-3 * 4096, 2 * 11.3 + moved
    expected = {"o_proj": alone, "experts": grouped, "router": 0.0}
    assert added(scale_conversion=True, expert_rows=128) == pytest.approx(expected, abs=0.02)
    assert added(scale_conversion=True) == pytest.approx(expected | {"experts": 0.0}, abs=0.02)
    assert added(expert_rows=128) == pytest.approx(dict.fromkeys(expected, 0.0), abs=0.02)
    computed = 2 * 2032 * 3 * 4096 * 1536 / (0.6 * here.flops("fp8")) * 1e6
    in_vain = 2032 * (5 * 4096 + 6 * 1536) / here.bandwidth_bytes_s * 1e6
    assert added(16.0, expert_rows=128)["experts"] == pytest.approx(computed + in_vain, rel=1e-6)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    with pytest.raises(GnomonError, match="finite number"):
        build(TimingConfig, {"host": {"decode": {"exposed_s": number}}})
    for name in ("scale", "clock", "expert_speed"):
        with pytest.raises(GnomonError, match=rf"{name}.* finite number"):
            build(TimingConfig, {name: number})
    for name in ("per_iteration", "per_token", "per_sequence", "per_decode"):
        with pytest.raises(GnomonError, match=rf"{name}.* finite number"):
            build(TimingConfig, {"source": "table", "table": {name: number}})
    for name in ("per_iteration_s", "launch_s"):
        with pytest.raises(GnomonError, match=rf"{name}.* finite number"):
            build(TimingConfig, {"host": {name: number}})
    assert build(TimingConfig, {"scale": 1e6, "clock": 1.0}).scale == 1e6


def test_what_a_source_does_not_read_is_refused() -> None:
    for settings in ({"path": "x"}, {"table": {"per_token": 1}}):
        with pytest.raises(GnomonError, match=f"{next(iter(settings))} is not used"):
            build(TimingConfig, {"source": "roofline", **settings})
    with pytest.raises(GnomonError, match="free is not used"):
        build(TimingConfig, {"source": "table", "table": {"per_token": 1}, "free": ["network"]})
    assert build(TimingConfig, {"source": "roofline", "free": ["network"]}).free == ("network",)


def test_sizes_of_graphs() -> None:
    assert [captured_sizes("vllm", largest) for largest in (0, 1, 2, 9)] == [(), (1,), (1, 2), (1, 2, 4, 8, 9)]
    assert captured_sizes("trtllm", 16) == (1, 2, 4, 8, 16)
    sizes = [build(TimingConfig, {"graph_sizes": one}).captured_sizes for one in ("vllm", [1, 8], [], None)]
    assert sizes == [CAPTURE_SIZES, (1, 8), (), ()]


@pytest.mark.parametrize(("ranks", "asked"), [(16, [16, 8, 4, 2]), (8, [8, 4, 2]), (4, [4, 2]), (2, [2])])
def test_collectives_of_fewer_ranks_stand_in(ranks: int, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest first; not over several nodes, where links are others."""
    seen: list[int] = []
    monkeypatch.setattr(collectives, "_measured", lambda query, operator, work: seen.append(work.group.size))
    for node, expected in (("gb200_nvl72", asked), ("h100_dgx", asked if ranks <= 8 else [ranks])):
        query: Any = SimpleNamespace(roofline=SimpleNamespace(node=catalog.node(node)))
        work = Communication("all_reduce", Group(range(ranks)), 2.0)
        seen.clear()
        assert collectives.find_collective(query, Operator("x", "communication", 1, work), work) is None
        assert seen == expected


def test_host_time_of_a_profile(tmp_path: Path) -> None:
    """A line over sequences for every kind of iteration; launches are a mean; where iterations as a whole were not
    measured, they are their parts together."""
    lines = [
        "operator,sequences,seconds",
        "decode,0,0.002",
        "decode,10,0.003",
        "prefill_launch,1,0.5",
        "prefill_launch,9,0.7",
    ]
    parts = [f"{name},{at},{constant + slope * at}" for at in (0, 4) for name, constant, slope in
             (("schedule", 0.001, 0.0), ("prepare", 0.002, 0.0005))]  # fmt: skip
    (tmp_path / "host.csv").write_text("\n".join([*lines, *parts]))
    found = native._read_host(read_csv(tmp_path / "host.csv"))
    assert (found.decode.per_iteration_s, found.decode.per_sequence_s) == pytest.approx((0.002, 0.0001))
    assert found.prefill.launch_s == pytest.approx(0.6)
    assert (found.per_iteration_s, found.per_sequence_s) == pytest.approx((0.003, 0.0005))
    (tmp_path / "host.csv").write_text("\n".join([*lines, *parts, "iteration,0,0.004", "iteration,2,0.004"]))
    whole = native._read_host(read_csv(tmp_path / "host.csv"))
    assert (whole.per_iteration_s, whole.per_sequence_s) == pytest.approx((0.004, 0.0))


def test_an_exchange_is_scaled_from_the_shape_nearest_in_bytes() -> None:
    """20 elements a token lie nearer to 32 than to 8, by their ratios: of its seconds 20 / 32."""
    rows = pl.DataFrame(
        {"tokens": [1, 1, 2, 2], "width": [4, 8, 4, 8], "choices": [2, 4, 2, 4], "seconds": [1.0, 3.2, 2.0, 6.4]}
    )
    found = exchange._nearest(rows, 5, 4)
    assert found["tokens"].to_list() == [1, 2] and found["seconds"].to_list() == pytest.approx([2.0, 4.0])
    assert exchange._nearest(rows, 5, 3)["seconds"].to_list() == pytest.approx([15 / 8, 30 / 8])


def test_only_attention_without_a_window_waits_for_the_longest() -> None:
    """Of a layer with a window and 4 KV heads and one without, with 8: as for 8 heads on 132 SMs."""
    near, whole = (
        Operator("decode", "attention_decode", 1, Decode(32, heads, 128, 128, 4096.0, window))
        for heads, window in ((4, 512), (8, 0))
    )
    made: Any = SimpleNamespace(
        _has_modules=False, _query=SimpleNamespace(system=sorted(ONE_BLOCK)[0]),
        _context=SimpleNamespace(operators=lambda: [near, whole], device=SimpleNamespace(num_sms=132)),
    )  # fmt: skip
    decodes = np.array([0.0, 4.0, 16.0, 37.0])
    assert np.array_equal(Silicon.skew(made, decodes), waiting_for_the_longest(decodes, 8, 132))  # type: ignore[arg-type]
    made._context.operators = lambda: [near]
    assert Silicon.skew(made, decodes) is None
