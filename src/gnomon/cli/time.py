"""`gnomon time`: the seconds of one iteration, operator by operator."""

from __future__ import annotations

from typing import Any

import click

from gnomon.api.time import time
from gnomon.cli.options import SectionedCommand
from gnomon.cli.printing import json_option, show
from gnomon.core.text import parse_yaml


@click.command(cls=SectionedCommand)
@click.option("--model", default="llama-3-8b", show_default=True, help="Name, or path of a config.json.")
@click.option("--device", "--gpu", default="h200", show_default=True, help="See `gnomon catalog devices`.")
@click.option("--node", default=None, help="Links between GPUs; the device's usual node if not given.")
@click.option("--tensor-parallel", "--tp", type=int, default=1, show_default=True, help="GPUs that share every layer.")
@click.option("--pipeline-parallel", "--pp", type=int, default=1, show_default=True, help="Stages of layers.")
@click.option(
    "--data-parallel", "--dp", type=int, default=1, show_default=True, help="Attention groups that share experts."
)
@click.option("--expert-parallel", is_flag=True, help="Whole experts per GPU instead of slices of each.")
@click.option("--prefill", type=int, help="Prompt tokens in the iteration.  [default: 512; 0 with --decode]")
@click.option("--prefill-kv", type=int, default=0, show_default=True, help="KV tokens before the chunk.")
@click.option("--decode", type=int, help="Sequences that decode a token each.  [default: 64; 0 with --prefill]")
@click.option("--kv", type=int, default=1024, show_default=True, help="KV tokens of each decoding sequence.")
@click.option("--source", "sources", multiple=True, help="Timing source; give it twice to compare.  [default: auto]")
@click.option("--engine", default="vllm", show_default=True, help="Whose kernels: vllm, sglang or trtllm.")
@click.option("--engine-version", default="", help="Its version; the newest tables if not given.")
@click.option("--expert-load", default="power_law_1.01", show_default=True, help="How tokens spread over experts.")
@click.option("--path", default=None, help="Folder of measurements, for the source profile.")
@click.option("--estimator", default="grid", show_default=True, help="How to read between measured points.")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    help="Number format of weights and multiplications; auto: the checkpoint's.",
)
@click.option(
    "--kv-dtype",
    default="auto",
    show_default=True,
    help="Number format of the KV cache; auto: the checkpoint's, else bf16.",
)
@click.option(
    "--sampling", help="What requests ask for, e.g. '{top_p: 0.95, repetition_penalty: 1.1}'.  [default: greedy]"
)
@json_option
def command(sources: tuple[str, ...], as_json: bool, sampling: str | None, **given: Any) -> None:
    """Time one iteration of a batch, operator by operator.

    For every operator: its calls, seconds, share of the iteration, FLOPs and bytes on one GPU, MFU, and what limits it
    (compute, memory, network, or latency: the mere launch). With two sources, their times stand side by side.

    \b
    Examples:
      gnomon time --model llama-3-70b --gpu h100 --tp 8
      gnomon time --model qwen3-32b --gpu rtxpro6000 --tp 2 --decode 128 --kv 2048
      gnomon time --model meta-llama/Llama-3.1-8B --device rtx-4090 --source roofline --source profile --path profiles
    """
    asked = {name: value for name, value in given.items() if value is not None}
    if sampling is not None:
        asked["sampling"] = parse_yaml(sampling, where="--sampling")
    show(time(asked | ({"sources": sources} if sources else {})), as_json=as_json)
