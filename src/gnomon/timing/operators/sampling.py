"""Choosing the next token of every sequence, as operators: what requests ask for decides which there are.

Their times were measured on an H200, step by step as engines run them (`gnomon profile sampling`), and are scaled to
other GPUs by what bounds each: the memory's bandwidth, and the number of SMs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np

from gnomon.catalog.devices import Device, device
from gnomon.core.arrays import Floats
from gnomon.core.config import Config

Method = Literal["random", "sort", "sort_top_k", "top_k", "search", "penalties", "logprobs"]
MEASURED_ON = "h200"
PASSES: dict[Method, float] = {
    "random": 56, "sort": 240, "sort_top_k": 260, "top_k": 30, "search": 56, "penalties": 140, "logprobs": 60,
}  # fmt: skip
"""Bytes of memory traffic for each word of the vocabulary and sequence, to say what an operator moves."""
LAUNCHES: dict[Method, int] = {
    "random": 6, "sort": 10, "sort_top_k": 14, "top_k": 5, "search": 2, "penalties": 20, "logprobs": 7,
}  # fmt: skip
"""Operations that PyTorch launches one by one for it, as `gnomon.measure.kernels.sampling` writes them."""
BOUND_BY_SMS: dict[Method, float] = {"sort": 0.4, "sort_top_k": 0.4, "search": 0.8}
"""Share of a step's time that SMs bound and memory does not, by how much longer it takes at 1,700 instead of 1,980 MHz;
0.2 of the others."""
COPY_S = 25e-9
"""Seconds in which a host brings one token of a Python list to the GPU, padding and pinning included: 9.6 ms for
384,000 tokens of 256 sequences on an H200's host."""


class SamplerConfig(Config):
    """How an engine chooses tokens, for all that some request of a batch asks for."""

    is_random: bool = False
    """By their probabilities; otherwise the likeliest."""
    filter: Literal["", "sort", "sort_top_k", "top_k", "search"] = ""
    """How top-k and top-p find the tokens to keep: by sorting the vocabulary (top-p, or both), by looking for the k
    likeliest (top-k alone), or by searching the threshold (FlashInfer's kernels, vLLM's own from 0.17 on)."""
    sorts_below: int = 0
    """Batches of fewer sequences are sorted, where others are searched."""
    penalties: Literal["", "recount", "kept"] = ""
    """What is said already counts less: counted anew in every step, or in counts that stay on the GPU."""
    logprobs: bool = False
    """Log-probabilities of the likeliest tokens are reported."""
    copied_tokens: float = 0.0
    """Output tokens of a sequence, in the mean, that the host copies to the GPU in every step."""


@dataclass(frozen=True)
class Sampling:
    """One step of choosing tokens."""

    method: Method
    vocabulary: int
    sorts_below: int = 0

    def flops(self, rows: Floats) -> Floats:
        return np.zeros_like(rows)

    def bytes(self, rows: Floats) -> Floats:
        """Passes over the logits and what is made of them."""
        return rows * self.vocabulary * PASSES[self.method]

    def seconds(self, rows: Floats, on: Device) -> Floats:
        """As measured, between measured sizes in proportion, scaled to another GPU."""
        if self.sorts_below:
            few = Sampling("sort_top_k", self.vocabulary).seconds(rows, on)
            many = Sampling(self.method, self.vocabulary).seconds(rows, on)
            return np.where(rows < self.sorts_below, few, many)
        vocabularies, sequences, table = _measured(self.method)
        each = np.array([np.interp(rows, sequences, line) for line in table])
        beyond = np.maximum(rows / sequences[-1], 1.0)
        low = int(np.clip(np.searchsorted(vocabularies, self.vocabulary) - 1, 0, len(vocabularies) - 2))
        share = (self.vocabulary - vocabularies[low]) / (vocabularies[low + 1] - vocabularies[low])
        seconds = np.maximum(each[low] + share * (each[low + 1] - each[low]), 0.2 * each[low])
        return seconds * beyond * _scale(self.method, on)


@cache
def _measured(method: Method) -> tuple[Floats, Floats, Floats]:
    """Vocabularies, sequences, and seconds by both."""
    text = (files("gnomon.timing") / "data" / "sampling" / f"{MEASURED_ON}.csv").read_text(encoding="utf-8")
    names, *lines = [line.split(",") for line in text.splitlines()]
    rows = np.array(lines, float)
    sizes, vocabularies = np.unique(rows[:, 0], return_counts=True), np.unique(rows[:, 0])
    sequences = rows[: sizes[1].min(), 1]
    seconds = 1e-6 * rows[:, names.index(f"{method}_us")]
    table = np.array([seconds[rows[:, 0] == one][: sequences.size] for one in vocabularies])
    return vocabularies, sequences, table


def _scale(method: Method, on: Device) -> float:
    reference = device(MEASURED_ON)
    memory = reference.bandwidth_bytes_s / on.bandwidth_bytes_s
    share = BOUND_BY_SMS.get(method, 0.2)
    return share * reference.num_sms / on.num_sms + (1.0 - share) * memory


def sampling_steps(sampler: SamplerConfig, vocabulary: int) -> Iterator[tuple[str, Sampling]]:
    if sampler.penalties == "recount":
        yield "penalties", Sampling("penalties", vocabulary)
    if sampler.filter:
        yield "top_k_top_p", Sampling(sampler.filter, vocabulary, sampler.sorts_below)
    if sampler.is_random:
        yield "sampler", Sampling("random", vocabulary)
    if sampler.logprobs:
        yield "logprobs", Sampling("logprobs", vocabulary)
