"""Sizes that can never end or fit are refused before anything is allocated; what has no effect is refused too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import CommandLine
from gnomon.core import sizes
from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.pipeline.sweeps import SweepConfig, priority_grid
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.serving.scenario import Scenario


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("replica.speculative.num_tokens", 100_000, "at most 256: the tables of iterations"),
        ("batching.max_batch_tokens", 200_000_000, "at most 4,194,304: the tables of iterations end there"),
        ("batching.max_sequences", 2**31, "at most 65,536"),
        ("num_replicas", 10**6, "at most 65,536: each has arrays of its own"),
        ("workload.num_requests", 10**9, "at most 100,000,000: each takes"),
        ("workload.num_requests", 2**63, "at most 100,000,000"),
        ("replica.tensor_parallel", 2**31, "at most 4,096"),
        ("replica.max_request_tokens", 2**31, "at most 1,073,741,824: lengths are kept in 32 bits"),
        ("replica.num_kv_blocks", 2**40, "blocks are counted in 32 bits"),
        ("seed", 2**70, "seeds have 64 bits"),
    ],
)
def test_sizes_of_serving(key: str, value: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Scenario, None, {key: value})


def test_a_wide_zipf_range_is_refused_not_drawn() -> None:
    with pytest.raises(ConfigError, match="at most 10,000,000 totals"):
        load(Scenario, None, {"workload.lengths": {"distribution": "zipf", "total": [1, 10**8]}})


@pytest.mark.parametrize(("key", "value"), [("cluster.num_nodes", 10**6), ("num_steps", 10**9), ("seed", -1)])
def test_sizes_of_post_training(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=r"at most|greater than or equal"):
        load(Posttrain, None, {key: value})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "100000"], "400,000 passes, at most 250,000"),
        (["--stages", "100000"], "800,000 passes"),
        (["-n", str(2**63)], "passes"),
        (["--schedule", "interleaved", "--chunks", "1000000"], "passes"),
        (["--schedule", "1f1b", "--jitter", "0.1", "--draws", "0"], "draws: Input should be greater than 0"),
        (["--schedule", "1f1b", "--jitter", "0.1", "--draws", "100000"], "draws must be from 1 to 10,000"),
        (
            ["--schedule", "1f1b", "--overlap-len", "-1"],
            "overlap_len: Input should be greater than or equal to 0 (given: -1.0)",
        ),
        (["--schedule", "zb-auto", "--memory-limit", "nan"], "finite number"),
        (["--prop-len", "1e308"], "prop_len: Input should be less than or equal to 1000000000000"),
        # Without effect:
        (["--schedule", "1f1b", "--link", "0-9=1"], "nothing is sent over a link '0-9'. Links: 0-1, 1-0, 1-2"),
        (["--schedule", "1f1b", "--overlap-len", "2"], "overlap_len has no effect with the schedule 1f1b"),
        (["--schedule", "1f1b", "--chunks", "3"], "chunks has no effect with the schedule 1f1b"),
        (["--chunks", "3"], "chunks has no effect with the study"),
        (["--schedule", "1f1b", "--draws", "10"], "draws has no effect with passes without jitter"),
    ],
)
def test_pipeline_run(cli: CommandLine, words: list[str], message: str) -> None:
    assert message in " ".join(cli("pipeline", "run", "--no-show", *words, code=2).output.split())


@pytest.mark.parametrize(("schedule", "link"), [("interleaved", "3-0"), ("zb-v", "1-2")])
def test_links_that_exist_are_taken(cli: CommandLine, schedule: str, link: str) -> None:
    """At half its speed the step takes longer, at its own as long as before."""

    def total(*words: str) -> float:
        output = cli("pipeline", "run", "--no-show", "--json", "--schedule", schedule, *words).output
        return float(json.loads(output[output.index("{\n") :])["total_time"])

    assert total("--link", f"{link}=0.5") > total("--link", f"{link}=1") == total()


def test_sweeps_are_counted_before_they_begin(cli: CommandLine, tmp_path: Path) -> None:
    def configured(**keys: Any) -> str:
        path = tmp_path / "sweep.json"
        path.write_text(json.dumps(keys))
        return str(path)

    fine = {"start": 0, "stop": 1, "step": 1e-9}
    with pytest.raises(ConfigError, match="1,000,000,001 values; at most 100,000"):
        load(SweepConfig, configured(prop_len=fine))
    many = {"start": 0, "stop": 10, "step": 0.01}
    with pytest.raises(ConfigError, match="configurations; at most 10,000,000"):
        load(SweepConfig, configured(prop_len=many, fwd_len=many, bwd_len=many))
    with pytest.raises(ConfigError, match="makes more than 100,000 priorities"):
        priority_grid(0.001)
    with pytest.raises(ConfigError, match="does not divide 1"):
        priority_grid(5e-324)
    out = str(tmp_path / "out.csv")
    words = ["pipeline", "sweep", "-c", configured(prop_len=many, fwd_len=many), "--step", "0.02", "--output", out]
    said = cli(*words, code=2).output
    assert "1.43G runs, about 2 days. Give --yes, or a coarser step." in said


def test_what_has_no_effect_is_refused() -> None:
    for given, message in (
        ({"timing.path": "somewhere"}, "path is not used: the source is auto, not profile"),
        ({"timing.table.per_token": "1"}, "table is not used"),
        ({"timing.source": "roofline", "timing.path": "x"}, "path is not used"),
        ({"workload.preset": "[]"}, r"unknown workload preset '\[\]'"),
    ):
        with pytest.raises(Exception, match=message):
            load(Scenario, None, given)
    with pytest.raises(ConfigError, match="file is not used"):
        load(Posttrain, None, {"lengths.file": "lengths.txt"})
    with pytest.raises(ConfigError, match="finite"):
        load(Posttrain, None, {"lengths.mean": ".inf"})


@pytest.mark.parametrize(
    "words",
    [["calibrate", "--rollout-s", "nan"], ["calibrate", "--actor-s", "-2"], ["calibrate", "--actor-s", "inf"]],
)
def test_seconds_that_are_no_measured_time(cli: CommandLine, words: list[str]) -> None:
    example = str(Path(__file__).parents[2] / "examples/posttrain/small.yaml")
    assert "are no measured time" in cli("posttrain", words[0], example, *words[1:], code=2).output


def test_a_pool_of_another_source_does_not_inherit_the_path() -> None:
    pools = [{"timing": {"source": "roofline"}}, {}]
    scenario = load(Scenario, None, {"timing.source": "profile", "timing.path": "x", "pools": pools})
    assert [pool.timing.path for pool in scenario.all_pools() if pool.timing] == [None, "x"]


def test_memory_is_estimated_and_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sizes.MEMORY_VARIABLE, "1")
    with pytest.raises(
        ConfigError, match=r"it needs about 2\.0 GiB of memory, and may have 1\.0 GiB\. .*GNOMON_MEMORY_GIB"
    ):
        sizes.check_memory(2 * 2**30, "it", fix="Use less.")
    monkeypatch.setenv(sizes.MEMORY_VARIABLE, "4")
    sizes.check_memory(2 * 2**30, "it")
    monkeypatch.setenv(sizes.MEMORY_VARIABLE, "much")
    with pytest.raises(ConfigError, match="is not a number"):
        sizes.check_memory(1, "it")
    monkeypatch.delenv(sizes.MEMORY_VARIABLE)
    assert 0 < sizes.memory_limit() < float("inf")
