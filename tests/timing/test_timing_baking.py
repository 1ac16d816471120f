"""Baking: tables equal the operators' sum, ranges are reported, explicit tables are exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gnomon import catalog
from gnomon.core.arrays import Floats
from gnomon.core.config import load
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.timing import Baked, Batch, Context, Known, Timer, TimingConfig, breakdown, iteration_tables, timing_source
from gnomon.timing import sources as sources
from gnomon.timing.config import OVERLAP_TOKENS
from gnomon.timing.iteration import stack, with_draft
from gnomon.timing.lookup import Shape, stage_s, with_host_s
from gnomon.timing.operators import Operator, num_kernels, stage_operators

SIZES = {"max_tokens": 4096, "max_sequences": 128, "max_kv_tokens": 8192}


def bake(
    name: str = "llama-3-8b", device: str = "h100", config: TimingConfig | None = None, **degrees: object
) -> Baked:
    return iteration_tables(
        catalog.model(name), catalog.device(device), catalog.Parallelism(**degrees), config=config, **SIZES
    )


def timer(name: str, config: TimingConfig | None = None, device: str = "h100", **degrees: object) -> Timer:
    d, cut = catalog.device(device), catalog.Parallelism(**degrees)
    return Timer(Context(catalog.model(name), d, catalog.default_node(d), cut, config or TimingConfig()))


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama-3-8b", {}),
        ("llama-3-70b", {"tensor_parallel": 4, "pipeline_parallel": 2}),
        ("mixtral-8x7b", {"tensor_parallel": 2, "expert_parallel": True}),
        ("deepseek-v3", {"data_parallel": 8, "tensor_parallel": 2, "expert_parallel": True}),
    ],
)
def test_tables_hold_the_sum_of_the_operators(name: str, degrees: dict[str, object]) -> None:
    batch = Batch(prefill=512, prefill_kv=1024, decode=64, kv=2048)  # On the tables' grid.
    tables = bake(name, **degrees).tables
    shape = Shape(batch.tokens, batch.sequences, 512.0**2, 512.0 * 1024.0, 64, 64 * 2048.0, 2048.0, 64, 1024.0)
    group = batch.tokens * int(degrees.get("data_parallel", 1))  # type: ignore[call-overload]
    baked = sum(stage_s(tables, stage, shape, group) for stage in range(tables.token_s.shape[0]))
    assert baked == pytest.approx(sum(row.seconds for row in breakdown(timer(name, **degrees), batch)), rel=1e-9)


def test_a_mixed_batch_on_flash_attention_2_is_dearer_than_its_parts() -> None:
    batch = Batch(prefill=512, prefill_kv=1024, decode=64, kv=2048)
    shape = Shape(576, 65, 512.0**2, 512.0 * 1024.0, 64, 64 * 2048.0, 2048.0, 64, 1024.0)
    together, apart = TimingConfig(), TimingConfig(separate_attention=True)
    totals = []
    for config in (together, apart):
        rows = breakdown(timer("llama-3-8b", config, "a100"), batch)
        totals.append(sum(row.seconds for row in rows))
        assert stage_s(bake("llama-3-8b", "a100", config).tables, 0, shape, 0) == pytest.approx(totals[-1], rel=1e-9)
    assert totals[0] > 1.05 * totals[1]
    assert bake("llama-3-8b", "h100").tables.mixed_s.shape[1] == 0


def test_arrays_are_contiguous_doubles_with_a_stage_axis() -> None:
    tables = bake("llama-3-70b", tensor_parallel=4, pipeline_parallel=3).tables
    for name, array in tables._asdict().items():
        assert array.dtype == np.float64, name
        assert array.flags.c_contiguous, name
        assert array.flags.writeable, name  # Compiled code tells the two apart.
        assert name.endswith(("_axis", "_pace")) or array.shape[0] == 3, name
        assert np.isfinite(array).all() or name == "measured", name


def test_empty_parts_cost_nothing() -> None:
    tables = bake().tables
    assert tables.token_s[0, 0] == tables.sequence_s[0, 0] == 0
    assert (tables.prefill_s[0, 0] == 0).all()
    assert (tables.decode_s[0, 0] == 0).all()


def test_shared_experts_have_their_own_table() -> None:
    assert bake("qwen3-30b-a3b").tables.expert_s.shape == (1, 0)
    grouped = bake("qwen3-30b-a3b", data_parallel=2, expert_parallel=True).tables
    assert grouped.expert_s.shape == (1, 2 * 4096 + 1)
    assert (np.diff(grouped.expert_s[0]) > -1e-9).all()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_tied_embedding_is_read_once_by_the_head(stages: int) -> None:
    work = bake("llama-3.2-1b", pipeline_parallel=stages).tables.work[0]
    assert work[3] == pytest.approx(2 * catalog.model("llama-3.2-1b").num_parameters)


def test_work_counts_the_whole_replica() -> None:
    model, device = catalog.model("llama-3-8b"), catalog.device("h100")
    work = bake(tensor_parallel=2).tables.work[0]
    assert work[0] == pytest.approx(2 * 6.98e9, rel=0.01)
    assert work[1] == 4 * 32 * 4096
    norms = (2 * 32 + 1) * 4096  # Each rank has them whole.
    assert work[3] == pytest.approx(2 * (model.num_parameters - model.num_embedding_parameters + norms)), "rows only"
    assert work[4] == model.kv_bytes_per_token()
    assert work[5] == 2 * device.flops("bf16")
    assert work[6] == 2 * device.bandwidth_bytes_s


def test_graph_padding_rounds_small_iterations_up() -> None:
    plain = bake().tables.token_s[0]
    padded = bake(config=TimingConfig(graph_sizes="vllm")).tables.token_s[0]
    assert padded[0] == 0
    assert padded[3] == plain[4]
    assert padded[9] == plain[16]
    assert padded[512] == plain[512]
    assert padded[513] == plain[513]


def decodes(count: int) -> Shape:
    return Shape(count, count, 0.0, 0.0, count, 100.0 * count, 100.0, count, 0.0)


def test_host_time_adds_or_hides() -> None:
    host = {"per_iteration_s": 1e-3, "per_sequence_s": 1e-6}
    adds = bake(config=TimingConfig.model_validate({"host": host})).tables
    hides = bake(config=TimingConfig.model_validate({"host": host | {"asynchronous": True}})).tables
    assert with_host_s(adds, 0, 0.01, decodes(100)) == pytest.approx(0.0111)
    assert with_host_s(hides, 0, 0.01, decodes(100)) == 0.01
    assert with_host_s(hides, 0, 0.0001, decodes(100)) == pytest.approx(0.0011)


def test_host_time_by_phase() -> None:
    host = {
        "per_iteration_s": 1e-3,
        "asynchronous": True,
        "prefill": {"launch_s": 0.02, "launch_per_layer_s": 1e-4, "exposed_s": 5e-3, "per_iteration_s": 0.0},
        "mixed": {"asynchronous": False, "per_token_s": 1e-6},
    }
    tables = bake(config=TimingConfig.model_validate({"host": host})).tables
    prompt = Shape(512, 1, 512.0**2, 0.0, 0, 0.0, 0.0, 0, 0.0)
    both = Shape(1000, 11, 990.0**2, 0.0, 10, 1000.0, 100.0, 10, 0.0)
    assert with_host_s(tables, 0, 0.012, prompt) == pytest.approx(0.005 + 0.02 + 32 * 1e-4), "launch bound"
    assert with_host_s(tables, 0, 0.05, prompt) == pytest.approx(0.055), "compute bound"
    assert with_host_s(tables, 0, 0.0005, decodes(8)) == pytest.approx(1e-3), "hidden, as for all iterations"
    assert with_host_s(tables, 0, 0.01, both) == pytest.approx(0.01 + 1e-3 + 1000 * 1e-6), "not hidden"


def test_stages_of_a_pipeline_wait_for_their_own_kernels() -> None:
    """32 layers over three stages: 10, 11 and 11, the leftover ones before the last."""
    host = {"launch_per_layer_s": 1e-3, "exposed_s": 0.5, "exposed_per_layer_s": 1e-4}
    cut = catalog.Parallelism(pipeline_parallel=3)
    tables = bake(pipeline_parallel=3, config=TimingConfig.model_validate({"host": host})).tables
    layers = [len(cut.layers_of_stage(catalog.model("llama-3-8b"), stage)) for stage in range(3)]
    found = [with_host_s(tables, stage, 1e-6, decodes(8)) for stage in range(3)]
    assert sum(layers) == 32
    assert found == pytest.approx([0.5 * (stage == 0) + 1.1e-3 * n for stage, n in enumerate(layers)])


def test_ranks_wait_for_the_last_of_them() -> None:
    """Two all-reduces in each of 32 layers, one after the embedding, and the logits are gathered. Of one, two, four and
    eight normal numbers the largest is 0, 0.564, 1.029 and 1.424 standard deviations above the mean."""
    config = TimingConfig.model_validate({"host": {"collective_jitter_s": 1e-3}})
    for ranks, largest in ((1, 0.0), (2, 0.564), (4, 1.029), (8, 1.424)):
        found = with_host_s(bake(tensor_parallel=ranks, config=config).tables, 0, 1e-3, decodes(8))
        assert found == pytest.approx(1e-3 + 66e-3 * largest, rel=0.05)


def test_kernels_are_launched_one_by_one_outside_cuda_graphs_only() -> None:
    host = {"launch_per_kernel_s": 1e-5, "launch_in_graphs": False}
    pieces = bake(config=TimingConfig.model_validate({"host": host, "graph_sizes": [8, 512]})).tables
    whole = bake(config=TimingConfig.model_validate({"host": host, "graph_sizes": [8], "graph_attention": True})).tables
    launch_s = 1e-5 * num_kernels(stage_operators(catalog.model("llama-3-8b"), catalog.Parallelism(), 0))
    short, long = (Shape(tokens, 1, tokens**2.0, 0.0, 0, 0.0, 0.0, 0, 0.0) for tokens in (512, 513))
    assert with_host_s(pieces, 0, 1e-4, short) == 1e-4, "without attention, any iteration may be a graph"
    assert with_host_s(pieces, 0, 1e-4, long) == pytest.approx(launch_s)
    assert with_host_s(pieces, 0, 1.0, long) == 1.0
    assert with_host_s(whole, 0, 1e-4, short) == pytest.approx(launch_s), "with attention, decodes alone"
    assert with_host_s(whole, 0, 1e-4, decodes(8)) == 1e-4
    assert with_host_s(whole, 0, 1e-4, decodes(9)) == pytest.approx(launch_s)


@pytest.mark.parametrize(("engine", "each"), [("trtllm", 1), ("sglang", 2)])
def test_piecewise_graphs_of_prompts_leave_few_kernels_to_launch(engine: str, each: int) -> None:
    settings = {
        "host": {"launch_per_kernel_s": 1e-5, "launch_in_graphs": False},
        "engine": engine,
        "prompt_graphs": True,
    }
    tables = bake(config=TimingConfig.model_validate(settings)).tables
    prompt = Shape(512, 1, 512.0**2, 0.0, 0, 0.0, 0.0, 0, 0.0)
    assert with_host_s(tables, 0, 1e-5, prompt) == pytest.approx(32 * each * 1e-5), "attention and KV of each layer"


def test_attention_inside_graphs_runs_for_the_padded_batch() -> None:
    plain = bake().tables
    padded = bake(config=TimingConfig(graph_sizes="vllm", graph_attention=True)).tables
    cell = 13
    kv = plain.kv_axis[cell]
    assert padded.decode_s[0, 16, cell] == pytest.approx(plain.decode_s[0, 16, cell])
    same_kv = np.interp(kv * 9 / 16, plain.kv_axis, plain.decode_s[0, 16])
    assert padded.decode_s[0, 9, cell] == pytest.approx(same_kv, rel=0.02)
    assert padded.decode_s[0, 0].max() == 0.0


def test_scale_scales_the_gpu() -> None:
    assert bake(config=TimingConfig(scale=1.1)).tables.token_s == pytest.approx(1.1 * bake().tables.token_s)


def test_baking_asks_for_all_sizes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    seconds = Timer.seconds

    def counted(self: Timer, operator: Operator, *sizes: Floats) -> Floats:
        asked.append(operator.name)
        return seconds(self, operator, *sizes)

    monkeypatch.setattr(Timer, "seconds", counted)
    bake("llama-3-70b", tensor_parallel=8, pipeline_parallel=8)
    assert 0 < asked.count("qkv_proj") <= 10, "not for every token, nor for every layer"


class Partial:
    """A source that measured one operator, up to 1,000 tokens, at exactly a microsecond per token."""

    name = "partial"

    def __init__(self, context: Context) -> None:
        pass

    def measured(self, operator: Operator) -> tuple[tuple[float, float], ...] | None:
        return ((16.0, 1000.0),) if operator.name == "up_proj" else None

    def seconds(self, operator: Operator, *sizes: Floats) -> Floats:
        assert sizes[0].min() >= 16.0
        assert sizes[0].max() <= 1000.0
        return 1e-6 * sizes[0]

    def uncertainty(self, operator: Operator) -> float:
        return 0.02

    def skew(self, decodes: Floats) -> Floats | None:
        return np.full((decodes.size, 16), 0.5)


@pytest.fixture
def partial() -> Iterator[None]:
    timing_source("partial")(Partial)
    yield
    sources.SOURCES.remove("partial")


@pytest.mark.usefixtures("partial")
def test_what_a_source_lacks_is_taken_from_the_roofline_and_said() -> None:
    baked = bake(config=TimingConfig(source="partial"))
    assert any("no embedding, attn_norm, qkv_proj" in note and "roofline" in note for note in baked.notes)
    assert not any("residual_add" in note for note in baked.notes)  # Fused: nothing is missing.
    assert any("up_proj (to 1,000 tokens)" in note for note in baked.notes)
    assert baked.tables.measured[0, 0] == 1000
    assert 0.02 < baked.uncertainty < catalog.device("h100").roofline_error
    assert baked.tables.skew.shape[0] == 1


@pytest.mark.usefixtures("partial")
def test_beyond_its_range_a_source_follows_the_shape_of_the_roofline() -> None:
    one = timer("llama-3-8b", TimingConfig(source="partial"))
    up = next(op for op in one.operators(0) if op.name == "up_proj")
    at = np.array([8.0, 16.0, 500.0, 1000.0, 2000.0, 8000.0])
    seconds, formula = one.seconds(up, at), one.roofline.seconds(up, at)
    assert seconds[1:4] == pytest.approx(at[1:4] * 1e-6)
    assert seconds[4:] == pytest.approx(1e-3 * formula[4:] / formula[3])
    assert seconds[0] == pytest.approx(16e-6 * formula[0] / formula[1])


def test_unknown_source_is_an_error_with_the_list() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown timing source 'rooflin'.*Did you mean 'roofline'"):
        bake(config=TimingConfig(source="rooflin"))


@pytest.mark.parametrize("size", ["max_tokens", "max_sequences", "max_kv_tokens"])
def test_sizes_must_be_positive(size: str) -> None:
    one = catalog.model("llama-3-8b"), catalog.device("h100"), catalog.Parallelism()
    with pytest.raises(ConfigError, match=size):
        iteration_tables(*one, **SIZES | {size: 0})


def table(**seconds: object) -> TimingConfig:
    return TimingConfig.model_validate({"source": "table", "table": seconds})


def test_a_service_time_proportional_to_the_prompt_is_one_line_of_yaml(tmp_path: object) -> None:
    path = f"{tmp_path}/timing.yaml"
    with open(path, "w") as file:
        file.write("source: table\ntable: {per_token: 1.0e-3}\n")
    tables = bake(config=load(TimingConfig, path)).tables
    for prompt in (1, 7, 700, 4096):
        shape = Shape(prompt, 1, float(prompt) ** 2, 0.0, 0, 0.0, 0.0, 0, 0.0)
        assert stage_s(tables, 0, shape, prompt) == pytest.approx(prompt * 1e-3, rel=1e-12)


def test_given_seconds_are_exact_between_grid_points() -> None:
    given = table(per_iteration=0.5, per_token=[0.1, 0.01], per_sequence=2.0, per_decode=0.25, per_decode_kv_token=1e-4)
    tables = bake(config=given).tables
    shape = Shape(10, 3, 0.0, 0.0, 3, 3 * 777.0, 777.0, 3, 0.0)
    assert stage_s(tables, 0, shape, 10) == pytest.approx(0.5 + 0.1 + 0.1 + 6.0 + 0.75 + 3 * 777 * 1e-4)


def test_listed_seconds_go_on_in_a_straight_line() -> None:
    tokens = bake(config=table(per_token=[0.0, 1.0, 3.0])).tables.token_s[0]
    assert tokens[:5].tolist() == [0.0, 1.0, 3.0, 5.0, 7.0]


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ({"per_token": -1.0}, "negative"),
        ({"per_token": [1.0]}, "two values"),
        ({"per_token": [0.0, 5.0, 1.0]}, "negative"),
    ],
)
def test_senseless_tables_are_refused(seconds: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bake(config=table(**seconds))
    with pytest.raises(ConfigError, match=r"timing\.table"):
        bake(config=TimingConfig(source="table"))


def test_a_draft_reads_the_iteration_and_goes_on_decoding() -> None:
    """Three drafted tokens: one pass of the draft over the iteration's tokens, and two decode iterations more."""
    target, draft = bake("llama-3-70b", tensor_parallel=4).tables, bake("llama-3.2-1b").tables
    both = with_draft(target, draft, 3)
    for decodes, kv in ((1, 5), (8, 20)):
        extra = 3 * (draft.sequence_s[0, decodes] + draft.decode_s[0, decodes, kv]) + 2 * draft.token_s[0, decodes]
        assert both.decode_s[0, decodes, kv] - target.decode_s[0, decodes, kv] == pytest.approx(extra, rel=1e-9)
    assert (both.decode_s[0, 0] == target.decode_s[0, 0]).all(), "no decodes, no drafts"
    assert both.token_s - target.token_s == pytest.approx(draft.token_s, rel=1e-9)
    assert both.prefill_s - target.prefill_s == pytest.approx(draft.prefill_s, rel=1e-6)


def test_shared_experts_hide_behind_the_routed_ones_while_tokens_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens_s(overlap: int) -> Floats:
        monkeypatch.setitem(OVERLAP_TOKENS, "vllm", overlap)
        config = TimingConfig(source="roofline")
        model, device = catalog.model("deepseek-v3"), catalog.device("h200")
        cut = catalog.Parallelism(tensor_parallel=8)
        baked = iteration_tables(model, device, cut, config=config, max_tokens=512, max_sequences=8, max_kv_tokens=1024)
        return baked.tables.token_s[0]

    apart, beside = tokens_s(0), tokens_s(64)
    assert (beside[1:65] < apart[1:65]).all()
    assert beside[65:] == pytest.approx(apart[65:])
    # Up-projection, activation and down-projection of 58 layers, each at least its floor.
    assert apart[32] - beside[32] > 58 * 3 * 2e-6


def test_kinds_with_groups_of_other_sizes_stack() -> None:
    """A prefill worker of four attention groups beside a decode worker of two, and one of none."""
    four, two, none = (bake("deepseek-v3", data_parallel=n, tensor_parallel=8 // n).tables for n in (4, 2, 1))
    both = stack([four, two, none])
    width = four.expert_s.shape[1]
    assert both.expert_s.shape == (3, width)
    assert np.array_equal(both.expert_s[1, : two.expert_s.shape[1]], two.expert_s[0])
    assert not both.expert_s[2].any()


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b"])
def test_replicas_of_other_limits_share_what_is_known(name: str) -> None:
    """To the last bit, and with the same words on what is not measured, whichever limits come first."""
    at = (catalog.model(name), catalog.device("h200"), catalog.Parallelism(tensor_parallel=2))
    limits = [(512, 64), (20_000, 256), (2048, 32)]
    known = Known()
    for tokens, sequences in limits:
        sizes = {"max_tokens": tokens, "max_sequences": sequences, "max_kv_tokens": 8192}
        alone = iteration_tables(*at, **sizes)
        shared = iteration_tables(*at, **sizes, known=known)
        assert all(np.array_equal(a, b) for a, b in zip(alone.tables, shared.tables, strict=True))
        assert alone.notes == shared.notes
    assert known.seconds["token"].shape[1] == 20_001
