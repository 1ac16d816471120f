"""Seconds looked up in small tables whose entries say where they were read, and estimators on a handful of points."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gnomon import catalog
from gnomon.core.user_files import plain
from gnomon.timing import TimingConfig, iteration_tables
from gnomon.timing.baking import Baked
from gnomon.timing.estimators.grid import Grid, _roughness, filled
from gnomon.timing.host import HostConfig, HostPhase
from gnomon.timing.iteration import (
    SKEW_BINS,
    IterationTables,
    blank,
    draft_head,
    geometric_axis,
    scaled,
    stack,
    with_draft,
)
from gnomon.timing.lookup import (
    Shape,
    _cell,
    _cell_near,
    attention_s,
    host_pace,
    host_times,
    is_beyond_measured,
    stage_s,
    with_host_s,
)
from gnomon.timing.source_registry import traits_of
from gnomon.timing.timer import Timer

AXIS = geometric_axis(8.0)


def tables(**changes: Any) -> IterationTables:
    """Two stages. A prefill costs 10 x chunk + KV before it, decodes 100 each and their mean KV; in stage 1 twice."""
    stages = np.array([1.0, 2.0])
    prefill = 10.0 * AXIS[:, None] + AXIS[None, :]
    decode = 100.0 * np.arange(5)[:, None] + AXIS[None, :]
    decode[0] = 0.0
    base = blank(2)._replace(
        token_s=np.outer(stages, np.arange(20)) * 1e4,
        sequence_s=np.outer(stages, np.arange(6)) * 1e6,
        expert_s=np.zeros((2, 0)),
        prompt_s=np.zeros((2, 0)),
        prefill_s=stages[:, None, None] * prefill,
        decode_s=stages[:, None, None] * decode,
        mixed_s=np.zeros((2, 0, 1, 1, 1)),
        skew=np.zeros((2, 0, 1)),
        chunk_axis=AXIS,
        kv_axis=AXIS,
        decodes_axis=AXIS,
    )
    return base._replace(**changes)


def shape(chunk: float = 0.0, kv: float = 0.0, decodes: int = 0, mean: float = 0.0, longest: float = 0.0) -> Shape:
    tokens = math.ceil(chunk) + decodes
    at = (decodes, decodes * mean, longest or mean, decodes, kv)
    return Shape(tokens, decodes + (chunk > 0), chunk * chunk, chunk * kv, *at)


def test_axes_have_two_points_per_octave() -> None:
    assert geometric_axis(4.0) == pytest.approx([0, 1, 2**0.5, 2, 2**1.5, 4])
    assert geometric_axis(4.1) == pytest.approx([0, 1, 2**0.5, 2, 2**1.5, 4, 2**2.5])
    assert geometric_axis(0.0) == pytest.approx([0, 1, 2**0.5, 2])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (shape(chunk=3.0), 30.0),
        (shape(chunk=3.0, kv=5.0), 35.0),
        (shape(chunk=1.0, kv=0.5), 10.5),
        (shape(chunk=0.5, kv=1.0), 6.0),
        (shape(decodes=3, mean=2.5), 302.5),
        (shape(decodes=1, mean=0.25), 100.25),
        (shape(chunk=7.0, kv=1.5, decodes=2, mean=6.0), 71.5 + 206.0),
        (shape(), 0.0),
        (shape(chunk=12.0, kv=9.0), 129.0),  # Beyond the last point in a straight line.
    ],
)
def test_attention_is_read_between_the_points(given: Shape, expected: float) -> None:
    assert attention_s(tables(), 0, given) == pytest.approx(expected)
    assert attention_s(tables(), 1, given) == pytest.approx(2 * expected)


def test_two_chunks_cost_as_one_of_the_root_of_their_squares() -> None:
    both = Shape(7, 2, 3.0**2 + 4.0**2, 3.0 * 2.0 + 4.0 * 1.0, 0, 0.0, 0.0, 0, 3.0)
    assert attention_s(tables(), 0, both) == pytest.approx(10.0 * 5.0 + 10.0 / 5.0)


def test_a_stage_adds_tokens_sequences_experts_and_prompts() -> None:
    one = shape(chunk=3.0, decodes=2, mean=4.0)  # 5 tokens, 3 sequences, attention 30 + 204.
    assert stage_s(tables(), 0, one, 9) == pytest.approx(5e4 + 3e6 + 234.0)
    assert stage_s(tables(), 1, one, 9) == pytest.approx(2 * (5e4 + 3e6 + 234.0))
    experts = tables(expert_s=np.arange(20.0).reshape(2, 10) * 1e8)
    assert stage_s(experts, 1, one, 9) == pytest.approx(2 * (5e4 + 3e6 + 234.0) + 19e8)
    prompts = tables(prompt_s=np.arange(40.0).reshape(2, 20) * 1e8)
    assert stage_s(prompts, 0, one, 9) == pytest.approx(5e4 + 3e6 + 234.0 + 3e8), "three of the five are of a prompt"


def test_a_measured_mixed_batch_replaces_the_sum() -> None:
    """Chunk + 10 x KV + 100 x decodes + 1000 x their KV; a chunk alone and decodes alone have their own tables."""
    a = AXIS
    mixed = a[:, None, None, None] + 10 * a[:, None, None] + 100 * a[:, None] + 1000 * a
    one = tables(mixed_s=np.stack([mixed, 2 * mixed]))
    assert attention_s(one, 0, shape(chunk=3.0, kv=5.0, decodes=3, mean=2.5)) == pytest.approx(3 + 50 + 300 + 2500)
    assert attention_s(one, 1, shape(chunk=3.0, decodes=1, mean=6.0)) == pytest.approx(2 * (3 + 100 + 6000))
    assert attention_s(one, 0, shape(chunk=3.0, kv=5.0)) == pytest.approx(35.0)
    assert attention_s(one, 0, shape(decodes=3, mean=2.5)) == pytest.approx(302.5)


def test_a_skewed_batch_lies_between_its_mean_and_its_longest() -> None:
    """2 decodes of mean 4: 204; at their longest, 8: 208. The skew 1 - 4/8 is in the fifth bin (of eight)."""
    skew = np.zeros((2, AXIS.size, 2 * SKEW_BINS))
    skew[:, :, 4], skew[:, :, SKEW_BINS + 4] = 0.25, 0.75
    one = tables(skew=skew)
    assert attention_s(one, 0, shape(decodes=2, mean=4.0, longest=8.0)) == pytest.approx(205.0)
    assert attention_s(one, 1, shape(decodes=2, mean=4.0, longest=8.0)) == pytest.approx(410.0)
    assert attention_s(one, 0, shape(decodes=2, mean=4.0, longest=7.9)) == pytest.approx(204.0), "the bin before"
    assert attention_s(one, 0, shape(chunk=3.0, decodes=2, mean=4.0, longest=8.0)) == pytest.approx(237.0)
    alone, beside = (attention_s(tables(), 0, shape(chunk=1.0, decodes=2, mean=m, longest=8.0)) for m in (4.0, 8.0))
    a_token = attention_s(one, 0, shape(chunk=1.0, decodes=2, mean=4.0, longest=8.0))
    assert a_token == pytest.approx(alone + 0.75 * (beside - alone)), "a prompt of one token is a prompt"
    assert attention_s(one, 0, shape(decodes=1, mean=4.0, longest=8.0)) == pytest.approx(104.0), "one is not skewed"
    skew[0, :, 4] = np.where(AXIS < 2.0, 0.0, np.where(AXIS > 2.0, 1.0, 0.5))
    assert attention_s(one, 0, shape(decodes=2, mean=4.0, longest=8.0)) == pytest.approx(206.0)
    assert attention_s(one, 0, shape(decodes=3, mean=4.0, longest=8.0)) == pytest.approx(308.0)
    skew[0, :, 7] = 1.0
    assert attention_s(one, 0, shape(decodes=2, mean=1e-9, longest=8.0)) == pytest.approx(208.0), "the last bin"


def host_of(config: HostConfig, **given: Any) -> Any:
    array = config.array(3, 7, (100, 8, 50))
    one = tables(host_s=np.stack([array, 0 * array]))
    return lambda gpu_s, batch: with_host_s(one, 0, gpu_s, batch)


def test_host_time_is_added_or_waited_for() -> None:
    plain = host_of(HostConfig(per_iteration_s=1.0, per_sequence_s=0.1, per_token_s=0.01, exposed_s=5.0))
    assert plain(2.0, shape(chunk=4.0, decodes=2, mean=1.0)) == pytest.approx(5.0 + 1.0 + 0.3 + 0.06 + 2.0)
    hidden = host_of(HostConfig(per_iteration_s=1.0, per_sequence_s=0.1, per_token_s=0.01, asynchronous=True))
    assert hidden(2.0, shape(decodes=2, mean=1.0)) == pytest.approx(2.0)
    assert hidden(1.0, shape(decodes=2, mean=1.0)) == pytest.approx(1.22)


def test_sequences_beyond_a_number_count_by_a_share() -> None:
    """10 sequences, 4 in full and 6 by a quarter: 5.5 of 0.1 seconds, exposed or hidden."""
    ten = shape(decodes=10, mean=1.0)
    flat = {"per_sequence_s": 0.1, "full_sequences": 4, "further_share": 0.25}
    assert host_of(HostConfig(**flat))(2.0, ten) == pytest.approx(2.55)
    assert host_of(HostConfig(**flat))(2.0, shape(decodes=3, mean=1.0)) == pytest.approx(2.3)
    assert host_of(HostConfig(**flat, asynchronous=True))(0.5, ten) == pytest.approx(0.55)
    own = HostConfig(per_sequence_s=0.1, decode=HostPhase(full_sequences=4, further_share=0.0))
    assert host_of(own)(2.0, ten) == pytest.approx(2.4)
    assert host_of(own)(2.0, shape(chunk=4.0, decodes=9, mean=1.0)) == pytest.approx(3.0), "of its phase only"


def test_a_slow_host_takes_longer_for_its_own_work_and_launching() -> None:
    """Work of 1 s, launching of 2 s, twice as slow in the second half second; the next replica is 577 windows on."""
    host = HostConfig(per_iteration_s=1.0, launch_s=2.0)
    one = tables(host_s=np.stack([host.array(3), host.array(3)]), host_pace=np.array([1.0, 2.0, 1.0, 1.0]))
    assert [host_pace(one, 0, at) for at in (0.4, 0.5, 0.9, 1.0, 2.5)] == [1.0, 2.0, 2.0, 1.0, 2.0]
    assert [host_pace(one, 1, at) for at in (0.4, 0.5)] == [2.0, 1.0]
    batch = shape(decodes=2, mean=1.0)
    assert host_times(one, 0, batch, 2.0) == (2.0, 4.0)
    assert host_pace(tables(), 3, 7.0) == 1.0


def test_a_slow_host_copies_more_slowly_but_the_gpu_samples_as_fast() -> None:
    """Launching 2 s and copying 0.1 s for each of two sequences, at half the pace 4.4 s; sampling 0.01 s for each."""
    host_s = np.stack([HostConfig(launch_s=2.0).array(3)] * 2)
    host_s[:, :, 10:] = 0.1, 0.01
    one, batch = tables(host_s=host_s), shape(decodes=2, mean=1.0)
    assert host_times(one, 0, batch, 2.0) == (0.0, pytest.approx(4.42))
    assert host_times(one, 0, batch) == (0.0, pytest.approx(2.22))


def test_the_share_of_slow_time_is_that_asked_for() -> None:
    paces = HostConfig(slow_share=0.25, slow_factor=1.5, slow_spell_s=2.0).paces(3)
    assert set(paces.tolist()) == {1.0, 1.5}
    assert np.mean(paces > 1.0) == pytest.approx(0.25, abs=0.05)
    spells = np.count_nonzero(np.diff(paces) > 0)
    assert np.sum(paces > 1.0) / spells == pytest.approx(4.0, rel=0.25), "2 s are four windows"
    assert not HostConfig(slow_factor=1.5).paces(3).size


def test_launching_is_waited_for_outside_graphs() -> None:
    """1 + 3 layers x 0.5 + 7 kernels x 0.1 = 3.2 seconds. Graphs: 100 tokens of prompts, 8 decodes, 50 mixed."""
    costs = {"launch_s": 1.0, "launch_per_layer_s": 0.5, "launch_per_kernel_s": 0.1}
    always = host_of(HostConfig(**costs))
    assert always(0.5, shape(decodes=2, mean=1.0)) == pytest.approx(3.2)
    assert always(4.0, shape(decodes=2, mean=1.0)) == pytest.approx(4.0)
    outside = host_of(HostConfig(**costs, launch_in_graphs=False))
    few, many = Shape(9, 8, 0.0, 0.0, 8, 8.0, 1.0, 8, 0.0), Shape(9, 9, 0.0, 0.0, 9, 9.0, 1.0, 9, 0.0)
    assert (outside(0.5, few), outside(0.5, many)) == (0.5, pytest.approx(3.2)), "decodes count sequences"
    assert outside(0.5, Shape(100, 1, 1e4, 0.0, 0, 0.0, 0.0, 0, 0.0)) == 0.5, "prompts count tokens"
    assert outside(0.5, Shape(101, 1, 1e4, 0.0, 0, 0.0, 0.0, 0, 0.0)) == pytest.approx(3.2)
    assert outside(0.5, Shape(50, 2, 49.0**2, 0.0, 1, 1.0, 1.0, 1, 0.0)) == 0.5
    assert outside(0.5, Shape(51, 2, 50.0**2, 0.0, 1, 1.0, 1.0, 1, 0.0)) == pytest.approx(3.2)


def test_every_stage_of_a_pipeline_launches_its_own_layers_and_the_engine_works_once() -> None:
    """3 + 2 layers, 7 and 5 kernels: launching takes 2 + 3 x 0.5 + 7 x 0.1 = 4.2 and 2 + 2 x 0.5 + 5 x 0.1 = 3.5."""
    host = HostConfig(
        per_iteration_s=1.0, per_sequence_s=0.1, exposed_s=5.0, exposed_per_layer_s=0.01, launch_s=2.0,
        launch_per_layer_s=0.5, launch_per_kernel_s=0.1, decode=HostPhase(launch_s=4.0),
    )  # fmt: skip
    one = tables(host_s=host.of_stages([3, 2], [7, 5]))
    batch = shape(chunk=4.0)
    assert with_host_s(one, 0, 0.5, batch) == pytest.approx(1.0 + 0.1 + 5.0 + 0.03 + 4.2)
    assert with_host_s(one, 1, 0.5, batch) == pytest.approx(0.02 + 3.5)
    assert with_host_s(one, 1, 9.0, batch) == pytest.approx(0.02 + 9.0)
    assert with_host_s(one, 1, 0.5, shape(decodes=2, mean=1.0)) == pytest.approx(0.02 + 5.5), "its own of the phase"


def test_ranks_wait_for_each_other_at_every_collective() -> None:
    """Waits of four and two times the jitter in the two stages, 0.1 each, beside 0.01 for each of 3 and 2 layers."""
    host = HostConfig(collective_jitter_s=0.1, exposed_per_layer_s=0.01, decode=HostPhase(exposed_per_layer_s=0.0))
    one = tables(host_s=host.of_stages([3, 2], [7, 5], waits=[4.0, 2.0]))
    assert [with_host_s(one, stage, 1.0, shape(chunk=4.0)) for stage in range(2)] == pytest.approx([1.43, 1.22])
    assert with_host_s(one, 0, 1.0, shape(decodes=2, mean=1.0)) == pytest.approx(1.4)


def test_a_phase_has_its_own_host_time() -> None:
    own = HostConfig(per_iteration_s=1.0, prefill=HostPhase(per_iteration_s=2.0), mixed=HostPhase(per_iteration_s=4.0))
    at = host_of(own)
    assert at(0.0, shape(chunk=4.0)) == 2.0
    assert at(0.0, shape(decodes=2, mean=1.0)) == 1.0
    assert at(0.0, shape(chunk=4.0, decodes=2, mean=1.0)) == 4.0


def test_blank_tables_have_the_shape_of_others() -> None:
    """Where times are replayed, compiled code reads arrays of the same dimensions; rows of fixed length are as long."""
    place = (catalog.model("llama-3-8b"), catalog.device("h100"), catalog.Parallelism(pipeline_parallel=2))
    sizes = {"max_tokens": 16, "max_sequences": 4, "max_kv_tokens": 64}
    baked = iteration_tables(*place, config=TimingConfig(source="roofline"), **sizes).tables
    for name, empty, full in zip(IterationTables._fields, blank(2), baked, strict=True):
        assert empty.ndim == full.ndim, name
        assert name.endswith(("_axis", "_pace")) or empty.shape[0] == full.shape[0] == 2, name
    for name in ("host_s", "work", "measured"):
        assert getattr(blank(2), name).shape == getattr(baked, name).shape, name
    assert np.isinf(blank(2).measured).all() and not blank(2).work.any()


def test_tables_one_below_the_other() -> None:
    """What only one kind has is spelled out for the other: mixed times are sums, no skew, no experts, no prompts."""
    a = AXIS
    mixed = np.zeros((2, a.size, a.size, a.size, a.size)) + 7.0
    rich = tables(
        mixed_s=mixed, skew=np.ones((2, a.size, 2 * SKEW_BINS)), expert_s=np.ones((2, 4)), prompt_s=np.ones((2, 20))
    )
    both = stack([tables(), rich])
    assert both.token_s.shape == (4, 20)
    one = shape(chunk=3.0, kv=1.0, decodes=2, mean=4.0, longest=8.0)
    assert attention_s(both, 0, one) == pytest.approx(31.0 + 204.0)
    assert attention_s(both, 2, one) == pytest.approx(7.0)
    assert both.skew.shape == (4, a.size, 2 * SKEW_BINS)
    assert both.skew.mean(axis=(1, 2)).tolist() == [0, 0, 1, 1]
    assert both.expert_s.tolist() == [[0] * 4, [0] * 4, [1] * 4, [1] * 4]
    assert both.prompt_s.sum(axis=1).tolist() == [0, 0, 20, 20]
    assert stack([rich]).mixed_s.shape == mixed.shape
    doubled = scaled(rich, 2.0)
    assert attention_s(doubled, 0, one) == pytest.approx(14.0)
    assert doubled.expert_s.max() == doubled.prompt_s.max() == 2.0


def test_a_draft_of_three_tokens_decodes_twice_more() -> None:
    """The draft passes over the iteration's tokens once, and twice more over one token of each decode; all three times
    it reads KV and samples. Its two stages come before the target's first."""
    target, draft = tables(), draft_head(tables(), 0.1)
    assert draft.token_s[0, 5] == pytest.approx(5e3)
    assert draft.sequence_s[0, 5] == pytest.approx(5e6), "the head is the model's own"
    joined = with_draft(target, draft, 3)
    assert joined.token_s[:, 5] == pytest.approx([5e4 + 1.5e4, 1e5])
    per_decode = 3 * (0.1 * (200.0 + AXIS) * 3 + 3 * 2e6) + 2 * 0.1 * 2e4 * 3
    assert joined.decode_s[0, 2] == pytest.approx(200.0 + AXIS + per_decode)
    assert joined.decode_s[0, 0].tolist() == target.decode_s[0, 0].tolist()
    assert joined.prefill_s[0] == pytest.approx(1.3 * target.prefill_s[0])
    mixed = tables(mixed_s=np.ones((2, AXIS.size, AXIS.size, AXIS.size, AXIS.size)))
    found = with_draft(mixed, draft, 3).mixed_s
    assert found[0, 2, 3, 3] == pytest.approx(1.0 + 0.3 * target.prefill_s[0, 2, 3] + per_decode), "two decodes"
    assert (found[1] == 1.0).all()


def test_the_host_works_for_each_sequence_that_drafts() -> None:
    """A decode counts as its own token and three drafted ones: a quarter of it each. Prompts do not draft."""
    target = tables(host_s=np.zeros((2, 3, 8)))
    hosts = with_draft(target, draft_head(tables(), 0.1), 3, sequence_s=0.8).host_s
    assert hosts[0, :, 1] == pytest.approx([0.0, 0.2, 0.2])
    assert hosts.sum() == pytest.approx(0.4), "in the first stage, and nothing else"


def test_times_that_were_given_are_certain() -> None:
    given = Baked(tables(), [])
    assert (given.uncertainty, given.spread, given.first_token_spread) == (0.0, 0.0, 0.0)


def test_errors_of_kernels_and_servers_add_as_squares() -> None:
    def spread(source: str, kernels: float) -> float:
        context = SimpleNamespace(  # An engine that no constant was fitted to, tokens not drawn.
            config=SimpleNamespace(engine="own", sampler=SimpleNamespace(is_random=False)),
            model=SimpleNamespace(attention_family="full"),
        )
        timer = cast(Timer, SimpleNamespace(source=SimpleNamespace(name=source), context=context))
        baked = Baked(tables(), [], timer)
        baked.__dict__["uncertainty"] = kernels
        return baked.spread

    assert spread("profile", 0.04) == pytest.approx(0.05)
    assert spread("silicon", 0.2) == pytest.approx(0.25)
    assert spread("roofline", 0.24) == spread("my own", 0.24) == pytest.approx(0.3)
    assert [traits_of(one).first_token_error for one in ("profile", "own")] == [0.03, 0.49]


# Holes in a grid of measurements.

NAN = np.nan


def test_a_hole_is_what_its_row_and_column_agree_on() -> None:
    """Rows differ by 10, columns by 1, 5 and 100: steps, not slopes."""
    grid = np.add.outer(10.0 * np.arange(4), np.array([0.0, 1.0, 6.0, 106.0]))
    holed = grid.copy()
    holed[1, 2] = NAN
    assert filled(holed, [np.arange(4.0), np.arange(4.0)]) == pytest.approx(grid)


def test_a_gap_in_one_dimension_is_a_straight_line() -> None:
    assert filled(np.array([1.0, NAN, NAN, 7.0]), [np.array([0.0, 1.0, 4.0, 6.0])]) == pytest.approx([1, 2, 5, 7])


def test_cells_outside_take_the_nearest() -> None:
    found = filled(np.array([NAN, NAN, 3.0, 5.0, NAN]), [np.arange(5.0)])
    assert found == pytest.approx([3, 3, 3, 5, 5])


def test_the_smoother_dimension_is_trusted_more() -> None:
    """Two neighbouring columns unknown in all rows but the first and last: along rows the values jump, along columns
    they lie on a line, so that the line through the column counts."""
    grid = np.add.outer(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 50.0, 0.0, 50.0, 0.0, 50.0]))
    holed = grid.copy()
    holed[1:3, 2:4] = NAN
    found = filled(holed, [np.arange(4.0), np.arange(6.0)])
    assert found == pytest.approx(grid, abs=0.5)


def test_grid_between_and_beyond_its_points() -> None:
    """Logarithms of time over log1p of size: at 3 = 2^2 - 1, between 1 and 7, the geometric mean."""
    sizes = np.array([[1.0], [7.0]])
    grid = Grid().fit(sizes, np.array([2.0, 8.0]))
    assert grid.predict(np.array([[1.0], [3.0], [7.0], [0.0], [100.0]])) == pytest.approx([2, 4, 8, 2, 8])
    plane = np.array([[0.0, 0.0], [0.0, 3.0], [3.0, 0.0], [3.0, 3.0]])
    corners = Grid().fit(plane, np.array([1.0, 16.0, 4.0, 64.0]))
    assert corners.predict(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, 1.0]])) == pytest.approx([2, 4, 8, 16])


@pytest.mark.parametrize(
    ("given", "beyond"),
    [
        (shape(chunk=16.0, kv=100.0, decodes=8, mean=1000.0, longest=9000.0), False),  # The mean counts.
        (shape(decodes=2, mean=1000.5), True),
        (shape(decodes=9, mean=10.0), True),
        (shape(chunk=17.0), True),
        (shape(chunk=4.0, kv=101.0), True),
        (shape(chunk=16.0, decodes=8)._replace(tokens=31), True),
        (shape(), False),
    ],
)
def test_an_iteration_beyond_what_was_measured(given: Shape, beyond: bool) -> None:
    """Up to 30 tokens, chunks of 16 after 100 tokens, 8 decodes of 1,000 tokens in the mean."""
    measured = np.array([30.0, 16.0, 1000.0, 8.0, 100.0])
    assert is_beyond_measured(measured, given) == beyond


def test_roughness_is_the_mean_distance_from_the_line_between_neighbours() -> None:
    """Over 0, 1 and 4 a line from 0 to 8 is at 2 in the middle: 5 lies 3 off, in the other row nothing; of a row with a
    hole nothing is known."""
    axis = np.array([0.0, 1.0, 4.0])
    grid = np.array([[0.0, 5.0, 8.0], [0.0, 2.0, 8.0], [0.0, np.nan, 8.0]])
    assert _roughness(grid, 1, axis) == pytest.approx(1.5, abs=1e-5)
    assert _roughness(grid[2:], 1, axis) == 1.0
    assert _roughness(grid[:, :2], 1, axis[:2]) == 1.0, "two points are always on a line"
    assert _roughness(grid.T, 0, axis) == pytest.approx(1.5, abs=1e-5)


def test_a_hole_is_the_median_of_its_crosses() -> None:
    """Logarithms of rows and columns add: i + 10 j. One of its neighbours is off by 100, and so are the crosses that it
    is part of; the median is not. Four steps away nobody is asked."""
    grid = np.add.outer(np.arange(9.0), 10.0 * np.arange(9.0))
    expected = grid[4, 4]
    grid[4, 4], grid[4, 3] = np.nan, 100.0
    assert filled(grid, [np.arange(9.0)] * 2)[4, 4] == pytest.approx(expected)
    far = grid.copy()
    far[4, [1, 2, 5, 6]] = 100.0  # Five of six in its row: nearly all crosses are wrong.
    assert filled(far, [np.arange(9.0)] * 2)[4, 4] != pytest.approx(expected)
    beyond = grid.copy()
    beyond[4, 3] = 34.0
    beyond[[0, 8], :] = beyond[:, [0, 8]] = 1e3
    assert filled(beyond, [np.arange(9.0)] * 2)[4, 4] == pytest.approx(expected)


@pytest.mark.parametrize(("value", "cell"), [(1.0, 1), (1.2, 1), (2.0, 3), (2.5, 3), (5.0, 5), (20.0, 6)])
def test_a_cell_that_is_near_is_found_as_any_other(value: float, cell: int) -> None:
    """Two points per octave: 0, 1, 1.41, 2, 2.83, 4, 5.66, 8. Beyond the last the line of the last cell goes on."""
    find = plain(_cell)
    number, share = find(AXIS, value)
    assert (AXIS[number] + share * (AXIS[number + 1] - AXIS[number])) == pytest.approx(value)
    if value > 1.0:
        assert number == cell
    for near in range(AXIS.size - 1):
        found, part = plain(_cell_near)(AXIS, value, near)
        assert AXIS[found] + part * (AXIS[found + 1] - AXIS[found]) == pytest.approx(value)
        assert found == number or value in AXIS
