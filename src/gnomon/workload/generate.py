"""From a workload's description and a seed to its requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnomon.core.streams import stream
from gnomon.workload import arrivals as arrival
from gnomon.workload import lengths as length
from gnomon.workload.config import WorkloadConfig
from gnomon.workload.presets import preset, preset_lengths
from gnomon.workload.requests import Requests, Tokens, limit_lengths


def generate(config: WorkloadConfig, seed: int) -> Requests:
    """The requests of a workload: the same for the same seed, and arrivals independent of lengths.

    Arrivals, prompt lengths, output lengths, sessions and priorities come from streams of their own: changing the rate
    moves the same requests closer together, changing the lengths leaves arrivals alone, and fewer requests are the
    first of more.
    """
    assert config.num_requests is not None
    num_requests = config.num_requests
    prompt, output = _lengths(config, num_requests, seed)
    requests = Requests(
        arrival_s=np.zeros(num_requests),
        prompt_tokens=_scaled(prompt, config.prompt_scale),
        output_tokens=_scaled(output, config.output_scale),
        session=np.full(num_requests, -1, dtype=np.int32),
        priority=_priorities(config, num_requests, seed),
        prefix_offsets=np.zeros(num_requests + 1, dtype=np.int64),
        prefix_hashes=np.empty(0, dtype=np.int64),
    )
    requests = _with_arrivals(requests, config, seed)
    return requests if config.max_tokens is None else limit_lengths(requests, config.max_tokens, config.over_long)


def _with_arrivals(requests: Requests, config: WorkloadConfig, seed: int) -> Requests:
    count, arrivals = len(requests), config.arrivals
    if isinstance(arrivals, arrival.Batch):
        return requests
    if isinstance(arrivals, arrival.ClosedLoop):
        return replace(
            requests,
            arrival_s=np.where(np.arange(count) < arrivals.concurrency, 0.0, np.inf),
            concurrency=arrivals.concurrency,
            think_s=arrival.think_times(arrivals, count, seed),
        )
    assert not isinstance(arrivals, arrival.Recorded)
    assert config.rate is not None
    shape = arrival.unit_shape(arrivals, count, seed)
    return replace(requests, arrival_s=shape.at(config.rate), rate=config.rate, shape=shape)


def _lengths(config: WorkloadConfig, num_requests: int, seed: int) -> tuple[Tokens, Tokens]:
    lengths = config.lengths
    match lengths:
        case length.Fixed():
            return (
                np.full(num_requests, lengths.prompt, dtype=np.int32),
                np.full(num_requests, lengths.output, dtype=np.int32),
            )
        case length.Uniform():
            return length.uniform_lengths(lengths, num_requests, seed)
        case length.Zipf():
            return length.zipf_lengths(lengths, num_requests, seed)
        case length.Lognormal():
            return length.lognormal_lengths(lengths, num_requests, seed)
        case length.FromPreset():
            assert config.preset is not None
            return preset_lengths(preset(config.preset), num_requests, seed)
        case _:
            raise NotImplementedError(lengths.distribution)


def _scaled(counts: Tokens, scale: float) -> Tokens:
    return counts if scale == 1 else length.tokens(counts * scale)


def _priorities(config: WorkloadConfig, num_requests: int, seed: int) -> np.ndarray:
    if not config.priority_shares:
        return np.zeros(num_requests, dtype=np.int8)
    cumulated = np.cumsum(config.priority_shares)
    draws = stream(seed, "priorities").random(num_requests) * cumulated[-1]
    return np.searchsorted(cumulated, draws, side="right").astype(np.int8)
