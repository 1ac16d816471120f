"""`gnomon serve`: what is sent, not when."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from gnomon.api.serving import serve
from gnomon.calibration.read import counters, is_scrape
from gnomon.core.errors import ConfigError
from gnomon.live.cluster import Room, block_hashes
from gnomon.live.protocol import FromFile, Pieces, answer, chat_text, up_to_stop
from live_kit import is_empty, served, small_cluster


@pytest.fixture(scope="module")
def server():
    live = small_cluster()
    with served(live, speed=20.0) as (app, urls), httpx.Client(base_url=urls[0], timeout=30) as client:
        yield app, client


def wait_until_empty(live):
    for _ in range(300):
        if is_empty(live):
            return True
        time.sleep(0.02)
    return False


def events(response):
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_completion_has_text_reason_and_usage(server):
    _, client = server
    asked = {"model": "sim", "prompt": "The sun is up and the day is new", "max_tokens": 6, "ignore_eos": True}
    first, second = (client.post("/v1/completions", json=asked).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["object"] == "text_completion"
    assert len(first["choices"][0]["text"].split()) == 6
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["usage"]["prompt_tokens"] == len(Pieces().encode(asked["prompt"]))
    assert first["usage"]["completion_tokens"] == 6


def test_a_stream_says_the_same_as_the_whole(server):
    _, client = server
    asked = {"messages": [{"role": "user", "content": "What is a gnomon?"}], "max_tokens": 12, "ignore_eos": True}
    whole = client.post("/v1/chat/completions", json=asked).json()
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = events(response)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == 12
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in found[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert found[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert {one["object"] for one in found} == {"chat.completion.chunk"}


def test_a_conversation_finds_its_kv_again(server):
    """The second turn repeats the first and its answer, 16 tokens a block; at least one token is computed."""
    _, client = server
    start = {"role": "user", "content": "Tell me about sundials, " + "please " * 60}
    first = client.post("/v1/chat/completions", json={"messages": [start], "max_tokens": 40, "ignore_eos": True}).json()
    said = first["choices"][0]["message"]
    turns = [start, said, {"role": "user", "content": "And now?"}]
    second = client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 4}).json()
    before = len(Pieces().encode(chat_text([("user", start["content"])]))) + 40 - 1  # The last has no KV.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == before // 16 * 16


def test_stop_strings_end_an_answer_and_are_not_said(server):
    _, client = server
    asked = {"prompt": "Where does it stop?", "max_tokens": 30, "ignore_eos": True}
    words = client.post("/v1/completions", json=asked).json()["choices"][0]["text"].split()
    where = next(i for i in range(4, 30) if f" {words[i]}" not in "".join(f" {one}" for one in words[:i]))
    for stop in (f" {words[where]}", ["nothing of it", f" {words[where]}"]):
        one = client.post("/v1/completions", json=asked | {"stop": stop}).json()
        assert one["choices"][0]["text"].split() == words[:where]
        assert one["choices"][0]["finish_reason"] == "stop"
        assert one["usage"]["completion_tokens"] == where + 1  # It is computed.


def test_why_an_answer_ends(server):
    """By the limit, however long it would have been by itself; by a stop string, if it is in the last token, too."""
    _, client = server
    for asked in ({"max_tokens": 300, "ignore_eos": True}, {"max_tokens": 300, "min_tokens": 500}):
        one = client.post("/v1/completions", json={"prompt": "Why?", **asked}).json()
        assert (one["choices"][0]["finish_reason"], one["usage"]["completion_tokens"]) == ("length", 300)
    word = one["choices"][0]["text"].split()[0]
    last = client.post("/v1/completions", json={"prompt": "Why?", "max_tokens": 1, "stop": word}).json()
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["text"]) == ("stop", " ")


def test_up_to_stop_by_hand():
    assert up_to_stop([" a", " bc", " d"], []) == [" a", " bc", " d"]
    assert up_to_stop([" a", " bc", " d"], ["c d", "x"]) == [" a", " b", ""]
    assert up_to_stop([" a", " bc", " d"], [" d", "b"]) == [" a", " "]
    assert up_to_stop([" a"], [" a"]) == [""]


def test_several_prompts_and_several_choices(server):
    _, client = server
    asked = {"prompt": ["one sun", "two suns"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    whole = client.post("/v1/completions", json=asked).json()
    assert [one["index"] for one in whole["choices"]] == [0, 1, 2, 3]
    assert len({one["text"] for one in whole["choices"]}) == 4
    assert whole["usage"]["completion_tokens"] == 12
    said = sum(len(Pieces().encode(one)) for one in asked["prompt"])
    assert whole["usage"]["prompt_tokens"] == said, "once, however many answers a prompt has"
    with client.stream("POST", "/v1/completions", json=asked | {"stream": True}) as response:
        found = events(response)
    texts = ["", "", "", ""]
    for one in found:
        texts[one["choices"][0]["index"]] += one["choices"][0]["text"]
    assert texts == [one["text"] for one in whole["choices"]]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"\xff\xfe", 400, None),
        (b'{"prompt": "x", "max_tokens": 0}', 400, "max_tokens"),
        (b'{"prompt": "x", "max_tokens": "4"}', 400, "max_tokens"),
        (b'{"prompt": ""}', 400, "prompt"),
        (b'{"prompt": []}', 400, "prompt"),
        (b'{"prompt": [9223372036854775808]}', 400, "prompt"),
        (b'{"prompt": [[-1]]}', 400, "prompt"),
        (b'{"prompt": "x", "n": 99}', 400, "n"),
        (b'{"prompt": "x", "stop": ""}', 400, "stop"),
        (b'{"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}', 400, "stop"),
        (b'{"prompt": "x", "logprobs": 5}', 400, "logprobs"),
        (b'{"prompt": "x", "model": "gpt"}', 404, "model"),
        (b'{"prompt": "x", "max_tokens": 999999}', 400, "prompt"),
        (b'{"prompt": ' + b"[" * 100_000, 400, None),
        (b'{"prompt": "' + b"word " * 40_000 + b'"}', 400, "prompt"),
    ],
)
def test_bad_requests_get_openais_errors(server, body, status, where):
    _, client = server
    response = client.post("/v1/completions", content=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["message"] and error["type"] in ("invalid_request_error", "not_found_error")
    if where is not None:
        assert error["param"].split(".")[0] == where


def test_other_pages(server):
    _, client = server
    assert client.get("/health").status_code == 200
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["sim"]
    assert client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert client.get("/v1/completions").status_code == 405


def test_metrics_have_the_engines_names(server):
    from prometheus_client.parser import text_string_to_metric_families

    _, client = server
    client.post("/v1/completions", json={"prompt": "for the metrics", "max_tokens": 5, "ignore_eos": True})
    text = client.get("/metrics").text
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"):  # fmt: skip
        assert values[name] == 0
    assert values["vllm:generation_tokens_total"] == values["sglang:generation_tokens_total"] >= 5
    ended = values["vllm:e2e_request_latency_seconds_count"]
    assert values["vllm:request_generation_tokens_sum"] == values["vllm:generation_tokens_total"]
    assert values["vllm:inter_token_latency_seconds_count"] == values["vllm:generation_tokens_total"] - ended
    assert values["vllm:time_to_first_token_seconds_count"] == ended
    assert is_scrape(text)
    assert counters([text], "here").ttft_s > 0


def test_a_client_that_leaves_frees_its_blocks(server):
    app, client = server
    asked = {"prompt": "word " * 2000, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=asked) as response:
        next(response.iter_lines())
        assert app.live.num_live == 1
    assert wait_until_empty(app.live)


@pytest.mark.slow
def test_sigterm_lets_answers_end():
    """In a process of its own: the answer that has begun is sent whole, nobody new gets one, the process ends."""
    command = [
        sys.executable,
        "-m",
        "gnomon.cli.main",
        "serve",
        "--model",
        "llama-3-8b",
        "--gpu",
        "h100",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        url = next(found.group() for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        asked = {"prompt": "word", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=30) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.terminate()
            rest = [line for line in lines if line]
        assert rest.pop() == "data: [DONE]"
        said = "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in (first, *rest))
        assert len(said.split()) == 200
        assert process.wait(30) in (0, -signal.SIGTERM)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_port_for_each_replica():
    live = small_cluster(num_replicas=3)
    with served(live, num_ports=3, speed=50.0) as (_, urls):
        for url in (urls[2], urls[2], urls[1]):
            httpx.post(f"{url}/v1/completions", json={"prompt": "x y z", "max_tokens": 2})
    assert list(live.cluster.replicas.num_taken) == [0, 1, 2]
    assert is_empty(live)


def test_a_token_is_asked_for():
    live = small_cluster()
    with served(live, token="secret") as (_, urls):
        asked = {"prompt": "x", "max_tokens": 1}
        assert httpx.post(f"{urls[0]}/v1/completions", json=asked).status_code == 401
        wrong = {"Authorization": "Bearer secre"}
        assert httpx.post(f"{urls[0]}/v1/completions", json=asked, headers=wrong).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{urls[0]}/v1/completions", json=asked, headers=right).status_code == 200
        assert httpx.get(f"{urls[0]}/health").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_other_addresses_need_a_token(host):
    with pytest.raises(ConfigError, match="other machines"):
        serve(host=host)


def test_what_is_not_served_is_said():
    with pytest.raises(ConfigError, match="kv_tiers is simulated, but not served"):
        small_cluster(kv_tiers={"host": {"size_gb": 10, "bandwidth_gb_s": 50}})


# The parts.


def test_room_by_hand():
    room = Room(10)
    assert [room.take(4), room.take(4)] == [0, 4]
    assert room.take(3) is None
    room.give_back(0, 4)
    assert room.take(2) == 8  # What was not used for longest comes first.
    assert room.take(3) == 0
    assert room.take(2) is None
    assert room.take(1) == 3
    assert room.take(0) == 0


def test_blocks_are_equal_as_long_as_all_before_is():
    one, other = block_hashes([1, 2, 3, 4, 5], 2, 0, 1 << 62), block_hashes([1, 2, 9, 4, 5], 2, 0, 1 << 62)
    assert len(one) == 2 and one[0] == other[0] and one[1] != other[1]
    assert block_hashes([1, 2], 2, 1, 1 << 62) != one[:1]  # Another adapter.
    assert block_hashes([1], 2, 0, 1 << 62) == []


def test_answers_are_the_same_tokens_in_the_next_prompt():
    pieces = Pieces()
    prompt = pieces.encode(chat_text([("user", "Hello there!")]))
    words = answer(pieces, prompt, 50, 0)
    said = "".join(pieces.words[i] for i in words)
    again = pieces.encode(chat_text([("user", "Hello there!"), ("assistant", said)]))
    assert again[: len(prompt) + 50] == [*prompt, *pieces.word_tokens[words]]
    assert (answer(pieces, prompt, 50, 0) == words).all() and (answer(pieces, prompt, 50, 1) != words).any()


def test_a_tokenizer_from_a_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "the": 1, "sun": 2, "a": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    read = FromFile(tmp_path)
    assert read.encode("the sun") == [1, 2]
    assert {" the", " sun", " a"} <= set(read.words)
    with pytest.raises(Exception, match="no such file"):
        FromFile(tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(Exception, match="is no tokenizer"):
        FromFile(tmp_path / "bad.json")


def test_output_tokens_as_arrays():
    live = small_cluster()
    assert live.produced(np.array([0, 1])).tolist() == [0, 0]
    assert is_empty(live)
