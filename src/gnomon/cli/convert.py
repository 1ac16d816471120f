"""`gnomon convert`: another tool's command line as a scenario."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gnomon.cli.printing import json_option, print_json


@click.command()
@click.argument("tool", type=click.Choice(["vidur", "vllm", "sglang", "trtllm", "megatron"]))
@click.argument("command_line", metavar="COMMAND")
@click.option("--device", "--gpu", default=None, help="The GPU, which an engine's command line does not say.")
@click.option("--model", default=None, help="megatron: the model, where the command does not spell out a built-in one.")
@click.option("--gpus", type=click.IntRange(1), default=None, help="megatron: how many GPUs the job runs on.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the scenario to this file.")
@json_option
def command(
    tool: str,
    command_line: str,
    device: str | None,
    model: str | None,
    gpus: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print the scenario that COMMAND of another simulator or engine means.

    Every option is mapped, or named as having no counterpart. COMMAND is one quoted word, or - to read it from the
    standard input.

    \b
    Examples:
      gnomon convert vllm "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-num-seqs 256"
      gnomon convert sglang "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8"
      gnomon convert trtllm "trtllm-serve openai/gpt-oss-120b --tp_size 4 --extra_llm_api_options extra.yml"
      gnomon convert vidur "python -m vidur.main --replica_config_device a100" --out scenario.yaml
      gnomon convert megatron "pretrain_gpt.py --tensor-model-parallel-size 8 ..." --model llama-3-70b --gpus 64
    """
    from gnomon.convert import as_yaml, convert
    from gnomon.core.files import write_text

    given = sys.stdin.read() if command_line == "-" else command_line
    if tool == "megatron":
        from gnomon.convert.training_commands import as_train_yaml

        text = as_train_yaml(given, model=model, device=device or "h100", gpus=gpus)
        if out is not None:
            write_text(out, text)
        click.echo(text if out is None else f"Wrote {out}: run it with `gnomon train step {out}`.", nl=out is not None)
        return
    conversion = convert(tool, given, device=device)
    if out is not None:
        write_text(out, as_yaml(conversion))
    if as_json:
        print_json(
            {
                "scenario": conversion.values,
                "mapped": [{"option": given, "keys": keys} for given, keys in conversion.mapped],
                "without_counterpart": [{"option": given, "why": why} for given, why in conversion.without],
                "notes": conversion.notes,
            }
        )
    elif out is None:
        click.echo(as_yaml(conversion), nl=False)
    else:
        click.echo(
            f"Wrote {out}: {len(conversion.mapped)} options mapped, {len(conversion.without)} without counterpart."
        )
