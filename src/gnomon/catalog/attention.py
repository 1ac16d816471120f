"""Kinds of attention as shapes: what a layer keeps of a sequence, and how much of it a token looks at."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from gnomon.catalog.devices import DTYPE_BYTES, Dtype
from gnomon.core.config import Config

AttentionKind = Literal["full", "sliding", "linear", "compressed", "compressed_sparse", "none"]
"""full: keys and values of every token (with an indexer: kept all, read in part); sliding: of the last `window` tokens;
linear: a state of fixed size; compressed: one entry for many tokens beside a window, all of them read or (sparse) those
that an indexer picks; none: the layer has no attention."""
AttentionFamily = Literal["grouped", "window", "latent", "sparse", "linear"]
"""What is peculiar in a model's attention: nothing (every token's keys and values in groups of heads), windows in some
layers, compressed vectors, an indexer that picks what is read, or states of fixed size in some layers."""
MlpKind = Literal["dense", "experts", "none"]


class LatentAttention(Config):
    """Multi-head latent attention (DeepSeek): keys and values are kept as one compressed vector."""

    q_rank: NonNegativeInt
    """Width of the compressed query; 0 where queries are not compressed."""
    kv_rank: PositiveInt
    """Width of the compressed keys and values."""
    rope_dim: PositiveInt
    """Part of a key that carries the position and is shared by all heads."""
    nope_dim: PositiveInt
    """Part of each head's key without position."""
    v_dim: PositiveInt
    """Width of each head's value."""


class Indexer(Config):
    """Sparse attention (DeepSeek-V3.2, MiniMax-M3): a small scorer picks what the full layers' heads look at."""

    num_heads: PositiveInt
    head_dim: PositiveInt
    top_k: PositiveInt
    """Tokens that each query attends to (MiniMax: in blocks); all of them while there are fewer."""

    @property
    def cache_bytes(self) -> float:
        """Bytes that one token leaves in one layer's index: its key in fp8 with a 4-byte scale per 128 values."""
        return self.head_dim * (1.0 + 4.0 / 128.0)


class CompressedAttention(Config):
    """DeepSeek-V4: keys and values are one vector, kept for the last tokens and, compressed, once for every `ratio`."""

    q_rank: PositiveInt
    """Width of the compressed query."""
    rope_dim: PositiveInt
    """Part of the vector that carries the position; it stays in 16 bits."""
    window: PositiveInt
    """Last tokens that every layer keeps one by one."""
    o_groups: PositiveInt
    """Groups of heads whose outputs go through a low rank of their own."""
    o_rank: PositiveInt
    ratio: PositiveInt = 128
    """Tokens of one entry in the layers that read all entries."""
    sparse_ratio: PositiveInt = 4
    """Tokens of one entry in the layers whose indexer picks entries; each is made of two such stretches."""

    def ratio_of(self, kind: AttentionKind) -> int:
        """Tokens of one entry; 0 in a layer that has a window alone."""
        return {"compressed": self.ratio, "compressed_sparse": self.sparse_ratio}.get(kind, 0)

    def entry_bytes(self, head_dim: int, dtype: str) -> float:
        """One vector in the cache; in 8 bits with a 1-byte scale for every 64 values."""
        each = DTYPE_BYTES[dtype]
        scales = (head_dim - self.rope_dim) // 64 + 1 if each < 2.0 else 0
        return (head_dim - self.rope_dim) * each + self.rope_dim * 2.0 + scales

    def state_bytes(self, head_dim: int, index_dim: int, kind: AttentionKind) -> float:
        """What the compressor keeps of a sequence's unfinished entry: sums and scores in 32 bits."""
        ratio, is_sparse = self.ratio_of(kind), kind == "compressed_sparse"
        return 2.0 * ratio * (2 if is_sparse else 1) * (head_dim + (index_dim if is_sparse else 0)) * 4.0


class SlidingWindow(Config):
    """Attention to the last tokens only. Heads of their own are given where they differ from the full layers'."""

    window: PositiveInt
    """Tokens that a query sees, itself included. Attention within fixed chunks (Llama 4) counts as a window."""
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    head_dim: PositiveInt
    v_head_dim: PositiveInt


class LinearAttention(Config):
    """Attention with a state of fixed size: one key x value matrix per value head, and the inputs of a convolution.

    In Mamba-2's words: key heads are groups, value heads are heads, the key's width is the state's size.
    """

    kind: Literal["gated_delta_net", "mamba2", "kda"]
    num_key_heads: PositiveInt
    num_value_heads: PositiveInt
    key_dim: PositiveInt
    """Width of one key head."""
    value_dim: PositiveInt
    """Width of one value head."""
    conv_kernel: PositiveInt = 4
    """Tokens that the convolution before the recurrence sees."""
    state_dtype: Dtype = "fp32"
    """Number format of the state; the convolution's is bf16."""

    @property
    def key_size(self) -> int:
        """Width of all keys (and of all queries)."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of all values."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Width of what the convolution sees: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    def state_bytes(self, tensor_parallel: int = 1) -> float:
        """Bytes of one sequence's state in one layer on one rank; heads are split, not fewer than one per rank."""
        recurrent = max(1.0, self.num_value_heads / tensor_parallel) * self.key_dim * self.value_dim
        channels = 2 * max(1.0, self.num_key_heads / tensor_parallel) * self.key_dim
        channels += max(1.0, self.num_value_heads / tensor_parallel) * self.value_dim
        return recurrent * DTYPE_BYTES[self.state_dtype] + (self.conv_kernel - 1) * channels * 2.0
