"""`gnomon route`: the stages from nothing to a report, on clusters of two replicas; stopping, resuming, mistakes."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gnomon.routing.stages import SCALARS, read_metrics  # noqa: E402
from gnomon.serving.routers.policy_file import load_policy  # noqa: E402

TINY = """
network: {hidden: 8}
domain: {num_replicas: [2, 2], warm_up: [5, 10], session_share: 0, devices: [h100], max_sequences: [32]}
demos: {drivers: [least_outstanding, random], steps_per_driver: 12, num_environments: 4, dagger_rounds: 1, lookahead: 4}
clone: {epochs: 2}
train: {updates: 4, num_environments: 4, trace_group: 2, steps: 8, epochs: 1, minibatch: 16, critic_warmup: 1,
        validate_every: 2, validation_environments: 2, validation_steps: 8, checkpoint_every: 1}
compare: {scenarios: [chat], routers: [round_robin, least_outstanding], num_seeds: 2, num_requests: 60}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("route") / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def whole(cli, config):
    """The folder of a run of all stages."""
    folder = config.parent / "whole"
    result = cli("route", "all", "--config", str(config), "--out", str(folder), "--jobs", "1")
    assert "round_robin" in result.output and "learned *" in result.output and "clone *" in result.output
    return folder


def test_all_stages_leave_their_files(whole):
    for name in ("config.yaml", "demos.npz", "clone.npz", "clone.csv", "policy.npz", "metrics.csv", "metrics.parquet",
                 "checkpoints/latest", "comparison/report.html", "comparison/comparison.csv"):  # fmt: skip
        assert (whole / name).stat().st_size, name
    assert list((whole / "tensorboard").iterdir())
    assert len(list((whole / "checkpoints").glob("*.pt"))) == 3


def test_a_policy_says_how_it_was_made(whole):
    made = load_policy(whole / "policy.npz").made
    assert made["seed"] == 0 and made["config"]["network"]["hidden"] == 8 and "gnomon route" in made["command"]


def test_every_update_has_its_row_and_every_scalar_its_explanation(whole):
    rows = read_metrics(whole / "metrics.csv")
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    for name in SCALARS:
        assert any(row[name] is not None for row in rows), name


def test_tensorboard_has_the_documented_scalars(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(whole / "tensorboard"))
    board.Reload()
    assert set(board.Tags()["scalars"]) == set(SCALARS)
    assert [event.step for event in board.Scalars("reward/mean")] == [1, 2, 3, 4]


def arrays(path):
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files if name != "about"}


def test_a_resumed_run_ends_with_the_same_policy_to_the_bit(cli, config, whole, tmp_path):
    folder = tmp_path / "half"
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "checkpoints" / "update-000002.pt", folder / "checkpoints")
    shutil.copy(whole / "metrics.csv", folder)
    result = cli("route", "train", "--config", str(config), "--out", str(folder))
    assert "update-000002.pt" in result.output
    ours, theirs = arrays(folder / "policy.npz"), arrays(whole / "policy.npz")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    a, b = (torch.load(_payload(f / "checkpoints" / "update-000004.pt"), weights_only=True) for f in (folder, whole))
    for part in ("scorer", "critic", "reference"):
        assert all(torch.equal(a[part][name], b[part][name]) for name in b[part]), part
    assert [row["update"] for row in read_metrics(folder / "metrics.csv")] == [1, 2, 3, 4]


def _payload(path):
    import io

    from gnomon.routing import checkpoint

    return io.BytesIO(path.read_bytes()[len(checkpoint.MARK) + checkpoint.DIGEST_BYTES :])


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(cli, config, whole, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(whole / "checkpoints", folder / "checkpoints")
    newest = folder / "checkpoints" / "update-000004.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    result = cli("route", "train", "--config", str(config), "--out", str(folder), "--resume", "auto")
    assert "checksum does not match" in result.output and "Going on from" in result.output
    assert "update-000003.pt" in result.output.split("Going on from")[1]


def test_resuming_under_another_configuration_is_refused(cli, config, whole, tmp_path):
    words = ["route", "train", "--config", str(config), "--out", str(tmp_path)]
    checkpoint = str(whole / "checkpoints" / "update-000003.pt")
    result = cli(*words, "--resume", checkpoint, "--train.discount", "0.5", code=2)
    assert "train.discount" in result.output
    assert "no such checkpoint" in cli(*words, "--resume", str(tmp_path / "absent.pt"), code=2).output


def test_training_without_a_clone_is_explained(cli, config, tmp_path):
    words = ["--config", str(config), "--out", str(tmp_path)]
    assert "gnomon route clone" in cli("route", "train", *words, code=2).output
    assert "gnomon route demos" in cli("route", "clone", *words, code=2).output


@pytest.mark.parametrize(("answer", "said"), [("y", "Going on from"), ("n", "training"), ("q", "")])
def test_a_terminal_is_asked(config, whole, tmp_path, monkeypatch, answer, said):
    """y goes on, n starts over, q leaves."""
    import click
    from click.testing import CliRunner

    from gnomon.cli import routing
    from gnomon.routing.stages import Folder

    folder = Folder(tmp_path)
    shutil.copytree(whole / "checkpoints", folder.checkpoints)

    @click.command()
    def ask() -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        click.echo(str(routing.checkpoint_to_resume(None, folder, 4)))

    result = CliRunner().invoke(ask, input=f"{answer}\n")
    assert result.exit_code == 0
    assert "Resume?" in result.output
    last = result.output.strip().splitlines()[-1]
    assert {"y": last.endswith("update-000004.pt"), "n": last == "None", "q": "None" not in last}[answer]


FLEET = """
model: llama-3-8b
device: h100
pools: [{replica: {pipeline_parallel: 2}}, {batching: sarathi}, {timing: {scale: 2}}]
workload: {rate: 20, num_requests: 200}
"""


def test_a_router_is_trained_on_fleets_of_ones_own(cli, config, whole, tmp_path):
    """Beside the domain, from a policy file: the folder needs no clone, and the comparison is on that fleet."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    words = ["route", "all", "--config", str(config), "--out", str(tmp_path / "own"), "--jobs", "1"]
    own = ["--scenario", str(fleet), "--domain-share", "0.5"]
    result = cli(*words, *own, "--start", str(whole / "policy.npz"), "--train.updates", "2")
    assert "fleet: llama-3-8b on 3 replicas" in result.output and not (tmp_path / "own" / "clone.npz").exists()
    made = load_policy(tmp_path / "own" / "policy.npz").made["config"]
    assert made["scenarios"] == [str(fleet)] and made["domain_share"] == 0.5


def test_demonstrations_and_clone_of_ones_own_fleet(cli, config, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    words = ["--config", str(config), "--out", str(tmp_path / "own"), "--scenario", str(fleet), "--jobs", "1"]
    cli("route", "demos", *words, "--domain-share", "0.5", "--demos.include-imbalanced", "false")
    with np.load(tmp_path / "own" / "demos.npz") as stored:
        replicas = stored["mask"].sum(1)
    assert set(replicas.tolist()) == {2, 3}, "the domain's clusters have two replicas, the fleet three"
    cli("route", "clone", *words, "--domain-share", "0.5")


def test_training_from_nothing_and_from_what_is_not_there(cli, config, tmp_path):
    words = ["route", "train", "--config", str(config), "--out", str(tmp_path / "new"), "--train.updates", "1"]
    cli(*words, "--start", "nothing")
    assert load_policy(tmp_path / "new" / "policy.npz").made["config"]["start"] == "nothing"
    result = cli(*words, "--resume", "never", "--start", str(tmp_path / "absent.npz"), code=2)
    assert "no such policy file" in result.output


def test_compare_takes_policies_by_name(cli, whole):
    words = ["route", "compare", "chat", "--routers", "least_outstanding", "--num-seeds", "2", "--num-requests", "40"]
    result = cli(*words, "--policy", f"mine={whole / 'policy.npz'}", "--jobs", "1", "--json")
    found = json.loads(result.stdout)
    assert [one["name"] for one in found["contenders"]] == ["mine", "least_outstanding"]
    assert found["goals"][0]["scenario"] == "chat"
    again = cli(*words, "--policy", str(whole / "policy.npz"), "--policy", str(whole / "policy.npz"), code=2)
    assert "two policies" in again.output
    assert "no such policy file" in cli(*words, "--policy", "absent.npz", code=2).output


def test_the_policy_routes_any_simulation(cli, whole):
    policy = ["--router", "learned", "--router.checkpoint", str(whole / "policy.npz")]
    words = ["--num-replicas", "3", "--workload.num-requests", "50", *policy]
    assert "50 of 50" in cli("simulate", *words).output


def test_training_without_a_clone_says_so_before_anything_is_compiled(cli, config, monkeypatch):
    monkeypatch.setattr("gnomon.routing.environment.new_clusters", lambda *_, **__: pytest.fail("made clusters first"))
    said = cli("route", "train", "--config", str(config), "--out", str(config.parent / "empty"), code=2).output
    assert "there is no clone" in said


def test_a_policy_of_another_queue_depth_is_no_start(cli, config, whole, tmp_path):
    words = ["--config", str(config), "--start", str(whole / "policy.npz"), "--out", str(tmp_path)]
    result = cli("route", "train", *words, "--queue-depth", "3", code=2)
    assert "made for queue_depth 8, not 3" in result.output and "--queue-depth 8" in result.output


def test_check_fails_where_a_goal_is_missed_or_open(cli, whole):
    """An untrained policy on two short traces: some goals are missed, none is met for sure."""
    words = ["chat", "--policy", str(whole / "policy.npz"), "--num-seeds", "2", "--num-requests", "60", "--jobs", "1"]
    words += ["--routers", "[least_outstanding]"]
    result = cli("route", "compare", *words, "--check", code=1)
    assert "open" in result.output or "NO" in result.output
    cli("route", "compare", *words)
