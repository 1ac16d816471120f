from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import gnomon
from conftest import CommandLine
from gnomon.api.posttrain import compare_policies
from gnomon.convert.rl_commands import read_rlinf, read_verl, rlinf_yaml, verl_flags
from gnomon.core.config import build
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import placement_of
from gnomon.posttrain.simulator.simulate import policy_of
from gnomon.posttrain.studies.plan import _layouts, _modes

SMALL = str(Path(__file__).parents[2] / "examples" / "posttrain" / "small.yaml")


def test_run_writes_pictures_and_a_recording_that_replays(cli: CommandLine, tmp_path: Path) -> None:
    out = cli("posttrain", "run", SMALL, "--out", str(tmp_path), "--record").output
    assert "elastic on 8 GPUs" in out
    page = (tmp_path / "timeline.html").read_text()
    assert "Plotly.newPlot" in page and "mini-batch" in page and "https://cdn" not in page.split("<script>")[0]
    trace = json.loads((tmp_path / "timeline.perfetto.json").read_text())["traceEvents"]
    assert {event["ph"] for event in trace} == {"X", "M", "C"}
    recording = str(tmp_path / "decisions.jsonl")
    lines = cli("posttrain", "decide", "--policy", "elastic", "--check", recording).output.splitlines()
    assert len(lines) == len(Path(recording).read_text().splitlines())
    cli("posttrain", "decide", "--policy", "disaggregated", "--check", recording, code=1)
    again = cli("posttrain", "run", str(tmp_path / "config.yaml"), "--json")
    assert json.loads(again.output)["policy"] == "elastic"


def test_compare_prints_regret(cli: CommandLine) -> None:
    rows = json.loads(cli("posttrain", "compare", SMALL, "--num-steps", "1", "--json").output)["policies"]
    assert [row["policy"] for row in rows][-1] == "oracle" and rows[-1]["regret"] == 0.0
    assert all(row["regret"] >= 0 for row in rows)


@pytest.mark.slow
def test_a_plan_names_mode_split_and_flags(cli: CommandLine) -> None:
    found = json.loads(cli("posttrain", "plan", SMALL, "--json").output)
    rows = found["plans"]
    assert {row["mode"] for row in rows} == {"colocated", "disaggregated", "one step off", "asynchronous"}
    assert [row["samples/s"] for row in rows] == sorted((row["samples/s"] for row in rows), reverse=True)
    assert max(row["lag"] for row in rows) <= 1 and "staleness_threshold" in found["commands"]["verl"]
    synchronous = json.loads(cli("posttrain", "plan", SMALL, "--max-lag", "0", "--json").output)["plans"]
    assert {row["lag"] for row in synchronous} == {0}


def test_a_plan_splits_where_the_actor_fits() -> None:
    """32B on 64 H100s needs fewer than 32 of them to train, but fits on no fewer: then 32, not colocated alone."""
    cluster, algorithm = {"num_nodes": 8, "gpus_per_node": 8}, {"recompute_logprobs": False, "rollout_batch_size": 16}
    asked = build(Posttrain, {"model": "qwen3-32b", "device": "h100", "cluster": cluster, "algorithm": algorithm})
    actors = {mode: len(placement_of(one).actor) for mode, one in _modes(_layouts(asked)[0], 1)}
    assert actors == {"colocated": 64, "disaggregated": 32, "one step off": 32, "asynchronous": 32}


def test_a_saved_configuration_gives_the_same_run(cli: CommandLine, tmp_path: Path) -> None:
    """With a preset's host time of which one field is changed: what is not given stays the preset's."""
    flags = ("--rollout.preset", "vllm", "--rollout.host.launch-in-graphs", "true", "--num-steps", "1")
    first = json.loads(cli("posttrain", "run", SMALL, *flags, "--out", str(tmp_path), "--json").stdout)
    again = json.loads(cli("posttrain", "run", str(tmp_path / "config.yaml"), "--json").output)
    plain = json.loads(cli("posttrain", "run", SMALL, "--rollout.preset", "vllm", "--num-steps", "1", "--json").output)
    assert first["step_s"] == again["step_s"] > 1.05 * plain["step_s"]


def test_calibrate(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "calibrated.yaml"
    found = cli("posttrain", "calibrate", SMALL, "--actor-s", "30", "--num-steps", "1", "--out", str(file), "--json")
    actor = json.loads(found.output)["components"][-1]
    assert actor["simulated s"] == pytest.approx(30, rel=1e-3)
    assert "efficiency" in file.read_text()


VERL = (
    "python3 -m verl.experimental.fully_async_policy.fully_async_main data.max_response_length=28672 "
    "data.max_prompt_length=2048 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B +actor_rollout_ref.actor.strategy=fsdp2 "
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=30720 "
    "actor_rollout_ref.rollout.n=16 actor_rollout_ref.rollout.tensor_model_parallel_size=4 "
    "actor_rollout_ref.rollout.enforce_eager=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=61440 "
    "algorithm.adv_estimator=grpo trainer.nnodes=2 trainer.n_gpus_per_node=8 rollout.nnodes=2 "
    "rollout.n_gpus_per_node=8 async_training.require_batches=4 async_training.trigger_parameter_sync_step=4 "
    "async_training.staleness_threshold=0.5 async_training.partial_rollout=True trainer.logger=console"
)


def test_a_verl_command_is_a_set_up_and_back(cli: CommandLine, tmp_path: Path) -> None:
    """512 prompts in 16 mini-batches of 32, taken four at a time; tokens of a micro-batch over four GPUs."""
    config, without = read_verl(VERL)
    a = config.algorithm
    assert (a.rollout_batch_size, a.n_minibatches, a.fetch_minibatches, a.group_size) == (512, 16, 4, 16)
    assert (a.mode, a.staleness, a.interrupt, a.critic, a.actor_passes) == ("async", 0.5, True, False, 0)
    assert (config.actor.framework, config.actor.context_parallel, config.actor.max_tokens) == ("fsdp", 4, 122_880)
    assert config.actor.pass_tokens == 245_760 and config.rollout.host.launch_in_graphs
    assert config.cluster.component_placement.rollout == "16-31" and config.cluster.num_gpus == 32
    assert a.in_flight == 64  # 16 for each of four engines.
    assert list(without) == ["trainer.logger"] and config.lengths.mean == 7168
    flags = verl_flags(config)
    assert read_verl(" ".join(flags))[0].model_dump(exclude={"lengths"}) == config.model_dump(exclude={"lengths"})
    small = build(Posttrain, yaml.safe_load(Path(SMALL).read_text()))
    assert verl_flags(small)[0] == "actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B", "a name that verl finds"
    file = tmp_path / "verl.yaml"
    actor = {"ppo_mini_batch_size": 16, "use_kl_loss": True}
    parts = {"model": {"path": "qwen2.5-1.5b"}, "rollout": {"n": 8}, "actor": actor}
    given = {"data": {"train_batch_size": 64}, "actor_rollout_ref": parts, "trainer": {"experiment_name": "${x}"}}
    file.write_text(yaml.safe_dump(given))
    made = cli("convert", "verl", str(file)).output
    shared = build(Posttrain, yaml.safe_load(made))
    assert placement_of(shared).is_shared and shared.algorithm.critic and shared.algorithm.actor_passes == 2
    assert "Without a counterpart" not in made and shared.rollout.memory_utilization == 0.5
    for wrong in ("trainer.nnodes=2", "ls", "actor_rollout_ref.model.path=qwen2.5-7b data.train_batch_size=100"):
        assert "Traceback" not in cli("convert", "verl", wrong, code=2).output


def test_a_set_up_in_rlinf_s_sections() -> None:
    data = yaml.safe_load(rlinf_yaml(build(Posttrain, yaml.safe_load(Path(SMALL).read_text()))))
    assert data["cluster"]["component_placement"] == {"actor": "0-1", "rollout": "2-6", "inference": "7-7"}
    assert data["data"]["rollout_batch_size"] == 64 and data["algorithm"]["group_size"] == 8


def test_verify_says_what_is_a_gate(cli: CommandLine) -> None:
    rows = json.loads(cli("verify", "posttrain", "--only", "R", "--json").output)["checks"]
    assert [row["role"] for row in rows[:1]] == ["gate"] and rows[0]["ok"]
    cli("verify", "posttrain", "--only", "X", code=2)


@pytest.mark.slow
def test_published_stage_seconds_at_unseen_scales(cli: CommandLine) -> None:
    rows = json.loads(cli("verify", "posttrain", "--only", "B", "--json").output)["checks"]
    gates = [row for row in rows if row["source"] == "B" and row["role"] == "gate"]
    assert len(gates) == 6 and all(abs(row["error"]) <= 0.10 for row in gates)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "nowhere.yaml"),
        ("run", SMALL, "--algorithm.n-minibatches", "5"),
        ("run", SMALL, "--policy", "elastc"),
        ("plan", SMALL, "--max-lag", "-1"),
        ("run", SMALL, "--algorithm.mode", "sync", "--algorithm.staleness", "0.5"),
        ("calibrate", SMALL),
        ("decide", "--policy", "elastic", "--option", "gamma"),
        ("run", SMALL, "--record"),
        ("plan", SMALL, "--top", "0"),
    ],
)
def test_mistakes_are_one_paragraph(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    output = cli("posttrain", *arguments, code=2).output
    assert output.startswith("gnomon: ") and "Traceback" not in output
    for flag in {"--record", "--top"} & {*arguments}:
        assert output.startswith(f"gnomon: {flag}: ")


def test_the_same_in_python(tmp_path: Path) -> None:
    run = gnomon.posttrain(SMALL, num_steps=1)
    assert run.summary["step_s"] == pytest.approx(run.frames["steps"]["seconds"][0])
    assert "elastic on 8 GPUs" in run._repr_html_()
    assert run.figures["allocation"].layout.xaxis.range[1] == pytest.approx(run.record.duration_s)
    assert gnomon.posttrain(run.save(tmp_path) / "config.yaml").summary == run.summary
    compared = compare_policies(SMALL, policies=["elastic", "disaggregated"], with_oracle=False, num_steps=1)
    assert compared.summary[0]["step s"] == pytest.approx(run.summary["step_s"])
    assert compared.summary[1]["ratio"] == 1.0


def test_elastic_wins_in_the_small_example_and_equal_digits_are_explained() -> None:
    names = ["colocated", "disaggregated", "elastic", "payback"]
    compared = compare_policies(SMALL, policies=names, with_oracle=False)
    steps = {row["policy"]: row["step s"] for row in compared.summary}
    assert min(steps, key=lambda name: steps[name]) == "elastic" and steps["elastic"] < 0.9 * steps["disaggregated"]
    assert steps["payback"] == steps["disaggregated"]
    assert compared.to_dict()["notes"] == ["payback moved no GPU here, which gives the digits of disaggregated."]


def test_causes_have_one_name_everywhere(tmp_path: Path) -> None:
    """The record, the terminal, the page and the documentation."""
    from gnomon.posttrain.simulator.record import CAUSES
    from gnomon.report.posttrain import figures as timeline
    from gnomon.report.posttrain import text

    assert tuple(timeline.CAUSES) == CAUSES == tuple(name for name, _ in timeline.CAUSES.values())
    assert text.SHARES[1:] == CAUSES and tuple(text._IDLE) == CAUSES[1:]
    told = (Path(__file__).parents[2] / "docs" / "posttrain.md").read_text(encoding="utf-8")
    assert all(f"**{cause}**" in told for cause in CAUSES[1:])


@pytest.mark.slow
def test_the_documented_decisions_are_those_that_are_made(cli, tmp_path: Path) -> None:
    """docs/posttrain.md explains every answer of the example; moments and answers are the recorded ones."""
    root = Path(__file__).parents[2]
    cli("posttrain", "run", str(root / "examples/posttrain/elastic.yaml"), "--out", str(tmp_path / "run"), "--record")
    lines = (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()
    made = [one for one in map(json.loads, lines) if one["actions"]]
    section = (root / "docs/posttrain.md").read_text().split("## A step, decision by decision")[1].split("\n## ")[0]
    told = [row.split("|")[1:6] for row in section.splitlines() if row.startswith("| ") and " s |" in row]
    assert f"Of {len(lines)} lines {['no', 'one', 'two', 'three', 'four', 'five'][len(made)]} have an answer" in section
    for row, one in zip(told, made, strict=True):
        snapshot = one["snapshot"]
        assert row[0].strip() == f"{snapshot['time_s']:.1f} s" and f"`{snapshot['point']}`" in row[1]
        assert all(f"`{action['kind']}`" in row[3] for action in one["actions"])
        if snapshot["sequences_unfinished"]:
            assert f"{snapshot['sequences_unfinished']:,}" in row[2] and str(snapshot["groups_ready"]) in row[2]


def test_rlinf_s_own_yaml_is_a_set_up_and_back(cli: CommandLine, tmp_path: Path) -> None:
    """Components side by side with a scheduler; all on the same GPUs, where the actor computes log-probabilities."""
    degrees = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 1}
    given: dict[str, Any] = {
        "cluster": {"num_nodes": 8, "auto_scheduler": True, "use_pre_process_policy": True, "monitor_interval": 2},
        "runner": {"seq_length": 28_672, "logger": {"log_path": "${runner.output_dir}"}},
        "algorithm": {"group_size": 16, "n_minibatches": 4, "recompute_logprobs": True, "adv_type": "grpo"},
        "rollout": {"model_dir": "/models/Qwen2.5-7B/", "rollout_backend": "sglang", "tensor_parallel_size": 2},
        "data": {"max_prompt_length": 1024, "rollout_batch_size": 512},
        "actor": {"training_backend": "megatron", "model": degrees, "offload_optimizer": True},
        "inference": {"model": degrees},
    }
    given["cluster"]["component_placement"] = {
        "actor": "0-15",
        "rollout": "16-55",
        "inference": "56-63",
        "reward": "all",
    }
    file = tmp_path / "rlinf.yaml"
    file.write_text(yaml.safe_dump(given))
    config, without = read_rlinf(str(file))
    assert list(without) == ["algorithm.adv_type"] and config.model == "Qwen2.5-7B"
    assert (config.lengths.max_response, config.lengths.mean) == (27_648, 6912)
    assert (config.rollout.preset, config.actor.tensor_parallel, config.actor.offload) == ("sglang", 4, True)
    assert config.transitions.check_interval_s == 2 and policy_of(config, placement_of(config)).name == "elastic"
    again = tmp_path / "again.yaml"
    again.write_text(rlinf_yaml(config))
    assert placement_of(read_rlinf(str(again))[0]) == placement_of(config) and rlinf_yaml(config) == again.read_text()
    assert rlinf_yaml(read_rlinf(str(again))[0]) == again.read_text()
    given["cluster"] = {"num_nodes": 2, "component_placement": {"actor,rollout,reward": "all"}}
    file.write_text(yaml.safe_dump(given))
    shared = build(Posttrain, yaml.safe_load(cli("convert", "rlinf", str(file), "--gpu", "h200").output))
    assert placement_of(shared).is_shared and shared.algorithm.actor_passes == 1 and shared.device == "h200"
    for wrong in ("cluster.num_nodes=2", "nothing"):
        assert "Traceback" not in cli("convert", "rlinf", wrong, code=2).output
