"""Other people's clients against `gnomon serve`: what they are sent, not when."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
openai = pytest.importorskip("openai", reason="the openai package is not installed")

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
