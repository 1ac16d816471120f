"""LoRA adapters of requests: which fine-tuned variant of the model each of them asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnomon.core.streams import stream
from gnomon.workload.config import AdaptersConfig
from gnomon.workload.requests import Requests
from gnomon.workload.sessions import mixed


def with_adapters(requests: Requests, config: AdaptersConfig, seed: int) -> Requests:
    """Deal adapters out by their popularity; all requests of one conversation have the same."""
    draws = stream(seed, "adapters")
    popularity = np.arange(1, config.count + 1, dtype=np.float64) ** -config.zipf
    edges = np.cumsum(popularity) / popularity.sum()
    sessions = int(requests.session.max()) + 1
    of_session = _drawn(draws.random((sessions, 2)), edges, config.share)
    of_request = _drawn(draws.random((len(requests), 2)), edges, config.share)
    inside = requests.session >= 0
    adapter = np.where(inside, of_session[requests.session] if sessions else -1, of_request).astype(np.int32)
    return apart_by_adapter(replace(requests, adapter=adapter))


def _drawn(draws: np.ndarray, edges: np.ndarray, share: float) -> np.ndarray:
    chosen = np.minimum(np.searchsorted(edges, draws[:, 1], side="right"), edges.size - 1)
    return np.where(draws[:, 0] < share, chosen, -1)


def apart_by_adapter(requests: Requests) -> Requests:
    """KV of equal prompts differs from adapter to adapter: so do the hashes."""
    if not len(requests.prefix_hashes):
        return requests
    adapter = np.repeat(requests.adapter.astype(np.int64), np.diff(requests.prefix_offsets))
    hashes = np.where(adapter >= 0, mixed(requests.prefix_hashes, adapter + 1), requests.prefix_hashes)
    return replace(requests, prefix_hashes=hashes)
