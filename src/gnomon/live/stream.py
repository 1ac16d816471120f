"""One request as its client sees it."""

from __future__ import annotations

import asyncio
from typing import Any

from gnomon.live.cluster import Asked


class Stream:
    """One request as its client sees it: how many tokens have come, how many are sent, and whether that is all.

    A client that reads its answer as it comes has a task, which sends. Waking one for every token takes longer than
    there is time: where uvicorn's connection is known, tokens are written to it as they come, and the task wakes when
    the client does not read them, and at the end.
    """

    def __init__(self, request_id: int, asked: Asked, sent_s: float) -> None:
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
        if (
            not self.is_direct
            or connection is None
            or connection.flow.write_paused
            or connection.transport.is_closing()
        ):
            if self.is_read or is_done:
                self._wake_up()
            return False
        if self._next and num_tokens == self.num_sent + 1:
            connection.transport.write(self._next)
            self.num_sent, self._next = num_tokens, b""
        elif num_tokens > self.num_sent:
            connection.transport.write(_chunk(self.take()))
        if is_done:
            self._wake_up()
        return True

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
