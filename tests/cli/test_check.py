"""`gnomon check` and `gnomon.step_timer`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

import gnomon
from gnomon.core.errors import ConfigError

ASKED = ("--rate", "5", "--requests", "40", "--seed", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    found = gnomon.simulate(rate=5, requests=40, seed=1, intervals=False).summary.to_dict()
    (folder / "summary.json").write_text(json.dumps(found))
    return folder, found


def test_limits_and_the_same_run_pass(cli, run, tmp_path):
    folder, found = run
    p99 = found["latency"]["ttft_s"]["p99"]
    out = cli("check", *ASKED, "--slo", f"ttft_p99={p99 * 1.01}", "--baseline", str(folder), "--json").output
    told = json.loads(out)
    assert told["passed"]
    assert [row["figure"] for row in told["figures"]][:3] == [
        "requests that did not finish", "ttft_p99", "latency.ttft_s.mean",
    ]  # fmt: skip
    assert told["figures"][1]["value"] == p99


def test_a_missed_limit_and_a_worse_run_fail(cli, run, tmp_path):
    _, found = run
    better = json.loads(json.dumps(found))
    better["latency"]["e2e_s"]["mean"] /= 1.06
    better["throughput"]["output_tokens_per_s"] *= 1.06
    (tmp_path / "summary.json").write_text(json.dumps(better))
    junit, markdown = tmp_path / "check.xml", tmp_path / "check.md"
    limit = found["latency"]["tpot_s"]["p50"] * 0.99
    cli(
        "check", *ASKED, "--slo", f"tpot_p50={limit}", "--baseline", str(tmp_path), "--junit", str(junit),
        "--markdown", str(markdown), code=1,
    )  # fmt: skip
    suite = ElementTree.parse(junit).getroot()
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["tpot_p50", "latency.e2e_s.mean", "throughput.output_tokens_per_s"]
    assert suite.get("failures") == "3" and suite.get("tests") == str(len(suite))
    assert markdown.read_text().count("FAIL") == 3
    assert cli("check", *ASKED, "--baseline", str(tmp_path), "--tolerance", "0.1").output.endswith("pass.\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "nothing to hold it against"),
        (("--slo", "ttft=1"), "is no latency"),
        (("--slo", "ttft_p99=fast"), "is no limit"),
        (("--baseline", "nowhere"), "there is no run"),
    ],
)
def test_mistakes(cli, flags, said):
    assert said in cli("check", *ASKED, *flags, code=2).output


def test_a_limit_may_have_its_unit(cli):
    told = json.loads(cli("check", *ASKED, "--slo", "e2e_p99=1.5min", "--json").output)
    assert told["figures"][1]["limit"] == 90.0


# step_timer


def test_a_step_takes_what_an_iteration_of_the_simulation_takes():
    """One request alone: its prefill, then decodes of growing length."""
    scenario = {"model": "llama-3-8b", "device": "h100", "workload": {"num_requests": 1, "rate": 1},
                "workload.lengths": {"distribution": "fixed", "prompt": 700, "output": 20}}  # fmt: skip
    run = gnomon.simulate(scenario, intervals=False).run
    step = gnomon.step_timer(scenario)
    rows = run.log.iterations[: run.log.used[0]]
    assert step(prefills=[(700, 0)]) == pytest.approx(rows[0].end_s - rows[0].start_s, rel=1e-9)
    for number in (1, 10, 19):
        row = rows[number]
        assert step(decodes=[700 + number]) == pytest.approx(row.end_s - row.start_s, rel=1e-3)


def test_steps_add_up_and_have_limits():
    step = gnomon.step_timer(model="llama-3-8b", device="h100", batching__max_sequences=64)
    assert step() == 0.0
    assert step(prefills=[(512, 0)], decodes=[100] * 8) > step(decodes=[100] * 8) > step(decodes=[100])
    assert step(prefills=[(256, 4000)]) > step(prefills=[(256, 0)])
    for batch in ({"decodes": [5] * 65}, {"prefills": [(9000, 0)]}, {"prefills": [(0, 5)]}, {"decodes": [10**7]}):
        with pytest.raises(ConfigError):
            step(**batch)


def test_the_example_of_an_own_scheduler_runs(capsys):
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "serving" / "own_scheduler.py"))
    step = gnomon.step_timer(model="llama-3-8b", device="h100")
    first, shortest = (
        example["serve"](example["drawn"](60, 200.0), order, step)
        for order in (lambda one: one.arrival_s, lambda one: one.prompt)
    )
    assert 0 < shortest < first
