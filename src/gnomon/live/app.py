"""The server's pages, as an ASGI application."""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import count
from typing import TYPE_CHECKING, Any

from gnomon import __version__
from gnomon.core.errors import ConfigError
from gnomon.live import protocol
from gnomon.live.cluster import Call, Full, LiveCluster
from gnomon.live.driver import Driver, Metrics
from gnomon.live.protocol import Asking, Chat, Completion, Refused, Stream, Tokenizer, Writer

if TYPE_CHECKING:
    import uvicorn


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 32 << 20
BODY_TIMEOUT_S = 60.0
MAX_REQUESTS = 8192  # Requests that may be there at once.
CONNECTION = "gnomon.connection"  # The extension of a scope that holds uvicorn's connection.


@dataclass(frozen=True)
class Choice:
    """One answer that is being made."""

    stream: Stream
    texts: list[str]
    """Of its tokens."""
    reason: str
    """Why it ends where it does: `stop` or `length`."""


class App:
    """Answers requests to a simulated cluster; the port that one comes to may name its replica."""

    def __init__(
        self, live: LiveCluster, tokenizer: Tokenizer, *, model_name: str, speed: float = 1.0, token: str | None = None,
        replica_of_port: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.live, self.tokenizer, self.model_name, self.speed = live, tokenizer, model_name, speed
        self._token, self._replica_of_port = token, replica_of_port or {}
        self.metrics = Metrics(live, model_name)
        self._driver: Driver | None = None
        self._numbers = count(1)
        self._adapters = {f"adapter-{number}": number for number in range(live.num_adapters)}
        self._classes = {one.name: number for number, one in enumerate(live.drawn.classes)}
        self._pages: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            ("POST", "/v1/completions"): self._completions, ("POST", "/v1/chat/completions"): self._chat,
            ("GET", "/v1/models"): self._models, ("GET", "/health"): self._health, ("GET", "/ping"): self._health,
            ("GET", "/version"): self._version, ("GET", "/metrics"): self._metrics,
        }  # fmt: skip

    @property
    def driver(self) -> Driver:
        """The cluster on the clock, which starts with the first request."""
        if self._driver is None:
            self._driver = Driver(self.live, self.metrics, self.speed)
        return self._driver

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            page = self._pages.get((scope["method"], scope["path"]))
            self._check_token(scope)
            if page is None:
                known = any(path == scope["path"] for _, path in self._pages)
                raise Refused(405 if known else 404, f"there is no {scope['method']} {scope['path']}.")
            await page(scope, receive, send)
        except Refused as error:
            await _send_json(send, error.body, error.status)
        except Full as error:
            await _send_json(send, Refused(503, str(error)).body, 503)

    def _check_token(self, scope: Scope) -> None:
        if self._token is None or scope["path"] in ("/health", "/ping"):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise Refused(401, "the token is missing or wrong.", code="invalid_api_key")

    # What is known without asking the cluster.

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed = self._driver is not None and self._driver.failed is not None
        await _send_json(send, {}, 503 if failed else 200)

    async def _version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_json(send, {"version": f"gnomon {__version__}"})

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        def one(name: str, parent: str | None) -> dict[str, Any]:
            known = {"id": name, "object": "model", "created": 0, "owned_by": "gnomon", "root": name, "parent": parent}
            return known | {"max_model_len": self.live.max_tokens}

        models = [one(self.model_name, None), *(one(name, self.model_name) for name in self._adapters)]
        await _send_json(send, {"object": "list", "data": models})

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        registry = CollectorRegistry()
        registry.register(self.metrics)
        await _send_body(send, generate_latest(registry), 200, CONTENT_TYPE_LATEST)

    # Answers.

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, came_s = await _asked(Completion, receive)
        given = asked.prompt
        prompts: Any = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        tokens = [self.tokenizer.encode(one) if isinstance(one, str) else list(one) for one in prompts]
        await self._answer(scope, receive, send, asked, tokens, came_s)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, came_s = await _asked(Chat, receive)
        text = protocol.chat_text([(one.role, one.text) for one in asked.messages])
        await self._answer(scope, receive, send, asked, [self.tokenizer.encode(text)], came_s)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, asked: Completion | Chat, prompts: list[list[int]],
        came_s: float,
    ) -> None:  # fmt: skip
        model = asked.model or self.model_name
        if model != self.model_name and model not in self._adapters:
            raise Refused(404, f"the model {model!r} does not exist.", param="model", code="model_not_found")
        if len(prompts) * (asked.n or 1) + self.live.num_live > MAX_REQUESTS:
            raise Refused(429, "too many requests are there.", code="rate_limit_exceeded")
        is_chat = isinstance(asked, Chat)
        writer = Writer(
            f"{'chatcmpl' if is_chat else 'cmpl'}-{next(self._numbers):024x}", int(time.time()), model, is_chat
        )
        choices: list[Choice] = []
        try:
            for prompt in prompts:
                for number in range(asked.n or 1):
                    choices.append(self._begin(scope, asked, prompt, number, came_s))
            if asked.stream:
                connection = scope.get("extensions", {}).get(CONNECTION)
                for index, choice in enumerate(choices):
                    choice.stream.read([text.encode() for text in choice.texts], writer.chunk_frame(index), connection)
            sending = self._send_chunks if asked.stream else self._send_whole
            await _unless_left(receive, sending(send, asked, choices, writer))
        finally:
            for choice in choices:
                if not choice.stream.is_done:
                    self.driver.cancel(choice.stream)

    def _begin(self, scope: Scope, asked: Completion | Chat, prompt: list[int], number: int, came_s: float) -> Choice:
        """Send one request to the cluster."""
        most = self.live.max_tokens - len(prompt)
        if not prompt:
            raise Refused(400, "the prompt is empty.", param="prompt")
        if most < 1 or (asked.max_tokens or 1) > most:
            raise Refused(
                400,
                f"this model's maximum context length is {self.live.max_tokens} tokens, but {len(prompt)} of the "
                f"prompt and {asked.limit or 1} of the answer were asked for.",
                param="messages" if isinstance(asked, Chat) else "prompt",
                code="context_length_exceeded",
            )
        limit = min(asked.limit or most, most)
        session = dict(scope["headers"]).get(b"x-session-id", (asked.user or "").encode())
        seed = self.live.scenario.seed + number
        drawn = self.live.drawn.output_tokens
        natural = int(drawn[int(protocol.answer(self.tokenizer, prompt, 1, seed + 1)[0] * 7919 % len(drawn))])
        wanted = limit if asked.ignore_eos else min(limit, max(natural, asked.min_tokens))
        words = protocol.answer(self.tokenizer, prompt, wanted, seed)
        whole = [self.tokenizer.words[word] for word in words]
        texts = protocol.up_to_stop(whole, asked.stops)
        one = Call(
            [*prompt, *self.tokenizer.word_tokens[words[: len(texts)]].tolist()],
            len(prompt),
            adapter=self._adapters.get(asked.model or "", -1),
            user_class=self._classes.get(asked.user or "", 0),
            replica=self._replica_of_port.get(scope["server"][1]),
        )
        if session:
            one = replace(one, session=hash(tuple(session)) & 0x7FFFFFFF)
        is_cut = wanted == limit and texts == whole
        return Choice(self.driver.send(one, came_s), texts, "length" if is_cut else "stop")

    async def _send_whole(self, send: Send, asked: Completion | Chat, choices: list[Choice], writer: Writer) -> None:
        for choice in choices:
            await choice.stream.end()
            _check_verdict(choice.stream)
        await _send_json(
            send, writer.whole([("".join(one.texts), one.reason) for one in choices], _usage(asked, choices))
        )

    async def _send_chunks(self, send: Send, asked: Completion | Chat, choices: list[Choice], writer: Writer) -> None:
        await choices[0].stream.more()
        _check_verdict(choices[0].stream)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await asyncio.gather(*(self._send_choice(send, one, i, writer) for i, one in enumerate(choices)))
        tail = b"data: [DONE]\n\n"
        if asked.stream_options is not None and asked.stream_options.include_usage:
            tail = writer.usage_chunk(_usage(asked, choices)) + tail
        await send({"type": "http.response.body", "body": tail, "more_body": False})

    async def _send_choice(self, send: Send, choice: Choice, index: int, writer: Writer) -> None:
        stream, body, is_done = choice.stream, writer.first(index), False
        while not is_done:
            await stream.more()
            stream.is_direct, is_done, is_first = False, stream.is_done, not stream.num_sent
            body += stream.take()
            if stream.verdict:
                body += protocol.event(Refused(500, f"the request was {stream.verdict}.").body)
            elif is_done:
                body += writer.last(index, choice.reason)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if is_first:
                self.metrics.lateness.add(0, max(0.0, time.monotonic() - stream.due_s))
            body, stream.is_direct = b"", True


async def _asked(kind: type[Asking], receive: Receive) -> tuple[Asking, float]:
    """A request, and when all of it was there."""
    body, came_s = await _body(receive), time.monotonic()
    return protocol.parse(kind, body), came_s


async def _body(receive: Receive) -> bytes:
    """The whole body of a request, within limits."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the client left.")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY_BYTES:
                    raise Refused(413, f"the body is longer than {MAX_BODY_BYTES >> 20} MiB.")
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Refused(408, "the body did not come in time.") from None


async def _unless_left(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do it, unless the client leaves meanwhile."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    left, done = asyncio.ensure_future(leave()), asyncio.ensure_future(work)
    try:
        await asyncio.wait((left, done), return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            done.result()
    finally:
        left.cancel()
        done.cancel()


def _check_verdict(stream: Stream) -> None:
    """Refuse a request that the cluster did not serve."""
    if stream.verdict == "shed":
        raise Refused(429, "admission control turned the request away.", code="rate_limit_exceeded")
    if stream.verdict == "rejected":
        raise Refused(400, "the request needs more KV cache than a replica has.", code="context_length_exceeded")
    if stream.verdict:
        raise Refused(500, "the simulated engine has stopped.")


def _usage(asked: Completion | Chat, choices: list[Choice]) -> dict[str, Any]:
    prompts = [one.stream for one in choices[:: asked.n or 1]]  # A prompt counts once, however many answers it has.
    counts = (sum(one.asked.prompt_tokens for one in prompts), sum(one.cached_tokens for one in prompts))
    return protocol.usage(*counts, sum(len(one.texts) for one in choices))


async def _send_json(send: Send, data: Mapping[str, Any], status: int = 200) -> None:
    await _send_body(send, json.dumps(data).encode(), status, "application/json")


async def _send_body(send: Send, body: bytes, status: int, kind: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def check_host(host: str, token: str | None) -> None:
    """Refuse to answer others than this machine without a token."""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not token:
        fix = "Give a token with --token or $GNOMON_SERVE_TOKEN, or stay with 127.0.0.1."
        raise ConfigError(f"{host} can be reached from other machines.", where="--host", fix=fix)


def open_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets from `port` on; 0 takes any that are free."""
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            one = socket.socket(family, socket.SOCK_STREAM)
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port + number if port else 0))
    except OSError as error:
        for one in opened:
            one.close()
        what = f"port {port + len(opened) - 1} of {host} cannot be opened: {error.strerror}."
        raise ConfigError(what, where="--port") from None
    return opened


def server_of(app: App, drain_s: int, on_start: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """uvicorn with the application, which may write to its connections itself: a task that wakes for every token of
    every client would make most of them late."""
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Protocol(HttpToolsProtocol):
        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start()

    config = uvicorn.Config(
        app, http=Protocol, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=75,
        timeout_graceful_shutdown=drain_s,
    )  # fmt: skip
    return Server(config)


def serve_forever(app: App, sockets: list[socket.socket], drain_s: int, on_start: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; then requests that are there get their answers, for at most `drain_s`."""
    gc.collect()
    gc.freeze()  # What is there stays: looking through it would take a tenth of a second now and then.
    server_of(app, drain_s, on_start).run(sockets)
