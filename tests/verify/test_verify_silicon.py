"""Measured servers: read from the file, turned into scenarios, predicted and scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiconfigurator_core", reason="the extra [silicon] is not installed")

from gnomon.core.errors import ConfigError
from gnomon.verify.silicon import choose, predict, verdict
from gnomon.verify.silicon.choose import chosen
from gnomon.verify.silicon.launch import data, doubt_about, launch_of
from gnomon.verify.silicon.predict import Prediction, Scored, score
from gnomon.verify.silicon.say import summary_rows, text, write_page
from gnomon.verify.silicon.scenarios import facts_of, is_in_held_out_sweep, scenario_of
from gnomon.verify.silicon.servers import Layout, Server, _with_problem, servers
from gnomon.verify.silicon.verdict import FIGURES, Verdict, errors_of, ranking

LLAMA = "2026_04_06_llama_3_1_70b_b200_sxm_vllm_fp8_agg_8192x1024_c32_tp4_ep1_812"


def by_id(name: str) -> Server:
    return next(s for s in servers() if s.id == name)


def server(**changes: Any) -> Server:
    return Server(**{**by_id(LLAMA).__dict__, **changes})


# Reading the file.


def test_the_whole_file_is_read() -> None:
    found = servers()
    assert len(found) == 5221
    assert sum(s.mode == "agg" for s in found) == 3619
    assert sum(s.family == "inferencex" for s in found) == 4373  # 123 of them under another name
    assert all(s.date for s in found if s.family == "inferencex")
    assert sum(s.mode == "disagg" and s.problem is None for s in found) == 274
    assert 0.4 < sum(s.is_held_out for s in found) / len(found) < 0.6


def test_aggregated_servers_without_a_layout_are_few_and_named() -> None:
    without = [s for s in servers() if s.mode == "agg" and s.problem]
    assert len(without) == 40 + 9 + 3 <= 0.02 * 3619
    assert {s.device for s in without if "layout" in (s.problem or "")} == {"gb200"}


def test_whole_deployments_called_aggregated_take_the_workers_of_their_twin() -> None:
    found = [s for s in servers() if s.mode == "agg" and s.prefill]
    assert len(found) == 15
    assert {s.num_gpus for s in found} == {28, 36, 48}, "the GPUs that their rows name"
    one = by_id("2026_04_06_deepseek_r1_gb200_trtllm_fp4_agg_1024x1024_c32_tp36_ep1_11")
    assert (one.num_prefill, one.num_decode, one.layout) == (1, 4, Layout(8, 1, 8))
    assert [pool.role for pool in scenario_of(one).pools] == ["prefill", "decode"]


def test_exports_under_another_name_have_the_day_of_their_twin() -> None:
    one = by_id("kimi_k2_5_gap_analysis_kimi_k2_5_gap_analysis_b200_sxm_vllm_fp4_agg_1024x1024_c4_tp8_ep1_1")
    assert (one.family, one.date) == ("inferencex", "2026-03-27")


def test_drafting_servers_are_those_without_a_twin_called_v3() -> None:
    drafting = [s for s in servers() if s.is_drafting]
    assert {(s.model, s.engine, s.layout) for s in drafting} == {("deepseek-ai/DeepSeek-R1", "sglang", Layout(8))}
    by_load = {(s.prompt_tokens, s.output_tokens, s.concurrency): s.tpot_s for s in drafting}
    assert by_load[1024, 1024, 4] == pytest.approx(0.0067, rel=0.01), "8.8 ms without"
    assert scenario_of(drafting[0]).replica.speculative.num_tokens == 2


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (LLAMA, Layout(4)),
        ("dsr1_b200_sglang_fp4_agg_1024x8192_c4_cfg201", Layout(8, 1, 8)),  # tp 64, moe 8 x 8 in the file
        ("qwen3_5_b200_sglang_fp8_agg_8192x1024_c64_cfg615", Layout(4, 1, 4)),  # tp 16, moe 4 x 4
        ("dsr1_b200_trtllm_fp4_agg_1024x8192_c256_cfg191", Layout(8, 8, 8)),  # attention DP 64
        ("minimaxm2_5_b300_vllm_fp8_agg_1024x1024_c512_cfg735", Layout(2, 1, 2)),  # tp 2, dp 2, ep 4
        ("2026_03_25_deepseek_r1_b200_sxm_trtllm_fp4_agg_8192x1024_c256_tp8_0_ep8_0_974", Layout(8, 8, 8)),
    ],
)
def test_multiplied_degrees_are_read_as_gpus(name: str, layout: Layout) -> None:
    found = by_id(name)
    assert found.layout == layout
    assert f"_c{found.concurrency}_" in name


def test_repeats_of_a_measurement_have_one_key() -> None:
    found = servers()
    assert len({s.key for s in found}) < len(found)
    assert server().key != server(concurrency=33).key


# What a server was told.


def facts(**changes: Any) -> dict[str, Any]:
    plain = {
        "family": "inferencex", "engine": "trtllm", "version": "", "model": "deepseek-r1", "device": "b200",
        "precision": "fp8", "date": "2026-02-01", "prompt": 1024, "output": 1024, "concurrency": 64, "gpus": 8,
        "attention_groups": 1, "expert_parallel": 1, "role": "both", "workers": 1, "each": 64,
    }  # fmt: skip
    return plain | changes


def test_sglang_fuses_all_reduces_on_hopper_since_2026_and_triton_needs_no_slowing() -> None:
    hopper = {"engine": "sglang", "device": "h200"}
    assert launch_of(facts(**hopper, date="2026-03-25")).all_reduce == "flashinfer"
    assert launch_of(facts(**hopper, date="2025-11-10")).all_reduce == ""
    assert launch_of(facts(model="gpt-oss-120b", precision="fp4", device="h200")).expert_speed == 1.0
    assert launch_of(facts(model="gpt-oss-120b", precision="fp4", device="b200")).expert_speed == 0.7


def test_later_rules_override_earlier_ones_and_formulas_are_computed() -> None:
    old, new = launch_of(facts(date="2025-11-01")), launch_of(facts())
    assert old.max_batch_tokens == (64 + 1024 + 127) // 64 * 64 == 1152
    assert new.max_batch_tokens == 8192
    assert (old.batch_wait_iterations, new.batch_wait_iterations) == (0, 40)
    assert (old.graph_batch, new.graph_batch) == (256, 64)
    assert launch_of(facts(concurrency=32)).batch_wait_iterations == 0


def test_a_first_wave_beyond_one_batch_compiles_where_nothing_was_warmed_up() -> None:
    cold = {"engine": "sglang", "precision": "fp4", "date": "2025-11-10"}
    assert launch_of(facts(**cold, concurrency=16)).compile_s == 2.2, "one kernel"
    assert launch_of(facts(**cold, concurrency=32)).compile_s == 70
    assert launch_of(facts(**cold, concurrency=4, prompt=8192)).compile_s == 70
    assert launch_of(facts(**cold | {"date": "2026-03-25"}, concurrency=32, drafting=False)).compile_s == 0


def test_hopper_compiles_products_of_short_prompts_and_whoever_drafts_one_more() -> None:
    cold = {"date": "2026-01-14", "drafting": True}
    assert launch_of(facts(device="h200", date="2025-12-15")).compile_s == 1
    assert launch_of(facts(device="h200", date="2025-12-15", prompt=8192)).compile_s == 0
    assert launch_of(facts(device="h200", **cold)).compile_s == 2
    assert launch_of(facts(device="b200", **cold)).compile_s == 1
    assert launch_of(facts(device="h200", date="2026-01-28")).compile_s == 0, "warmed up"


@pytest.mark.parametrize(
    ("changes", "has_graphs"),
    [
        ({"version": "1.2.0rc6.post2"}, True),
        ({"version": "1.2.0rc6.post2", "concurrency": 32}, False),
        ({"version": "1.2.0rc6.post2", "output": 8192}, False),
        ({"version": "1.2.0rc6.post3", "concurrency": 32, "output": 8192}, True),
        ({"version": "1.2.0rc6.post3", "concurrency": 4}, False),
        ({"version": "1.2.0rc6.post3", "concurrency": 16, "prompt": 8192}, False),
        ({"version": "1.2.0rc6.post3", "attention_groups": 8}, False),
        ({"version": "1.2.0rc6.post3", "precision": "fp4", "concurrency": 128}, True),
        ({"version": "1.2.0rc6.post3", "precision": "fp4", "concurrency": 128, "attention_groups": 8}, False),
        ({"version": "1.2.0rc6.post2", "precision": "fp4", "expert_parallel": 8}, True),
        ({"version": "1.1.0rc2.post2", "date": "2025-12-15"}, False),
    ],
)
def test_scripts_say_where_prompts_run_in_piecewise_graphs(changes: dict[str, Any], has_graphs: bool) -> None:
    assert launch_of(facts(**changes)).prompt_graphs is has_graphs


def test_a_client_with_another_tokenizer_than_the_server_sends_longer_prompts() -> None:
    """35,921 tokens for a prompt of 7,140, until the client was corrected."""
    found = {"engine": "sglang", "version": "0.5.10.post1", "device": "b300", "drafting": False}
    assert launch_of(facts(**found, date="2026-04-17")).prompt_growth == pytest.approx(35_921 / 7_140, rel=1e-3)
    assert launch_of(facts(**found, date="2026-05-18")).prompt_growth == 1
    assert launch_of(facts(**found | {"version": "0.5.9"}, date="2026-03-25")).prompt_growth == 1
    one = next(s for s in servers() if s.version == "0.5.10.post1" and "DeepSeek" in s.model and s.mode == "agg")
    assert scenario_of(one).workload.lengths.prompt[1] == round(5.03 * one.prompt_tokens)


def test_b300_ran_the_scripts_of_b200_until_it_had_one_for_fp8() -> None:
    qwen = {"engine": "sglang", "model": "qwen3.5-397b-a17b", "device": "b300", "concurrency": 16}
    for precision, date, limits in [
        ("fp8", "2026-04-03", (32768, 128, 30)),
        ("fp8", "2026-04-17", (16384, 16, 10)),
        ("bf16", "2026-04-18", (32768, 128, 30)),
        ("fp4", "2026-04-18", (32768, 128, 30)),
    ]:
        told = launch_of(facts(**qwen, precision=precision, date=date))
        assert (told.max_batch_tokens, told.max_sequences, told.receive_interval) == limits


def test_nightly_builds_are_the_release_that_they_come_closest_to() -> None:
    qwen = {"engine": "sglang", "model": "qwen3.5-397b-a17b", "precision": "bf16", "version": "nightly-dev"}
    assert launch_of(facts(**qwen, date="2026-02-20")).version == "0.5.9"
    assert launch_of(facts(**qwen, date="2026-04-08")).version == "0.5.10"
    assert launch_of(facts(**qwen | {"version": "0.5.9"}, date="2026-03-20")).version == "", "its own"
    old, new = (
        next(s for s in servers() if s.version == name and s.engine == "sglang")
        for name in ("nightly-dev-20260216-d3bae71e", "nightly-dev-20260402-d7256eb6")
    )
    assert scenario_of(old).timing.host.exposed_per_layer_s == 2.5e-5
    assert scenario_of(new).timing.host.exposed_per_layer_s == 0.0


def test_every_model_of_the_file_is_known() -> None:
    assert {s.model for s in servers()} == set(data("checkpoints")["models"])


def test_a_server_becomes_a_scenario() -> None:
    scenario = scenario_of(by_id(LLAMA))
    assert (scenario.model, scenario.device, scenario.replica.tensor_parallel) == ("llama-3.1-70b", "b200", 4)
    assert scenario.workload.num_requests == 320
    assert scenario.batching.max_sequences == 512
    assert scenario.workload.warmup_requests == 0, "the client of 2025 sent none"


def test_a_server_without_a_layout_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="called aggregated"):
        scenario_of(
            next(
                s for s in servers() if s.problem and s.mode == "agg" and s.device == "gb200" and s.layout.num_gpus > 8
            )
        )


# Choosing and scoring.


def test_conditions_choose_servers() -> None:
    some = chosen('engine == "vllm" and "Llama" in model and concurrency >= 64 and gpus in [4, 8]')
    assert some
    assert all(s.engine == "vllm" and s.concurrency >= 64 and s.layout.num_gpus in (4, 8) for s in some)
    assert len(chosen(sample=50)) == 50
    assert [s.id for s in chosen(sample=5, seed=1)] == [s.id for s in chosen(sample=5, seed=1)]


@pytest.mark.parametrize("bad", ["", "engine ==", "__import__('os')", "model.upper() == 3", "gpus > 'x'", "[" * 500])
def test_other_code_is_no_condition(bad: str) -> None:
    with pytest.raises(ConfigError):
        chosen(bad)


def scored(ttft: float, tpot: float, **changes: Any) -> Scored:
    one = server(**changes)
    return Scored(one, Prediction(one.ttft_s * ttft, one.tpot_s * tpot))


def test_errors_are_relative_to_what_was_measured() -> None:
    found = errors_of([scored(1.1, 0.9), scored(0.7, 1.3), Scored(server(), Prediction(problem="x"))])
    assert found is not None
    assert (found.servers, found.covered) == (3, 2)
    assert found.ttft_mape == pytest.approx(0.2) and found.ttft_bias == pytest.approx(-0.1)
    assert found.tpot_mape == pytest.approx(0.2) and found.tpot_bias == pytest.approx(0.1)


def test_the_regret_of_a_wrong_choice_is_the_throughput_lost() -> None:
    """Two layouts of equal latency: one GPU serves twice as much per GPU as two."""
    group = [
        Scored(server(layout=Layout(gpus), concurrency=c, tpot_s=0.01, ttft_s=0.1), Prediction(0.1, 0.01 * wrong))
        for gpus, wrong in ((1, 1.5), (2, 1.0))
        for c in (1, 2, 4)
    ]
    found = ranking(group)
    assert found is not None
    assert found.agreement == pytest.approx(4 / 5), "under 10 ms the better layout is predicted to miss the limit"
    assert found.mean_regret == pytest.approx(0.5 / 5)


def test_predictions_are_kept_and_failures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "cache_home", lambda: tmp_path)
    asked: list[str] = []

    def fake(one: Server) -> Prediction:
        asked.append(one.id)
        if one.concurrency == 7:
            raise ConfigError("does not fit.", where="device")
        return Prediction(1.0, 0.01)

    monkeypatch.setattr(predict, "predict", fake)
    group = [server(), server(id="again"), server(concurrency=7), server(problem="no layout")]
    first = score(group, jobs=1)
    assert len(asked) == 2, "repeats share a simulation, servers without a layout have none"
    assert [s.prediction.problem for s in first] == [None, None, "device: does not fit.", "no layout"]
    kept = next((tmp_path / "verify-silicon").iterdir())
    kept.write_text(kept.read_text() + '{"key": "cut o', encoding="utf-8")
    assert score(group, jobs=1) == first
    assert len(asked) == 2


def test_a_worse_figure_is_said_for_the_whole_file_only() -> None:
    far_off = [scored(9.0, 9.0)]
    assert any(line.startswith("aggregated: tpot_mape is") for line in Verdict(far_off, is_whole=True).worse)
    assert Verdict(far_off, is_whole=False).worse == []


@pytest.mark.parametrize(("wrong", "code"), [(1.09, 0), (1.11, 1)])
def test_the_command_ends_with_exit_code_1_when_worse_than_recorded(
    wrong: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    """A file of one server, recorded as 10 % off."""
    recorded = {"aggregated": {"covered": 1} | dict.fromkeys(FIGURES, 0.1)}
    monkeypatch.setattr(verdict, "data", lambda name: recorded if name == "recorded" else [])
    monkeypatch.setattr(choose, "servers", lambda: [server()])
    monkeypatch.setattr(predict, "cache_home", lambda: tmp_path)
    monkeypatch.setattr(predict, "predict", lambda one: Prediction(one.ttft_s * wrong, one.tpot_s * wrong))
    output = cli("verify", "silicon", "--jobs", "1", code=code).output
    assert ("worse than the recorded" in output) == bool(code)


def test_sweeps_held_out_are_recorded() -> None:
    odd = next(s for s in servers() if s.family == "inferencex" and s.mode == "agg" and is_in_held_out_sweep(s))
    worse = Verdict([Scored(odd, Prediction(9 * odd.ttft_s, odd.tpot_s))], is_whole=True).worse
    assert any("by sweeps: ttft_mape is 800.0%, worse than the recorded 16.2%" in line for line in worse)


def test_fewer_predicted_servers_are_worse() -> None:
    without = [Scored(server(), Prediction(problem="x"))]
    assert any("0 servers are predicted" in line for line in Verdict(without, is_whole=True).worse)


def test_repeats_under_another_name_are_in_the_same_half_of_the_sweeps() -> None:
    r1, v3 = "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3"
    assert is_in_held_out_sweep(server(model=r1)) == is_in_held_out_sweep(server(model=v3, concurrency=7, id="other"))
    halves = {is_in_held_out_sweep(s) for s in servers()}
    assert halves == {True, False}


def test_text_and_page_show_every_group(tmp_path: Path) -> None:
    verdict = Verdict([scored(1.1, 0.95), scored(0.9, 1.0, engine="sglang"), Scored(server(), Prediction(problem="x"))],
                      is_whole=False)  # fmt: skip
    titles = [getattr(block, "title", "") for block in text(verdict)]
    assert "By engine" in titles and "Farthest off" in titles and "Without a prediction" in titles
    page = write_page(verdict, tmp_path / "page.html").read_text()
    assert "Throughput against interactivity" not in page, "there are too few servers of one kind for a curve"
    sweep = [scored(1.1, 0.95, concurrency=4 * n, id=str(n)) for n in range(1, 9)]
    page = write_page(Verdict(sweep, is_whole=False), tmp_path / "sweep.html").read_text()
    assert "Throughput against interactivity" in page and "http://" not in page.split("Plotly")[0]
    assert all(title in page for title in ("TPOT, measured and predicted", "by model and system")), "plots with data"
    assert json.loads(json.dumps(verdict.to_dict()))["errors"]["covered"] == 2


def test_one_server_is_printed_as_a_scenario_that_loads(cli: Any, tmp_path: Path) -> None:
    printed = cli("verify", "silicon", "--show", LLAMA).output
    path = tmp_path / "server.yaml"
    path.write_text(printed)
    from gnomon.api.serving import scenario

    assert scenario(str(path)) == scenario_of(by_id(LLAMA))


def test_an_unknown_server_gets_the_nearest_ones(cli: Any) -> None:
    output = cli("verify", "silicon", "--show", LLAMA[:-1], code=2).output
    assert LLAMA in output and len(output) < 1000


def test_workers_apart_become_pools_with_roles() -> None:
    one = by_id("kimik2_5_gb200_trtllm_fp4_disagg_1024x1024_c4_cfg759")
    prefill, decode = scenario_of(one).pools
    assert (prefill.role, prefill.num_replicas, prefill.replica.data_parallel) == ("prefill", 1, 4)
    assert (decode.role, decode.num_replicas, decode.replica.tensor_parallel) == ("decode", 4, 8)


def test_workers_apart_have_the_settings_of_their_recipe() -> None:
    """ctx1_gen4_tep8_batch16 of GB200 in fp4: four decode workers of 16 requests each, prompts two at a time."""
    one = by_id("dsr1_gb200_trtllm_fp4_disagg_8192x1024_c44_cfg388")
    found = scenario_of(one)
    prefill, decode = found.pools
    assert (prefill.batching.max_batch_tokens, prefill.batching.max_sequences) == (16640, 2)
    assert (decode.batching.max_sequences, decode.timing.graph_sizes) == (16, (1, 2, 4, 8, 16))
    assert found.front_end.stream_interval == 100
    assert (found.router.name, found.disaggregation.decode_router.name) == ("least_outstanding", "front_ends")
    assert found.disaggregation.link == "nvlink"
    assert found.timing.dtype == "nvfp4_mlp_and_output" and prefill.timing.host.exposed_per_layer_s == 0.0


def test_tensorrt_llm_of_2025_is_1_1_where_a_row_says_no_version() -> None:
    one = by_id("dsr1_gb200_trtllm_fp4_disagg_8192x1024_c44_cfg388")
    assert scenario_of(one).engine.version == ""
    assert scenario_of(replace(one, date="2025-12-19", version="0.5.1-rc0.pre3")).engine.version == "1.1.0rc2.post2"
    assert scenario_of(replace(one, date="2025-12-19", version="1.2.0rc2")).engine.version == "1.2.0rc2"


@pytest.mark.parametrize(
    ("server", "routers"),
    [
        ("dsr1_gb300_sglang_fp8_disagg_8192x1024_c128_cfg505", ("random", "round_robin")),
        ("dsr1_gb200_sglang_fp8_disagg_8192x1024_c6144_cfg253", ("random", "random")),  # 0.5.5
        ("dsr1_gb200_sglang_fp8_disagg_1024x1024_c16_cfg227", ("round_robin", "round_robin")),  # no such ranks
    ],
)
def test_sglangs_ranks_of_workers_apart_are_drawn(server: str, routers: tuple[str, str]) -> None:
    """`bootstrap_room % dp_size`, and a room is a random number; from 0.5.8 on for prompts only."""
    found = scenario_of(by_id(server))
    assert (found.router.name, found.disaggregation.decode_router.name) == routers


def test_dynamos_own_scripts_send_half_as_many_requests() -> None:
    """SGLang's of December 2025: five rounds after five of warm-up; srt-slurm's ten after two."""
    old = scenario_of(by_id("dsr1_gb200_sglang_fp8_disagg_1024x1024_c16_cfg227")).workload
    new = scenario_of(by_id("dsr1_gb200_trtllm_fp4_disagg_8192x1024_c44_cfg388")).workload
    assert (old.warmup_requests, old.num_requests) == (80, 80)
    assert (new.warmup_requests, new.num_requests) == (88, 440)


def test_warm_up_begins_with_the_day_on_which_the_client_learned_it() -> None:
    def rounds(day: str) -> int | None:
        return scenario_of(server(date=day)).workload.warmup_requests

    assert (rounds("2026-01-14"), rounds("2026-01-28")) == (0, 64)


def test_recipes_without_a_list_of_concurrencies_take_the_power_of_two_below() -> None:
    """84 requests over four workers, 21 each: ctx1_gen4_tep8_batch16."""
    decode = launch_of(facts(role="decode", device="gb300", concurrency=84, workers=4, each=21))
    assert (decode.max_sequences, decode.graph_batch) == (16, 16)
    assert launch_of(facts(role="decode", device="gb300", concurrency=3, workers=4, each=0)).max_sequences == 1


def test_scripts_overrule_the_degrees_of_a_row() -> None:
    """SGLang 0.5.5: the row says data parallel with sliced experts, of workers that were tensor parallel or DEP 32."""
    small = by_id("dsr1_gb200_sglang_fp8_disagg_1024x1024_c16_cfg227")
    assert small.layout == Layout(4, 4, 1)
    assert {(p.replica.tensor_parallel, p.replica.data_parallel) for p in scenario_of(small).pools} == {(4, 1)}
    large = scenario_of(by_id("dsr1_gb200_sglang_fp8_disagg_1024x1024_c4096_cfg236")).pools[1]
    assert (large.replica.data_parallel, large.replica.expert_parallel) == (32, True)


def test_sweeps_without_a_concurrency_take_it_from_their_decode_batches() -> None:
    one = by_id("qwen3_32b_qwen3_32b_h100_sxm_vllm_disagg_4000x1000_c_tp_epnone_2")
    assert one.concurrency == 224 * 2


def test_servers_whose_client_was_told_512_whatever_the_run_are_named_and_not_predicted() -> None:
    """gpt-oss on H100: the server admitted fewer than the 512 that its row names, and nobody knows how many."""
    found = [s for s in servers() if "told the client 512" in (s.problem or "")]
    assert len(found) == 9
    assert {(s.model, s.device, s.engine, s.concurrency) for s in found} == {
        ("openai/gpt-oss-120b", "h100", "vllm", 512)
    }
    assert all(s.date.startswith("2025-12") for s in found)
    assert _with_problem(replace(found[0], problem=None)).problem
    assert _with_problem(replace(found[0], problem=None, date="2026-03-27")).problem is None, "another script"


def test_figures_in_doubt_stay_in_the_score_and_the_others_stand_beside() -> None:
    odd = [s for s in servers() if doubt_about(facts_of(s))]
    assert {(s.family, s.mode) for s in odd} == {("sweeps", "disagg")}
    assert len(odd) == 7, "seven sweeps name no concurrency"
    scored = [Scored(odd[0], Prediction(1.0, 1.0)), Scored(by_id(LLAMA), Prediction(by_id(LLAMA).ttft_s, 0.01))]
    verdict = Verdict(scored, is_whole=False)
    assert verdict.errors is not None and verdict.errors.covered == 2
    assert verdict.without_doubtful is not None and verdict.without_doubtful.covered == 1
    assert any("in doubt" in str(row) for row in summary_rows(verdict))
