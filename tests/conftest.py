"""What the tests share: the reference data (skipped with a reason where absent) and the command line."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import settings

os.environ["GNOMON_SILICON"] = "0"  # What `auto` means must not depend on an optional package.
os.environ["OMP_NUM_THREADS"] = "1"  # Every core has a worker: threads of PyTorch would spin, waiting for each other.

settings.register_profile("no deadline", deadline=None)  # How long an example takes depends on who else is at work.
settings.load_profile("no deadline")


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look through it again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference data named by $GNOMON_REFERENCE."""
    folder = os.environ.get("GNOMON_REFERENCE")
    if not folder or not Path(folder).is_dir():
        pytest.skip("$GNOMON_REFERENCE does not name a folder of reference data")
    return Path(folder)


@pytest.fixture
def signals_end() -> Iterator[None]:
    """Ctrl-C and a hang-up end this process and those it starts, also where whoever started the tests ignores them."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, usual[0])
    signal.signal(signal.SIGHUP, usual[1])


class CommandLine:
    """Runs `gnomon ...` in this process: `cli("catalog", "models").output`."""

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        import click

        from gnomon.cli import progress
        from gnomon.cli.main import main

        progress._Lines.first_s = 3600.0  # Lines of progress depend on how busy the machine is.

        @click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
        @click.argument("words", nargs=-1, type=click.UNPROCESSED)
        def run(words: tuple[str, ...]) -> None:
            main(list(words))

        result = CliRunner().invoke(run, list(arguments))
        assert result.exit_code == code, f"exit code {result.exit_code}:\n{result.output}\n{result.exception!r}"
        return result


@pytest.fixture(scope="session")
def cli() -> CommandLine:
    """The command line, checked for its exit code (`code=2` for a user's mistake)."""
    return CommandLine()
