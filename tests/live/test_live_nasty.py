"""Nasty clients: malformed requests, huge prompts, slow readers, disconnects. Nothing breaks, nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from live_kit import is_empty, served, small_cluster

WORDS = ["", "x", "{", "[]", "null", '{"prompt": null}', '{"prompt": [1, "a"]}', '{"prompt": "a", "n": -1}', "\x00\x01",
         '{"prompt": ' + "[" * 5000, '{"prompt": "' + "w " * 20_000 + '"}', '{"messages": []}']  # fmt: skip


def http(body: bytes, path: str = "/v1/completions", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode() + body


async def nasty(port: int, random: np.random.Generator) -> int:
    """One nasty client; the status that it got, or 0."""
    asked = {"prompt": [int(t) for t in random.integers(0, 9, random.integers(1, 2000))], "stream": True,
             "max_tokens": int(random.integers(1, 400)), "ignore_eos": True}  # fmt: skip
    good = json.dumps(asked).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        match int(random.integers(0, 8)):
            case 0:
                writer.write(http(WORDS[random.integers(len(WORDS))].encode()))
            case 1:
                writer.write(http(WORDS[random.integers(len(WORDS))].encode(), "/v1/chat/completions"))
            case 2:
                writer.write(bytes(random.integers(0, 256, 200, np.uint8)) + b"\r\n\r\n")
            case 3:  # Leaves in the middle of its own request.
                writer.write(http(good, length=len(good) + 100)[: int(random.integers(1, 300))])
                await writer.drain()
                return 0
            case 4:  # Leaves at once.
                writer.write(http(good))
                await writer.drain()
                return 0
            case 5:  # Leaves after the first part of the answer.
                writer.write(http(good))
                await asyncio.wait_for(reader.read(64), 20)
                return 0
            case 6:  # Reads slowly.
                writer.write(http(good))
                for _ in range(3):
                    await asyncio.wait_for(reader.read(10), 20)
                    await asyncio.sleep(0.01)
            case _:
                writer.write(http(good))
        data = await asyncio.wait_for(reader.read(1 << 22), 30)
        return int(data.split(b" ")[1]) if data.startswith(b"HTTP/1.1 ") else 0
    except (ConnectionError, TimeoutError):
        return 0
    finally:
        writer.close()


async def many(port: int, count: int, seed: int) -> list[int]:
    random, found = np.random.default_rng(seed), []
    for _ in range(0, count, 25):
        found += await asyncio.gather(*(nasty(port, random) for _ in range(25)))
    return found


def assaulted(count: int, seed: int) -> Counter[int]:
    live = small_cluster(**{"replica.num_kv_blocks": 2000})
    with served(live, speed=50.0) as (app, urls):
        port = int(urls[0].rpartition(":")[2])
        asyncio.run(many(port, min(count, 100), seed))  # So that all that is made once is there.
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        statuses = asyncio.run(many(port, count, seed + 1))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert {200, 400} <= set(statuses) <= {0, 200, 400, 404, 429}
        asyncio.run(asyncio.sleep(0.2))
        for _ in range(500):
            if is_empty(live):
                break
            asyncio.run(asyncio.sleep(0.02))
        assert is_empty(live)
        assert app.driver.failed is None
        assert after - before < 100_000  # KiB
    assert (live.cluster.growth == 0).all() and (live.cluster.block_users == 0).all()
    return Counter(statuses)


def test_a_hundred_nasty_requests():
    answers = assaulted(100, 0)
    assert answers.total() == 100 and answers[200] > 10 and answers[400] > 10


@pytest.mark.slow
def test_two_thousand_nasty_requests():
    answers = assaulted(2000, 7)
    assert answers.total() == 2000 and answers[200] > 200 and answers[400] > 200
