"""`gnomon serve` under load: how late its tokens are, and what clients see against `gnomon simulate`.

python -m benchmarks.serve [--streams 256] [--tokens 600] [--requests 150]

The server has one core, its client another. On a machine that does other things, too, both need real-time priority
(`chrt -f 1 python -m benchmarks.serve`), or others' work is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SCENARIO = {"model": "llama-3-8b", "device": "h100", "workload": {"rate": 5, "num_requests": 100}}
LATE_S = ("0.001", "0.002", "0.003", "0.005")


class Server:
    """`gnomon serve` in a process of its own, on one core where there are several."""

    def __init__(self, scenario: dict[str, Any], *flags: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "scenario.json"
        path.write_text(json.dumps(scenario))
        command = [sys.executable, "-m", "gnomon.cli.main", "serve", str(path), "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = ""
        while "Serving" not in line:
            line = self.process.stderr.readline()
            assert line or self.process.poll() is None, "the server did not start"
        self.ports = [int(one) for one in re.findall(r"127\.0\.0\.1:(\d+)", line)]
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            os.sched_setaffinity(self.process.pid, {cores[0]})
            os.sched_setaffinity(0, set(cores[1:]))

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.folder.cleanup()


async def stream(port: int, prompt: list[int], max_tokens: int) -> tuple[float, list[float]]:
    """Send one request; when it was sent, and when each chunk with text came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    sent = time.monotonic()
    writer.write(head.encode() + body)
    came: list[float] = []
    while data := await reader.read(1 << 16):
        now = time.monotonic()
        came += [now] * data.count(b'"finish_reason":null')
    writer.close()
    return sent, came


async def metric(port: int, name: str) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read(-1)).decode()
    writer.close()
    buckets = re.findall(rf'{name}_bucket{{[^}}]*le="([^"]*)"[^}}]*}} (\S+)', text)
    return {bound: float(count) for bound, count in buckets}


async def load(server: Server, streams: int, tokens: int) -> dict[str, Any]:
    """So many streams at once, each of so many tokens, begun within two seconds."""
    port, start, cpu_s = server.ports[0], time.monotonic(), server.cpu_s()
    prompts = [[1000 * i + k for k in range(64)] for i in range(streams)]

    async def one(i: int) -> tuple[float, list[float]]:
        await asyncio.sleep(2.0 * i / streams)
        return await stream(port, prompts[i], tokens)

    found = await asyncio.gather(*(one(i) for i in range(streams)))
    seconds = time.monotonic() - start
    begun, ended = max(came[0] for _, came in found), min(came[-1] for _, came in found)
    steady = sum(sum(begun <= at <= ended for at in came) for _, came in found)
    late = await metric(port, "gnomon:token_lateness_seconds")
    total = late["+Inf"]
    return {
        "streams": streams,
        "tokens_per_s": round(sum(len(came) for _, came in found) / seconds),
        "tokens_per_s_when_all_are_there": round(steady / (ended - begun)),
        "cpu_us_per_token": round((server.cpu_s() - cpu_s) * 1e6 / total, 1),
        **{f"late_at_most_{float(bound) * 1e3:g}_ms": round(late[bound] / total, 4) for bound in LATE_S},
    }


async def agreement(port: int, arrivals: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """Means of what a client sees of these requests."""
    start = time.monotonic() + 0.1

    async def one(i: int) -> tuple[float, list[float]]:
        await asyncio.sleep(max(0.0, start + arrivals[i] - time.monotonic()))
        return await stream(port, [1_000_000 + 10_000 * i + k for k in range(int(prompts[i]))], int(outputs[i]))

    found = await asyncio.gather(*(one(i) for i in range(len(arrivals))))
    ttft = np.array([came[0] - sent for sent, came in found])
    tpot = np.array([(came[-1] - came[0]) / (n - 1) for (_, came), n in zip(found, outputs, strict=True) if n > 1])
    return {"ttft_mean_s": ttft.mean(), "ttft_p99_s": np.percentile(ttft, 99), "tpot_mean_s": tpot.mean()}


def main() -> None:
    import gnomon
    from gnomon.api.serving import scenario
    from gnomon.workload import generate

    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--requests", type=int, default=150)
    given = parser.parse_args()
    for engine in (None, "vllm"):
        served = SCENARIO | {"engine": engine}
        chosen = scenario(served, rate=8, requests=given.requests)
        requests = generate(chosen.workload, chosen.seed)
        outputs = np.minimum(requests.output_tokens, 200)
        latency = gnomon.simulate(
            chosen, requests=replace(requests, output_tokens=outputs), intervals=False
        ).summary.latency
        with Server(served) as server:
            print(f"engine {engine or 'not given'}:", asyncio.run(load(server, given.streams, given.tokens)))
            seen = asyncio.run(agreement(server.ports[0], requests.arrival_s, requests.prompt_tokens, outputs))
        ours = {
            "ttft_mean_s": latency.ttft_s.mean,
            "ttft_p99_s": latency.ttft_s.p99,
            "tpot_mean_s": latency.tpot_s.mean,
        }
        for name, value in seen.items():
            off = value - ours[name]
            verdict = "met" if abs(off) <= 0.05 * ours[name] + 0.002 else "missed"
            print(f"  {name}: client {value:.5f}, simulate {ours[name]:.5f}, {off / ours[name]:+.1%}, {verdict}")


if __name__ == "__main__":
    main()
