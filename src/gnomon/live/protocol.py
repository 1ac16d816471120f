"""OpenAI's requests and answers: what is read of the former, and how the latter are written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_CHOICES = 16


class Refused(Exception):
    """A request that gets an error, as OpenAI's API words it."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The answer."""
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


Word = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """What a stream says beside its text."""

    include_usage: bool = False


class Common(BaseModel):
    """What both kinds of requests say. What cannot change a simulated answer (temperature and the like) is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    stop: Word | Annotated[list[Word], Field(max_length=4)] | None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """What ends an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Completion(Common):
    """`/v1/completions`."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: None = None
    echo: Literal[False] | None = None
    suffix: None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens: few, unless it says so."""
        return self.max_tokens or 16


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    role: Annotated[str, Field(min_length=1)]
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Chat(Common):
    """`/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Literal[False] | None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens."""
        return self.max_completion_tokens or self.max_tokens


def parse(kind: type[Completion] | type[Chat], body: bytes) -> Completion | Chat:
    """Read a request, or refuse it and say what is wrong where."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(400, f"{where or 'the body'}: {first['msg']}", param=where or None) from None
    except RecursionError:
        raise Refused(400, "the body is nested too deeply.") from None


@dataclass(frozen=True)
class Writer:
    """Writes the answers to one request. Words are plain letters: they need no escaping."""

    id: str
    created: int
    model: str
    is_chat: bool

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    @property
    def _kind(self) -> str:
        return "chat.completion" if self.is_chat else "text_completion"

    def chunk_frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and behind the text of a chunk; made once, because chunks are many."""
        mark = "\0"
        whole = self._chunk(index, mark, None)
        before, _, behind = whole.partition(json.dumps(mark)[1:-1].encode())
        return before, behind

    def _chunk(self, index: int, text: str | None, reason: str | None) -> bytes:
        choice: dict[str, Any] = {"index": index}
        if self.is_chat:
            choice["delta"] = {} if text is None else {"content": text}
        else:
            choice["text"] = text or ""
        choice |= {"logprobs": None, "finish_reason": reason}
        kind = "chat.completion.chunk" if self.is_chat else self._kind
        return event(self._head(kind) | {"choices": [choice]})

    def first(self, index: int) -> bytes:
        """The first chunk of a choice: who speaks."""
        if not self.is_chat:
            return b""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return event(self._head("chat.completion.chunk") | {"choices": [choice]})

    def last(self, index: int, reason: str) -> bytes:
        """The last chunk of a choice: why it ends."""
        return self._chunk(index, None, reason)

    def usage_chunk(self, usage: dict[str, Any]) -> bytes:
        """The chunk after all others."""
        kind = "chat.completion.chunk" if self.is_chat else self._kind
        return event(self._head(kind) | {"choices": [], "usage": usage})

    def whole(self, texts: list[tuple[str, str]], usage: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece, from the text of every choice and why it ends."""
        choices: list[dict[str, Any]] = []
        for index, (text, reason) in enumerate(texts):
            said = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": reason})
        return self._head(self._kind) | {"choices": choices, "usage": usage}


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Tokens of a request."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
