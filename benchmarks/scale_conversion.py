"""What converting the scales of products in block-wise FP8 takes: gathered by rows, exponents packed four to a word.

python benchmarks/scale_conversion.py     # a GPU with PyTorch and Triton; nothing else of Gnomon

DeepGEMM on Blackwell wants scales so. Where it gets those of a weight as 32-bit floats by blocks of 128 x 128, it makes
them in every call: an index, a gather, a packing; and one packing for the batch. Microseconds inside a CUDA graph, for
weights of one product and of all experts of a rank; `gnomon.timing.deepgemm` has the lines through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

ALONE = ((512, 7168), (2112, 7168), (3072, 1536), (4096, 4096), (7168, 2048), (24576, 1536))
GROUPED = ((20, 5120, 6144), (20, 6144, 2560), (32, 3072, 4096), (32, 4096, 1536), (64, 3072, 4096), (64, 4096, 1536))
BLOCK, ROWS, CALLS = 128, 32, 40


@triton.jit  # type: ignore[untyped-decorator]
def packed(scales, words, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Exponents of four neighbours in each word, word by word over all rows."""
    matrix, row, column = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    value = tl.load(scales + (matrix * rows + row[:, None]) * width + column[None, :], mask=inside, other=0.0)
    exponent = ((value.to(tl.int32, bitcast=True) >> 23) & 255) << (8 * (column[None, :] % 4))
    word, place = tl.sum(tl.reshape(exponent, (ROWS, WIDTH // 4, 4)), 2), tl.arange(0, WIDTH // 4)
    kept = (row[:, None] < rows) & (place[None, :] < (width + 3) // 4)
    tl.store(words + (matrix * ((width + 3) // 4) + place[None, :]) * rows + row[:, None], word, mask=kept)


def pack(scales: Any) -> Any:
    """Scales [matrix, row, block] as words [matrix, four blocks, row]."""
    count, rows, width = scales.shape
    words = torch.empty(count, (width + 3) // 4, rows, dtype=torch.int32, device="cuda")
    packed[(triton.cdiv(rows, ROWS), count)](scales, words, rows, width, ROWS, triton.next_power_of_2(max(width, 4)))
    return words


def convert(scales: Any, rows: int) -> Any:
    """Scales by blocks, gathered for every row and packed."""
    index = torch.arange(rows, device="cuda").floor_divide_(BLOCK)
    return pack(scales.index_select(-2, index))


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call inside a graph of many, the quickest of eight rounds."""
    call()
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 1e3 * min(times) / CALLS


def main() -> None:
    """Print a line for each shape."""
    batch = torch.rand(1, 64, 32, device="cuda")
    print(f"a batch of 64: {microseconds(lambda: pack(batch)):.2f}")
    for count, rows, width in (*((1, *shape) for shape in ALONE), *GROUPED):
        scales = torch.rand(count, -(-rows // BLOCK), -(-width // BLOCK), device="cuda")
        taken = microseconds(lambda scales=scales, rows=rows: convert(scales, rows))
        print(f"{count:3} of {rows:6} x {width:5}: {taken:.2f}")


if __name__ == "__main__":
    main()
