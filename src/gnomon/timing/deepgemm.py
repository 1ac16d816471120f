"""What DeepGEMM, as vLLM calls it, takes beyond products whose rows and scales are as it wants them.

What converting scales takes was measured on an H200 in a CUDA graph (`benchmarks/scale_conversion.py`).
"""

import numpy as np

from gnomon.catalog.devices import Device
from gnomon.core.arrays import Floats
from gnomon.timing.operators import Experts, Gemm

GROUPED_RATE = 0.6  # Share of the peak that grouped FP8 products reach.
BLOCK = 128
PACKED_S = 1.3e-6  # Packing the scales of a batch.
CONVERTED_S, ROW_S = 5.7e-6, 0.65e-9
"""Gathering a weight's scales for every row and packing them: four kernels, and each row."""
GROUPED_S, GATHER_RATE = 10e-6, 0.56
"""The same for all experts at once: four kernels, and the share of the memory's bandwidth that they reach."""


def padding_s(work: Experts, tokens: Floats, rows_each: int, device: Device) -> Floats | float:
    """Experts whose rows lie in one array, so many for each at least: what the padding takes to compute and to move
    beyond the rows that were chosen."""
    padding = np.maximum(work.num_local * rows_each - work.routed(tokens), 0.0)
    each = work.projections * work.hidden * work.ffn
    compute = 2.0 * padding * each / (GROUPED_RATE * device.flops("fp8"))
    moved = padding * (5 * work.hidden + 2 * work.projections * work.ffn)
    return compute + moved / device.bandwidth_bytes_s


def conversion_s(work: Gemm | Experts, device: Device) -> float:
    """Scales that come as 32-bit floats by blocks, and are wanted as packed exponents by rows."""
    if isinstance(work, Gemm):
        return PACKED_S + CONVERTED_S + ROW_S * work.n * work.batch
    shapes = ((work.projections - 1) * work.ffn, work.hidden), (work.hidden, work.ffn)
    moved = sum(8.0 * work.num_local * n * k / BLOCK for n, k in shapes)
    return 2.0 * (PACKED_S + GROUPED_S) + moved / (GATHER_RATE * device.bandwidth_bytes_s)
