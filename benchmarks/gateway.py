"""A router written by others in front of served replicas: HAProxy's balancing against the routers of `gnomon compare`.

python -m benchmarks.gateway [--requests 600] [--rate 8] [--speed 4] [--seeds 3]

Eight replicas of `gnomon serve`, each on its own port, behind HAProxy with roundrobin, random (of one) and leastconn;
the same requests through `gnomon simulate` with round_robin, random and least_outstanding. The order must be the same.
Loopback addresses only; see `benchmarks.serve` for machines that do other things, too.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve import Server, stream

# Short questions and, one in eight, long documents with long answers: then it matters who is behind whom.
LENGTHS = {
    "distribution": "mixture",
    "parts": [
        {"share": 0.875, "lengths": {"distribution": "uniform", "prompt": [50, 500], "output": [5, 60]}},
        {"share": 0.125, "lengths": {"distribution": "uniform", "prompt": [5000, 7500], "output": [100, 300]}},
    ],
}
SCENARIO: dict[str, Any] = {
    "model": "llama-3-8b",
    "device": "l4",
    "engine": "vllm",
    "num_replicas": 8,
    "workload": {"rate": 8, "num_requests": 600, "lengths": LENGTHS},
}
BALANCING = {"round_robin": "roundrobin", "random": "random(1)", "least_outstanding": "leastconn"}
FRONT = 18999

CONFIG = """
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend front
  bind 127.0.0.1:{front}
  default_backend replicas
backend replicas
  balance {balance}
{servers}
"""


class HAProxy:
    """HAProxy in front of ports."""

    def __init__(self, balance: str, ports: list[int]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "haproxy.cfg"
        servers = "\n".join(f"  server replica{i} 127.0.0.1:{port}" for i, port in enumerate(ports))
        path.write_text(CONFIG.format(front=FRONT, balance=balance, servers=servers))
        self.process = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(path)])
        time.sleep(0.5)

    def __enter__(self) -> HAProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.folder.cleanup()


async def ttft_s(requests: Any, speed: float, first: int) -> np.ndarray:
    """Simulated seconds to the first token of each request, through the front."""
    start = time.monotonic() + 0.2

    async def one(i: int) -> float:
        await asyncio.sleep(max(0.0, start + requests.arrival_s[i] / speed - time.monotonic()))
        prompt = [first + 10_000 * i + k for k in range(int(requests.prompt_tokens[i]))]
        sent, came = await stream(FRONT, prompt, int(requests.output_tokens[i]))
        return (came[0] - sent) * speed

    return np.array(await asyncio.gather(*(one(i) for i in range(len(requests)))))


def main() -> None:
    import gnomon
    from gnomon.api.serving import scenario
    from gnomon.workload import generate

    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--speed", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    if shutil.which("haproxy") is None:
        raise SystemExit("haproxy is not installed")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in BALANCING}
    with Server(SCENARIO, "--port-per-replica", "--speed", str(given.speed)) as server:
        for seed in range(given.seeds):
            chosen = scenario(SCENARIO, rate=given.rate, requests=given.requests, seed=seed)
            requests = generate(chosen.workload, seed)
            for number, (router, balance) in enumerate(BALANCING.items()):
                run = gnomon.simulate(chosen, requests=requests, router=router, intervals=False)
                with HAProxy(balance, server.ports):
                    first = 1_000_000_000 * (1 + seed * len(BALANCING) + number)
                    seen = asyncio.run(ttft_s(requests, given.speed, first))
                found[router].append((float(seen.mean()), run.summary.latency.ttft_s.mean))
                print(f"seed {seed}, {router}: mean TTFT {seen.mean():.4f} s behind HAProxy ({balance}), "
                      f"{found[router][-1][1]:.4f} s simulated", flush=True)  # fmt: skip
    means = {router: np.mean(pairs, axis=0) for router, pairs in found.items()}
    for which, side in enumerate(("HAProxy", "gnomon")):
        order = sorted(means, key=lambda router: means[router][which])
        print(f"{side}: " + " < ".join(f"{router} {means[router][which]:.4f} s" for router in order))


if __name__ == "__main__":
    main()
