"""Schedules with what copies exchange: by hand, and training steps on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import ConfigError
from gnomon.pipeline import Plan, StepCosts, execute, make, pytorch_csv, validate
from gnomon.pipeline.memory import micro_batches_held
from gnomon.pipeline.run import Run
from gnomon.training import TrainConfig, train_step
from gnomon.training.memory import memory_of, memory_over_time
from gnomon.training.pipelines import StageSeconds, in_flight, span, stages_of_rank, template
from gnomon.training.step import _Step

ONE = {"forward": 4.0, "input_grad": 4.0, "weight_grad": 4.0}


def ran(ranks: int = 1, microbatches: int = 1, name: str = "1f1b", **costs: Any) -> Run:
    return execute(make(name, Plan(ranks, microbatches)), StepCosts(**ONE | costs))


def test_weights_are_gathered_ahead_of_the_first_forward() -> None:
    """Four pieces of a forward of 4 and of gathering 2: the first piece of 0.5 shows, then each piece takes 1."""
    assert ran(gather=2.0, buckets=4).total_time == pytest.approx(0.5 + 12.0)
    assert ran(gather=2.0, buckets=1).total_time == pytest.approx(2.0 + 12.0)
    # Gathering 8 takes longer than the forward: all of it, and the last piece of the forward.
    assert ran(gather=8.0, buckets=4).total_time == pytest.approx(8.0 + 1.0 + 8.0)
    assert ran(gather=2.0, buckets=4, microbatches=3).total_time == pytest.approx(0.5 + 36.0), "once a step"


def test_gradients_are_sent_while_the_last_backward_goes_on() -> None:
    """The last of four pieces shows; where sending 12 takes longer than the backward of 8, all but the first 6 do."""
    assert ran(sync=2.0, buckets=4).total_time == pytest.approx(12.0 + 0.5)
    assert ran(sync=12.0, buckets=4).total_time == pytest.approx(4.0 + 2.0 + 12.0)
    # One synchronisation of both micro-batches' gradients at the end.
    assert ran(sync=1.0, buckets=4, microbatches=2).total_time == pytest.approx(24.0 + 0.5)


def test_fully_sharded_passes_gather_every_time() -> None:
    """Two micro-batches, gathering 2 in four pieces: each forward waits for its first piece; that of a backward
    is gathered beside the end of the forward."""
    assert ran(1, 2, gather=2.0, buckets=4, fully_sharded=True).total_time == pytest.approx(2 * (0.5 + 12.0))
    # At most one piece ahead: with pieces of 2 for passes of 1, every piece of a forward waits.
    slow = ran(gather=8.0, buckets=4, fully_sharded=True).total_time
    assert slow == pytest.approx(16.0 + 2.0), "sixteen for gathering twice, and the last piece of the backward"
    assert ran(gather=8.0, sync=8.0, sync_freq=1, buckets=4, fully_sharded=True).total_time > slow + 2.0


def test_gradients_share_links_with_activations_unless_they_have_their_own() -> None:
    """Two stages, two halves of the last backward, sending 10 each. On links of their own, one half after the other
    from half of the backward on. Else the gradient of activations of 3 shares the second stage's link, takes twice as
    long, and so the first stage begins its last backward 3 later."""
    both = [ran(2, 1, sync=20.0, buckets=2, send=3.0, own_links=own).total_time for own in (False, True)]
    # 4 + 3 + 4 to the second stage's backward of 8, 3 back; half of the backward, then 20.
    assert both == pytest.approx([19 + 6 + 4 + 20.0, 19 + 3 + 4 + 20.0])


def test_gradients_on_links_of_their_own_go_one_after_the_other() -> None:
    """Two chunks on one rank: sending both takes as long as one after the other."""
    for own in (False, True):
        total = execute(
            make("interleaved", Plan(1, 1, chunks=2)), StepCosts(**ONE | {"sync": 20.0, "own_links": own})
        ).total_time
        assert total == pytest.approx(4 + 4 + 8 + 40.0)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_forwards_beside_backwards(chunks: int) -> None:
    """In the middle every forward runs together with a backward; the first ones and the last ones are alone."""
    schedule = make("1f1b-a2a", Plan(4, 8, chunks=chunks))
    validate(schedule)
    for rank, order in enumerate(schedule.ranks):
        ahead = 2 * (4 - rank - 1) + (chunks - 1) * 4 + 1
        ahead = min(ahead, 8 * chunks)
        kinds = [action.kind for action in order]
        assert kinds == ["F"] * ahead + ["OVERLAP_F_B"] * (8 * chunks - ahead) + ["B"] * ahead
    again = pytorch_csv.parse(pytorch_csv.text(schedule), name="1f1b-a2a")
    assert again == schedule
    with pytest.raises(ConfigError, match="1f1b-a2a needs micro-batches in multiples of the 4 ranks"):
        make("1f1b-a2a", Plan(4, 6))


@pytest.mark.parametrize(("ranks", "chunks", "forward"), [(4, 2, 1.0), (8, 2, 1.0), (8, 4, 1.0), (4, 2, 3.0)])
def test_forwards_beside_backwards_idle_as_interleaved_ones(ranks: int, chunks: int, forward: float) -> None:
    """Where a pair takes as long as its passes: (p - 1)(F + B) / v, with one chunk more in flight."""
    costs = StepCosts(forward=forward / chunks, input_grad=1.0 / chunks, weight_grad=1.0 / chunks)
    pairs, alone = (execute(make(name, Plan(ranks, 32, chunks)), costs) for name in ("1f1b-a2a", "interleaved"))
    assert pairs.total_time - 32 * (forward + 2.0) == pytest.approx((ranks - 1) * (forward + 2.0) / chunks)
    held, less = (max(curve.peak for curve in micro_batches_held(run)) for run in (pairs, alone))
    assert held == pytest.approx(less + 1 / chunks)


def test_pairs_take_the_longer_of_computing_and_exchanging() -> None:
    made = template("1f1b-a2a", 1, 3, 1)

    def total(exchange: float) -> float:
        one = np.ones(1)
        none = 0.0 * one
        seconds = StageSeconds(
            one + exchange, one + exchange, one, 0.0, 0.0, none, none, exchange * one, exchange * one
        )
        return made.with_seconds(seconds).total_time

    assert total(0.5) == pytest.approx(1.5 + 2 * 3.0 + 2.5), "a forward, two pairs of three that compute, a backward"
    assert total(2.0) == pytest.approx(3.0 + 2 * 4.0 + 4.0), "exchanging four takes longer than computing three"


GIVEN = {"model": "llama-3-8b", "gpus": 32, "pipeline_parallel": 4, "batch": 128, "sequence": 2048}


@pytest.mark.parametrize(
    ("name", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1)]
)
def test_micro_batches_in_flight_are_those_of_the_run(name: str, chunks: int) -> None:
    config = TrainConfig(**GIVEN, schedule=name, virtual_stages=chunks)
    held = micro_batches_held(template(name, 4, config.num_microbatches, chunks).run)
    assert [in_flight(config, rank) for rank in range(4)] == pytest.approx([curve.peak for curve in held])


@pytest.mark.parametrize(
    ("name", "stages"),
    [("1f1b", [[0], [1], [2], [3]]), ("zb-v", [[0, 7], [1, 6], [2, 5], [3, 4]]), ("dualpipe", [[0, 3], [1, 2]] * 2)],
)
def test_stages_of_ranks(name: str, stages: list[list[int]]) -> None:
    config = TrainConfig(**GIVEN, schedule=name)
    found = [stages_of_rank(config, rank) for rank in range(4)]
    assert [sorted(one) for one in found] == sorted(stages) if name != "dualpipe" else found[0] == found[3] == [0, 3]
    assert memory_of(config).fits


def test_a_step_of_every_schedule_adds_up() -> None:
    seconds = {}
    for name in ("1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "dualpipe", "dualpipe-v", "1f1b-a2a"):
        step = train_step(TrainConfig(**GIVEN, schedule=name), check=False)
        assert sum(step.parts.values()) == pytest.approx(step.step_s)
        assert step.parts.get("bubble", 0.0) > -1e-9
        seconds[name] = step.step_s
    assert seconds["zb-v"] < seconds["zb-h1"] < seconds["1f1b"]
    with pytest.raises(ConfigError, match="virtual_stages has no effect with the schedule zb-v"):
        train_step(TrainConfig(**GIVEN, schedule="zb-v", virtual_stages=2))


@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
def test_what_copies_exchange_shows_as_in_the_closed_form(sharding: str) -> None:
    """Without stages, and where passes lose nothing to it: the first bucket, and what is longer than the pass beside
    it; FSDP gathers twice a micro-batch, and sends gradients beside the second."""
    slow = {"model": "llama-3-8b", "gpus": 64, "batch": 192, "sequence": 512, "framework": "fsdp"}
    config = TrainConfig(**slow, sharding=sharding)
    seconds = replace(_Step(config.check())._seconds(), impact=0.0)
    (sync,), (gather,), pieces = seconds.sync, seconds.gather, seconds.buckets
    forward, backward = float(seconds.forward[0]), float((seconds.input_grad + seconds.weight_grad)[0])
    least = (pieces - 1) / pieces
    if sharding == "optimizer":
        expected = 3 * (forward + backward) + max(gather / pieces, gather - forward * least)
        expected += max(sync / pieces, sync - backward * least)
        assert span(config, seconds)[0] == pytest.approx(expected, rel=1e-6)
    else:
        expected = 3 * (max(forward, gather) + max(backward, gather + sync))
        assert span(config, seconds)[0] == pytest.approx(expected, rel=0.1)


def test_passes_lose_what_copies_take_beside_them() -> None:
    """Two halves of a backward of 8; sending 2 for the first beside the second, which loses half its rate meanwhile."""
    made = template("1f1b", 1, 1, 1, 2)
    one, none = np.ones(1), np.zeros(1)
    seconds = StageSeconds(4 * one, 4 * one, 4 * one, 0.0, 0.0, 4 * one, none, none, none, 2, impact=0.5)
    # The first half of the backward (4); sending 2 slows the second half: 2 done in 2 at half rate is 1, so 3 more; 2.
    assert made.with_seconds(seconds).total_time == pytest.approx(4 + 4 + 2 + 3 + 2)


def test_offloading_shows_where_the_host_is_slower_than_the_layers() -> None:
    given = {"model": "qwen3-4b", "device": "h200", "gpus": 1, "framework": "fsdp", "sequence": 16384, "offload": True}
    hidden = train_step(TrainConfig(**given, recompute="full"), check=False)
    assert "offload" not in hidden.parts, "inputs of layers alone"
    whole = train_step(TrainConfig(**given), check=False)
    plain = train_step(TrainConfig(**given | {"offload": False}), check=False)
    assert whole.step_s == pytest.approx(plain.step_s + whole.parts["offload"])


def test_data_that_is_loaded_slower_than_it_is_trained_on_shows() -> None:
    given = {"model": "llama-3-8b", "gpus": 8, "batch": 8, "sequence": 4096}
    plain = train_step(TrainConfig(**given), check=False)
    tokens = plain.config.tokens_per_step
    fast, slow = (
        train_step(TrainConfig(**given, loading_tokens_s=factor * plain.tokens_per_s), check=False)
        for factor in (1.01, 0.5)
    )
    assert fast.step_s == plain.step_s and "loading" not in fast.parts
    assert slow.step_s == pytest.approx(2 * plain.step_s) and slow.tokens_per_s == pytest.approx(tokens / slow.step_s)


@pytest.mark.parametrize(
    "given",
    [
        {"pipeline_parallel": 4, "schedule": "1f1b"}, {"pipeline_parallel": 4, "virtual_stages": 2},
        {"pipeline_parallel": 4, "schedule": "gpipe"}, {"pipeline_parallel": 1}, {"recompute": "full"},
        {"pipeline_parallel": 4, "schedule": "zb-h1"},
    ],
)  # fmt: skip
def test_memory_over_the_step_peaks_where_the_moments_say(given: dict[str, Any]) -> None:
    """The curve of every rank follows the passes; its highest point is the peak, where stages are alike."""
    config = TrainConfig(**GIVEN | {"batch": 8 * 32} | given)
    step = train_step(config, check=False)
    assert step.run is not None
    curves = memory_over_time(config, step.run)
    assert len(curves) == config.pipeline_parallel
    ran = 1 + max(label.microbatch for label in step.run.labels)
    for rank, curve in enumerate(curves):
        assert (np.diff(curve.times) >= 0.0).all()
        if ran == config.num_microbatches or given.get("schedule") != "gpipe":
            assert curve.total.max() == pytest.approx(step.memory.peaks[rank], rel=1e-6)
        assert curve.parts["activations"][-1] == pytest.approx(0.0, abs=1.0), "all is given back"


@pytest.mark.parametrize("schedule", ["v-half", "zb-v", "dualpipe-v", "zb-2p", "interleaved", "1f1b"])
def test_many_micro_batches_take_what_a_few_say(schedule: str) -> None:
    """v-half came out faster than its busiest rank: it is not under way after four micro-batches on two ranks."""
    config = TrainConfig(
        model="llama-3-70b", gpus=64, tensor_parallel=8, pipeline_parallel=2, micro_batch=2, batch=256, sequence=8192,
        schedule=schedule, virtual_stages=4 if schedule == "interleaved" else 1, recompute="selective",
    )  # fmt: skip
    step = _Step(config.check())
    seconds = step._seconds()
    data = (seconds.buckets, seconds.fully_sharded, seconds.own_links)
    whole = template(schedule, 2, config.num_microbatches, config.virtual_stages, *data).with_seconds(seconds)
    assert span(config, seconds)[0] == pytest.approx(whole.total_time, rel=1e-6)
    assert step.run().parts["bubble"] > 0.0
