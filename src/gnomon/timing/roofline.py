"""The analytic source: work over the device's speed, with the efficiencies that real kernels reach.

- A matrix multiplication is cut into tiles that run in waves over the SMs; the best of a few tile shapes counts, as
  library heuristics would choose. Its weights stream in meanwhile; the two overlap (p-norm), plus a floor.
- Norms, activations and copies move bytes.
- Prefill attention computes, decode attention reads the KV cache.
- Collectives: see `gnomon.timing.communication`.

The constants are per device (`RooflineConstants` in its catalog file, at most ten).
"""

from __future__ import annotations

import numpy as np

from gnomon.catalog.devices import Device
from gnomon.catalog.nodes import Node
from gnomon.timing.communication import communication_s
from gnomon.timing.operators import (
    Communication,
    Decode,
    Elementwise,
    Experts,
    Floats,
    Gemm,
    Mixed,
    Operator,
    Prefill,
)
from gnomon.timing.source import ANY, Context, Range, register_source

# Tiles that libraries choose from: rows x columns, and the share of the full tile's rate that a smaller one reaches
# (it reads more per multiplication).
_TILES = ((256, 128, 1.0), (128, 128, 0.93), (64, 128, 0.75), (64, 64, 0.6), (32, 64, 0.4), (16, 64, 0.25))
# A tile's loop over k may be split over idle SMs, up to this many ways.
_MAX_SPLIT = 8
# Sharpness of the corner between memory- and compute-bound: the p of a p-norm (1 = their sum, large = the longer).
_OVERLAP = 3.0
# Grouped multiplications of experts: share of a dense one's rate, and seconds of sorting, launching and summing; both
# from the vLLM 0.24 tables of aiconfigurator-core 0.12 (H100, H200, B200, L40S, RTX PRO 6000) taken together.
_EXPERT_RATE = 0.41
_EXPERT_FLOOR_S = 20e-6
# A decode costs as if its KV were this much longer: start, softmax and merge of each sequence's blocks.
_DECODE_EXTRA_KV = 64.0


class Roofline:
    """Seconds of operators on one device from its data sheet and its calibrated constants."""

    name = "roofline"

    def __init__(self, device: Device, node: Node, dtype: str = "bf16") -> None:
        self.device, self.node = device, node
        self._peak = device.flops(dtype)
        self._attention_peak = device.flops("bf16")
        self._constants = device.roofline

    def measured(self, operator: Operator) -> Range | None:
        """A formula covers everything; a mixed batch is the sum of its parts, so it needs no table of its own."""
        if operator.kind == "attention_mixed":
            return None
        return (ANY, ANY) if operator.kind.startswith("attention") else (ANY,)

    def seconds(self, operator: Operator, *sizes: Floats) -> Floats:
        """Seconds of one call; nothing for an operator that is part of its neighbour's kernel."""
        if operator.is_fused:
            return np.zeros_like(sizes[0])
        work = operator.work
        match work:
            case Gemm():
                return self.gemm_s(work, *sizes)
            case Elementwise():
                return self.elementwise_s(work, *sizes)
            case Experts():
                return self.experts_s(work, *sizes)
            case Prefill():
                return self.prefill_s(work, *sizes)
            case Decode():
                return self.decode_s(work, *sizes)
            case Mixed():
                return self.mixed_s(work, *sizes)
            case Communication():
                return communication_s(work, sizes[0], self.node)

    def uncertainty(self, operator: Operator) -> float:
        """The median error of this device's calibration."""
        return self.device.roofline_error

    def skew(self, decodes: Floats) -> Floats | None:
        """No effect: bytes are bytes."""
        return None

    def gemm_s(self, work: Gemm, rows: Floats) -> Floats:
        """Tiles in waves, overlapped with the stream of weights."""
        c = self._constants
        compute = self._tiled_s(rows, work.n, work.k)
        memory = work.bytes(rows) / (c.gemm_bandwidth * self.device.bandwidth_bytes_s)
        return self._overlapped(compute, memory) + c.gemm_floor_s

    def _tiled_s(self, rows: Floats, n: int, k: int) -> Floats:
        """Compute seconds of [rows, k] x [k, n] with the best tile."""
        sms = self.device.num_sms
        rate = self._peak * self._constants.gemm_efficiency / sms
        best = np.full_like(rows, np.inf)
        for tile_rows, tile_columns, share in _TILES:
            tiles = np.ceil(rows / tile_rows) * np.ceil(n / tile_columns)
            split = np.clip(np.floor(sms / np.maximum(tiles, 1.0)), 1.0, _MAX_SPLIT)
            waves = np.ceil(tiles * split / sms)
            np.minimum(best, waves / split * (2.0 * tile_rows * tile_columns * k / (rate * share)), out=best)
        return best

    def _overlapped(self, compute: Floats, memory: Floats) -> Floats:
        longer = np.maximum(np.maximum(compute, memory), 1e-12)
        shorter = np.minimum(compute, memory)
        return longer * (1.0 + (shorter / longer) ** _OVERLAP) ** (1.0 / _OVERLAP)

    def elementwise_s(self, work: Elementwise, rows: Floats) -> Floats:
        """Bytes over bandwidth, the cache's while they fit and the memory's beyond twice that, on top of a floor."""
        c = self._constants
        moved = work.bytes(rows)
        cached = np.clip(2.0 - moved / self.device.l2_bytes, 0.0, 1.0)
        per_byte = cached / c.cache_bandwidth + (1.0 - cached) / c.elementwise_bandwidth
        return c.elementwise_floor_s + moved * per_byte / self.device.bandwidth_bytes_s

    def experts_s(self, work: Experts, tokens: Floats) -> Floats:
        """A grouped multiplication: the touched experts' weights stream in; each expert's rows fill up tiles of 16."""
        c = self._constants
        touched = np.maximum(work.touched(tokens), 1e-9)
        per_expert = np.ceil(work.routed(tokens) / touched / 16.0) * 16.0
        padded_flops = 2.0 * touched * per_expert * work.projections * work.hidden * work.ffn
        compute = padded_flops / (self._peak * c.gemm_efficiency * _EXPERT_RATE)
        memory = work.bytes(tokens) / (c.gemm_bandwidth * self.device.bandwidth_bytes_s)
        return self._overlapped(compute, memory) + _EXPERT_FLOOR_S

    def prefill_s(self, work: Prefill, chunk: Floats, kv: Floats) -> Floats:
        """Tiles of rows of one head, one per SM at a time, in waves over the SMs."""
        c, sms = self._constants, self.device.num_sms
        waves = np.ceil(np.ceil(chunk / c.prefill_tile) * work.num_heads / sms)
        pairs = c.prefill_tile * (kv + 0.5 * chunk + 0.5 * c.prefill_tile)
        tile_s = pairs * work.flops_per_pair / work.num_heads / (self._attention_peak / sms * c.prefill_efficiency)
        memory = work.bytes(chunk, kv) / (c.decode_bandwidth * self.device.bandwidth_bytes_s)
        return c.attention_floor_s + np.maximum(waves * tile_s, memory)

    def decode_s(self, work: Decode, sequences: Floats, kv: Floats) -> Floats:
        """The KV cache streams in, on top of a floor."""
        c = self._constants
        memory = work.bytes(sequences, kv + _DECODE_EXTRA_KV) / (c.decode_bandwidth * self.device.bandwidth_bytes_s)
        compute = work.flops(sequences, kv) / (self._attention_peak * c.prefill_efficiency)
        return c.attention_floor_s + np.maximum(memory, compute)

    def mixed_s(self, work: Mixed, chunk: Floats, kv: Floats, sequences: Floats, decode_kv: Floats) -> Floats:
        """Both parts one after the other, under one floor."""
        shape = (work.num_heads, work.num_kv_heads, work.qk_dim, work.v_dim, work.kv_bytes)
        both = self.prefill_s(Prefill(*shape), chunk, kv) + self.decode_s(Decode(*shape), sequences, decode_kv)
        return both - self._constants.attention_floor_s


@register_source("roofline")
def make(context: Context) -> Roofline:
    """The roofline of the context's device and node."""
    return Roofline(context.device, context.node, context.config.dtype)
