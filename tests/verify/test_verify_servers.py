"""`gnomon verify servers` and `verify stages`: rows become scenarios, what counts, figures and mistakes."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gnomon.core.config import load
from gnomon.core.errors import DataError
from gnomon.serving.scenario import Scenario
from gnomon.verify import stages
from gnomon.verify.servers import TASKS, Scored, figures, findings, read_servers, settings_of
from gnomon.verify.servers import requests_of as sent_to
from gnomon.verify.stages import read_stages, requests_of
from gnomon.workload import Requests

HEAD = (
    "task,model_id,weight_precision,gpu_model,num_gpus,tensor_parallel,expert_parallel,data_parallel,max_num_seqs,"
    "avg_batch_size,avg_output_len,output_throughput_tokens_per_sec,median_itl_ms,p90_itl_ms,iteration_ms"
)
ROW = "lm-arena-chat,Qwen/Qwen3-8B,bfloat16,H100,1,1,1,1,64,63.9,640.0,3000.0,20.0,25.0,21.0"
FAST = "gpqa,Qwen/Qwen3-14B,bfloat16,B200,1,1,1,1,8,8.0,7000.0,240.0,33.0,50.0,34.0"
DP = "sourcegraph-fim,Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8,fp8,B200,8,1,8,8,128,100,250,900,30.0,40,100.0"


def _read(tmp_path: Path, *rows: str) -> list[Scored]:
    (tmp_path / "servers.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    return [Scored(one, 1.1 * one.itl_s, 0.8 * one.tokens_s) for one in read_servers(tmp_path / "servers.csv")]


def test_rows_that_count(tmp_path: Path) -> None:
    chat, strange, code = _read(tmp_path, ROW, FAST, DP)
    assert chat.server.is_held_out == (zlib.crc32(ROW.encode()) % 2 == 1)
    assert chat.errors == pytest.approx({"itl": 0.1, "throughput": -0.2})
    assert strange.errors == pytest.approx({"throughput": -0.2})  # Not understood.
    assert code.errors == {}  # Several tokens in one message; prompts unknown.


def test_each_data_parallel_rank_gets_its_share(tmp_path: Path) -> None:
    (code,) = _read(tmp_path, DP)
    settings = settings_of(code.server)
    assert settings["batching"]["max_sequences"] == 16
    assert settings["timing"]["expert_rows"] == 128
    assert settings["sampling"] == {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}


def test_kernels_of_experts(tmp_path: Path) -> None:
    row = "gpqa,Qwen/Qwen3-235B-A22B{},bfloat16,{},{},{},8,1,64,63.9,7000,2000,30.0,31.0,30.0"
    asked = (
        ("", "H100", 8),
        ("", "H100", 2),
        ("", "B200", 8),
        ("", "B200", 1),
        ("-FP8", "H100", 8),
        ("-FP8", "B200", 8),
    )
    found = _read(tmp_path, *(row.format(end, gpu, num, num) for end, gpu, num in asked))
    timing = [settings_of(one.server)["timing"] for one in found]
    assert [one.get("expert_tiles", "tuned") for one in timing] == [
        "default",
        "tuned",
        "tuned",
        "default",
        "tuned",
        "tuned",
    ]
    assert [one["expert_kernel"] for one in timing] == [*["triton"] * 5, "deepgemm"]


def test_turns_of_a_conversation_come_behind_one_another_at_once(tmp_path: Path) -> None:
    """Of 1.3 turns in the mean, three requests in thirteen stand behind all that was said before them; of that the
    prompts alone are in the cache, for the answers are the data's."""
    chat, gpqa, _ = _read(tmp_path, ROW, FAST, DP)
    sent = sent_to(chat.server, load(Scenario, None, settings_of(chat.server)))
    assert len(sent) == 1024 and (sent.arrival_s == 0.0).all()
    again = np.array([i for i in range(1, 1024) if _shared(sent, i - 1, i)])
    assert len(again) == pytest.approx(1024 * 0.3 / 1.3, rel=0.3)  # Prompts of less than a block share none.
    assert (sent.prompt_tokens[again] > sent.total_tokens[again - 1]).all()
    alone = sent_to(gpqa.server, load(Scenario, None, settings_of(gpqa.server)))
    assert not any(_shared(alone, i - 1, i) for i in range(1, 198))


def _shared(sent: Requests, one: int, other: int) -> int:
    """Blocks with which both begin."""
    first, second = sent.prefix(one), sent.prefix(other)
    same = first[: len(second)] == second[: len(first)]
    return int(np.cumprod(same).sum())


def test_large_servers_are_sent_the_same_prompts_again(tmp_path: Path) -> None:
    """Six times 1,024 for 4,096 sequences; what is answered differs."""
    (large,) = _read(tmp_path, ROW.replace(",64,63.9,", ",4096,4090.0,"))
    sent = sent_to(large.server, load(Scenario, None, settings_of(large.server)))
    assert len(sent) == 6 * 1024
    assert (sent.prompt_tokens[:1024] == sent.prompt_tokens[-1024:]).all()
    assert (sent.output_tokens[:1024] != sent.output_tokens[-1024:]).mean() > 0.9
    for i in (0, 17, 1023):
        assert _shared(sent, i, i + 1024) == sent.prompt_tokens[i] // 16
    counts = [TASKS["gpqa"].requests(n) for n in (8, 128, 129, 512, 768, 4096)]
    assert counts == [198, 198, 396, 594, 990, 4158]


def test_answers_are_cut_where_the_client_cut_them_and_keep_their_mean(tmp_path: Path) -> None:
    """A mean of 1,464 tokens with a spread of one: uncut, a twelfth would be longer than the 4,096 asked for."""
    (one,) = _read(tmp_path, ROW.replace("640.0", "1464.0").replace(",64,63.9,", ",4096,4090.0,"))
    sent = sent_to(one.server, load(Scenario, None, settings_of(one.server)))
    assert sent.output_tokens.max() == 4096
    assert sent.output_tokens.mean() == pytest.approx(1464, rel=0.04)


def test_figures_are_of_the_held_out_half_and_worse_ones_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = _read(tmp_path, ROW)
    held = [Scored(replace(one.server, is_held_out=True), (1 + e) * one.server.itl_s, 3000.0) for e in (0.1, -0.2, 0.6)]
    other = Scored(replace(one.server, is_held_out=False), 9.0, 9.0)
    found = figures([*held, other])
    assert found == pytest.approx({"h100 itl median": 0.2, "h100 itl mean": 0.3, "throughput median": 0.0})
    monkeypatch.setattr("gnomon.verify.servers.recorded", lambda: {"h100 itl median": 0.19})
    assert findings(held, is_whole=True).failures == ["h100 itl median 20.0% (recorded 19.0%)"]
    assert findings(held, is_whole=False).failures == []


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for read in (read_servers, read_stages):
        with pytest.raises(DataError, match="this is no file of"):
            read(tmp_path / "other.csv")


STAGES = (
    "run,stage,rate,duration_s,load,requests,shared_prefix_groups,prompts_per_group,system_prompt_len,question_len,"
    "output_len,prompt_len_mean,ttft_mean_ms,ttft_median_ms,e2e_mean_ms,e2e_median_ms\n"
)


def test_prompts_of_a_stage_come_in_turn_behind_their_beginnings(tmp_path: Path) -> None:
    (tmp_path / "h100.csv").write_text(
        STAGES + "20260217-1-llama-2-7b-tp1-y,0,5.0,40,constant,200,10,10,100,466,247,592,25,24.0,1810,1796.0\n"
    )
    (stage,) = read_stages(tmp_path / "h100.csv")
    requests = requests_of(stage)
    assert requests.arrival_s[-1] == pytest.approx(40.0)
    blocks = requests.prefix_hashes.reshape(200, 37)
    assert (blocks[0] == blocks[100]).all()
    assert (blocks[0, :6] == blocks[10, :6]).all() and not np.isin(blocks[0, 6:], blocks[10]).any()
    assert not np.isin(blocks[0], blocks[1]).any()


def test_a_file_without_servers_is_said_to_be_one(tmp_path: Path) -> None:
    for name, text in (("empty", ""), ("head", HEAD + "\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match="holds no server of a text task"):
            read_servers(tmp_path / name)
        with pytest.raises(DataError, match="holds no load stage"):
            read_stages(tmp_path / name)
    (tmp_path / "other").write_text("run,stage\nsomebody,1\n")
    with pytest.raises(DataError, match="the run 'somebody' does not begin with a known model"):
        read_stages(tmp_path / "other")


@pytest.mark.parametrize(
    ("run", "model", "degree"),
    [
        ("20260218-130541-mixtral-8x7b-v0-1-tp2-general", "mixtral-8x7b", 2),
        ("llama-2-70b-hf-tp4-codegen", "llama-2-70b", 4),
        ("qwen3-30b-a3b-2507-tp1-codegen", "qwen3-30b-a3b-2507", 1),
    ],
)
def test_a_run_names_its_model_and_degree(tmp_path: Path, run: str, model: str, degree: int) -> None:
    """As the catalog has the model, the longest name that fits."""
    (tmp_path / "h100.csv").write_text(
        STAGES + f"{run},0,5.0,40,constant,200,10,10,100,466,247,592,25,24.0,1810,1796.0\n"
    )
    (stage,) = read_stages(tmp_path / "h100.csv")
    settings = stages.settings_of(stage)
    assert (settings["model"], settings["replica"]) == (model, {"tensor_parallel": degree})
