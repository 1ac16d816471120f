"""Measure by how much LoRA adapters slow decodes down: `python -m benchmarks.measure_lora` on a machine with a GPU.

The matrix products of one layer of Llama-3-8B in bf16, for a batch of decodes, as one CUDA graph: without adapters, and
with adapters on every projection, the batch divided evenly among them (two batched products each, as the gathered
kernels of vLLM and S-LoRA compute them). Attention is left out: the shares are upper bounds for an iteration.
Prints YAML for `src/gnomon/serving/scenario/data/lora.yaml`.
"""

from __future__ import annotations

import statistics

HIDDEN, FFN, KV = 4096, 14336, 1024
PROJECTIONS = ((HIDDEN, HIDDEN + 2 * KV), (HIDDEN, HIDDEN), (HIDDEN, 2 * FFN), (FFN, HIDDEN))
BATCH = 64
COUNTS = (1, 2, 4, 8, 16, 32, 64)
RANKS = (8, 16, 32, 64)
LAYERS = 8
"""As many sets of weights, so that none of them is found in the cache."""


def layer_s(adapters: int, rank: int) -> float:
    """Median seconds of the products of one layer."""
    import torch

    made = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [[torch.randn(k, m, **made) * 0.01 for k, m in PROJECTIONS] for _ in range(LAYERS)]
    inputs = {k: torch.randn(BATCH, k, **made) for k, _ in PROJECTIONS}
    down = [[torch.randn(max(adapters, 1), k, rank, **made) for k, _ in PROJECTIONS] for _ in range(LAYERS)]
    up = [[torch.randn(max(adapters, 1), rank, m, **made) for _, m in PROJECTIONS] for _ in range(LAYERS)]

    def step() -> None:
        for weights, a, b in zip(layers, down, up, strict=True):
            for i, (k, m) in enumerate(PROJECTIONS):
                out = inputs[k] @ weights[i]
                if adapters:
                    grouped = inputs[k].view(adapters, BATCH // adapters, k)
                    out.view(adapters, BATCH // adapters, m).baddbmm_(torch.bmm(grouped, a[i]), b[i])

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    taken = []
    for _ in range(50):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3 / LAYERS)
    return statistics.median(taken)


def main() -> None:
    """Print every curve."""
    import torch

    device = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    base_s = layer_s(0, 1)
    print(f"# {device}, torch {torch.__version__}: {base_s * 1e6:.1f} us without adapters")
    for rank in RANKS:
        points = [[count, round(layer_s(count, rank) / base_s - 1, 3)] for count in COUNTS]
        print(f"{device.split()[0].lower()}-rank-{rank}: {{points: {points}}}", flush=True)


if __name__ == "__main__":
    main()
