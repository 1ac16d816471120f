"""Traces of agents in their public formats: who waits for whom, how long after, what prompts share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError
from gnomon.serving.engine.state import FINISHED
from gnomon.workload import WorkloadConfig, generate
from gnomon.workload.formats import hashed
from gnomon.workload.requests import Requests
from gnomon.workload.traces import read_requests
from gnomon.workload.written import export
from serving_kit import run, scenario


def written(tmp_path: Path, lines: list[dict[str, Any]]) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return str(path)


def parents(made: Requests) -> list[list[int]]:
    pairs = zip(made.parent_offsets, made.parent_offsets[1:], strict=False)
    return [made.parents[a:b].tolist() for a, b in pairs]


EXPORTED = ("arrival_s", "prompt_tokens", "output_tokens", "prefix_offsets", "prefix_hashes", "parent_offsets",
            "parents", "think_s")  # fmt: skip


def requests(path: str, **changes: Any) -> Requests:
    """What is read of a file; and what is read of it reads back equal, from either kind of file."""
    made = generate(WorkloadConfig(**{"trace": {"file": path}, **changes}), 0)
    for suffix in (".csv", ".parquet"):
        again = generate(WorkloadConfig(trace=str(export(made, Path(path).with_suffix(suffix)))), 0)
        for name in EXPORTED if len(made.parents) else EXPORTED[:-3]:
            assert np.array_equal(getattr(again, name), getattr(made, name)), name
    return made


def qwen(tmp_path: Path) -> str:
    """Two conversations: 7 -> 9 -> 4, and 5; 3's parent came before the trace began."""
    rows = [(7, -1, 10.0, 40), (5, -1, 11.0, 20), (9, 7, 14.0, 60), (3, 1, 15.0, 30), (4, 9, 20.0, 80)]
    lines = [
        {"chat_id": c, "parent_chat_id": p, "timestamp": t, "input_length": n, "output_length": 5, "type": "text",
         "turn": 1, "hash_ids": list(range(n // 16))}
        for c, p, t, n in rows
    ]  # fmt: skip
    return written(tmp_path, lines)


def test_qwen_conversations_wait_for_their_parents(tmp_path: Path) -> None:
    made = requests(qwen(tmp_path))
    # The starts in order of arrival: 7, 5 and 3; then 9 and 4.
    assert made.prompt_tokens.tolist() == [40, 20, 30, 60, 80]
    assert made.arrival_s.tolist() == [0.0, 1.0, 5.0, np.inf, np.inf]
    assert parents(made) == [[], [], [], [0], [3]]
    assert made.think_s.tolist() == [0.0, 0.0, 0.0, 4.0, 6.0]
    assert made.prefix_block_tokens == 16 and made.prefix(3).tolist() == [0, 1, 2]


def test_they_are_served_in_that_order(tmp_path: Path) -> None:
    done = run(
        scenario(workload={"trace": {"file": qwen(tmp_path)}, "lengths": None, "rate": None, "num_requests": None})
    )
    q = done.cluster.requests
    assert (q.status == FINISHED).all()
    assert q.arrival_s[3] == pytest.approx(q.finished_s[0] + 4.0)
    assert q.arrival_s[4] == pytest.approx(q.finished_s[3] + 6.0)


def test_calls_that_wait_for_others_are_not_sent_in_turn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompts_in_turn.*wait for others"):
        requests(qwen(tmp_path), prompts_in_turn=2, rate=1.0, arrivals={"process": "poisson"})


def test_whole_sessions_at_another_speed(tmp_path: Path) -> None:
    path = qwen(tmp_path)
    assert requests(path, num_requests=3).prompt_tokens.tolist() == [40, 60, 80]
    assert requests(path, num_requests=4).prompt_tokens.tolist() == [40, 20, 60, 80]
    # Five calls in five seconds: twice as fast.
    assert requests(path, rate=2.0).arrival_s[:3].tolist() == [0.0, 0.5, 2.5]
    window = requests(path, trace={"file": path, "start_s": 0.5, "end_s": 4.0, "think_s": 1.5})
    assert window.prompt_tokens.tolist() == [20] and window.arrival_s.tolist() == [0.5]
    assert requests(path, trace={"file": path, "think_s": 1.5}).think_s.tolist() == [0.0, 0.0, 0.0, 1.5, 1.5]
    drawn = requests(path, arrivals={"process": "poisson"}, rate=10.0)
    assert np.isfinite(drawn.arrival_s).tolist() == [True, True, True, False, False]
    with pytest.raises(ConfigError, match="closed_loop"):
        requests(path, arrivals={"process": "closed_loop", "concurrency": 2}, rate=None)


def test_sessions_of_coding_agents_with_sub_agents(tmp_path: Path) -> None:
    """A call of two seconds, a sub-agent of two calls, and the call that waits for it; then another session."""

    def call(t: float, tokens: int, ids: list[int], api_time: float = 1.0) -> dict[str, Any]:
        return {"t": t, "in": tokens, "out": 10, "hash_ids": ids, "api_time": api_time}

    sub = {"type": "sub-agent", "requests": [call(3.0, 50, [7]), call(5.0, 90, [7, 8])]}
    calls = [call(0.0, 100, [0], 2.0), sub, call(8.0, 200, [0, 1, 2])]
    lines = [{"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": calls},
             {"id": "b", "block_size": 64, "hash_id_scope": "local", "requests": calls[:1]}]  # fmt: skip
    made = requests(written(tmp_path, lines))
    assert made.prompt_tokens.tolist() == [100, 100, 50, 90, 200]
    assert parents(made) == [[], [], [0], [2], [0, 3]]
    assert made.think_s.tolist() == [0.0, 0.0, 1.0, 1.0, 6.0]
    assert made.prefix_block_tokens == 64
    # Ids count within a session: what two sessions hold is not the same.
    assert made.prefix(0).tolist() != made.prefix(1).tolist()
    assert made.prefix(0).tolist() == made.prefix(4)[:1].tolist()


def test_turns_follow_one_another(tmp_path: Path) -> None:
    lines = [{"session_id": s, "turn_idx": i, "input_toks": n, "output_toks": 5, "arrival_time_ns": t}
             for s, i, n, t in (("x", 1, 30, 2_000_000_000), ("x", 0, 20, 0), ("y", 0, 10, 500_000_000))]  # fmt: skip
    made = requests(written(tmp_path, lines))
    assert made.prompt_tokens.tolist() == [20, 10, 30] and parents(made) == [[], [], [0]]
    assert made.arrival_s[:2].tolist() == [0.0, 0.5] and made.think_s[2] == 2.0


def test_messages_are_measured_and_hashed(tmp_path: Path) -> None:
    system, more = {"role": "system", "content": "s" * 249}, {"role": "user", "content": "u" * 123}
    lines = [{"session_id": "a", "input": [system], "output_length": 9, "session_timestamp": 0.0},
             {"session_id": "a", "input": [system, more], "output_length": 8, "session_timestamp": 3.0}]  # fmt: skip
    made = requests(written(tmp_path, lines))
    # "system", a line break, 249 characters and another are 257; "user" and the like 129.
    assert made.prompt_tokens.tolist() == [257 // 4, 386 // 4]
    assert made.output_tokens.tolist() == [9, 8] and parents(made) == [[], [0]]
    assert made.prefix(0).tolist() == made.prefix(1)[:4].tolist() and len(made.prefix(1)) == 6
    assert any("four characters" in note for note in made.notes)


def test_conversations_of_messages(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "h" * 200}, {"from": "gpt", "value": "g" * 100},
            {"from": "human", "value": "h" * 50}, {"from": "gpt", "value": "g" * 20}]  # fmt: skip
    path = written(tmp_path, [{"id": "1", "conversations": talk}])
    assert not len(read_requests(path).arrival_s)
    made = requests(path, arrivals={"process": "poisson"}, rate=1.0)
    assert parents(made) == [[], [0]]
    assert made.prompt_tokens.tolist() == [207 // 4, (207 + 105 + 57) // 4]


def test_equal_beginnings_have_equal_hashes() -> None:
    one, other = hashed("a" * 128 + "b" * 64), hashed("a" * 128 + "c" * 100)
    assert one[:2] == other[:2] and one[2] != other[2] and len(other) == 3


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([{"id": "a", "requests": 3}], "no list of calls"),
        ([{"id": "a", "requests": [{"t": 0, "in": "x", "out": 1}]}], "'in'"),
        ([{"id": "a", "requests": []}], "no calls"),
        ([{"session_id": "a", "input": [], "output_length": 3}], "no list of messages"),
        ([{"session_id": "a", "input": [3], "output_length": 3}], "not an object"),
        (
            [{"chat_id": 1, "parent_chat_id": 2, "timestamp": 0, "input_length": 4, "output_length": 4},
             {"chat_id": 2, "parent_chat_id": 1, "timestamp": 1, "input_length": 4, "output_length": 4}],
            "waits for itself",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(lines: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=told):
        read_requests(written(tmp_path, lines))


def dynamo(tmp_path: Path, *more: str) -> str:
    """A session of two requests, a child of it, and one alone; by hand after Dynamo's documentation (v1)."""

    def line(number: int, received: int, ended: int, length: int, **context: str) -> dict[str, Any]:
        replay = {"trace_block_size": 16, "input_length": length, "input_sequence_hashes": list(range(length // 16))}
        request = {"request_id": f"r{number}", "request_received_ms": received, "output_tokens": 7, "replay": replay}
        known = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": ended}
        return {**known, "agent_context": context or None, "request": request}

    lines = [
        line(0, 5_000, 6_000, 32, session_id="a"),
        {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 7_000, "request": None},
        line(2, 7_000, 7_500, 16, session_id="b", parent_session_id="a"),
        line(1, 9_500, 10_000, 64, session_id="a"),
        line(3, 5_500, 5_900, 48),
    ]
    path = written(tmp_path, lines)
    Path(path).write_text(Path(path).read_text() + "".join(more))
    return path


def test_dynamos_sessions_follow_one_another(tmp_path: Path) -> None:
    made = requests(dynamo(tmp_path))
    assert made.prompt_tokens.tolist() == [32, 48, 16, 64]
    assert made.arrival_s.tolist() == [0.0, 0.5, np.inf, np.inf]
    assert parents(made) == [[], [], [0], [0]]
    assert made.think_s.tolist() == [0.0, 0.0, 1.0, 3.5]
    assert made.prefix_block_tokens == 16 and made.prefix(3).tolist() == [0, 1, 2, 3]


def test_a_broken_line_of_dynamos_is_named(tmp_path: Path) -> None:
    broken = json.dumps({"event_type": "request_end", "event_time_unix_ms": 1, "request": {"output_tokens": 3}})
    with pytest.raises(DataError, match=r"trace.jsonl:6.*replay"):
        read_requests(dynamo(tmp_path, broken + "\n"))


def test_azures_trace_of_2025_is_read_without_its_images(tmp_path: Path) -> None:
    """By hand after its description: the columns of 2024, and NumImages."""
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15 00:00:01.500000+00:00,2,900,31\n2024-10-15 00:00:02.000000+00:00,0,44,12\n"
    )
    made = read_requests(str(path))
    assert made.prompt_tokens.tolist() == [900, 44] and made.output_tokens.tolist() == [31, 12]


def test_arrivals_of_calls_are_in_order_where_lengths_are_drawn(tmp_path: Path) -> None:
    """Calls stand behind those that wait for none: their recorded arrivals were taken in that order."""
    trace = tmp_path / "turns.csv"
    rows = [(1, 0, 0.0), (1, 1, 1.0), (2, 0, 2.0), (1, 2, 3.0)]
    lines = [f"{session},{turn},10,5,{int(1e9 * at_s)}" for session, turn, at_s in rows]
    trace.write_text("\n".join(["session_id,turn_idx,input_toks,output_toks,arrival_time_ns", *lines]) + "\n")
    drawn = {"trace": {"file": str(trace)}, "arrivals": "trace", "lengths": {"distribution": "fixed", "prompt": 8,
             "output": 2}}  # fmt: skip
    assert generate(build(WorkloadConfig, drawn), 0).arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0]
