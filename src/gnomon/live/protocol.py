"""OpenAI's requests and answers: what is read of the former, and how the latter are written."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from zlib import crc32

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnomon.core.arrays import Ints
from gnomon.core.errors import DataError, MissingExtraError
from gnomon.live.cluster import Call

_PIECE = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s")
_WORDS = (
    "the a an one two ten six red dry wet old new hot cold deep far near long wide slow fast calm soft loud sun moon "
    "star sky sea sand rock tree leaf root seed rain snow wind fire day hour year time dial noon dusk dawn sign mark "
    "line path road gate wall roof hand eye face name word song tale is was has had runs goes sees says gave took made "
    "went came kept held left and or but so as at by in of on to up"
)


class Pieces:
    """About four letters a token, as with common tokenizers: for models whose tokenizer is not there."""

    def __init__(self) -> None:
        self.words: Sequence[str] = [f" {word}" for word in _WORDS.split()]
        self.word_tokens = np.array([self.encode(word)[0] for word in self.words])

    def encode(self, text: str) -> list[int]:
        return [crc32(piece.encode("utf-8", "replace")) for piece in _PIECE.findall(text)]


class FromFile:
    """A `tokenizer.json` of Hugging Face's tokenizers."""

    def __init__(self, path: str | Path) -> None:
        place = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        if not place.is_file():
            raise DataError("there is no such file.", where=str(place), fix="Give a tokenizer.json, or its folder.")
        try:
            from tokenizers import Tokenizer as Read
        except ImportError:
            raise MissingExtraError("Reading a tokenizer", "serve") from None
        try:
            self._made = Read.from_file(str(place))
        except Exception as error:  # The package raises nothing more exact.
            raise DataError(f"is no tokenizer: {error}", where=str(place)) from None
        whole = {f" {word}": self.encode(f" {word}") for word in _WORDS.split()}
        single = {word: tokens[0] for word, tokens in whole.items() if len(tokens) == 1}
        if not single:
            raise DataError("knows none of the words that answers are made of.", where=str(place))
        self.words: Sequence[str] = list(single)
        self.word_tokens = np.array(list(single.values()))

    def encode(self, text: str) -> list[int]:
        return list(self._made.encode(text, add_special_tokens=False).ids)


Tokenizer = Pieces | FromFile  # `words` are one token each (`word_tokens`), with the space before them.


def answer(tokenizer: Tokenizer, prompt: Sequence[int], count: int, seed: int) -> Ints:
    """The words, by their number, that follow on a prompt: always the same."""
    start = crc32(np.asarray(prompt, np.int64).tobytes(), seed)
    return np.random.default_rng(start).integers(0, len(tokenizer.words), count)


def up_to_stop(texts: list[str], stops: Sequence[str]) -> list[str]:
    """The tokens of an answer up to the first of `stops` that is complete, which is computed but not said."""
    whole = "".join(texts)
    found = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    last, first = min(found, default=(len(whole) + 1, len(whole)))
    parts, place = [], 0
    for text in texts:
        parts.append(text[: max(0, first - place)])
        place += len(text)
        if place >= last:
            break
    return parts


def chat_text(messages: Sequence[tuple[str, str]]) -> str:
    """A conversation as one text, with the start of the answer; no model's own template."""
    return "".join(f"<|{role}|>{content}\n" for role, content in messages) + "<|assistant|>"


MAX_CHOICES = 16


class Refused(Exception):
    """A request that gets an error, as OpenAI's API words it."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


Word = Annotated[str, Field(min_length=1)]
Token = Annotated[int, Field(ge=0, lt=1 << 32)]


class StreamOptions(BaseModel):
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
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Completion(Common):
    """`/v1/completions`."""

    prompt: str | list[Token] | list[str] | list[list[Token]]
    logprobs: None = None
    echo: Literal[False] | None = None
    suffix: None = None

    @property
    def limit(self) -> int | None:
        """Most output tokens: few, unless it says so."""
        return self.max_tokens or 16


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: Annotated[str, Field(min_length=1)]
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
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
        return self.max_completion_tokens or self.max_tokens


Asking = TypeVar("Asking", Completion, Chat)


def parse(kind: type[Asking], body: bytes) -> Asking:
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

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else self._kind

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
        return event(self._head(self._chunk_kind) | {"choices": [choice]})

    def first(self, index: int) -> bytes:
        """The first chunk of a choice: who speaks."""
        if not self.is_chat:
            return b""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return event(self._head(self._chunk_kind) | {"choices": [choice]})

    def last(self, index: int, reason: str) -> bytes:
        """The last chunk of a choice: why it ends."""
        return self._chunk(index, None, reason)

    def usage_chunk(self, usage: dict[str, Any]) -> bytes:
        return event(self._head(self._chunk_kind) | {"choices": [], "usage": usage})

    def whole(self, texts: list[tuple[str, str]], usage: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece, from the text of every choice and why it ends."""
        choices: list[dict[str, Any]] = []
        for index, (text, reason) in enumerate(texts):
            parts = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            choices.append({"index": index, **parts, "logprobs": None, "finish_reason": reason})
        return self._head(self._kind) | {"choices": choices, "usage": usage}


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Stream:
    """One request as its client sees it: how many tokens have come, how many are sent, and whether that is all.

    A client that reads its answer as it comes has a task, which sends. Waking one for every token takes longer than
    there is time: where uvicorn's connection is known, tokens are written to it as they come, and the task wakes when
    the client does not read them, and at the end.
    """

    def __init__(self, request_id: int, asked: Call, sent_s: float) -> None:
        self.id, self.asked, self.sent_s = request_id, asked, sent_s
        self.num_tokens = self.num_sent = 0
        self.is_done = self.is_read = self.is_direct = False
        self.verdict = ""
        """Why there is no answer: `rejected`, `shed` or `failed`; empty where there is."""
        self.cached_tokens = 0
        self.replica = max(0, asked.replica or 0)
        self.due_s = 0.0
        """When its newest token was due, in real seconds."""
        self._texts, self._frame = list[bytes](), (b"", b"")
        self._connection: Any = None
        self._next = b""
        self._wake: asyncio.Future[None] | None = None

    def read(self, texts: list[bytes], frame: tuple[bytes, bytes], connection: Any) -> None:
        """Its client reads the text of every token as it comes, in a frame, through uvicorn's connection where given:
        directly, as long as `is_direct`."""
        self.is_read, self._texts, self._frame, self._connection = True, texts, frame, connection

    def prepare(self) -> None:
        """Write down what the next token will send, while there is time."""
        self._next = _chunk(self._framed(self._texts[self.num_sent : self.num_sent + 1]))

    def deliver(self, num_tokens: int, is_done: bool, due_s: float) -> bool:
        """So many tokens have come. Returns whether they are sent."""
        self.num_tokens, self.is_done, self.due_s = num_tokens, is_done, due_s
        connection = self._connection
        is_open = connection is not None and not (connection.flow.write_paused or connection.transport.is_closing())
        if not (self.is_direct and is_open):
            if self.is_read or is_done:
                self._wake_up()
            return False
        is_new = num_tokens > self.num_sent
        if self._next and num_tokens == self.num_sent + 1:
            connection.transport.write(self._next)
            self.num_sent, self._next = num_tokens, b""
        elif is_new:
            connection.transport.write(_chunk(self.take()))
        if is_done:
            self._wake_up()
        return is_new

    def take(self) -> bytes:
        """The tokens that are not sent, to be sent now."""
        texts = self._texts[self.num_sent : self.num_tokens]
        self.num_sent, self._next = self.num_tokens, b""
        return self._framed(texts)

    def _framed(self, texts: list[bytes]) -> bytes:
        return b"".join((self._frame[0], *texts, self._frame[1])) if texts else b""

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def more(self) -> None:
        """Wait until there are tokens that are not sent, or that is all."""
        while self.num_tokens <= self.num_sent and not self.is_done:
            await self._sleep()

    async def end(self) -> None:
        """Wait until that is all."""
        while not self.is_done:
            await self._sleep()

    async def _sleep(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake


def _chunk(body: bytes) -> bytes:
    """A part of an answer in HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
