"""Trace formats: which column means what. Adding one is one entry here, or `FORMATS.add` in a file of your own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from gnomon.core.registry import Registry
from gnomon.workload.agent_traces import (
    CALLS,
    calls_with_messages,
    conversations,
    dynamo_requests,
    sessions_of_requests,
)
from gnomon.workload.table import Table

TimeUnit = Literal["s", "ms", "us", "ns", "datetime"]


@dataclass(frozen=True)
class TraceFormat:
    """Columns (or JSON keys) of one kind of trace.

    Roles: `prompt` and `output` (tokens, needed), `arrival`, `session`, `priority`, `adapter` (LoRA), `prefix` (block
    hashes of the prompt: a JSON list, or numbers with spaces between) and `prefix_block_tokens`, each optional. Where
    calls wait for others: `call` (a number), `parents` (those it waits for, -1 for none), and `think` (seconds from
    their end until it is sent) or `duration` (recorded seconds of a call).
    """

    description: str
    columns: Mapping[str, str]
    time_unit: TimeUnit = "s"
    block_tokens: int = 16
    """Tokens per hashed block, where no column says it."""

    from_start: bool = False
    """Times count from the start of the run; else from an epoch, and the first request is moved to 0."""

    needs: tuple[str, ...] = ()
    """Columns by which a file of this format is told; else by those of prompt and output."""
    reader: Callable[[Table], Table] | None = None
    """Makes one row of each call, where lines of the file are something else."""
    note: str = ""
    """What must be said about what is read."""

    def fits(self, names: Collection[str]) -> bool:
        """Whether a file with these column names is of this format."""
        if self.needs:
            return all(name in names for name in self.needs)
        return self.columns["prompt"] in names and self.columns["output"] in names


SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt_tokens", "input_tokens", "prompt_len", "prompt_length", "input_len", "input_length", "isl",
               "num_prompt_tokens", "num_input_tokens", "context_tokens", "prefill_tokens", "request_tokens",
               "tokens_in", "prompt", "input"),
    "output": ("output_tokens", "completion_tokens", "generated_tokens", "response_tokens", "output_len",
               "output_length", "osl", "num_output_tokens", "num_completion_tokens", "generation_tokens",
               "decode_tokens", "tokens_out", "gen_tokens", "gen_len", "response_length", "completion", "output"),
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


MESSAGES = "Tokens of messages are estimated: one for four characters."
_SPOKEN = {role: name for role, name in CALLS.items() if role not in ("arrival", "think")}

FORMATS: Registry[TraceFormat] = Registry("trace format")
for _name, _format in {
    "gnomon": TraceFormat(
        "What `gnomon workload export` writes.",
        {"arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens", "session": "session",
         "priority": "priority", "adapter": "adapter", "prefix": "prefix_hashes",
         "prefix_block_tokens": "prefix_block_tokens"}, from_start=True),
    "azure": TraceFormat(
        "Azure inference traces 2023, 2024 and 2025 (without its images; github.com/Azure/AzurePublicDataset).",
        {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}, time_unit="datetime"),
    "qwen": TraceFormat(
        "Qwen-Bailian's anonymous traces: conversations by parent_chat_id, JSON lines with 16-token block hashes "
        "(github.com/alibaba-edu/qwen-bailian-usagetraces-anon).",
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "prefix": "hash_ids",
         "call": "chat_id", "parents": "parent_chat_id"},
        needs=("chat_id", "parent_chat_id", "input_length", "output_length")),
    "mooncake": TraceFormat(
        "Mooncake traces, JSON lines with 512-token block hashes (github.com/kvcache-ai/Mooncake).",
        {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "prefix": "hash_ids"},
        time_unit="ms", block_tokens=512),
    "agent-sessions": TraceFormat(
        "Coding agents, a session to a line with its calls and sub-agents in `requests` "
        "(huggingface.co/datasets/semianalysisai, cc-traces-weka).",
        CALLS, needs=("id", "requests"), reader=sessions_of_requests, from_start=True),
    "dynamo": TraceFormat(
        "Dynamo's request traces (dynamo.request.trace.v1), JSON lines; sessions follow one another.",
        CALLS, needs=("event_type", "event_time_unix_ms", "request"), reader=dynamo_requests, from_start=True),
    "agent-turns": TraceFormat(
        "Tokenised turns of agents: session_id, turn_idx, input_toks, output_toks, arrival_time_ns.",
        {"session": "session_id", "turn": "turn_idx", "prompt": "input_toks", "output": "output_toks",
         "arrival": "arrival_time_ns"},
        time_unit="ns", needs=("session_id", "turn_idx", "input_toks", "output_toks")),
    "agent-messages": TraceFormat(
        "Calls of agents as messages: session_id, input (all messages so far), output_length, session_timestamp.",
        CALLS, needs=("session_id", "input", "output_length"), reader=calls_with_messages, from_start=True,
        note=MESSAGES),
    **{name: TraceFormat(
        f"Whole conversations as messages in `{key}`: ShareGPT, OpenAI's chat format, trajectories of agents.",
        _SPOKEN, needs=(key,), reader=conversations, note=MESSAGES)
       for name, key in (("conversations", "conversations"), ("chat-messages", "messages"))},
    "burstgpt": TraceFormat(
        "BurstGPT; failed requests have no response tokens (github.com/HPMLL/BurstGPT).",
        {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens", "session": "Session ID"}),
    "vidur": TraceFormat(
        "Vidur's processed traces and length statistics (github.com/microsoft/vidur).",
        {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}, from_start=True),
}.items():  # fmt: skip
    FORMATS.add(_name, _format)
