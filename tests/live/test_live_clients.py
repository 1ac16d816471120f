"""Other people's clients against `gnomon serve`: what they are sent, not when."""

from __future__ import annotations

import os
import shutil

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
openai = pytest.importorskip("openai", reason="the openai package is not installed")

from benchmarks.clients import CLIENTS, OUTPUT_TOKENS, PROMPT_TOKENS, write_tokenizer  # noqa: E402

from gnomon.live.protocol import FromFile  # noqa: E402
from live_kit import served, small_cluster  # noqa: E402


@pytest.fixture(scope="module")
def client():
    live = small_cluster(**{"workload.adapters": {"count": 2}})
    with served(live, speed=20.0) as (_, urls), openai.OpenAI(base_url=f"{urls[0]}/v1", api_key="none") as made:
        yield made


def test_openai_chat_and_its_stream(client):
    asked = {"model": "sim", "messages": [{"role": "user", "content": "Where is noon?"}], "max_tokens": 9}
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    assert whole.usage.completion_tokens == 9 and whole.choices[0].finish_reason == "length"
    chunks = list(
        client.chat.completions.create(
            **asked, extra_body={"ignore_eos": True}, stream=True, stream_options={"include_usage": True}
        )
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_openai_completions_and_models(client):
    assert [one.id for one in client.models.list()] == ["sim", "adapter-0", "adapter-1"]
    one = client.completions.create(model="adapter-1", prompt=[5, 6, 7], max_tokens=3)
    assert one.usage.prompt_tokens == 3 and one.model == "adapter-1"


def test_openai_errors(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError, match="maximum context length") as raised:
        client.completions.create(model="sim", prompt="x " * 9000, max_tokens=5)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_load_generators_get_what_they_ask_for(name, tmp_path):
    command = os.environ.get(f"GNOMON_{name.upper()}") or shutil.which(name)
    if not command:
        pytest.skip(f"{name} is not installed; $GNOMON_{name.upper()} may name its command")
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    with served(small_cluster(), tokenizer=FromFile(tokenizer), model_name="llama-3-8b") as (app, urls):
        sent = CLIENTS[name](command, int(urls[0].rpartition(":")[2]), tokenizer, tmp_path, 5, 20.0)
        assert app.live.num_live == 0
    assert list(sent.output_tokens) == [OUTPUT_TOKENS] * 5
    assert (sent.prompt_tokens >= PROMPT_TOKENS).all()
    assert (sent.ttft_s > 0).all() and (sent.itl_s > 0).all()
