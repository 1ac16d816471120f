"""`gnomon serve`: a server without GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnomon.api.live import serve
from gnomon.api.serving import Scenario
from gnomon.cli.options import SectionedCommand, config_options


@click.command(cls=SectionedCommand)
@click.argument("file", metavar="[SCENARIO]", required=False, type=click.Path())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address; others than loopback need a token.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--port-per-replica", is_flag=True, help="Each replica on a port of its own, for a gateway in front.")
@click.option(
    "--speed", default=1.0, show_default=True, type=click.FloatRange(1.0, 1000.0), help="Faster than real time."
)
@click.option("--model-name", help="What clients call the model.  [default: as in the scenario]")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json, or its folder.")
@click.option("--token", envvar="GNOMON_SERVE_TOKEN", help="Clients must send it (Authorization: Bearer ...).")
@click.option("--drain-s", default=60, show_default=True, type=click.IntRange(0), help="Seconds to end after SIGTERM.")
@config_options(Scenario)
def command(file: str | None, overrides: dict[str, Any], **options: Any) -> None:
    """Serve SCENARIO: an OpenAI-compatible server whose tokens come when the simulated engine would produce them.

    \b
    Examples:
      gnomon serve --model llama-3-8b --gpu h100
      gnomon serve examples/serving/chat.yaml --num-replicas 8 --port-per-replica
      curl localhost:8000/v1/completions -d '{"prompt": "The sun", "max_tokens": 5, "stream": true}'
    """

    def started(urls: list[str], model: str) -> None:
        click.echo(f"Serving {model} at {', '.join(urls)} (Ctrl-C to stop)", err=True)

    serve(file, on_start=started, **options, **overrides)
