"""One request as its client sees it."""

from __future__ import annotations

import asyncio

from gnomon.live.cluster import Asked


class Stream:
    """One request as its client sees it: how many tokens have come, and whether that is all."""

    def __init__(self, request_id: int, asked: Asked, sent_s: float) -> None:
        self.id, self.asked, self.sent_s = request_id, asked, sent_s
        self.num_produced = self.num_tokens = 0
        self.is_done = False
        self.verdict = ""
        """Why there is no answer: `rejected`, `shed` or `failed`; empty where there is."""
        self.cached_tokens = 0
        self.replica = max(0, asked.replica or 0)
        self.last_s = sent_s
        self.due_s = 0.0
        """When its newest token was due, in real seconds."""
        self._wake: asyncio.Future[None] | None = None

    def deliver(self, num_tokens: int, is_done: bool, due_s: float) -> None:
        """So many tokens have come."""
        self.num_tokens, self.is_done, self.due_s = num_tokens, is_done, due_s
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def more(self, seen: int) -> None:
        """Wait until there are more than `seen` tokens, or that is all."""
        while self.num_tokens <= seen and not self.is_done:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
