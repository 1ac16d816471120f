"""What requests ask of the sampler, what engines of some version run for it, and what that takes."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon import catalog, timing
from gnomon.core.config import load
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.pools import resolve
from gnomon.serving.scenario.sampling import era_of, generation_config
from gnomon.timing.host import HostConfig
from gnomon.timing.lookup import Shape, host_times
from gnomon.timing.operators import SamplerConfig, Sampling
from gnomon.workload import generate

DECODES = Shape(8, 8, 0.0, 0.0, 8, 8000.0, 1000.0, 8, 0.0)


def _sampler(**given: object) -> SamplerConfig:
    scenario = load(Scenario, None, {"workload": {"num_requests": 50}, **given})
    return resolve(scenario, generate(scenario.workload, 0))[0].timing.sampler


@pytest.mark.parametrize(
    ("version", "filter", "sorts_below", "penalties"),
    [("0.5", "search", 0, "recount"), ("0.8.4", "search", 0, "recount"),
     ("0.8.5", "sort", 0, "recount"), ("0.11.0", "search", 0, "recount"),
     ("0.8.5.post1", "sort", 0, "recount"), ("0.11.1rc2", "sort", 0, "recount"), ("0.11.1", "sort", 0, "recount"),
     ("0.19.0", "search", 8, "recount"), ("0.21.0", "search", 0, "recount"), ("", "search", 0, "kept")],
)  # fmt: skip
def test_vllms_versions_filter_and_penalise_in_their_ways(
    version: str, filter: str, sorts_below: int, penalties: str
) -> None:
    era = era_of(engine("vllm").sampling, version)
    assert (era.filter, era.sorts_below, era.penalties) == (filter, sorts_below, penalties)


def test_requests_that_say_nothing_get_what_the_model_asks_for() -> None:
    assert generation_config("qwen3-8b") == {"temperature": 0.6, "top_k": 20.0, "top_p": 0.95}
    assert generation_config("meta-llama/Llama-3.1-8B") == {"temperature": 0.6, "top_p": 0.9}
    old = {"name": "vllm", "version": "0.11.1"}
    assert _sampler(model="qwen3-8b", engine=old).filter == "sort_top_k"
    assert _sampler(model="llama-3-8b", engine=old).filter == "sort"
    assert _sampler(model="gpt-oss-20b", engine=old) == SamplerConfig(is_random=True)
    assert _sampler(model="qwen3-8b", engine=old, sampling={"top_p": 1.0}).filter == "top_k"
    assert _sampler(model="qwen3-8b", engine="none") == SamplerConfig()  # Without an engine: greedy.


def test_clients_that_send_greedy_say_so() -> None:
    client = {"name": "inferencex", "concurrency": 4}
    assert not _sampler(engine="vllm", workload={"client": client}).is_random
    assert _sampler(engine="vllm", workload={"client": {**client, "name": "genai_perf"}}).is_random
    assert _sampler(engine="vllm", workload={"client": client}, sampling={"temperature": 1.0}).is_random


def test_one_class_of_users_makes_all_pay() -> None:
    classes = [{"name": "plain", "sampling": {"temperature": 0}}, {"name": "fussy", "sampling": {"logprobs": 5}}]
    found = _sampler(engine="vllm", workload={"num_requests": 50, "classes": classes})
    assert found.is_random and found.logprobs


def test_penalties_copy_what_running_sequences_have_said() -> None:
    lengths = {"distribution": "fixed", "prompt": 100, "output": 600}
    given = {"engine": {"name": "vllm", "version": "0.11.1"}, "sampling": {"repetition_penalty": 1.1}}
    assert _sampler(workload={"num_requests": 5, "lengths": lengths}, **given).copied_tokens == 300.0
    assert _sampler(engine="vllm", sampling={"repetition_penalty": 1.1}).copied_tokens == 0.0


def test_measured_steps_and_other_gpus() -> None:
    h200, h100, b200 = (catalog.device(name) for name in ("h200", "h100", "b200"))
    at = np.array([256.0])
    assert Sampling("sort", 151936).seconds(at, h200)[0] == pytest.approx(4058e-6, rel=1e-3)
    between = Sampling("sort", (128256 + 151936) // 2).seconds(at, h200)[0]
    assert between == pytest.approx((3446e-6 + 4058e-6) / 2, rel=1e-3)
    # 0.2 of penalties by SMs (132 of 132; 132 of 148), the rest by bandwidth (4.8 over 3.35 and 8 TB/s).
    for device, factor in ((h100, 0.2 + 0.8 * 4.8 / 3.35), (b200, 0.2 * 132 / 148 + 0.8 * 4.8 / 8.0)):
        ratio = (
            Sampling("penalties", 128256).seconds(at, device)[0] / Sampling("penalties", 128256).seconds(at, h200)[0]
        )
        assert ratio == pytest.approx(factor, rel=0.01)
    few = Sampling("search", 128256, sorts_below=8)
    assert few.seconds(np.array([7.0, 8.0]), h200)[1] == Sampling("search", 128256).seconds(np.array([8.0]), h200)[0]
    assert few.seconds(np.array([7.0]), h200)[0] == Sampling("sort_top_k", 128256).seconds(np.array([7.0]), h200)[0]


def test_a_step_takes_the_longer_of_the_pass_and_the_copying_and_then_samples() -> None:
    sampler = SamplerConfig(is_random=True, filter="sort", penalties="recount", copied_tokens=1_000_000.0)
    config = timing.TimingConfig(source="roofline", sampler=sampler, host=HostConfig())
    tables = timing.iteration_tables(
        catalog.model("llama-3-8b"), catalog.device("h200"), catalog.Parallelism(), config=config, max_tokens=64,
        max_sequences=8, max_kv_tokens=2048,
    ).tables  # fmt: skip
    copying_s = 8 * 1e6 * 25e-9
    assert host_times(tables, 0, DECODES)[1] == pytest.approx(copying_s + 8 * tables.host_s[0, 1, 11])
    assert tables.host_s[0, 1, 11] * 8 == pytest.approx(400e-6 * 0.92 + 89e-6 + 83e-6, rel=0.1)


def test_launching_comes_before_sampling() -> None:
    sampler = SamplerConfig(is_random=True, filter="sort")
    host = HostConfig(launch_s=0.05)
    config = timing.TimingConfig(source="roofline", sampler=sampler, host=host)
    tables = timing.iteration_tables(
        catalog.model("llama-3-8b"), catalog.device("h200"), catalog.Parallelism(), config=config, max_tokens=64,
        max_sequences=8, max_kv_tokens=2048,
    ).tables  # fmt: skip
    assert host_times(tables, 0, DECODES)[1] == pytest.approx(0.05 + 8 * tables.host_s[0, 1, 11])


def test_the_measured_steps_do_what_they_say() -> None:
    torch = pytest.importorskip("torch")
    from gnomon.measure.kernels import sampling

    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]]))
    kept = sampling.top_k_top_p(logits.clone(), None, torch.tensor([0.7, 0.95])).isfinite()
    assert kept.tolist() == [[True, True, False, False], [True, True, True, True]]
    kept = sampling.top_k(logits.clone(), torch.tensor([1, 2]), 2).isfinite()
    assert kept.tolist() == [[True, False, False, False], [False, False, True, True]]
    said = torch.tensor([[0, 0], [4, 4]])  # 4: padding.
    one, zero = torch.ones(2), torch.zeros(2)
    changed = sampling.penalties(logits.clone(), said, said, 2.0 * one, zero)
    assert changed[0, 0] == 2.0 * logits[0, 0] and (changed[1] == logits[1]).all()
    assert sampling.padded([[1, 2], [3]], 4, pinned=False).tolist() == [[1, 2], [3, 4]]


def test_convert_reads_what_vllm_gives_requests() -> None:
    from gnomon.convert.readers import READERS

    assert READERS["generation_config"]("auto") is None
    assert READERS["generation_config"]("vllm")["top_p"] == 1.0
    assert READERS["override_generation_config"]({"top_k": 5, "max_new_tokens": 9}) == {"top_k": 5}
