"""The analytic source: work over the device's speed, with the efficiencies that real kernels reach.

- A matrix multiplication is cut into tiles that run in waves over the SMs; the best of a few tile shapes counts, as
  library heuristics would choose. Its weights stream in meanwhile; the two overlap (p-norm), plus a floor.
- Norms, activations and copies move bytes.
- Prefill attention computes in tiles, decode attention reads the KV cache; where the kernel is FlashAttention-2,
  decodes that share a batch with a chunk run as tiles too.
- Collectives: see `gnomon.timing.communication`.

The constants are per device (`RooflineConstants` in its catalog file, at most ten) or of all (roofline.yaml).
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gnomon.catalog.devices import Device
from gnomon.catalog.nodes import Node
from gnomon.core.arrays import Floats
from gnomon.core.text import own_yaml
from gnomon.timing import operators
from gnomon.timing.communication import collective_s
from gnomon.timing.operators.work import ACTIVATION_BYTES
from gnomon.timing.sources import ANY, Context, Range, timing_source

_FIT = SimpleNamespace(**own_yaml(Path(__file__).with_name("roofline.yaml")))
"""Fitted constants that are the same for every device."""
_LOWEST_TILE = math.gcd(*(rows for rows, _, _ in _FIT.tiles))


class Roofline:
    """Seconds of operators on one device from its data sheet and its calibrated constants."""

    name = "roofline"

    def __init__(self, device: Device, node: Node, *, is_repeated: bool = False) -> None:
        """With `is_repeated`, decodes find their KV in the L2 cache where it fits: so are kernels measured, by calling
        them again and again. In serving the other layers' weights have passed through it since."""
        self.device, self.node, self._is_repeated = device, node, is_repeated
        self._attention_peak = device.flops("bf16")
        self._constants = device.roofline

    def measured(self, operator: operators.Operator) -> Range | None:
        """A formula covers everything; a mixed batch has its own time only where that is not the sum of its parts."""
        if operator.kind == "attention_mixed":
            return (ANY,) * 4 if self._is_flash_2 else None
        return (ANY, ANY) if operator.kind.startswith("attention") else (ANY,)

    def seconds(self, operator: operators.Operator, *sizes: Floats) -> Floats:
        """Seconds of one call; nothing for an operator that is part of its neighbour's kernel."""
        if operator.is_fused:
            return np.zeros_like(sizes[0])
        work = operator.work
        match work:
            case operators.Gemm():
                return self.gemm_s(work, *sizes)
            case operators.Elementwise():
                return self.elementwise_s(work, *sizes)
            case operators.Experts():
                return self.experts_s(work, *sizes)
            case operators.Prefill():
                return self.prefill_s(work, *sizes)
            case operators.Decode():
                return self.decode_s(work, *sizes)
            case operators.Mixed():
                return self.mixed_s(work, *sizes)
            case operators.Recurrence():
                return self.recurrence_s(work, *sizes)
            case operators.Sampling():
                return work.seconds(sizes[0], self.device)
            case operators.Communication():
                return collective_s(work.collective, sizes[0], work.group, self.node)

    def uncertainty(self, operator: operators.Operator) -> float:
        """The median error of this device's calibration."""
        return self.device.roofline_error

    def skew(self, decodes: Floats) -> Floats | None:
        return None

    def gemm_s(self, work: operators.Gemm, rows: Floats) -> Floats:
        """Tiles in waves, overlapped with the stream of weights."""
        c = self._constants
        peak = self.device.flops(work.format.product)
        if work.format.product in self.device.peak_flops:
            rates = _FIT.rtx_rates if self._is_flash_2 else _FIT.product_rates
            peak *= rates.get(work.format.name, 1.0)
        steps = np.ceil(rows / _LOWEST_TILE)  # Rows that fill as many tiles take as long: told once for each number.
        if steps.size and (span := float(np.ptp(steps)) + 1.0) < steps.size:
            first = steps.min()
            at_steps = self._tiles_s(work, peak, _LOWEST_TILE * np.arange(first, first + span))
            compute = at_steps[(steps - first).astype(np.intp)]
        else:
            compute = self._tiles_s(work, peak, rows)
        memory = work.bytes(rows) / (c.gemm_bandwidth * self.device.bandwidth_bytes_s)
        seconds = self._overlapped(compute, memory) + c.gemm_floor_s
        if work.format.name in _FIT.quantizing:  # Reads 16 bits per element and writes eight, in a kernel of its own.
            seconds = seconds + self.elementwise_s(operators.Elementwise(3.0 * work.k), rows)
        return seconds

    def _tiles_s(self, work: operators.Gemm, peak: float, rows: Floats) -> Floats:
        """Compute seconds of [rows, k] x [k, n] at a peak of FLOP/s with the best tile."""
        n, sms = work.n * work.batch, self.device.num_sms
        rate = peak * self._constants.gemm_efficiency / sms
        compute = np.full_like(rows, np.inf)
        for tile_rows, tile_columns, share in _FIT.tiles:
            tiles = np.ceil(rows / tile_rows) * np.ceil(n / tile_columns)
            split = np.minimum(np.maximum(np.floor(sms / np.maximum(tiles, 1.0)), 1.0), _FIT.max_split)
            waves = np.ceil(tiles * split / sms)
            np.minimum(compute, waves / split * (2.0 * tile_rows * tile_columns * work.k / (rate * share)), out=compute)
        return compute

    def smooth_s(self, operator: operators.Operator, *sizes: Floats) -> Floats:
        """Seconds without tiles and waves of a product: how a shape's time compares to its neighbours', whose kernels
        are chosen so that few SMs idle."""
        work = operator.work
        if not isinstance(work, operators.Gemm):
            return self.seconds(operator, *sizes)
        c, (rows,) = self._constants, sizes
        compute = work.flops(rows) / (self.device.flops(work.format.product) * c.gemm_efficiency)
        memory = work.bytes(rows) / (c.gemm_bandwidth * self.device.bandwidth_bytes_s)
        return self._overlapped(compute, memory) + c.gemm_floor_s

    def _overlapped(self, compute: Floats, memory: Floats) -> Floats:
        longer = np.maximum(np.maximum(compute, memory), 1e-12)
        shorter = np.minimum(compute, memory)
        return longer * (1.0 + (shorter / longer) ** _FIT.overlap) ** (1.0 / _FIT.overlap)

    def elementwise_s(self, work: operators.Elementwise, rows: Floats) -> Floats:
        """Bytes over bandwidth, the cache's while they fit and the memory's beyond twice that, on top of a floor."""
        c = self._constants
        moved = work.bytes(rows)
        cached = self._cached(moved)
        per_byte = cached / c.cache_bandwidth + (1.0 - cached) / c.elementwise_bandwidth
        return c.elementwise_floor_s + moved * per_byte / self.device.bandwidth_bytes_s

    def _cached(self, moved: Floats) -> Floats:
        """Share of so many bytes that comes from the L2 cache: all that fit, none beyond twice that."""
        return np.clip(2.0 - moved / self.device.l2_bytes, 0.0, 1.0)

    def experts_s(self, work: operators.Experts, tokens: Floats) -> Floats:
        """A grouped multiplication: the touched experts' weights stream in, at least one of the busiest rank; each
        expert's rows fill up tiles; before and after, all chosen rows are gathered and summed."""
        c, bandwidth = self._constants, self.device.bandwidth_bytes_s
        touched = np.maximum(work.touched(tokens), np.minimum(work.per_token * tokens, 1.0)) + 1e-9
        per_expert = np.ceil(work.routed(tokens) / touched / _FIT.expert_tile) * _FIT.expert_tile
        weights = touched * work.projections * work.hidden * work.ffn
        rate = self.device.flops(work.format.product) * _FIT.expert_rates.get(work.format.name, _FIT.expert_rate)
        compute = 2.0 * weights * per_expert / (rate * c.gemm_efficiency)
        memory = weights * work.format.bytes_per_weight / (_FIT.expert_bandwidth * c.gemm_bandwidth * bandwidth)
        moved = _FIT.expert_moves * tokens * work.per_token * work.hidden * ACTIVATION_BYTES
        moving = moved / (c.elementwise_bandwidth * bandwidth)
        return self._overlapped(compute, memory) + moving + _FIT.expert_kernels * c.gemm_floor_s

    def recurrence_s(self, work: operators.Recurrence, tokens: Floats) -> Floats:
        """Convolution and recurrence: states and activations stream, prompts also compute as attention does."""
        c = self._constants
        memory = work.bytes(tokens) / (c.elementwise_bandwidth * self.device.bandwidth_bytes_s)
        compute = work.flops(tokens) / (self._attention_peak * c.prefill_efficiency)
        seconds = self._overlapped(compute, memory)
        if work.is_step:
            return 2.0 * c.elementwise_floor_s + seconds
        return _FIT.chunked_floor_s + seconds / _FIT.chunked_rate

    def prefill_s(self, work: operators.Prefill, chunk: Floats, kv: Floats) -> Floats:
        """Tiles of rows of one head, one per SM at a time, in waves over the SMs."""
        c, sms = self._constants, self.device.num_sms
        waves = np.ceil(np.ceil(chunk / c.prefill_tile) * work.num_heads / sms)
        met = work.pairs(chunk, kv) / np.maximum(chunk, 1.0)
        if work.window:  # The keys of all windows of a tile's rows are computed, most of them masked.
            met = np.minimum(met + c.prefill_tile, kv + 0.5 * chunk)
        tile_s = self._attention_tile_s(work, met)
        memory = work.bytes(chunk, kv) / (c.decode_bandwidth * self.device.bandwidth_bytes_s)
        return c.attention_floor_s + np.maximum(waves * tile_s, memory)

    def _attention_tile_s(self, work: operators.Attention, kv: Floats) -> Floats:
        """Seconds in which one SM takes a tile of rows of one head over `kv` (and half of the tile's own) keys."""
        c = self._constants
        rate = self._attention_peak / self.device.num_sms * c.prefill_efficiency
        return c.prefill_tile * (kv + 0.5 * c.prefill_tile) * (work.flops_per_pair / work.num_heads / rate)

    def decode_s(self, work: operators.Decode, sequences: Floats, kv: Floats) -> Floats:
        """The KV cache streams in, on top of a floor."""
        c = self._constants
        read = replace(work, window=0, ratio=1, near=0).bytes(sequences, work.seen(kv) + _FIT.decode_extra_kv)
        cached = self._cached(read) if self._is_repeated else np.zeros_like(read)
        per_byte = cached / max(c.cache_bandwidth, c.decode_bandwidth) + (1.0 - cached) / c.decode_bandwidth
        memory = read * per_byte / self.device.bandwidth_bytes_s
        if work.qk_dim == work.v_dim and work.kv_bytes <= 2.0 * work.num_kv_heads * work.qk_dim:
            memory = memory / _FIT.kv8_rate
        compute = work.flops(sequences, kv) / (self._attention_peak * c.prefill_efficiency)
        return c.attention_floor_s + np.maximum(memory, compute)

    def mixed_s(self, work: operators.Mixed, chunk: Floats, kv: Floats, sequences: Floats, decode_kv: Floats) -> Floats:
        """A chunk and decodes together.

        FlashAttention-2 gives every decode and head a tile of its own, nearly empty: dearer than two kernels. For later
        versions the parts add, under one floor.
        """
        shape = (work.num_heads, work.num_kv_heads, work.qk_dim, work.v_dim, work.kv_bytes, work.window)
        if not self._is_flash_2:
            both = self.prefill_s(operators.Prefill(*shape), chunk, kv) + self.decode_s(
                operators.Decode(*shape), sequences, decode_kv
            )
            return both - self._constants.attention_floor_s
        c, sms = self._constants, self.device.num_sms
        tiles_each = np.ceil(chunk / c.prefill_tile)
        chunk_tiles, decode_tiles = tiles_each * work.num_heads, sequences * work.num_heads
        chunk_tile_s = self._attention_tile_s(work, work.pairs(chunk, kv) / np.maximum(chunk, 1e-9))
        decode_tile_s = self._attention_tile_s(work, work.seen(decode_kv) + _FIT.mixed_extra_kv)
        num_tiles = np.maximum(chunk_tiles + decode_tiles, 1.0)
        waves_s = np.ceil(num_tiles / sms) * (chunk_tiles * chunk_tile_s + decode_tiles * decode_tile_s) / num_tiles
        longest_s = np.maximum(chunk_tile_s, decode_tile_s)
        moved = work.bytes(chunk, kv, sequences, _FIT.mixed_reread * decode_kv)
        memory_s = moved / (c.decode_bandwidth * self.device.bandwidth_bytes_s)
        empty_s = np.maximum(tiles_each - 1.0, 0.0) * decode_tiles * _FIT.empty_tile_s / sms
        return c.attention_floor_s + np.maximum(np.maximum(waves_s, longest_s), memory_s) + empty_s

    @property
    def _is_flash_2(self) -> bool:
        """Whether the device's attention kernel takes tiles of 64 rows: FlashAttention-2, on GPUs before Hopper and on
        consumer ones."""
        return self._constants.prefill_tile == 64


@timing_source("roofline", about="analytic: any model on any catalogued device, no data needed")
def make(context: Context) -> Roofline:
    """The roofline of the context's device and node."""
    return Roofline(context.device, context.node)
