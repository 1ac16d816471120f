"""An operator: one kernel of one rank, as plain data. Its shape says its FLOPs and bytes for any batch.

| kind                | sizes that its time depends on                              |
|---------------------|-------------------------------------------------------------|
| `token`             | tokens of the iteration                                      |
| `prompt_token`      | those of them that belong to prompts                         |
| `decode`            | those of them that are decoded                               |
| `sequence`          | sequences of the iteration                                   |
| `attention_prefill` | chunk, KV tokens before it                                   |
| `attention_decode`  | sequences, KV tokens of each                                 |
| `attention_mixed`   | chunk, KV before it, sequences, KV tokens of each            |
| `communication`     | bytes that one rank contributes (`bytes_each` x tokens or sequences) |
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gnomon.catalog.quantization import BF16, WeightFormat
from gnomon.catalog.topology import Group
from gnomon.core.arrays import Floats
from gnomon.timing.operators.load import busiest_rank, relative_loads
from gnomon.timing.operators.sampling import Sampling

Kind = Literal[
    "token", "prompt_token", "decode", "sequence", "attention_prefill", "attention_decode", "attention_mixed",
    "communication",
]  # fmt: skip
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]

ACTIVATION_BYTES = 2.0  # Activations are bf16 or fp16 whatever the weights are.


@dataclass(frozen=True)
class Gemm:
    """[tokens, k] x [k, n]."""

    n: int
    k: int
    format: WeightFormat = BF16
    """How its weights are stored and multiplied."""
    batch: int = 1
    """Products of this shape side by side, each with its own weights: one per head."""

    def flops(self, rows: Floats) -> Floats:
        return 2.0 * rows * self.batch * self.n * self.k

    def bytes(self, rows: Floats) -> Floats:
        """Weights once, inputs and outputs once."""
        each = self.n * self.k * self.format.bytes_per_weight + rows * (self.n + self.k) * ACTIVATION_BYTES
        return self.batch * each


@dataclass(frozen=True)
class Elementwise:
    """Anything that only moves bytes: norms, activations, rotary embedding, copies."""

    bytes_each: float
    """Bytes read and written per token (or sequence)."""

    def flops(self, rows: Floats) -> Floats:
        return np.zeros_like(rows)

    def bytes(self, rows: Floats) -> Floats:
        return rows * self.bytes_each


@dataclass(frozen=True)
class Experts:
    """The routed experts of one rank: a grouped matrix multiplication over those that some token chose."""

    num_experts: int
    """Of the layer."""
    num_local: int
    """On this rank."""
    per_token: int
    hidden: int
    ffn: int
    """Width of each on this rank."""
    projections: int
    format: WeightFormat = BF16
    load: str = "balanced"
    """How tokens spread over experts: see `gnomon.timing.operators.load`. The slowest rank counts."""

    def touched(self, tokens: Floats) -> Floats:
        """Expected number of local experts that at least one of `tokens` chooses."""
        chances = np.minimum(self.per_token / self.num_experts * relative_loads(self.load, self.num_experts), 1.0)
        missed = sum(count * (1.0 - chance) ** tokens for chance, count in zip(*_levels(chances), strict=True))
        return self.num_local * (1.0 - missed / self.num_experts)

    def routed(self, tokens: Floats) -> Floats:
        """Expected rows over all local experts of the slowest rank."""
        busiest = busiest_rank(self.load, self.num_experts, self.num_experts // self.num_local)
        return tokens * self.per_token * busiest * self.num_local / self.num_experts

    def flops(self, tokens: Floats) -> Floats:
        return 2.0 * self.routed(tokens) * self.projections * self.hidden * self.ffn

    def bytes(self, tokens: Floats) -> Floats:
        """The touched experts' weights, and each row through up-projection, activation, down-projection and sum."""
        weights = self.touched(tokens) * self.projections * self.hidden * self.ffn * self.format.bytes_per_weight
        return weights + self.routed(tokens) * (3 * self.hidden + 2 * self.projections * self.ffn) * ACTIVATION_BYTES


@dataclass(frozen=True)
class Attention:
    """Scaled dot-product attention of one rank's heads against paged keys and values."""

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    kv_bytes: float
    """Bytes per token that decoding reads from the cache."""
    window: int = 0
    """The last tokens (or, in sparse attention, the number of chosen ones) that a query sees; 0 for all."""
    ratio: int = 1
    """Tokens of one entry in the cache."""
    near: int = 0
    """Last tokens that a query sees one by one beside the entries."""

    def pairs(self, chunk: Floats, kv: Floats) -> Floats:
        """Query-key pairs of a chunk, causal within it, after `kv` tokens."""
        entries = _causal_pairs(chunk, kv, self.window * self.ratio) / self.ratio
        return entries + _causal_pairs(chunk, kv, self.near) if self.near else entries

    def seen(self, kv: Floats) -> Floats:
        """Keys that one query at the end of `kv` tokens meets."""
        entries = (np.minimum(kv, self.window * self.ratio) if self.window else kv) / self.ratio
        return entries + np.minimum(kv, self.near) if self.near else entries

    @property
    def flops_per_pair(self) -> float:
        """FLOPs of one query position meeting one key position, over all heads."""
        return 2.0 * self.num_heads * (self.qk_dim + self.v_dim)

    @property
    def io_bytes(self) -> float:
        """Bytes of queries in and outputs out, per token."""
        return self.num_heads * (self.qk_dim + self.v_dim) * ACTIVATION_BYTES


@dataclass(frozen=True)
class Prefill(Attention):
    """Attention of a chunk of a prompt: causal within the chunk, full over what lies before."""

    def flops(self, chunk: Floats, kv: Floats) -> Floats:
        """Half of the chunk's own square, and all pairs with the KV before it."""
        return self.flops_per_pair * self.pairs(chunk, kv)

    def bytes(self, chunk: Floats, kv: Floats) -> Floats:
        """Queries, outputs, and the KV once."""
        return chunk * self.io_bytes + (chunk + self.seen(kv)) * self.kv_bytes


@dataclass(frozen=True)
class Decode(Attention):
    """Attention of one new token per sequence."""

    def flops(self, sequences: Floats, kv: Floats) -> Floats:
        return self.flops_per_pair * sequences * self.seen(kv)

    def bytes(self, sequences: Floats, kv: Floats) -> Floats:
        return sequences * (self.seen(kv) * self.kv_bytes + self.io_bytes)


@dataclass(frozen=True)
class Mixed(Attention):
    """A chunk and some decodes in one kernel."""

    def flops(self, chunk: Floats, kv: Floats, sequences: Floats, decode_kv: Floats) -> Floats:
        return self.flops_per_pair * (self.pairs(chunk, kv) + sequences * self.seen(decode_kv))

    def bytes(self, chunk: Floats, kv: Floats, sequences: Floats, decode_kv: Floats) -> Floats:
        read = chunk + self.seen(kv) + sequences * self.seen(decode_kv)
        return (chunk + sequences) * self.io_bytes + read * self.kv_bytes


@dataclass(frozen=True)
class Recurrence:
    """Linear attention of one rank's heads: a state per sequence instead of a KV cache (Gated DeltaNet, Mamba-2)."""

    kernel: str
    """gdn, kda or mamba2."""
    num_k_heads: int
    num_v_heads: int
    k_dim: int
    v_dim: int
    conv: int = 4
    """Width of the convolution before it."""
    is_step: bool = False
    """One new token per sequence (reads and writes the state), rather than a prompt (in chunks of 64)."""

    @property
    def state_bytes(self) -> float:
        """Bytes of one sequence's state, in 32 bits."""
        return 4.0 * self.num_v_heads * self.k_dim * self.v_dim

    def flops(self, tokens: Floats) -> Floats:
        """Decay, read and write of the state; a prompt's chunk also meets itself."""
        inside = 0.0 if self.is_step else 64.0 * (self.k_dim + self.v_dim)
        return tokens * self.num_v_heads * (6.0 * self.k_dim * self.v_dim + 2.0 * inside)

    def bytes(self, tokens: Floats) -> Floats:
        """Queries, keys, values and outputs twice (convolution and recurrence), and the state of each step."""
        io = 2.0 * ACTIVATION_BYTES * (2 * self.num_k_heads * self.k_dim + 2 * self.num_v_heads * self.v_dim)
        return tokens * (2.0 * io + (2.0 * self.state_bytes if self.is_step else 0.0))


@dataclass(frozen=True)
class Communication:
    """A collective (or a transfer to the next stage) between the ranks of a group."""

    collective: Collective
    group: Group
    bytes_each: float
    """Bytes that one rank contributes per token or sequence."""
    per: Literal["token", "sequence"] = "token"

    def flops(self, num_bytes: Floats) -> Floats:
        return np.zeros_like(num_bytes)

    def bytes(self, num_bytes: Floats) -> Floats:
        return num_bytes


def _causal_pairs(chunk: Floats, kv: Floats, most: int) -> Floats:
    """Pairs of a chunk after `kv` tokens where a query sees the last `most` tokens, or all."""
    if not most:
        return chunk * (kv + 0.5 * chunk)
    growing = np.clip(most - kv, 0.0, chunk)  # Queries that see less than a whole window.
    return growing * (kv + 0.5 * growing) + (chunk - growing) * most


def _levels(chances: Floats) -> tuple[Floats, Floats]:
    """Chances in sixteen groups of equal size and their counts, or the one that all share."""
    if chances.min() == chances.max():
        return chances[:1], np.array([float(chances.size)])
    groups = np.array_split(np.sort(chances), min(16, chances.size))
    return np.array([group.mean() for group in groups]), np.array([float(group.size) for group in groups])


Work = Gemm | Elementwise | Experts | Prefill | Decode | Mixed | Recurrence | Sampling | Communication


@dataclass(frozen=True)
class Operator:
    """One kernel of one rank, and how often an iteration runs it."""

    name: str
    kind: Kind
    count: int
    """Calls per iteration in this stage."""
    work: Work
    is_fused: bool = False
    """Part of a neighbour's kernel in today's engines: free unless a source measured it on its own."""
    is_shared: bool = False
    """Runs on the tokens of the whole data-parallel group, in lockstep."""
    is_beside: bool = False
    """Runs beside the routed experts on a second stream, while tokens are few."""

    def flops(self, *sizes: Floats) -> Floats:
        return self.work.flops(*sizes)

    def bytes(self, *sizes: Floats) -> Floats:
        """Bytes of memory traffic (or of the message) of one call."""
        return self.work.bytes(*sizes)
