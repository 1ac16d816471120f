"""Record a vLLM engine under a load in the form that `gnomon verify vllm` and `gnomon calibrate` read.

Run it where vLLM (0.10 or later, engine v1) is installed:

    python record_vllm.py --model meta-llama/Llama-3.1-8B --rate 4 --requests 300 --out runs/mine
    gnomon verify vllm runs/mine --profiles DIR

Prompts are random token ids, arrivals Poisson; every further flag is one of vLLM's engine. Requests go to the engine
itself, so that stamps hold no time of a server or a network. `timeseries.csv` has one row per engine step.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import random
import time
from pathlib import Path
from typing import Any, ClassVar


class Steps:
    """A logger of vLLM's: one row per engine step."""

    rows: ClassVar[list[list[float]]] = []

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.vllm_config = vllm_config

    def record(self, scheduler_stats: Any, iteration_stats: Any, *others: Any, **named: Any) -> None:
        """What the scheduler had when a step was done, and the tokens of that step."""
        if scheduler_stats is not None and iteration_stats is not None:
            self.rows.append([
                time.monotonic(), scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs,
                100.0 * scheduler_stats.kv_cache_usage, iteration_stats.num_prompt_tokens,
                iteration_stats.num_generation_tokens,
            ])  # fmt: skip

    def log(self, *others: Any) -> None:
        """Nothing is printed."""

    def log_engine_initialized(self) -> None:
        """Nothing is printed."""


async def record(model: str, flags: dict[str, Any], load: list[tuple[float, list[int], int]], out: Path) -> None:
    """Send the load and write down every request."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **flags), stat_loggers=[Steps])
    begin = time.monotonic()

    async def ask(number: int, at_s: float, prompt: list[int], output: int) -> dict[str, Any]:
        await asyncio.sleep(begin + at_s - time.monotonic())
        sampling = SamplingParams(max_tokens=output, min_tokens=output, ignore_eos=True, detokenize=False)
        async for answer in engine.generate({"prompt_token_ids": prompt}, sampling, str(number)):
            last = answer
        return line_of(prompt, last)

    lines = await asyncio.gather(*(ask(number, *one) for number, one in enumerate(load)))
    write(out, meta_of(model, flags, engine.vllm_config), lines, Steps.rows)
    engine.shutdown()


def line_of(prompt: list[int], answer: Any) -> dict[str, Any]:
    """One request as a line of requests.jsonl; all stamps are of the engine's monotonic clock."""
    stamps = answer.metrics
    return {
        "input_toks": len(prompt), "output_toks": len(answer.outputs[0].token_ids), "queued_ts": stamps.queued_ts,
        "first_token_ts": stamps.first_token_ts, "last_token_ts": stamps.last_token_ts, "prompt_token_ids": prompt,
    }  # fmt: skip


def meta_of(model: str, flags: dict[str, Any], config: Any) -> dict[str, Any]:
    """What was started, with what vLLM made of it."""
    cache, scheduler = config.cache_config, config.scheduler_config
    return {
        "model": model,
        "engine_kwargs": flags,
        "resolved_config": {
            "cache_config": {"block_size": cache.block_size, "enable_prefix_caching": cache.enable_prefix_caching},
            "scheduler_config": {
                "max_num_seqs": scheduler.max_num_seqs, "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            },
        },
        "kv_cache": {"num_gpu_blocks": cache.num_gpu_blocks, "block_size": cache.block_size},
        "hardware": {"device_name": _device_name()},
    }  # fmt: skip


def _device_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def write(out: Path, meta: dict[str, Any], lines: list[dict[str, Any]], steps: list[list[float]]) -> None:
    """Write meta.json, requests.jsonl and timeseries.csv."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "meta.json").write_text(json.dumps(meta, indent=1, default=str))
    ordered = sorted(lines, key=lambda line: line["queued_ts"])
    (out / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ordered))
    with (out / "timeseries.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["t", "running", "waiting", "kv_cache_pct", "prompt_tokens", "generated_tokens"])
        writer.writerows(steps)


def drawn(rate: float, count: int, prompt: int, output: int, seed: int) -> list[tuple[float, list[int], int]]:
    """(when, prompt, output) of a Poisson load with exponential lengths."""
    draw, at_s, load = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate)
        tokens = [draw.randrange(1000, 30000) for _ in range(1 + int(draw.expovariate(1 / prompt)))]
        load.append((at_s, tokens, 1 + int(draw.expovariate(1 / output))))
    return load


def main() -> None:
    """Read the flags; those that are not ours are vLLM's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--prompt", type=int, default=500, help="mean prompt tokens")
    parser.add_argument("--output", type=int, default=200, help="mean output tokens")
    parser.add_argument("--seed", type=int, default=0)
    ours, rest = parser.parse_known_args()
    pairs = zip(rest[::2], rest[1::2], strict=True)
    flags = {name.removeprefix("--").replace("-", "_"): json.loads(value) for name, value in pairs}
    load = drawn(ours.rate, ours.requests, ours.prompt, ours.output, ours.seed)
    asyncio.run(record(ours.model, flags, load, ours.out))


if __name__ == "__main__":
    main()
