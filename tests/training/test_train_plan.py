"""Plans of training jobs: what is searched, what wins, what trainers are told."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml

from gnomon.api.train import train_plan
from gnomon.convert.training_commands import megatron_command, read_megatron, torchtitan_command
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.parallel import shared_workers
from gnomon.report.training import _each_once
from gnomon.training.config import TrainConfig
from gnomon.training.plan import bounded, candidates, fastest, job, plan
from gnomon.training.step import least_s, train_step
from gnomon.verify.training import read_rows

ASKED = TrainConfig(model="llama-3-8b", device="h100", gpus=8, batch=16, sequence=8192, context_parallel=1)


@pytest.fixture(scope="module")
def found():
    return plan(ASKED, jobs=1, shown=5)


def test_what_is_given_is_kept():
    given = TrainConfig(model="llama-3-8b", gpus=8, batch=16, sequence=4096, tensor_parallel=2, recompute="full")
    layouts = list(candidates(given))
    assert layouts and all(one.tensor_parallel == 2 for one in layouts)
    assert {one.pipeline_parallel for one in layouts} == {1, 2, 4}  # 2 x p x context divides 8.
    assert {one.context_parallel for one in layouts} == {1, 2, 4}  # 1,024 tokens on each at least.
    assert {one.sharding for one in layouts if one.pipeline_parallel > 1} == {"optimizer"}
    assert bounded(layouts[0]).config.recompute == "full"


def test_every_candidate_divides_the_job():
    for one in candidates(ASKED):
        assert one.check().num_microbatches * one.data_parallel * one.micro_batch == 16


def test_without_a_batch_all_layouts_train_on_the_same():
    """Not each on what its own copies would take: a layout of few copies has a short step because it does little."""
    asked = TrainConfig(model="llama-3-8b", gpus=8, sequence=4096)
    assert {one.batch_size for one in candidates(asked)} == {asked.batch_size} == {8}


def test_the_winner_is_the_fastest_of_all_that_fit(found):
    fitting = [one for one in map(bounded, candidates(ASKED)) if one is not None]
    steps = [train_step(one.config, check=False) for one in fitting]
    assert found.num_fitting == len(fitting)
    assert found.winner.fits and found.winner.step_s == min(step.step_s for step in steps)
    with shared_workers(jobs=1) as workers:
        assert fastest(ASKED, workers).step_s == found.winner.step_s


def test_no_step_is_below_its_bound():
    for one in list(candidates(ASKED))[::7]:
        assert least_s(one) <= train_step(one, check=False).step_s * (1 + 1e-9)


def test_the_front_trades_memory_for_time(found):
    front = found.front
    for faster, smaller in pairwise(front):
        assert faster.step_s <= smaller.step_s
        assert faster.memory.reserved_bytes > smaller.memory.reserved_bytes


def test_nothing_fits():
    with pytest.raises(DoesNotFitError, match=r"none of .* layouts of llama-3.1-405b fits into 8 x h100"):
        plan(TrainConfig(model="llama-3.1-405b", gpus=8, batch=8, sequence=8192), jobs=1)
    with pytest.raises(DoesNotFitError, match="no layout divides"):
        plan(TrainConfig(model="llama-3-8b", gpus=7, batch=16, tensor_parallel=2), jobs=1)


def test_days_and_dollars(found):
    step = found.winner
    whole = job(step, tokens=step.config.tokens_per_step * 86400 / step.step_s)
    assert whole.days == pytest.approx(1.0) and whole.p50_s == whole.p99_s == step.step_s
    # The slowest of 8 normal draws: its median is 1.38 deviations above the mean, P99 3.02.
    vary = job(step, 1e9, jitter=0.1)
    assert vary.p50_s / step.step_s == pytest.approx(1.138, abs=1e-3)
    assert vary.p99_s / step.step_s == pytest.approx(1.302, abs=1e-3)


LAYOUT = TrainConfig(
    model="llama-3.1-405b", device="h100", gpus=1024, batch=512, sequence=8192, tensor_parallel=8,
    pipeline_parallel=8, virtual_stages=8, context_parallel=2, precision="fp8", recompute="full", recompute_layers=1,
)  # fmt: skip


def test_flags_of_megatron_and_back():
    text = megatron_command(LAYOUT)
    for flag in ("--tensor-model-parallel-size 8", "--num-virtual-stages-per-pipeline-rank 8", "--cp-comm-type p2p",
                 "--use-distributed-optimizer", "--account-for-loss-in-pipeline-split", "--fp8-format hybrid",
                 "--recompute-method block --recompute-num-layers 1", "--sequence-parallel --tp-comm-overlap",
    ):  # fmt: skip
        assert flag in text
    back, without = read_megatron(text, model="llama-3.1-405b", gpus=1024)
    kept = back.model_copy(update={"cuda_graphs": True})
    assert {n: getattr(kept, n) for n in TrainConfig.model_fields} == {
        n: getattr(LAYOUT, n) for n in TrainConfig.model_fields
    }
    assert "bf16" in without


def test_uneven_stages_are_spelled_out_for_megatron():
    """61 layers, embedding and loss in 2 x 8 stages: one stage has three slots, the others four."""
    uneven = TrainConfig(model="deepseek-v3", gpus=64, batch=64, pipeline_parallel=2, virtual_stages=8)
    text = megatron_command(uneven)
    layout = text.partition('layout "')[2].partition('"')[0]
    stages = layout.split("|")
    assert len(stages) == 16 and layout.count("t") == 61 and layout.startswith("E") and layout.endswith("L")
    assert sorted(map(len, stages)) == [3, *[4] * 15] and "account-for" not in text
    assert read_megatron(text, model="deepseek-v3", gpus=64)[0].virtual_stages == 8
    asked = TrainConfig(model="deepseek-v3", gpus=64, batch=64, pipeline_parallel=2)
    assert {1, 2, 4, 8, 16} <= {one.virtual_stages for one in candidates(asked)}


def test_flags_of_torchtitan():
    one = TrainConfig(model="llama-3-8b", gpus=16, batch=64, sequence=4096, tensor_parallel=2, sharding="parameters")
    assert torchtitan_command(one) == (
        "--parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 8 "
        "--training.local_batch_size 1 --training.global_batch_size 64 --training.seq_len 4096 "
        "--activation_checkpoint.mode none"
    )


def test_a_megatron_command_spells_out_its_model(cli):
    command = (
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 128 --seq-length 8192 --swiglu"
    )
    made = yaml.safe_load(cli("convert", "megatron", command, "--gpus", "8").output)
    assert (made["model"], made["tensor_parallel"], made["batch"]) == ("llama-3-8b", 2, 128)
    assert made["sharding"] == "none" and made["sequence_parallel"] is False
    assert "how many GPUs" in cli("convert", "megatron", command, code=2).output
    with pytest.raises(ConfigError, match="no built-in model has"):
        read_megatron("x --num-layers 3 --hidden-size 5", gpus=1)


def test_command(cli, tmp_path):
    out = tmp_path / "plan"
    printed = cli(
        "train", "plan", "--model", "llama-3-8b", "--gpus", "8", "--batch", "16", "--sequence", "8192", "--tp", "2",
        "--tokens", "1e9", "--jobs", "1", "--out", str(out),
    ).output  # fmt: skip
    assert "Megatron-LM: --tensor-model-parallel-size 2" in printed and "tokens take" in printed
    assert {path.name for path in out.iterdir()} == {"best.yaml", "plan.json", "report.html"}


def test_layouts_with_the_same_work_are_one_row():
    same = {"TP": 2, "DP": 8, "step s": "3.174"}
    rows = [
        {"#": 1, "CP": 1, "micro-batch": 2, **same},
        {"#": 2, "CP": 2, "micro-batch": 4, **same | {"DP": 4}},
        {"#": 3, "CP": 1, "micro-batch": 2, **same | {"TP": 4}},
    ]
    first, other = _each_once(rows)
    assert (first["#"], first["CP"], first["the same"]) == (1, 1, "CP 2 x 4")
    assert (other["#"], other["the same"]) == (3, "")
    assert _each_once(rows[::2]) == rows[::2], "where all differ, nothing is said of it"


def test_the_best_layout_is_shown_under_other_schedules(found):
    assert (found.schedules == []) is (found.winner.config.pipeline_parallel == 1)
    staged = plan(ASKED.model_copy(update={"pipeline_parallel": 4, "batch": 64}), jobs=1, shown=1)
    names = [step.config.schedule for step in staged.schedules]
    assert {"1f1b", "zb-v", "zb-h1", "gpipe"} <= set(names) and "1f1b-a2a" not in names, "there are no experts"
    assert [step.step_s for step in staged.schedules] == sorted(step.step_s for step in staged.schedules)


@pytest.mark.slow
def test_no_published_layout_is_faster_than_the_plan_s(reference):
    """Of every question of at most 8 GPUs in the reference; `python -m benchmarks.plan_check` asks all."""
    winners = {}
    for row in read_rows(reference / "training"):
        if int(row.config["gpus"]) > 8 or row.source != "bridge":
            continue
        try:
            published = train_step(TrainConfig(**row.config))
        except (ConfigError, DoesNotFitError):
            continue
        asked = ("model", "device", "gpus", "batch", "sequence", "precision", "gradients", "lora_rank", "release")
        question = TrainConfig(**{name: row.config[name] for name in asked})
        if question not in winners:
            with shared_workers(jobs=1) as workers:
                winners[question] = fastest(question, workers).step_s
        assert winners[question] <= 1.000001 * published.step_s, row.name
    assert len(winners) > 5


@pytest.mark.parametrize("tokens", [-5.0, 0.0, float("nan"), float("inf")])
def test_a_run_has_tokens(tokens: float) -> None:
    """-5 tokens took -0.0 days."""
    with pytest.raises(ConfigError, match=r"--tokens: a run of .* tokens is none"):
        train_plan(ASKED, tokens=tokens)
