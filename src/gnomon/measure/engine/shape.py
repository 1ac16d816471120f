"""What the engine needs to know of a model and of its own set-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a Llama-shaped decoder: RMS norms, grouped-query attention, gated MLP, no biases."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    qk_norm: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> ModelShape:
        """From a mapping that may hold more keys than these."""
        return cls(**{field.name: facts[field.name] for field in fields(cls) if field.name in facts})

    @property
    def qkv_size(self) -> int:
        """Outputs of the fused projection: queries, keys, values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def weight_bytes(self) -> int:
        h, ffn = self.hidden_size, self.ffn_size
        layer = h * self.qkv_size + self.num_heads * self.head_dim * h + 3 * h * ffn + 2 * h
        return 2 * (self.num_layers * layer + 2 * self.vocab_size * h + h)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * 2 * self.num_layers * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class EngineConfig:
    """Limits of the engine; the names are vLLM's where it has them."""

    max_num_batched_tokens: int = 2048
    """Token budget of one iteration."""
    max_num_seqs: int = 128
    """Most requests that run at once."""
    max_model_len: int = 8192
    """Most tokens of one request, prompt and output."""
    block_size: int = 16
    """Tokens of one KV block."""
    num_kv_blocks: int | None = None
    """KV blocks; None = what fits into 90 % of the GPU's memory."""
    eager_prefill: bool = False
    """Iterations with prompts launch their kernels one by one, as many engines do; decodes still replay graphs."""
    eager: bool = False
    """No iteration replays a CUDA graph."""
    temperature: float = 0.0
    """What all requests ask of the sampler: 0 takes the likeliest token."""
    top_p: float = 1.0
    """Below 1, the fewest tokens that have this probability together, found by sorting the vocabulary."""
    repetition_penalty: float = 1.0
    """Other than 1, what was said is counted anew in every step and made less likely."""

    def __post_init__(self) -> None:
        if self.temperature == 0.0 and self.top_p < 1.0:
            raise ValueError("top_p needs a temperature above 0")

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Token counts for which iterations are captured as CUDA graphs."""
        most = self.max_num_batched_tokens
        sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 512, 16), *range(512, 1024, 32), *range(1024, most, 64)]
        return (*(size for size in sizes if size < most), most)

    @property
    def blocks_per_sequence(self) -> int:
        return -(-self.max_model_len // self.block_size)
