"""The `gnomon` command: a table of verbs, each imported only when it is called."""

import gc
import os
import re
import sys

import click

from gnomon import __version__
from gnomon.cli.lazy import LazyGroup
from gnomon.cli.progress import alive
from gnomon.core.errors import GnomonError
from gnomon.core.processes import keep_freed_memory, spin_no_threads

COMMANDS = {
    "simulate": "Simulate a serving deployment: latency, throughput, utilisation, cost.",
    "capacity": "How many users or requests per second within an SLO, and what a million tokens costs.",
    "serve": "Serve a scenario to OpenAI clients: tokens come when the simulated engine would give them.",
    "compare": "Run several variants on the same requests and print paired differences.",
    "explain": "Say why requests were slow, what would help, and what limits a deployment.",
    "check": "Hold a scenario against limits and an earlier run, for continuous integration.",
    "check-policy": "Test your own batching policies and routers against the rules they must keep.",
    "workload": "Look at or export the requests of a workload.",
    "search": "Find the best deployment for a model, a workload and an SLO.",
    "bench": "The workload suite x schedulers x models, as a table.",
    "route": "Train a router inside the simulator and compare it with the heuristics.",
    "pipeline": "Pipeline-parallel training: schedules, contention, priorities.",
    "train": "Training a model on GPUs: the seconds of a step, its memory, its parts.",
    "posttrain": "RL post-training: placements and elastic scheduling.",
    "calibrate": "Fit the constants of a real server to its logs.",
    "explain-gap": "Why a simulation differs from a recorded server.",
    "profile": "Measure operators on a GPU.",
    "engine": "Run the reference engine on a GPU.",
    "verify": "Hold the simulator against recorded and published results.",
    "convert": "Turn another tool's command line into a scenario.",
    "manifest": "A scenario as manifests: Kubernetes, llm-d, docker compose.",
    "mcp": "Answer an assistant's questions (Model Context Protocol).",
    "catalog": "Devices, nodes, models and timing sources that are built in.",
    "time": "The seconds of one iteration, operator by operator.",
    "ui": "Explore in a web page.",
    "completion": "Print the shell completion script.",
}

MODULES = {
    **{name: f"serving:{name.replace('-', '_')}" for name in (
        "simulate", "capacity", "serve", "compare", "explain", "check", "check-policy", "calibrate", "explain-gap",
        "manifest", "time",
    )},
    **{name: f"search:{name}" for name in ("search", "bench")},
    **{name: f"tools:{name}" for name in ("convert", "mcp", "ui", "completion")},
    "route": "routing",
    "profile": "measure.profile",
    "engine": "measure.engine",
}  # fmt: skip
"""Modules that are not named like their verb, and the command in them."""


@click.group(
    cls=LazyGroup, table=COMMANDS, package="gnomon.cli", places=MODULES,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(__version__, prog_name="gnomon")
def gnomon() -> None:
    """Gnomon tells how long an LLM system will take before anyone buys the GPUs.

    \b
    Start here:
      gnomon simulate                        Llama-3-8B on one GPU under a chat load
      gnomon time --model llama-3-70b --gpu h100 --tp 8
      gnomon catalog models
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake is one paragraph and exit code 2."""
    for name in ("stdout", "stderr"):  # None where a shell has closed it: `gnomon ... >&-`.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # Looking for them takes 0.05 s; none has a say here.
    spin_no_threads()
    keep_freed_memory()
    try:
        with alive("working"):
            gnomon.main(args=arguments, prog_name="gnomon", standalone_mode=False)
    except GnomonError as error:
        from gnomon.cli.printing import complaint

        click.echo(complaint(error), err=True)
        sys.exit(2)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.MissingParameter) and error.ctx is not None:
            for example in re.findall(r"^ +gnomon .*", error.ctx.command.help or "", re.MULTILINE)[:1]:
                click.echo(f"Example:{example[1:]}", err=True)
        sys.exit(2)
    except MemoryError as error:
        click.echo(f"gnomon: this is too large for the machine's memory: {error}.", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt) as stop:
        if isinstance(stop.__cause__, EOFError):  # click takes every end of a file for Ctrl-D.
            raise stop.__cause__ from None
        click.echo("gnomon: stopped.", err=True)
        sys.exit(130)
    except BrokenPipeError:  # `gnomon ... | head`
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # A file of the user's, or the output: nothing that a traceback would explain.
        if error.errno is None:
            raise
        place = "the output" if error.filename is None else str(error.filename)[:200]
        click.echo(f"gnomon: {place}: {error.strerror}.", err=True)
        sys.exit(2)
    finally:
        gc.freeze()  # The interpreter would look for circles in all modules once more before it ends: 0.3 s.


if __name__ == "__main__":
    main()
