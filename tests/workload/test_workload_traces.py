"""Trace formats, their windows and scales, and the mistakes in them; conversations."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError, UnknownNameError
from gnomon.workload import WorkloadConfig, generate, with_rate
from gnomon.workload.formats import FORMATS, TraceFormat
from gnomon.workload.requests import Requests
from gnomon.workload.traces import read_requests
from gnomon.workload.written import export_as

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2222000,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.509930+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
120,GPT-4,20,30,50,API log
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n10.0,100,20\n10.5,50,10\n"
PLAIN = "when,in,out,who,level\n2000,100,20,anna,1\n1000,50,10,bob,0\n3000,70,10,anna,0\n"
MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [1, 2, 3]},
    {"timestamp": 3000, "input_length": 1500, "output_length": 26, "hash_ids": [1, 2, 9]},
    {"timestamp": 4000, "input_length": 400, "output_length": 10, "hash_ids": []},
]


@pytest.fixture
def trace(tmp_path):
    """Write a trace and generate its requests."""

    def run(text, name="trace.csv", options=None, **choices):
        path = tmp_path / name
        path.write_text(text)
        config = build(WorkloadConfig, {"trace": {"file": str(path), **(options or {})}, **choices})
        return generate(config, seed=0)

    return run


def mooncake() -> str:
    return "\n".join(json.dumps(row) for row in MOONCAKE)


def test_azure_2023(trace):
    requests = trace(AZURE_2023)
    assert requests.arrival_s == pytest.approx([0, 4.314579, 4.54161], abs=1e-9)
    assert requests.prompt_tokens.tolist() == [374, 396, 879]
    assert requests.output_tokens.tolist() == [44, 109, 55]
    assert requests.notes == ()


def test_azure_2024_has_time_zones(trace):
    assert trace(AZURE_2024).arrival_s.tolist() == [0, 0.5]


def test_burstgpt_failures_are_dropped_and_said(trace):
    requests = trace(BURSTGPT)
    assert requests.arrival_s.tolist() == [0, 40, 115]
    assert requests.notes == ("1 of 4 requests of trace.csv without prompt or output tokens: dropped.",)


def test_vidur_and_lengths_without_arrivals(trace):
    assert trace(VIDUR).arrival_s.tolist() == [10, 10.5]  # counted from the start of the run
    lengths_only = "num_prefill_tokens,num_decode_tokens,pd_ratio\n100,20,5\n50,10,5\n"
    with pytest.raises(DataError, match="no arrival times"):
        trace(lengths_only)
    requests = trace(lengths_only, rate=2.0, arrivals="fixed_interval")
    assert requests.arrival_s.tolist() == [0, 0.5]
    assert requests.prompt_tokens.tolist() == [100, 50]


def test_mooncake_blocks(trace):
    requests = trace(mooncake(), "trace.jsonl")
    assert requests.arrival_s.tolist() == [0, 3, 4]
    assert requests.prefix_block_tokens == 512
    assert [requests.prefix(i).tolist() for i in range(3)] == [[1, 2, 3], [1, 2, 9], []]
    double = trace(mooncake(), "trace.jsonl", prompt_scale=2)
    assert double.prompt_tokens.tolist() == [2400, 3000, 800]
    assert double.prefix_block_tokens == 1024
    cut = trace(mooncake(), "trace.jsonl", max_tokens=1000, over_long="truncate")
    assert cut.prompt_tokens.tolist() == [948, 974, 400]
    assert [cut.prefix(i).tolist() for i in range(3)] == [[1, 2], [1, 2], []]


def test_named_columns_are_sorted_by_arrival(trace):
    columns = {"arrival": "when", "prompt": "in", "output": "out", "session": "who", "priority": "level"}
    requests = trace(PLAIN, options={"columns": {**columns, "time_unit": "ms"}})
    assert requests.arrival_s.tolist() == [0, 1, 2]
    assert requests.prompt_tokens.tolist() == [50, 100, 70]
    assert requests.session.tolist() == [1, 0, 0]
    assert requests.priority.tolist() == [0, 1, 0]


def test_gzipped_traces(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(VIDUR.encode()))
    assert len(generate(build(WorkloadConfig, {"trace": str(path)}), 0)) == 2


def test_windows_and_speed(trace):
    windowed = trace(AZURE_2023, options={"start_s": 4.0, "end_s": 4.5})
    assert windowed.prompt_tokens.tolist() == [396]
    assert windowed.arrival_s == pytest.approx([0.314579])
    assert trace(AZURE_2023, options={"time_scale": 2}).arrival_s[1] == pytest.approx(8.629158)
    assert trace(AZURE_2023, num_requests=2).prompt_tokens.tolist() == [374, 396]
    with pytest.raises(DataError, match=r"covers 0 s to 4\.54"):
        trace(AZURE_2023, options={"start_s": 90})
    with pytest.raises(ConfigError, match="holds 3 requests"):
        trace(AZURE_2023, num_requests=4)


def test_a_rate_rescales_recorded_arrivals(trace):
    recorded, faster = trace(AZURE_2023), trace(AZURE_2023, rate=10.0)
    assert recorded.rate == pytest.approx(2 / 4.54161)
    assert (with_rate(recorded, recorded.rate).arrival_s == recorded.arrival_s).all()
    assert faster.arrival_s[-1] == pytest.approx(0.2)
    assert (with_rate(recorded, 10.0).arrival_s == faster.arrival_s).all()


def test_recorded_arrivals_with_other_lengths(trace):
    requests = trace(AZURE_2023, preset="arxiv-4k")
    assert requests.arrival_s[1] == pytest.approx(4.314579)
    assert requests.prompt_tokens.tolist() != [374, 396, 879]


def test_empirical_lengths_keep_pairs_together(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n100,1\n200,2\n300,3\n")
    config = build(WorkloadConfig, {"lengths": {"distribution": "empirical", "file": str(path)}, "num_requests": 3000})
    requests = generate(config, 0)
    assert (requests.prompt_tokens == 100 * requests.output_tokens).all()
    assert np.bincount(requests.output_tokens)[1:] / 3000 == pytest.approx([1 / 3] * 3, abs=0.03)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (VIDUR + "11,x,3\n", ":4", "'num_prefill_tokens': 'x' is not a number"),
        (VIDUR + "11,,3\n", ":4", "an empty value is not a number"),
        (VIDUR + "11,-5,3\n", ":4", "'-5' is below 0"),
        (VIDUR + "-1,5,3\n", ":4", "'arrived_at': '-1' is below 0"),
        (VIDUR + "11,5.5,3\n", ":4", "whole number"),
        (VIDUR + "inf,5,3\n", ":4", "'arrived_at'"),
        (VIDUR + "11,99999999999,3\n", ":4", "is above"),
        (VIDUR + "1,2,3,4\n", ":4", "cannot be read"),
        (AZURE_2023 + "yesterday,1,2\n", ":5", "'yesterday' is not a date"),
        ("a,b\n1,2\n", "trace.csv", "no known trace format has the columns a, b"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n", "trace.csv", "no requests"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,0\n", "trace.csv", "no request has both"),
        ("", "trace.csv", "cannot be read"),
    ],
)
def test_bad_files_are_named_by_line_and_column(trace, text, where, message):
    with pytest.raises(DataError, match=message) as caught:
        trace(text)
    assert caught.value.where.endswith(where)


def test_bad_json_lines(trace):
    with pytest.raises(DataError, match="not valid JSON") as caught:
        trace(mooncake() + "\n{oops\n", "trace.jsonl")
    assert ":4:" in caught.value.where
    many = json.dumps({**MOONCAKE[0], "hash_ids": [1, 2, 3, 4]})
    with pytest.raises(DataError, match="more blocks than prompt and answer"):
        trace(many, "trace.jsonl")
    bad = json.dumps({**MOONCAKE[0], "hash_ids": [1, "x"]})
    with pytest.raises(DataError, match="list of whole numbers"):
        trace(bad, "trace.jsonl")


def test_missing_files_columns_and_formats(trace, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        generate(build(WorkloadConfig, {"trace": str(tmp_path / "none.csv")}), 0)
    with pytest.raises(DataError, match="no column 'length'"):
        trace(VIDUR, options={"columns": {"prompt": "length", "output": "num_decode_tokens"}})
    with pytest.raises(DataError, match="ContextTokens"):
        trace(VIDUR, options={"format": "azure"})
    with pytest.raises(UnknownNameError, match="azure"):
        trace(VIDUR, options={"format": "azur"})


def test_a_format_of_ones_own(trace):
    FORMATS.add("ours", TraceFormat("Our gateway's log.", {"arrival": "t", "prompt": "p", "output": "o"}))
    try:
        assert trace("t,p,o\n0,5,6\n").prompt_tokens.tolist() == [5]
    finally:
        FORMATS.remove("ours")


def sessions(**options):
    return build(
        WorkloadConfig,
        {
            "num_requests": 300,
            "lengths": {"distribution": "fixed", "prompt": 20, "output": 12},
            "sessions": {"num_active": 4, "turns": 3, "block_tokens": 8, **options},
        },
    )


def test_every_turn_repeats_the_conversation():
    requests = generate(sessions(), 0)
    for session in np.unique(requests.session):
        turns = np.flatnonzero(requests.session == session)
        assert len(turns) <= 3
        assert requests.prompt_tokens[turns].tolist() == [20, 52, 84][: len(turns)]
        for earlier, later in itertools.pairwise(turns):
            before, after = requests.prefix(earlier), requests.prefix(later)
            assert (after[: len(before)] == before).all()
        assert [len(requests.prefix(i)) for i in turns] == [4, 8, 12][: len(turns)]
    assert (requests.prefix_hashes >= 0).all()


def test_only_shared_prefixes_are_shared_between_conversations():
    requests = generate(sessions(shared_prefix_tokens=30, num_shared_prefixes=2), 0)
    owners: dict[int, set[int]] = {}
    for i in range(len(requests)):
        for block in requests.prefix(i):
            owners.setdefault(int(block), set()).add(int(requests.session[i]))
    shared = [block for block, users in owners.items() if len(users) > 1]
    assert len(shared) == 6  # two prefixes of three full blocks each
    assert requests.prompt_tokens.min() == 50


def test_fewer_sessions_requests_are_the_first_of_more():
    few = generate(sessions().model_copy(update={"num_requests": 50}), 0)
    many = generate(sessions(), 0)
    assert (few.prompt_tokens == many.prompt_tokens[:50]).all()
    assert (few.prefix_hashes == many.prefix_hashes[: len(few.prefix_hashes)]).all()


def test_reference_traces(reference):
    config = build(WorkloadConfig, {"trace": str(reference / "traces" / "splitwise_conv.csv")})
    requests = generate(config, 0)
    assert len(requests) == 19366
    assert requests.rate == pytest.approx(5.53013641)
    assert requests.prompt_tokens.mean() == pytest.approx(1154.6974, abs=1e-4)


def written(folder, name, header, rows):
    file = folder / name
    file.write_text(header + "\n" + "\n".join(",".join(str(value) for value in row) for row in rows) + "\n")
    return read_requests(str(file))


def test_columns_are_guessed_by_what_people_call_them(tmp_path):
    rows = [(5 + i, 100 + i, 10 + i) for i in range(5)]
    for header in (
        "time,ISL,OSL",
        "Timestamp,inputTokens,completion tokens",
        "created_at,num_prompt_tokens,Output Len",
        "ts,prompt_len,gen_len",
    ):
        trace = written(tmp_path, "mine.csv", header, rows)
        assert trace.prompt_tokens.tolist() == [100, 101, 102, 103, 104]
        assert trace.output_tokens.tolist() == [10, 11, 12, 13, 14]
        assert trace.arrival_s.tolist() == [0, 1, 2, 3, 4]
        assert "guessed by their names" in trace.notes[0] and header.split(",")[1] in trace.notes[0]


def test_dates_are_told_from_numbers(tmp_path):
    rows = [(f"2024-05-01 12:00:0{i}.5", 10, 20) for i in range(3)]
    assert written(tmp_path, "dated.csv", "time,isl,osl", rows).arrival_s.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("unit", "factor"), [("milliseconds", 10**3), ("microseconds", 10**6)])
def test_an_epoch_in_smaller_units_is_told_from_seconds(tmp_path, unit, factor):
    rows = [(1_715_000_000 * factor + i * factor, 100, 10) for i in range(4)]
    trace = written(tmp_path, "epoch.csv", "arrival_s,prompt_tokens,output_tokens", rows)
    assert trace.arrival_s == pytest.approx([0, 1, 2, 3])
    assert f"read as {unit} since 1970" in trace.notes[0]


def test_gaps_of_minutes_are_pointed_out(tmp_path):
    rows = [(500 * i, 100, 10) for i in range(30)]
    trace = written(tmp_path, "slow.csv", "arrival_s,prompt_tokens,output_tokens", rows)
    assert trace.arrival_s[-1] == 14_500 and "500 s apart" in trace.notes[0]


def test_a_csv_with_mooncakes_names_is_said(tmp_path):
    rows = [(1000 * i, 100, 10) for i in range(3)]
    trace = written(tmp_path, "mine.csv", "timestamp,input_length,output_length", rows)
    assert trace.arrival_s.tolist() == [0, 1, 2] and "Mooncake" in trace.notes[0]


@pytest.mark.parametrize(
    "header",
    ["arrival_s,prompt_tokens,output_tokens", "timestamp,prompt_tokens,output_tokens",
     "arrived_at,num_prefill_tokens,num_decode_tokens", "timestamp,input_length,output_length"],
)  # fmt: skip
@pytest.mark.parametrize("spelled", ["2024-05-01T12:00:0{}Z", "2024-05-01 12:00:0{}+02:00", "2024-05-01 12:00:0{}.250"])
def test_dates_are_read_in_every_format(tmp_path, header, spelled):
    rows = [(spelled.format(i), 10, 20) for i in (4, 5, 7)]
    assert written(tmp_path, "dated.csv", header, rows).arrival_s.tolist() == [0, 1, 3]


def test_a_column_of_times_is_not_passed_over(tmp_path):
    """The columns of tokens alone make it a trace of Gnomon's own, whose arrivals have another name."""
    trace = written(tmp_path, "mine.csv", "timestamp,prompt_tokens,output_tokens", [(5, 10, 20), (8, 10, 20)])
    assert trace.arrival_s.tolist() == [0, 3] and "timestamp" in trace.notes[0]


FLAT = {"num_requests": 40, "rate": 3.0, "lengths": {"distribution": "fixed", "prompt": 700, "output": 30}}
TALKS = {**FLAT, "sessions": {"turns": 4, "num_active": 3, "shared_prefix_tokens": 64}}


def agents(**changes):
    """Three sessions: a sub-agent of two calls beside another, a call that waits for both, and talks of two calls."""
    parents = [[], [], [], [0], [0], [3], [0, 4, 5], [1], [2]]
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in parents])))
    blocks = [list(range(100 * i, 100 * i + 5 + i)) for i in (0, 1, 2, 0, 0, 0, 0, 1, 2)]
    given = {
        "arrival_s": np.array([0.0, 0.25, 1.5] + [np.inf] * 6), "prompt_tokens": 512 * np.arange(10, 19),
        "output_tokens": np.arange(9) + 20, "parent_offsets": offsets, "parents": np.concatenate(parents).astype(int),
        "think_s": np.array([0, 0, 0, 2.0, 2.5, 0.7, 3.0, 1.0, 4.0]), "prefix_block_tokens": 64,
        "prefix_offsets": np.concatenate(([0], np.cumsum([len(one) for one in blocks]))),
        "prefix_hashes": np.concatenate(blocks),
    }  # fmt: skip
    return Requests(**{**given, **changes})


def chains(block_tokens):
    """The same without the call that waits for two others."""
    whole = agents(prefix_block_tokens=block_tokens)
    return whole.take(np.array([0, 1, 2, 3, 5, 7, 8]), whole_sessions=True)


@pytest.mark.parametrize(
    ("name", "file", "given"),
    [
        ("azure", "t.csv", FLAT),
        ("burstgpt", "t.csv", FLAT),
        ("burstgpt", "t.jsonl", FLAT),
        ("vidur", "t.csv", FLAT),
        ("mooncake", "t.jsonl", FLAT),
        ("mooncake", "t.jsonl", {**TALKS, "sessions": {**TALKS["sessions"], "block_tokens": 512}}),
        ("gnomon", "t.csv", TALKS),
        ("agent-sessions", "t.jsonl", agents()),
        ("agent-sessions", "t.jsonl", chains(16)),
        ("agent-turns", "t.csv", replace(chains(16), prefix_hashes=np.zeros(0, int), prefix_offsets=np.zeros(8, int))),
        ("qwen", "t.jsonl", chains(16)),
        ("qwen", "t.csv", chains(16)),
        ("dynamo", "t.jsonl", chains(16)),
        ("dynamo", "t.jsonl", FLAT),
    ],
)
def test_other_tools_traces_are_written_and_read_back(tmp_path, name, file, given):
    """`export_as` reads every file again; here again, in full, without its help."""
    one = given if isinstance(given, Requests) else generate(build(WorkloadConfig, given), 3)
    one = replace(one, session=np.full(len(one), -1, np.int32)) if name == "mooncake" else one
    known = FORMATS[name]
    other = read_requests(str(export_as(one, name, tmp_path / file)), "auto" if known.needs else name)
    assert sorted(other.prompt_tokens.tolist()) == sorted(one.prompt_tokens.tolist())
    assert sorted(other.output_tokens.tolist()) == sorted(one.output_tokens.tolist())
    starts = one.arrival_s[: one.num_starts]
    assert other.arrival_s[: one.num_starts] - other.arrival_s[0] == pytest.approx(starts - starts[0], abs=1e-3)
    assert len(other.parents) == len(one.parents)
    if len(one.parents):
        assert sorted(np.diff(other.parent_offsets)) == sorted(np.diff(one.parent_offsets))
        assert sorted(other.think_s) == pytest.approx(sorted(one.think_s), abs=3e-3)
    if len(one.prefix_hashes):
        assert len(np.unique(other.prefix_hashes)) == len(np.unique(one.prefix_hashes))
        assert other.prefix_block_tokens == one.prefix_block_tokens


def test_a_client_pool_is_written_and_drawn_again(tmp_path):
    given = {"num_requests": 4000, "rate": 4.0, "arrivals": {"process": "gamma", "cv": 2.0}, "preset": "chat-1m"}
    one = generate(build(WorkloadConfig, given), 3)
    folder = export_as(one, "servegen", tmp_path / "pool")
    other = generate(build(WorkloadConfig, {"trace": {"file": str(folder)}}), 5)
    assert len(other) / other.arrival_s[-1] == pytest.approx(4.0, rel=0.2)
    gaps = np.diff(other.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.1)
    for name in ("prompt_tokens", "output_tokens"):
        ours, drawn = (np.percentile(getattr(some, name), [10, 50, 90]) for some in (one, other))
        assert drawn == pytest.approx(ours, rel=0.15)


@pytest.mark.parametrize(
    ("name", "file", "given", "told"),
    [
        ("azure", "t.csv", TALKS, "cannot say sessions and prefixes in blocks of 16 tokens"),
        ("mooncake", "t.jsonl", TALKS, "blocks of 512 tokens, not of 16"),
        ("qwen", "t.jsonl", agents(prefix_block_tokens=16), "which calls wait for which"),
        ("vidur", "t.csv", {**FLAT, "arrivals": {"process": "closed_loop", "concurrency": 4}, "rate": None},
         "closed loop"),
        ("conversations", "t.jsonl", FLAT, "the text of messages"),
        ("dynamo", "t.csv", FLAT, "End it in .jsonl"),
        ("azure", "t.txt", FLAT, "End it in .csv or .jsonl"),
        ("servegen", "pool", TALKS, "cannot say sessions"),
        ("nobodys", "t.csv", FLAT, "nobodys"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_say_is_refused(tmp_path, name, file, given, told):
    one = given if isinstance(given, Requests) else generate(build(WorkloadConfig, given), 3)
    with pytest.raises((ConfigError, UnknownNameError), match=told):
        export_as(one, name, tmp_path / file)
    assert not (tmp_path / file).exists()


def test_every_format_is_written_or_said_to_be_impossible():
    impossible = {"agent-messages", "chat-messages", "conversations"}
    written = {case[0] for case in test_other_tools_traces_are_written_and_read_back.pytestmark[0].args[1]}
    assert set(FORMATS) - impossible - {"gateway"} == written | {"servegen"}


def test_a_trace_is_exported_by_a_command(cli, tmp_path):
    out = str(tmp_path / "t.jsonl")
    assert "Wrote 20 requests" in cli("workload", "export", "--workload.num-requests", "20", "--as", "mooncake",
                                      "--out", out).output  # fmt: skip
    assert cli("workload", "show", "--workload.trace.file", out).exit_code == 0
