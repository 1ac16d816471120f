"""Mistakes in users' own policies and routers: a sentence, never a crash of the interpreter, a hang or a wrong time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.core.user_files import is_own
from gnomon.jit import inlined, jit
from gnomon.serving.policies import POLICIES as REGISTERED
from own_code_kit import CAREFUL, HEADER, ONE_BY_ONE, POLICIES, ROUTER, ROUTERS, SCRIPT
from serving_kit import check_invariants, requests_of, run, scenario

TESTS = Path(__file__).parents[1]
PLAIN = ("no_keep_running", "no_hold", "out_of_range", "endless", "twice", "beyond", "outside", "nothing", "half",
         "divides", "writes", "makes_longer", "ends_them")  # fmt: skip
"""Mistakes that are tried in plain Python, too."""


def outcomes(folder: Path, jit: bool) -> dict[str, str]:
    """What each wrong function leads to, all in one process, which must survive."""
    cases = []
    for name, (body, _) in POLICIES.items():
        if not jit and name not in PLAIN:
            continue
        (folder / f"{name}.py").write_text(HEADER.format(name=name) + body)
        cases.append(("batching", name, str(folder / f"{name}.py")))
    for name, (body, _) in ROUTERS.items():
        if not jit and name not in PLAIN:
            continue
        for compiled in (True, False) if jit else (False,):
            own = f"{name}_{'compiled' if compiled else 'plain'}"
            (folder / f"{own}.py").write_text(ROUTER.format(name=own, compiled=compiled, body=body))
            cases.append(("router", own, str(folder / f"{own}.py")))
    script = SCRIPT.format(tests=str(TESTS), cases=json.dumps(cases))
    environment = {**os.environ, "GNOMON_JIT": "1" if jit else "0", "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Exception ignored" not in done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert len(found) == len(cases)
    return found


@pytest.mark.parametrize("jit", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_mistakes_in_own_code_are_said_in_one_sentence(tmp_path: Path, jit: bool) -> None:
    found = outcomes(tmp_path, jit)
    wrong = {}
    for name, said in found.items():
        case = name.removesuffix("_compiled").removesuffix("_plain")
        expected = POLICIES[name][1] if name in POLICIES else ROUTERS[case][1].format(name=name)
        if not jit:  # Plain Python names the very line.
            expected = expected.split(": ")[-1].replace("IndexError", "") if ".py:" in expected else expected
        if expected not in said or (expected and f"{name}.py:" not in said) or len(said) > 600:
            wrong[name] = (expected, said)
    assert not wrong


@pytest.mark.parametrize("ends", ["sys.exit(0)", "raise GeneratorExit", "raise SystemExit"])
def test_own_code_does_not_end_the_process(tmp_path: Path, ends: str) -> None:
    """It ended with exit code 0, as if all were well."""
    from gnomon.core.errors import ConfigError

    name = f"ends_{len(ends)}"
    router = tmp_path / f"{name}.py"
    router.write_text("import sys\n" + ROUTER.format(name=name, compiled=False, body=ends))
    with pytest.raises(ConfigError, match=rf"{name}\.py:7: the router {name} failed: (SystemExit|GeneratorExit)"):
        run(scenario(router={"name": name, "file": str(router)}, num_replicas=2))
    controller = tmp_path / f"controls_{name}.py"
    controller.write_text(
        "import sys\nfrom gnomon.serving.autoscaling.controllers import controller\n\n\n"
        f'@controller("controls_{name}")\ndef controls_{name}(view):\n    {ends}\n'
    )
    chosen = {"controller": {"name": f"controls_{name}", "file": str(controller), "interval_s": 1.0}}
    with pytest.raises(ConfigError, match=rf"the controller controls_{name} failed: (SystemExit|GeneratorExit)"):
        run(scenario(fleet={**chosen, "max_replicas": 2}))
    whole = tmp_path / f"whole_{name}.py"
    whole.write_text(f"import sys\n\n{ends}\n")
    with pytest.raises(ConfigError, match=rf"whole_{name}\.py:3: (SystemExit|GeneratorExit)"):
        run(scenario(router={"name": name, "file": str(whole)}))


HUGE = 'from gnomon.extend import {kind}\n\n\n@{kind}("{name}"{traits})\ndef {name}(*seen):\n    return 10**400\n'


def test_a_number_beyond_all_bounds_is_an_answer_like_others(tmp_path: Path) -> None:
    from gnomon.core.errors import ConfigError

    (tmp_path / "router.py").write_text(HUGE.format(kind="router", name="far", traits=", compiled=False"))
    with pytest.raises(ConfigError, match=r"the router far answered .* there is no such replica"):
        run(scenario(router={"name": "far", "file": str(tmp_path / "router.py")}, num_replicas=2))
    (tmp_path / "controller.py").write_text(HUGE.format(kind="controller", name="many", traits=""))
    chosen = {"name": "many", "file": str(tmp_path / "controller.py"), "interval_s": 1.0}
    with pytest.raises(ConfigError, match="that is no number of replicas"):
        run(scenario(fleet={"controller": chosen, "max_replicas": 2}))


@pytest.mark.parametrize(
    ("section", "name"),
    [("batching", "policy=vllm"), ("router", "name=round_robin"), ("fleet.controller", "name=fixed")],
)
@pytest.mark.parametrize("text", ["", "def forgotten(fleet, arrival, state):\n    return 0\n"])
def test_a_file_that_registers_nothing_is_refused(tmp_path: Path, cli: Any, section: str, name: str, text: str) -> None:
    """It was loaded, and a built-in one served as if nothing had been given."""
    own = tmp_path / "nothing.py"
    own.write_text(text)
    said = cli("simulate", "--requests", "5", f"--{section}.file", str(own), f"--{section}.{name}", code=2)
    assert "it registers nothing" in said.output and "nothing.py" in said.output and "@router" in said.output


def test_whole_prompts_of_own_policies_are_timed_whatever_their_length(tmp_path: Path) -> None:
    """The how-to's policy places prompts beyond max_batch_tokens: their times are those of a built-in policy."""
    own = tmp_path / "one_by_one.py"
    own.write_text(HEADER.format(name="one_at_a_time") + ONE_BY_ONE)
    offered = requests_of([0.0], [8000], [3])
    timing = {
        "timing": {"source": "roofline", "table": None},
        "replica": {"max_request_tokens": 9000},
        "engine": "none",
    }
    mine = run(
        scenario(batching={"policy": "one_at_a_time", "file": str(own), "max_batch_tokens": 512}, **timing),
        requests=offered,
    )
    check_invariants(mine)
    theirs = run(scenario(batching={"policy": "vllm_v1", "max_batch_tokens": 8192}, **timing), requests=offered)
    assert is_own(REGISTERED["one_at_a_time"].form_batch)
    assert mine.cluster.requests.first_token_s[0] == pytest.approx(theirs.cluster.requests.first_token_s[0], rel=1e-9)


def test_batches_without_times_are_refused(tmp_path: Path) -> None:
    from gnomon.core.errors import ConfigError

    own = tmp_path / "all_at_once.py"
    body = POLICIES["no_cap"][0]
    own.write_text(HEADER.format(name="all_at_once") + body)
    with pytest.raises(ConfigError, match=r"all_at_once\.py:7: .* for which there are no times"):
        run(
            scenario(batching={"policy": "all_at_once", "file": str(own), "max_batch_tokens": 300}),
            requests=requests_of(np.zeros(20), [200] * 20, [5] * 20),
        )


@pytest.mark.usefixtures("signals_end")
def test_ctrl_c_ends_a_long_run(tmp_path: Path) -> None:
    """One request with a billion tokens to produce: there is no arrival at which Python would get its turn."""
    import signal

    script = f"""
import sys, threading, time
sys.path.insert(0, {str(TESTS)!r})
from serving_kit import requests_of, run, scenario

def tell():  # When the engine runs: Numba itself answers an interrupt with errors of its own.
    seen = 0
    while seen < 10:
        time.sleep(0.02)
        where = sys._current_frames()[threading.main_thread().ident].f_code.co_filename
        seen = seen + 1 if where.endswith("driving.py") else 0
    print("running", flush=True)

setup = scenario(replica={{"max_request_tokens": 2**30, "num_kv_blocks": 2 * 10**8}}, batching={{"policy": "sarathi"}})
run(setup, requests=requests_of([0.0], [10], [10]))
threading.Thread(target=tell, daemon=True).start()
run(setup, requests=requests_of([0.0, 1.0], [10, 10], [10**9, 10**9]))
"""
    process: Any = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "running\n", process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in said


def test_check_policy_says_what_passed_and_what_failed(tmp_path: Path, cli: Any) -> None:
    own = tmp_path / "two_policies.py"
    forgetful = ONE_BY_ONE.replace("            hold(replica, r, blocks)\n", "")
    second = f'\n\n@batching_policy("forgetful")\ndef forgetful(replica):\n    state = replica.state\n{forgetful}'
    own.write_text(HEADER.format(name="careful") + CAREFUL + second)
    said = cli("check-policy", str(own), "--json", code=1)
    found = {(one["name"], one["test"]): one for one in json.loads(said.output)}
    assert [one["message"] for (name, _), one in found.items() if name == "careful" and not one["passed"]] == []
    assert not found["forgetful", "a light load"]["passed"]
    assert "KV blocks" in found["forgetful", "a light load"]["message"]


def test_a_plain_function_may_call_what_compiled_code_calls() -> None:
    """A part of compiled code has no machine code of its own: called from Python it runs as it is written."""

    @inlined
    def doubled(x: float) -> float:
        return 2.0 * x

    @inlined
    def squared_twice(x: float) -> float:
        return doubled(x) * doubled(x)

    @jit
    def compiled(x: float) -> float:
        return squared_twice(x)

    assert squared_twice(3.0) == compiled(3.0) == 36.0
    assert doubled(x=1.5) == 3.0
