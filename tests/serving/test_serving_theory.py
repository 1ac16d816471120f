"""Queueing theory: simulated waiting times against closed forms, within the simulation's own 95 % interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gnomon.core.streams import stream
from gnomon.serving.run.simulate import Run
from serving_kit import requests_of, run, scenario

SECONDS_PER_TOKEN = 1e-3


def batch_means_interval(values: np.ndarray, num_batches: int = 40) -> tuple[float, float]:
    """Mean and half width of its 95 % interval, from means of consecutive batches (neighbours are correlated)."""
    means = np.array([chunk.mean() for chunk in np.array_split(values, num_batches)])
    return float(means.mean()), float(2.02 * means.std(ddof=1) / math.sqrt(num_batches))  # t, 39 degrees of freedom


def waiting_s(done: Run) -> np.ndarray:
    requests = done.cluster.requests
    order = np.argsort(requests.arrival_s, kind="stable")
    return (requests.scheduled_s - requests.arrival_s)[order]


def single_server(service_tokens: np.ndarray, load: float, seed: int) -> Run:
    """One request at a time; a prompt of n tokens takes n milliseconds and ends with its first token."""
    mean_s = service_tokens.mean() * SECONDS_PER_TOKEN
    gaps = stream(seed, "theory arrivals").exponential(mean_s / load, len(service_tokens))
    setup = scenario(
        batching={"policy": "vllm_v1", "max_sequences": 1, "max_batch_tokens": 100_000},
        replica={"num_kv_blocks": 100_000, "max_request_tokens": 100_000},
        timing={"source": "table", "table": {"per_token": SECONDS_PER_TOKEN}},
    )
    return run(setup, requests=requests_of(np.cumsum(gaps), service_tokens, np.ones(len(service_tokens))))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_d_1(load: float) -> None:
    done = single_server(np.full(200_000, 100), load, seed=1)
    mean, half = batch_means_interval(waiting_s(done))
    assert abs(mean - load / (2 * (1 - load)) * 0.1) < half


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_m_1(load: float) -> None:
    # Whole tokens: service times are geometric, so the moments are those of the drawn lengths (Pollaczek-Khinchine).
    tokens = np.ceil(stream(2, "theory service").exponential(2000, 200_000)).astype(int).clip(1, 90_000)
    done = single_server(tokens, load, seed=3)
    mean, half = batch_means_interval(waiting_s(done))
    service = tokens * SECONDS_PER_TOKEN
    rate = load / service.mean()
    assert abs(mean - rate * (service**2).mean() / (2 * (1 - load))) < half
    assert (service**2).mean() / service.mean() ** 2 == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(("servers", "load"), [(4, 0.8), (16, 0.9)])
def test_m_m_c(servers: int, load: float) -> None:
    """One replica with room for c requests; iterations of constant length make outputs geometric service times."""
    step_s, mean_steps, count = 0.01, 200, 100_000
    tokens = stream(4, "theory outputs").geometric(1 / mean_steps, count)
    rate = servers * load / (mean_steps * step_s)
    arrivals = np.cumsum(stream(5, "theory arrivals").exponential(1 / rate, count))
    setup = scenario(
        batching={"policy": "vllm_v1", "max_sequences": servers, "max_batch_tokens": 100_000, "prefix_cache": False},
        replica={"num_kv_blocks": 10_000_000, "max_request_tokens": 100_000},
        timing={"source": "table", "table": {"per_iteration": step_s}},
    )
    done = run(setup, requests=requests_of(arrivals, np.ones(count), tokens))
    mean, half = batch_means_interval(waiting_s(done))
    # Iterations begin at whole steps: beyond waiting for a server, a request waits for up to one step.
    expected = erlang_c_waiting_s(servers, rate, mean_steps * step_s)
    assert expected - half < mean < expected + step_s + half


def erlang_c_waiting_s(servers: int, rate: float, service_s: float) -> float:
    offered = rate * service_s
    blocking = 1.0
    for c in range(1, servers + 1):
        blocking = offered * blocking / (c + offered * blocking)
    probability = blocking / (1 - offered / servers * (1 - blocking))
    return probability * service_s / (servers - offered)


def test_littles_law_holds_exactly() -> None:
    done = run(scenario(workload={"rate": 15.0, "num_requests": 3000}))
    requests = done.cluster.requests
    start, end = requests.arrival_s[0], requests.finished_s.max()
    events = np.concatenate([requests.arrival_s, requests.finished_s])
    change = np.concatenate([np.ones(len(requests)), -np.ones(len(requests))])
    order = np.argsort(events, kind="stable")
    present = np.cumsum(change[order])[:-1]
    mean_present = float((present * np.diff(events[order])).sum() / (end - start))
    throughput = len(requests) / (end - start)
    assert mean_present == pytest.approx(
        throughput * float((requests.finished_s - requests.arrival_s).mean()), rel=1e-9
    )
