"""The Dockerfile and the compose file: their steps, run as a script where there is no Docker."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STEPS = [line.split(" ", 1) for line in (ROOT / "Dockerfile").read_text().splitlines() if re.match("[A-Z]+ ", line)]


def steps(kind):
    return [rest for name, rest in STEPS if name == kind]


def test_what_is_copied_is_there_and_what_is_installed_exists():
    copied = [source for step in steps("COPY") for source in step.split()[:-1]]
    assert copied and all((ROOT / source).exists() for source in copied)
    extras = re.search(r"\[([a-z,]+)\]", steps("RUN")[0]).group(1).split(",")
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_the_commands_are_gnomons(cli):
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gnomon"]
    assert steps("ENTRYPOINT") == ['["gnomon"]']
    for command in (service["command"], yaml.safe_load(steps("CMD")[0])):
        known = cli(command[0], "--help").output
        assert all(word in known for word in command if word.startswith("--"))
        assert "can be reached from other machines" in cli(*command, code=2).output  # There is no token.
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.slow
def test_the_steps_build_something_that_runs(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    for step in steps("COPY"):
        *sources, target = step.split()
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, app / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, app / target)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    environment = os.environ | {"PATH": f"{tmp_path / 'env' / 'bin'}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    for step in steps("RUN"):
        subprocess.run(step, shell=True, cwd=app, env=environment, check=True, capture_output=True)
    health = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gnomon"]["healthcheck"]["test"]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    told = " ".join([*yaml.safe_load(steps("ENTRYPOINT")[0]), *yaml.safe_load(steps("CMD")[0])])
    command = told.replace("0.0.0.0", "127.0.0.1").replace("8000", port).split()
    server = subprocess.Popen(command, cwd=tmp_path, env=environment | {"GNOMON_SERVE_TOKEN": "secret"})
    try:
        check = [word.replace("8000", port) for word in health[1:]]
        for _ in range(600):
            if not subprocess.run(check, env=environment, capture_output=True).returncode:
                break
            assert server.poll() is None
            time.sleep(0.5)
        else:
            raise AssertionError("the server was never healthy")
    finally:
        server.terminate()
        assert server.wait(60) in (0, -signal.SIGTERM)
