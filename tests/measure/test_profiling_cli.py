"""`gnomon profile` without a GPU, collectives over gloo, host overhead, and the shipped H200 data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gnomon import catalog  # noqa: E402
from gnomon.calibration.replay import STATISTICS, Latencies  # noqa: E402
from gnomon.cli.measure.profile import measured_by_many  # noqa: E402
from gnomon.core.errors import DataError  # noqa: E402
from gnomon.core.parallel import Outcome  # noqa: E402
from gnomon.measure.profiling import __main__ as profiler  # noqa: E402
from gnomon.measure.profiling import bundle, collectives, overhead, quality  # noqa: E402
from gnomon.measure.profiling.shapes import Shapes  # noqa: E402
from gnomon.timing import TimingConfig, iteration_tables  # noqa: E402
from gnomon.timing.host import COLUMNS  # noqa: E402
from gnomon.timing.sources import shipped_profile  # noqa: E402
from gnomon.verify import h200  # noqa: E402
from gnomon.verify.findings import latency_errors  # noqa: E402


def test_shapes_are_shared_between_models_and_degrees(cli, tmp_path: Path) -> None:
    cli("profile", "shapes", "--models", "llama-3-8b,qwen3-8b", "--out", str(tmp_path / "both.json"))
    cli("profile", "shapes", "--models", "llama-3-8b", "--out", str(tmp_path / "one.json"))
    both, one = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("both", "one"))
    assert [28672, 4096] in one["gemm"]
    assert [32, 8, 128] in one["attention"]
    assert both["attention"] == one["attention"]  # The same heads: measured once.
    assert ["qk_norm", 5120] in both["elementwise"]
    assert len(one["head"]) == 4


def test_without_a_gpu_profiling_is_a_users_error(cli, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = cli("profile", "all", "--device", "h200", "--out", str(tmp_path / "out"), code=2)
    assert "GPU" in result.output
    cli("profile", "compute", "--device", "h2000", "--out", str(tmp_path / "out"), code=2)
    cli("profile", "shapes", "--tensor-parallel", "one", code=2)


def test_collectives_over_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(collectives.__file__).parents[2])]))
    measured = collectives.measure_on_node(["all_reduce", "all_gather", "send_recv"], [1, 2], [1024, 65536], "gloo")
    assert {key[0] for key in measured} == {"all_reduce", "all_gather", "send_recv"}
    assert {key[1] for key in measured} == {2}
    assert all(seconds > 0 for seconds, _ in measured.values())
    bundle.write(tmp_path, {"collective": measured}, {"device": "h200"})
    assert bundle.read_rows(tmp_path)["collective"].keys() == measured.keys()


@pytest.mark.slow
def test_collectives_under_torchrun(tmp_path: Path) -> None:
    """Two ranks that torchrun starts, as on several nodes: real processes, gloo on loopback."""
    here = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", *here]
    command += ["-m", "gnomon.measure.profiling", "collectives", "--backend", "gloo", "--max-bytes", "4096"]
    command += ["--collective", "all_reduce", "--collective", "send_recv", "--device-name", "h200"]
    paths = {"PYTHONPATH": str(Path(collectives.__file__).parents[2]), "GLOO_SOCKET_IFNAME": "lo"}
    environment = {**os.environ, **paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    measured = bundle.read_rows(tmp_path)["collective"]
    assert {key[:3] for key in measured} == {("all_reduce", 2, 2), ("send_recv", 2, 2)}
    assert sorted({key[3] for key in measured}) == [1024, 2048, 4096]
    assert all(seconds > 0 for seconds, _ in measured.values())


@pytest.mark.slow
def test_collectives_on_a_ray_cluster(tmp_path: Path) -> None:
    """Two ranks as tasks of Ray on this machine, gloo between them."""
    pytest.importorskip("ray")
    words = ["collectives", "--ray", "local", "--backend", "gloo", "--workers", "2", "--max-bytes", "2048"]
    words += ["--collective", "all_reduce", "--device-name", "h200", "--out", str(tmp_path)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    command = [sys.executable, "-m", "gnomon.measure.profiling", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    measured = bundle.read_rows(tmp_path)["collective"]
    assert {key[:3] for key in measured} == {("all_reduce", 2, 2)}
    assert all(seconds > 0 for seconds, _ in measured.values())


def test_several_nodes_without_ray_get_the_commands(tmp_path: Path, cli) -> None:
    words = ["profile", "collectives", "--nodes", "2", "--num-gpus", "8", "--device", "h200", "--out", str(tmp_path)]
    assert "--dry-run" in cli(*words, code=2).output
    lines = cli(*words, "--dry-run", "--collective", "all_reduce", "--backend", "nccl").output.splitlines()
    assert len(lines) == 2 and "--nnodes 2 --nproc-per-node 8 --node-rank 1" in lines[1]
    # What is printed is what the ranks understand.
    rest = lines[0].split(" -m gnomon.measure.profiling ")[1].split()
    options = profiler._parser().parse_args(rest)
    assert (options.collective, options.backend, options.out) == (["all_reduce"], "nccl", tmp_path)
    assert "whole numbers" in cli(*words[:4], "--num-gpus", "x", *words[6:], "--dry-run", code=2).output


def test_shapes_are_dealt_out_to_gpus() -> None:
    whole = Shapes(gemm=[(1, 2), (3, 4), (5, 6)], attention=[(8, 8, 128)], models=["m"])
    first, second = whole.split(2)
    assert (first.gemm, second.gemm) == ([(1, 2), (5, 6)], [(3, 4)])
    assert (first.attention, second.attention, second.models) == ([(8, 8, 128)], [], ["m"])
    assert len(whole.split(8)) == 3, "no GPU without work"
    assert len(Shapes().split(2)) == 1


def test_parts_of_several_gpus_become_one_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU measures its part into a journal of its own; nothing is left of these when all are there."""

    def session_on(gpu: int, what: str, shapes: Shapes, out: Path, limits: object) -> SimpleNamespace:
        journal = bundle.Journal(out)
        for n, k in shapes.gemm:
            journal.add("gemm", ("bf16", 16, n, k), 1e-6 * (gpu + 1), 0.0)
        return SimpleNamespace(journal=journal, held_out=[("gemm", ("bf16", 16, 1, 1), 0.01)])

    monkeypatch.setattr(profiler, "session_on", session_on)
    monkeypatch.setattr(profiler, "check_gpu", lambda gpu: None)

    def in_turn(function, items, **_):
        return [Outcome(i, function(item)) for i, item in enumerate(items)]

    monkeypatch.setattr("gnomon.core.parallel.map_ordered", in_turn)
    out = tmp_path / "out"
    parts = Shapes(gemm=[(8, 16), (32, 64), (8, 64)]).split(2)
    verdict = measured_by_many("compute", parts, out, "h200", None)
    rows = bundle.read_rows(out)["gemm"]
    assert rows == {
        ("bf16", 16, 8, 16): (1e-6, 0.0), ("bf16", 16, 32, 64): (2e-6, 0.0), ("bf16", 16, 8, 64): (1e-6, 0.0),
    }  # fmt: skip
    assert json.loads((out / "manifest.json").read_text())["num_gpus"] == 2
    assert not list(out.glob("gpu-*")) and verdict["held_out"]["points"] == 2


def test_a_gpu_that_is_not_there_is_named(tmp_path: Path, cli) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = cli("profile", "compute", "--num-gpus", "2", "--device", "h200", "--out", str(tmp_path / "o"), code=2)
    assert "no CUDA device 1: profiling needs a GPU" in result.output, "the second is missed before any is asked"


OVERHEADS = """model_name,batch_size,tensor_parallel_degree,schedule_median,sampler_e2e_median,\
prepare_inputs_e2e_median,process_model_outputs_median,model_execution_e2e_median,ray_comm_time_mean
m,1,1,0.1,9,0.2,0.1,20,0.1
m,101,1,0.2,9,0.3,0.2,20,0.3
m,1,2,0.1,9,0.2,0.1,20,1.1
m,101,2,0.2,9,0.3,0.2,20,1.3
""".replace("\\\n", "")


def test_vidurs_cpu_overheads(tmp_path: Path, cli) -> None:
    """0.5 ms at one sequence and 1.0 ms at 101: 5 us each; tensor parallelism 2 adds a millisecond."""
    path = tmp_path / "cpu_overheads.csv"
    path.write_text(OVERHEADS)
    rows = json.loads(cli("profile", "overhead", str(path), "--json").output)
    assert [row["tensor_parallel"] for row in rows] == [1, 2]
    assert [row["per_sequence_s"] for row in rows] == pytest.approx([5e-6, 5e-6])
    assert [row["per_iteration_s"] for row in rows] == pytest.approx([0.495e-3, 1.495e-3])
    assert "several degrees" in cli("profile", "overhead", str(path), "--out", str(tmp_path), code=2).output
    path.write_text("model_name,batch_size\nm,1\n")
    assert "schedule_median" in cli("profile", "overhead", str(path), code=2).output


def test_the_steps_for_a_bare_machine(tmp_path: Path) -> None:
    """As docs/profiling.md says: copy one folder, and the profiler runs with nothing else of Gnomon."""
    text = (Path(__file__).parents[2] / "docs" / "profiling.md").read_text()
    assert "copy the folder `gnomon/measure`" in text
    shutil.copytree(Path(profiler.__file__).parents[1], tmp_path / "gnomon" / "measure")
    command = next(line for line in text.splitlines() if line.startswith("python -m gnomon.measure.profiling all"))
    words = command.split("#")[0].replace("python", "", 1).split()
    (tmp_path / "shapes.json").write_text(json.dumps({"gemm": [[8, 16]]}))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "profiling needs a GPU" in done.stderr, done.stderr


def test_host_time_is_a_constant_and_a_part_per_sequence(tmp_path: Path) -> None:
    sequences = np.arange(1.0, 101.0)
    seconds = 200e-6 + 3e-6 * sequences
    fit = overhead.fit([(sequences, seconds), (sequences[:50], seconds[:50])])
    assert fit.per_iteration_s == pytest.approx(200e-6)
    assert fit.per_sequence_s == pytest.approx(3e-6)
    bundle.write(tmp_path, {"gemm": {("bf16", 1, 8, 8): (1e-6, 0.0)}}, {"device": "h200", "node": None})
    overhead.add_to(tmp_path, fit)
    assert bundle.read_rows(tmp_path)["host"]["iteration", 64][0] == pytest.approx(392e-6, rel=1e-3)
    assert json.loads((tmp_path / "manifest.json").read_text())["device"] == "h200"


def _filled_up(*values: float) -> list[float]:
    """The entries of a phase's host time that differ from 0, which are the first ones."""
    return [*values, *[0.0] * (COLUMNS - len(values))]


def test_host_rows_of_a_bundle_are_used(tmp_path: Path) -> None:
    """They were written and never read."""
    rows = {
        name: dict(values) for name, values in bundle.read_rows(shipped_profile(catalog.device("h200"), "bf16")).items()
    }
    rows["host"] = {
        ("iteration", 1): (300e-6, 0.0), ("iteration", 101): (500e-6, 0.0), ("prefill_launch", 1): (0.02, 0.0),
    }  # fmt: skip
    bundle.write(tmp_path, rows, {"device": "h200"})

    def host(**given: object) -> np.ndarray:
        config = TimingConfig.model_validate({"source": "profile", "path": str(tmp_path), **given})
        sizes = {"max_tokens": 512, "max_sequences": 8, "max_kv_tokens": 1024}
        return iteration_tables(
            catalog.model("llama-3-8b"), catalog.device("h200"), catalog.Parallelism(), config=config, **sizes
        ).tables.host_s

    assert host()[0, 1] == pytest.approx(_filled_up(298e-6, 2e-6))
    assert host()[0, 0] == pytest.approx(_filled_up(298e-6, 2e-6, 0, 0, 0, 0, 0.02))
    assert host(host={"per_iteration_s": 1e-3})[0, 0] == pytest.approx(_filled_up(1e-3)), "the scenario wins"
    rows["host"] = {("schedule", 1): (100e-6, 0.0), ("sample", 1): (50e-6, 0.0)}
    bundle.write(tmp_path, rows, {"device": "h200"})
    assert host()[0, 1, 0] == pytest.approx(150e-6), "the parts together"
    rows["host"] = {("coffee", 1): (1.0, 0.0)}
    bundle.write(tmp_path, rows, {"device": "h200"})
    with pytest.raises(DataError, match="coffee"):
        host()


def test_the_shipped_runs_give_a_host_time(cli) -> None:
    calibration = h200.RUNS / h200.CALIBRATION
    fit = overhead.fit([overhead.read(calibration)])
    assert 20e-6 < fit.per_iteration_s < 300e-6
    cli("profile", "overhead", str(calibration))


def test_the_shipped_profile_is_whole_and_clean(cli) -> None:
    manifest = json.loads((h200.PROFILE / "manifest.json").read_text())
    assert manifest["content_hash"] == bundle.content_hash(manifest["files"])
    assert {"llama-2-7b", "llama-3-70b", "qwen3-30b-a3b"} <= set(manifest["models"])
    rows = bundle.read_rows(h200.PROFILE)
    for one in quality.assess(rows):
        assert one.spread_median < 0.01
        assert one.noisy <= 0.001 * one.rows + 1
    held_out = json.loads((h200.PROFILE / "quality.json").read_text())["held_out"]
    assert held_out["median"] < 0.03
    assert held_out["mean"] < 0.05
    cli("profile", "quality", str(h200.PROFILE))


def test_one_run_of_the_engine_is_predicted() -> None:
    host = h200.calibrate(h200.Recording(h200.RUNS / h200.CALIBRATION))
    assert 100e-6 < host.per_iteration_s < 400e-6
    [repeats] = [run for run in h200.runs_in() if run[0].name == "llama-3-8b-write-30"]
    assert len(repeats) == 2
    found = h200.compare(repeats, host)
    assert found.num_requests == sum(len(one.stamps.requests) for one in repeats)
    assert len(found.errors) == 12
    assert not [error for error in found.errors if error.is_beyond]


def test_means_and_p99_are_judged() -> None:
    def is_beyond(simulated: float, statistic: str = "p99", metric: str = "tpot") -> bool:
        real, ours = (Latencies(*(np.full(3, value) for _ in range(3))) for value in (1.0, simulated))
        found = latency_errors([real], [[ours]], STATISTICS, h200.TOLERANCES, h200.GATED)
        return next(one.is_beyond for one in found if (one.metric, one.statistic) == (metric, statistic))

    assert not is_beyond(1.029)
    assert is_beyond(1.031)
    assert is_beyond(0.969, "mean")
    assert not is_beyond(1.05, "p50")  # Printed, not judged.
    assert not is_beyond(1.049, metric="ttft")


def test_a_capped_clock_slows_what_computes() -> None:
    capped = h200.Recording(h200.RUNS / "llama-3-8b-chat-90")
    clock = capped.clock(h200.PROFILE)
    assert 0.8 < clock < 0.95
    slow, full = (
        iteration_tables(
            catalog.model("llama-3-8b"),
            catalog.device("h200"),
            catalog.Parallelism(),
            config=TimingConfig(clock=given),
            max_tokens=2048,
            max_sequences=64,
            max_kv_tokens=4096,
        ).tables
        for given in (clock, 1.0)
    )
    ratio = slow.token_s[0, 1:] / full.token_s[0, 1:]
    assert ratio[0] == pytest.approx(1.0)
    assert 1.0 < ratio[63] < 1.02
    assert 0.8 < (ratio[-1] - 1.0) / (1.0 / clock - 1.0) < 1.0
    assert (slow.decode_s == full.decode_s).all()
    assert np.allclose(slow.prefill_s, full.prefill_s / clock)


@pytest.mark.slow
def test_all_runs_of_the_engine_are_predicted(cli, tmp_path: Path) -> None:
    cli("verify", "h200", "--svg", str(tmp_path / "cdf.svg"))
    assert (tmp_path / "cdf.svg").read_text().count('id="axes_') == 3 * len(h200.runs_in())
    cli("verify", "h200", "--only", "llama-3-8b-chat-90", "--full-clock", code=1)


def test_verifying_no_run_is_a_mistake(cli):
    assert "no run is called like 'nothing'" in cli("verify", "h200", "--only", "nothing", code=2).output


def test_foreign_measurements_become_a_bundle(cli, reference: Path, tmp_path: Path) -> None:
    source = reference / "vidur" / "data" / "profiling"
    options = ("--model", "llama-2-70b", "--device", "a100-80gb", "--node", "a100_dgx", "--tensor-parallel", "4")
    cli("profile", "import", str(source), *options, "--out", str(tmp_path))
    rows = bundle.read_rows(tmp_path)
    assert {key[2:] for key in rows["gemm"]} >= {(2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)}
    assert {key[:2] for key in rows["collective"]} == {("all_reduce", 4)}
    theirs, ours = (
        json.loads(cli("time", *options, "--source", "profile", "--path", str(path), "--json").output)["profile"]
        for path in (source, tmp_path)
    )
    for one, other in zip(theirs["operators"], ours["operators"], strict=True):
        if one["name"] != "lm_head":  # Unmeasured in both; nearby shapes stand in for it in ours.
            assert one["seconds"] == pytest.approx(other["seconds"], rel=1e-3), one["name"]
    cli("profile", "import", str(tmp_path.parent), *options, "--out", str(tmp_path / "none"), code=2)


def write_servingsim(root: Path) -> None:
    """LLMServingSim's layout with times that can be recognised: an operator's rank among them, plus 0.1 per token."""
    folder = root / "RTX4090" / "Qwen" / "Qwen2.5-0.5B" / "bf16" / "tp1"
    folder.mkdir(parents=True)
    sizes = (1, 8, 64, 256)

    def table(layers: tuple[str, ...], size: str) -> str:
        rows = [f"{name},{n},{10 * (1 + i) + 0.1 * n}" for i, name in enumerate(layers) for n in sizes]
        return "\n".join([f"layer,{size},time_us", *rows]) + "\n"

    dense = ("layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
    (folder / "dense.csv").write_text(table(dense, "tokens"))
    (folder / "per_sequence.csv").write_text(table(("lm_head", "sampler"), "sequences"))
    alone = [f"{c},{kv},0,0,{20 + 0.01 * c}" for c in (16, 64, 256) for kv in (0, 512)]
    alone += [f"0,0,{n},{kv},{8 + 0.001 * n * kv}" for n in (1, 8, 64) for kv in (16, 512)]
    (folder / "attention.csv").write_text(
        "\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *alone]) + "\n"
    )


def test_measurements_of_llmservingsim_become_a_bundle(cli, tmp_path: Path) -> None:
    source, out = tmp_path / "theirs", tmp_path / "ours"
    write_servingsim(source)
    options = ("--model", "qwen2.5-0.5b", "--device", "rtx-4090", "--tensor-parallel", "1")
    cli("profile", "import", str(source), *options, "--out", str(out))
    rows = bundle.read_rows(out)
    in_server = 0.967  # Of what a kernel takes when it is called alone.
    assert rows["gemm"]["bf16", 64, 1152, 896][0] == pytest.approx(
        in_server * 26.4e-6, abs=1e-9
    )  # qkv_proj: 20 + 6.4 us.
    assert rows["gemm"]["bf16", 256, 9728, 896][0] == pytest.approx(in_server * 75.6e-6, abs=1e-9)
    assert rows["elementwise"]["bf16", "activation", 8, 4864][0] == pytest.approx(in_server * 60.8e-6, abs=1e-9)
    assert rows["attention"]["bf16", 14, 2, 64, 64, 512, 0, 0][0] == pytest.approx(in_server * 20.64e-6, abs=1e-9)
    assert rows["attention"]["bf16", 14, 2, 64, 0, 0, 8, 512][0] == pytest.approx(in_server * 12.096e-6, abs=1e-9)
    assert rows["gemm"]["bf16", 8, 151936, 896][0] == pytest.approx(
        in_server * 10.8e-6, abs=1e-9
    )  # The head, by sequences.
    cli("time", *options, "--source", "profile", "--path", str(out))


def test_repeats_are_told_from_models_with_a_point_in_their_name(tmp_path: Path) -> None:
    for name in ("calibration", "qwen2.5-7b-chat-30", "qwen2.5-7b-chat-30.2", "qwen2.5-32b-chat-60"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    found = [[one.folder.name for one in runs] for runs in h200.runs_in(tmp_path)]
    assert found == [["qwen2.5-32b-chat-60"], ["qwen2.5-7b-chat-30", "qwen2.5-7b-chat-30.2"]]
