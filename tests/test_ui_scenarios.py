"""What stands between the page's controls and a scenario, without a browser."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon.api import simulate
from gnomon.core.config import load
from gnomon.core.errors import ConfigError, DataError, GnomonError
from gnomon.serving.scenario import Scenario
from gnomon.ui import uploads
from gnomon.ui.address import query_of, state_of
from gnomon.ui.controls import Choices, ControlError, Number, Switch
from gnomon.ui.pages.serve import CONTROLS, PAGE
from gnomon.ui.pages.serve_answers import loaded
from gnomon.ui.pages.serve_pins import MAX_PINS, pinned, states, with_pin, without_pin
from gnomon.ui.scenarios import as_command, as_vllm, as_yaml, to_scenario, to_values
from gnomon.ui.serving import requests_of
from gnomon.workload import generate

EXAMPLES = sorted((Path(__file__).parent.parent / "examples" / "serving").glob("*.yaml"))


def from_controls(scenario: Scenario) -> Scenario:
    """Through the controls and the address, and back."""
    query = query_of(PAGE.controls, to_values(scenario))
    return to_scenario(PAGE.read(state_of(PAGE.controls, query)))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_survives_the_address(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent.parent.parent)
    scenario = load(Scenario, file)
    assert from_controls(scenario) == scenario


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_is_copied_is_the_same_scenario(file: Path, tmp_path: Path) -> None:
    scenario = load(Scenario, file)
    (tmp_path / "copied.yaml").write_text(as_yaml(scenario))
    assert load(Scenario, tmp_path / "copied.yaml") == scenario
    words = shlex.split(as_command(scenario).replace("\\\n", ""))
    assert words[:2] == ["gnomon", "simulate"]
    flags = dict(zip(words[2::2], words[3::2], strict=True))
    assert load(Scenario, None, {flag.removeprefix("--"): text for flag, text in flags.items()}) == scenario


def test_vllm_flags_are_one_command() -> None:
    scenario = load(Scenario, None, {"replica.tensor_parallel": 4})
    assert shlex.split(as_vllm(scenario).replace("\\\n", ""))[:2] == ["vllm", "serve"]
    assert "--tensor-parallel-size 4" in as_vllm(scenario)


def test_the_default_address_is_empty() -> None:
    assert query_of(PAGE.controls, state_of(PAGE.controls, "")) == ""


def test_an_address_keeps_what_it_says() -> None:
    controls = (Number("n", default=1), Switch("s"), Choices("c", default=("a",), options=("a", "b")))
    state = state_of(controls, "?n=2.5&s=on&c=a,b&unknown=1")
    assert {one.name: one.read(state[one.name]) for one in controls} == {"n": 2.5, "s": True, "c": ("a", "b")}
    assert query_of(controls, state) == "?n=2.5&s=on&c=a%2Cb"


@pytest.mark.parametrize("text", ["abc", "0", "1e99", "nan", "1.5"])
def test_a_bad_number_is_its_controls_mistake(text: str) -> None:
    with pytest.raises(ControlError) as caught:
        Number("n", least=1, most=10, whole=True).read(text)
    assert caught.value.control == "n"


@pytest.mark.parametrize(
    ("query", "control"),
    [
        ("?model=llama-9", "model"),
        ("?device=abacus", "device"),
        ("?policy=nice", "policy"),
        ("?rate=-1", "rate"),
        ("?requests=5", "requests"),
        ("?workload=gossip", "workload"),
        ("?scenario=replica.data_paralel%3A+2", "scenario"),
        ("?scenario=%5B1%2C", "scenario"),
        ("?scenario=model%3A+%5B%26a+%5B1%5D%2C+*a%5D", "page"),
        ("?scenario=workload.trace.file%3A+gone.csv&workload=other", "page"),
    ],
)
def test_mistakes_are_shown_where_they_were_made(query: str, control: str) -> None:
    with pytest.raises(GnomonError) as caught:
        simulate(to_scenario(PAGE.read(state_of(PAGE.controls, query))))
    shown = PAGE.explain(caught.value)
    assert [name for name, text in shown.items() if text] == [control]


def test_a_model_that_does_not_fit_is_told_at_tensor_parallel() -> None:
    with pytest.raises(GnomonError) as caught:
        simulate(to_scenario(PAGE.read(state_of(PAGE.controls, "?model=llama-3-70b&device=a100-80gb"))))
    assert PAGE.explain(caught.value)["tp"]


def test_requests_at_a_rate_are_those_that_are_generated() -> None:
    for workload in (Scenario().workload, load(Scenario, None, {"workload.rate": 40}).workload):
        kept, fresh = requests_of(workload, 3), generate(workload, 3)
        assert (kept.arrival_s == fresh.arrival_s).all()
        assert (kept.prompt_tokens == fresh.prompt_tokens).all()


def test_pins_are_at_most_four_and_named_by_what_differs() -> None:
    pins = ""
    for rate in (10, 20, 20, 30, 40, 50):
        pins = with_pin(CONTROLS, pins, state_of(CONTROLS, f"?rate={rate}"))
    assert len(pinned(pins)) == MAX_PINS == 4
    names = list(states(CONTROLS, pins, state_of(CONTROLS, "?rate=5&tp=2")))
    assert names == ["now: tp 2, rate 5", *(f"tp 1, rate {rate}" for rate in (10, 20, 30, 40))]
    assert len(pinned(without_pin(pins, 1))) == 3


def as_upload(data: bytes) -> str:
    return f"data:text/plain;base64,{base64.b64encode(data).decode()}"


def test_an_uploaded_trace_is_a_workload() -> None:
    rows = "".join(f"{i * 0.1},100,{10 + i}\n" for i in range(50))
    values = loaded("my trace.csv", as_upload(f"arrival_s,prompt_tokens,output_tokens\n{rows}".encode()))
    state = state_of(PAGE.controls, "") | values
    scenario = to_scenario(PAGE.read(state))
    assert len(requests_of(scenario.workload, 0)) == 50
    assert "file: my_trace.csv" in as_yaml(scenario)
    assert from_controls(scenario) == scenario


def test_lengths_without_arrivals_are_sent_at_the_rate() -> None:
    values = loaded("lengths.csv", as_upload(b"prompt_tokens,output_tokens\n100,10\n200,20\n"))
    scenario = to_scenario(PAGE.read(state_of(PAGE.controls, "?rate=7") | values))
    assert scenario.workload.rate == 7 and scenario.workload.arrivals.process == "poisson"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", b"a,b\n1,2\n", "no known trace format"),
        ("x.csv", b"arrival_s,prompt_tokens,output_tokens\n1,two,3\n", "x.csv:2"),
        ("x.exe", b"MZ", "is not a trace"),
        ("x.csv.gz", b"", "is not a trace"),
        ("x.yaml", b"a: &a [x, x]\nmodel: [*a, *a]", "aliases"),
        ("x.yaml", b"model: [", "x.yaml"),
        ("x.yaml", b"modle: llama-3-8b", "Did you mean"),
        ("x.yaml", b"batching: {policy: mine, file: mine.py}", "no Python files"),
        ("x.yaml", b"!!python/object/apply:os.system ['true']", "x.yaml"),
    ],
)
def test_bad_files_are_refused_with_a_reason(name: str, data: bytes, words: str) -> None:
    with pytest.raises(GnomonError, match=words):
        loaded(name, as_upload(data))


def test_large_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_BYTES", 10)
    with pytest.raises(DataError, match="larger than"):
        loaded("x.csv", as_upload(b"0" * 11))


def test_a_link_runs_no_python_files() -> None:
    with pytest.raises(ConfigError, match="no Python files"):
        to_scenario(PAGE.read(state_of(PAGE.controls, "?scenario=router.file%3A+mine.py")))


@pytest.mark.parametrize("path", ["/etc/passwd", "../../secret.csv"])
def test_a_link_reads_no_files_elsewhere(path: str) -> None:
    with pytest.raises(ConfigError, match="outside the folder"):
        to_scenario(PAGE.read(state_of(PAGE.controls, f"?workload=other&scenario=workload.trace.file%3A+{path}")))
