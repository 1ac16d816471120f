"""Trace formats: which column means what. Adding one is one entry here, or `FORMATS.add` in a file of your own."""

from __future__ import annotations

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
