"""Trace formats: which column means what. Adding one is one entry here, or `FORMATS.add` in a file of your own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from gnomon.core.registry import Registry

TimeUnit = Literal["s", "ms", "us", "datetime"]


@dataclass(frozen=True)
class TraceFormat:
    """Columns (or JSON keys) of one kind of trace.

    Roles: `prompt` and `output` (tokens, needed), `arrival`, `session`, `priority`, `prefix` (block hashes of the
    prompt: a JSON list, or numbers with spaces between) and `prefix_block_tokens`, each optional.
    """

    description: str
    columns: Mapping[str, str]
    time_unit: TimeUnit = "s"
    block_tokens: int = 16
    """Tokens per hashed block, where no column says it."""

    from_start: bool = False
    """Times count from the start of the run; else from an epoch, and the first request is moved to 0."""

    def fits(self, names: Collection[str]) -> bool:
        """Whether a file with these column names is of this format."""
        return self.columns["prompt"] in names and self.columns["output"] in names


SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt_tokens", "input_tokens", "prompt_len", "prompt_length", "input_len", "input_length", "isl",
               "num_prompt_tokens", "num_input_tokens", "context_tokens", "prefill_tokens", "request_tokens",
               "tokens_in", "prompt", "input"),
    "output": ("output_tokens", "completion_tokens", "generated_tokens", "response_tokens", "output_len",
               "output_length", "osl", "num_output_tokens", "num_completion_tokens", "generation_tokens",
               "decode_tokens", "tokens_out", "completion", "output"),
    "arrival": ("arrival_s", "arrival", "arrival_time", "arrived_at", "timestamp", "time", "ts", "start_time",
                "request_time", "created", "created_at", "arrival_ms", "timestamp_ms"),
    "session": ("session", "session_id", "conversation_id", "chat_id", "user_id"),
}  # fmt: skip
"""Names that people give to columns, in small letters with `_` between words; the first that a file has is taken."""


def guessed(names: Collection[str]) -> TraceFormat | None:
    """A format for these columns by what they seem to mean; None where prompt or output tokens are not among them."""
    plain = {_plain(name): name for name in reversed(list(names))}
    columns = {
        role: plain[word]
        for role, words in SYNONYMS.items()
        if (word := next((one for one in words if one in plain), None)) is not None
    }
    if "prompt" not in columns or "output" not in columns:
        return None
    is_ms = columns.get("arrival", "").lower().endswith("ms")
    return TraceFormat("Guessed from the names of its columns.", columns, time_unit="ms" if is_ms else "s")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


FORMATS: Registry[TraceFormat] = Registry("trace format")
FORMATS.add(
    "gnomon",
    TraceFormat(
        "What `gnomon workload export` writes.",
        {
            "arrival": "arrival_s",
            "prompt": "prompt_tokens",
            "output": "output_tokens",
            "session": "session",
            "priority": "priority",
            "prefix": "prefix_hashes",
            "prefix_block_tokens": "prefix_block_tokens",
        },
        from_start=True,
    ),
)
FORMATS.add(
    "azure",
    TraceFormat(
        "Azure LLM inference traces 2023 and 2024 (github.com/Azure/AzurePublicDataset).",
        {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"},
        time_unit="datetime",
    ),
)
FORMATS.add(
    "mooncake",
    TraceFormat(
        "Mooncake traces, JSON lines with 512-token block hashes (github.com/kvcache-ai/Mooncake).",
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "prefix": "hash_ids"},
        time_unit="ms",
        block_tokens=512,
    ),
)
FORMATS.add(
    "burstgpt",
    TraceFormat(
        "BurstGPT; failed requests have no response tokens (github.com/HPMLL/BurstGPT).",
        {
            "arrival": "Timestamp",
            "prompt": "Request tokens",
            "output": "Response tokens",
            "session": "Session ID",
        },
    ),
)
FORMATS.add(
    "vidur",
    TraceFormat(
        "Vidur's processed traces and length statistics (github.com/microsoft/vidur).",
        {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"},
        from_start=True,
    ),
)
