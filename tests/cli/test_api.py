"""The Python face: the words of the command line as functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gnomon
from gnomon.api.serving import DEFAULT_RATE, scenario
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.report.serving.compare import verdict
from gnomon.serving.scenario import Scenario
from serving_results import chat

SMALL = {"workload": {"rate": 20.0, "num_requests": 300}}


def test_a_scenario_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workload: {rate: 20.0, num_requests: 300}\n")
    same = [scenario(SMALL), scenario(path), scenario(str(path)), scenario(Scenario(**SMALL)), scenario(**SMALL)]
    same.append(scenario(workload__rate=20.0, **{"workload.num_requests": 300}))
    assert all(one == same[0] for one in same)


def test_overrides_win(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: llama-3-70b\nreplica: {tensor_parallel: 8}\nrouter: random\n")
    one = scenario(path, replica__tensor_parallel=4, router__name="lmetric")
    assert (one.model, one.replica.tensor_parallel, one.router.name) == ("llama-3-70b", 4, "lmetric")
    assert scenario(one, model="llama-2-70b").replica.tensor_parallel == 4


def test_there_is_one_default_load(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: llama-3-8b\n")
    assert scenario().workload.rate == scenario(**{"workload.num_requests": 5}).workload.rate == DEFAULT_RATE
    assert scenario(path).workload.rate == Scenario().workload.rate == DEFAULT_RATE
    assert scenario(**{"workload.arrivals": "batch"}).workload.rate is None
    assert scenario(**{"workload.rate": 3}).workload.rate == 3


def test_the_default_load_is_about_four_fifths_of_capacity() -> None:
    assert 0.75 < DEFAULT_RATE / gnomon.simulate().headroom.capacity_per_s < 0.85


def test_same_seed_same_result_other_seed_another() -> None:
    first, again, other = (gnomon.simulate(SMALL, seed=seed).summary.to_dict() for seed in (1, 1, 2))
    assert first == again != other


def test_a_result_says_what_it_is() -> None:
    said = repr(chat())
    assert said.startswith("Simulation(llama-3-8b on ") and "TTFT P99" in said


def test_figures_are_plotly_figures() -> None:
    from plotly.graph_objects import Figure

    figures = chat().figures
    assert set(figures) == {
        "ttft", "tbt", "tpot", "e2e", "queue", "rates", "tokens", "kv", "batch_size", "batch_tokens",
    }  # fmt: skip
    assert all(isinstance(figure, Figure) for figure in figures.values())
    assert figures["ttft"].layout.shapes[0].x0 == pytest.approx(80), "the SLO of 0.08 s, in ms"


def test_progress_is_reported_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    gnomon.simulate({"workload": {"rate": 20, "num_requests": 2500}}, on_progress=lambda *now: seen.append(now))
    assert seen[-1] == (2500, 2500)
    assert len(seen) > 1


def test_progress_does_not_change_the_result() -> None:
    one = {"workload": {"rate": 25, "num_requests": 2500}}
    watched = gnomon.simulate(one, on_progress=lambda done, total: None)
    assert watched.summary.to_dict() == gnomon.simulate(one).summary.to_dict()


def test_compare_varies_and_pairs() -> None:
    comparison = gnomon.compare(
        SMALL, vary={"batching.policy": ["vllm_v1", "sarathi"], "replica.tensor_parallel": [1, 2]}
    )
    assert list(comparison.results) == [
        "policy=vllm_v1, tensor_parallel=1",
        "policy=vllm_v1, tensor_parallel=2",
        "policy=sarathi, tensor_parallel=1",
        "policy=sarathi, tensor_parallel=2",
    ]
    first, *others = (result.requests for result in comparison.results.values())
    for frame in others:
        for column in ("arrival_s", "prompt_tokens", "output_tokens"):
            assert frame[column].to_list() == first[column].to_list()
    twice = comparison.differences["policy=vllm_v1, tensor_parallel=2"]
    e2e = next(d for d in twice if d.metric == "e2e_s" and d.statistic == "mean")
    second = comparison.results["policy=vllm_v1, tensor_parallel=2"].requests
    assert e2e.difference == pytest.approx((second["e2e_s"] - first["e2e_s"]).mean())
    assert e2e.is_clear
    assert e2e.difference < 0, "two GPUs are faster than one"
    (said,) = verdict(comparison.summary, comparison.differences)
    assert said.startswith("Best at TTFT P99") and "tensor_parallel=2" in said.partition(";")[0]
    by_chance = {
        name: [replace(one, low=-1.0, high=1.0) for one in rows] for name, rows in comparison.differences.items()
    }
    (said,) = verdict(comparison.summary, by_chance)
    assert "TTFT P99" in said.partition("like (within 1 % or by chance): ")[2]


def test_variants_that_all_miss_the_slo_are_not_praised_alone() -> None:
    """TTFT under 5 ms: no prompt is so quick; as seven in ten have it; as all but one in twenty; within an hour."""
    ttft_s = gnomon.simulate(SMALL).requests["ttft_s"].to_numpy()
    for share, limit in ((0.0, 0.005), (0.7, np.quantile(ttft_s, 0.7)), (0.95, np.quantile(ttft_s, 0.95)), (1, 3600.0)):
        found = gnomon.compare(SMALL, vary={"batching.policy": ["vllm_v1", "sarathi"]}, **{"slo.ttft_s": float(limit)})
        said, met = verdict(found.summary, found.differences), max(one.slo.attainment for one in found.summary.values())
        assert met == pytest.approx(share, abs=0.04)
        missed = (
            f"No variant meets the SLO for more than {met:.1%} of the requests: compare at a lower load, or search."
        )
        assert said[-1].startswith(missed) == (share < 0.9) and len(said) == 1 + (share < 0.9)


def test_overlays_hold_every_variant() -> None:
    comparison = gnomon.compare(SMALL, vary={"batching.policy": ["vllm_v1", "orca"]})
    assert [trace.name for trace in comparison.figures["ttft"].data] == list(comparison.results)
    (bars,) = comparison.figures["e2e_mean_change"].data
    e2e = next(d for d in comparison.differences["policy=orca"] if (d.metric, d.statistic) == ("e2e_s", "mean"))
    assert bars.x[0] == pytest.approx(100 * (e2e.relative or 0.0))
    frame = comparison.frames["differences"]
    assert len(frame) == len(comparison.differences["policy=orca"])


def test_a_notebook_shows_what_the_command_line_prints() -> None:
    shown = chat()._repr_html_()
    assert "time to first token" in shown and "<table>" in shown and "<script" not in shown
    with pytest.raises(UnknownNameError, match="'ttft'"):
        chat().figures["tftt"]


def test_compare_takes_files_and_saves(tmp_path: Path) -> None:
    for name, policy in (("a", "vllm"), ("b", "orca")):
        (tmp_path / f"{name}.yaml").write_text(f"batching: {policy}\nworkload: {{rate: 4, num_requests: 50}}\n")
    comparison = gnomon.compare(tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert comparison.baseline == "a"
    out = comparison.save(tmp_path / "out")
    assert (out / "comparison.json").is_file()
    page = (out / "report.html").read_text()
    assert "b against a" in page and "href='1-b/report.html'" in page
    assert '"e2e_p99_change"' in page
    assert (out / "1-b" / "report.html").is_file()
    few = comparison.differences["b"][0]
    assert few.low is None, "fifty requests have no interval"


def test_compare_keeps_to_what_all_variants_accept() -> None:
    comparison = gnomon.compare(SMALL, vary={"replica.max_request_tokens": [4096, 600]})
    counts = [len(result.requests) for result in comparison.results.values()]
    assert counts[0] == counts[1] < 300


def test_compare_refuses_different_requests() -> None:
    with pytest.raises(ConfigError, match="requests differ"):
        gnomon.compare(SMALL, vary={"workload.preset": ["chat-1m", "arxiv-4k"]})
    with pytest.raises(ConfigError, match="only one variant"):
        gnomon.compare(SMALL)
    rates = gnomon.compare(SMALL, vary={"workload.rate": [10, 20]})
    assert len(rates.results) == 2


def test_an_unknown_extra_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="csv"):
        chat().save(tmp_path, ("cvs",))


def test_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    blocks = (root / "docs" / "python-api.md").read_text().split("```python\n")[1:]
    assert len(blocks) == 3
    for block in blocks:
        code = block.split("```")[0].replace("runs/mine", str(tmp_path / "mine"))
        exec(code.replace('"examples/', f'"{root}/examples/'), {})


def test_packages_can_be_asked() -> None:
    import gnomon.verify.pipeline  # The package is loaded and stays one.

    with pytest.raises(UnknownNameError, match="posttrain"):
        gnomon.verify("posttrian")
    found = gnomon.verify("posttrain", only="Y")
    assert found.passed and found.summary["failures"] == []
    assert found.frames["rows"]["published"].to_list()[:3] == [0.12, 0.02, 15.76]
    assert gnomon.verify.pipeline.__name__ == "gnomon.verify.pipeline"


def test_one_iteration_by_operator(tmp_path: Path) -> None:
    found = gnomon.time(model="llama-3-70b", device="h100", tensor_parallel=8, sources=["roofline"])
    assert found.summary["roofline"].seconds == pytest.approx(sum(found.frames["operators"]["seconds"]))
    assert "attention_decode" in found._repr_html_()
    assert len(found.figures["operators"].data) == len(found.operators["roofline"])
    assert (found.save(tmp_path) / "time.json").is_file()


def test_short_names_are_those_of_the_command_line() -> None:
    short = scenario(gpu="h100", tp=4, pp=2, rate=3, requests=50)
    assert short == scenario({"gpu": "h100", "tp": 4, "pp": 2, "rate": 3, "requests": 50})
    assert (short.device, short.replica.tensor_parallel, short.replica.pipeline_parallel) == ("h100", 4, 2)
    assert (short.workload.rate, short.workload.num_requests) == (3, 50)
    assert gnomon.simulate(requests=20, rate=5).summary.requests.finished == 20


def test_a_file_of_ones_own_needs_a_name() -> None:
    for section in ("router", "batching", "admission", "disaggregation.decider", "fleet.controller"):
        with pytest.raises(ConfigError, match=r"mine\.py registers names, but .* does not say"):
            scenario(**{f"{section}.file": "mine.py"})
    assert scenario(**{"router.file": "mine.py", "router.name": "mine"}).router.file == "mine.py"
