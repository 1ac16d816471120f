"""What stands between the page's controls and a scenario, without a browser."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

pytest.importorskip("dash", reason="Dash is not installed (extra ui)")

from gnomon.api.posttrain import Posttrain
from gnomon.api.serving import simulate
from gnomon.core.config import load
from gnomon.core.errors import ConfigError, DataError, GnomonError
from gnomon.serving.scenario import Scenario
from gnomon.ui import serving, uploads
from gnomon.ui.controls import Choices, ControlError, Number, Switch, query_of, state_of
from gnomon.ui.pages import serve_answers
from gnomon.ui.pages.serve import CONTROLS, PAGE
from gnomon.ui.pages.serve_answers import (
    MAX_PINS,
    loaded,
    pin_colours,
    pinned_queries,
    pinned_states,
    with_pin,
    without_pin,
)
from gnomon.ui.scenarios import as_command, as_server, as_yaml, to_scenario, to_values
from gnomon.ui.serving import requests_of, simulated
from gnomon.ui.turns import Question, Stale
from gnomon.ui.uploads import check_is_data
from gnomon.workload import generate
from gnomon.workload.presets import PRESETS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "serving").glob("*.yaml"))


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


def test_another_thread_may_push_out_what_was_just_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all is pushed out at once."""
    monkeypatch.setattr(serving._known, "most", 0)
    monkeypatch.setattr(serve_answers._scenarios, "most", 0)
    scenario = serve_answers.scenario_of(PAGE, state_of(PAGE.controls, "?rate=7"))
    assert scenario.workload.rate == 7
    assert serving._kept("capacity", scenario, lambda: 0.0) == 0.0


def test_vllm_flags_are_one_command() -> None:
    scenario = load(Scenario, None, {"replica.tensor_parallel": 4})
    assert shlex.split(as_server(scenario).replace("\\\n", ""))[:2] == ["vllm", "serve"]
    assert "--tensor-parallel-size 4" in as_server(scenario)


def test_prefill_replicas_and_tiers_have_controls() -> None:
    query = (
        "?tp=8&replicas=2&prefill=3&prefill_tp=4&decider=long_prompts&decode_router=least_kv&host_gb=200&ssd_gb=4000"
    )
    scenario = to_scenario(PAGE.read(state_of(PAGE.controls, query)))
    prefill, decode = scenario.all_pools()
    assert (prefill.role, prefill.num_replicas, prefill.replica.tensor_parallel) == ("prefill", 3, 4)
    assert (decode.role, decode.num_replicas, decode.replica.tensor_parallel) == ("decode", 2, 8)
    apart, tiers = scenario.disaggregation, scenario.kv_tiers
    assert (apart.decider.name, apart.decode_router.name) == ("long_prompts", "least_kv")
    assert tiers.host and tiers.ssd and not tiers.remote
    assert (tiers.host.size_gb, tiers.host.bandwidth_gb_s, tiers.ssd.size_gb) == (200, 50, 4000)
    assert from_controls(scenario) == scenario


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("more", ["", "&policy=sarathi", "&model=llama-3-70b&tp=8&device=h100"])
def test_an_engine_is_chosen_as_in_a_file(engine: str, more: str) -> None:
    scenario = to_scenario(PAGE.read(state_of(PAGE.controls, f"?engine={engine}{more}")))
    flat = {"sarathi": {"batching.policy": "sarathi"}, "8": {"model": "llama-3-70b", "replica.tensor_parallel": 8,
            "device": "h100"}, "": {}}["sarathi" if "sarathi" in more else "8" if more else ""]  # fmt: skip
    limits = {"slo.ttft_s": 0.5, "slo.tpot_s": 0.05}
    assert scenario == load(Scenario, None, {"engine.name": engine, "workload.num_requests": 10000, **flat, **limits})
    assert from_controls(scenario) == scenario
    words = shlex.split(as_command(scenario).replace("\\\n", ""))
    assert load(Scenario, None, {k[2:]: v for k, v in zip(words[2::2], words[3::2], strict=True)}) == scenario
    assert ("--batching.policy" in words) == ("sarathi" in more)


def test_figures_and_plots_come_before_the_timing_sources_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnomon.serving.results import mean_iteration
    from gnomon.ui.pages.serve_answers import answer_lines

    asked = []
    judged = mean_iteration.judged
    monkeypatch.setattr(mean_iteration, "judged", lambda run: asked.append(run) or judged(run))
    raw = state_of(PAGE.controls, "?rate=7.5&requests=1500")
    found = [(sorted(one.get("plots", {})), "copies" in one.get("texts", {}), len(asked))
             for one in answer_lines(PAGE, raw, Question("view"), is_dragged=False)]  # fmt: skip
    assert found == [
        ([], False, 0),
        (["e2e", "tpot", "ttft"], False, 0),
        (["kv", "queue"], True, 0),
        ([], True, 1),
        (["curve"], False, 1),
    ]
    (preview,) = answer_lines(PAGE, raw | {"rate": "7.6"}, Question("view"), is_dragged=True)
    assert sorted(preview["plots"]) == ["e2e", "tpot", "ttft"] and "first 1,000" in preview["texts"]["figures"]
    assert len(asked) == 1


def test_an_answer_ends_when_the_same_view_asks_again() -> None:
    from gnomon.ui.pages.serve_answers import answer_lines

    raw = state_of(PAGE.controls, "?rate=7.7&requests=1500")
    first = answer_lines(PAGE, raw, Question("view"), is_dragged=False)
    next(first)
    other, newer = Question("another view"), Question("view")
    with pytest.raises(Stale):
        next(first)
    assert other.is_newest and newer.is_newest


def test_pools_that_the_controls_can_say_leave_the_further_settings() -> None:
    example = load(Scenario, next(file for file in EXAMPLES if file.stem == "disaggregated"))
    values = to_values(example)
    assert (values["prefill"], values["prefill_tp"], values["replicas"], values["tp"]) == (2, 4, 1, 8)
    assert "pools" not in values["scenario"]
    other = to_values(load(Scenario, next(file for file in EXAMPLES if file.stem == "heterogeneous_fleet")))
    assert other["prefill"] == 0 and "pools" in other["scenario"]


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
        ("?engine=steam", "engine"),
        ("?rate=-1", "rate"),
        ("?requests=5", "requests"),
        ("?workload=gossip", "workload"),
        ("?scenario=replica.data_paralel%3A+2", "scenario"),
        ("?scenario=%5B1%2C", "scenario"),
        ("?scenario=model%3A+%5B%26a+%5B1%5D%2C+*a%5D", "scenario"),
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
    assert len(pinned_queries(pins)) == MAX_PINS == 4
    names = list(pinned_states(CONTROLS, pins, state_of(CONTROLS, "?rate=5&tp=2")))
    assert names == ["now: tp 2, rate 5", *(f"tp 1, rate {rate}" for rate in (10, 20, 30, 40))]
    fewer = without_pin(pins, 1)
    assert pinned_queries(fewer) == {place: query for place, query in pinned_queries(pins).items() if place != 1}
    assert pin_colours(fewer) == [one for place, one in enumerate(pin_colours(pins)) if place != 2]
    again = pinned_queries(with_pin(CONTROLS, fewer, state_of(CONTROLS, "?rate=60")))
    assert again == pinned_queries(pins) | {1: "?rate=60"}


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


LENGTHS = b"prompt_tokens,output_tokens\n100,10\n200,20\n"


def copied(scenario: Scenario, folder: Path) -> Scenario:
    """What the copied file says."""
    (folder / "copied.yaml").write_text(as_yaml(scenario))
    return load(Scenario, folder / "copied.yaml")


def test_lengths_without_arrivals_are_sent_at_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = loaded("lengths.csv", as_upload(LENGTHS))
    scenario = to_scenario(PAGE.read(state_of(PAGE.controls, "?rate=7") | values))
    assert scenario.workload.rate == 7 and scenario.workload.arrivals.process == "poisson"
    assert from_controls(scenario) == scenario
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_bytes(LENGTHS)
    assert len(generate(copied(scenario, tmp_path).workload, 0)) == 2


def test_drawn_arrivals_of_a_trace_stay_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recorded.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,200,20\n")
    given = {"workload.trace.file": "recorded.csv", "workload.arrivals.process": "poisson", "workload.rate": 3}
    scenario = load(Scenario, None, given)
    assert from_controls(scenario) == scenario
    back = copied(scenario, tmp_path)  # What a scenario in a file names lies beside it.
    assert back.workload.trace.file == str(tmp_path / "recorded.csv")
    trace = back.workload.trace.model_copy(update={"file": "recorded.csv"})
    assert back.model_copy(update={"workload": back.workload.model_copy(update={"trace": trace})}) == scenario
    assert "--workload.arrivals.process poisson" in as_command(scenario)


def test_a_preset_that_is_a_file_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text((PRESETS.folder / "chat-1m.yaml").read_text())
    scenario = load(Scenario, None, {"workload.preset": "mine.yaml"})
    assert from_controls(scenario) == scenario


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", b"a,b\n1,2\n", "no known trace format"),
        ("x.csv", b"arrival_s,prompt_tokens,output_tokens\n1,two,3\n", "x.csv:2"),
        ("x.exe", b"MZ", "is not a trace"),
        ("x.csv.gz", b"", "is not a trace"),
        ("x.yaml", b"model: &a [*a]", "stands within itself"),
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


def keys_of_files(kind: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted keys of all fields named `file`, in sections and in lists of sections, at any depth."""
    found = [f"{prefix}file"] if "file" in kind.model_fields else []
    for name, field in kind.model_fields.items():
        inner = [one for one in _classes(field.annotation) if issubclass(one, BaseModel) and one is not kind]
        found += [key for one in inner for key in keys_of_files(one, f"{prefix}{name}.")]
    return found


def _classes(annotation: Any) -> list[type]:
    inner = [one for part in get_args(annotation) for one in _classes(part)]
    return [annotation, *inner] if isinstance(annotation, type) and not inner else inner


@pytest.mark.parametrize("key", sorted({*keys_of_files(Scenario), *keys_of_files(Posttrain)}))
def test_a_link_runs_no_python_files(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No field named `file`, wherever it stands, loads code from a path; fields of data files are named one by one."""
    monkeypatch.chdir(tmp_path)
    *sections, last = key.split(".")
    nested: Any = {last: "mine.py"}
    for name in reversed(sections):
        nested = {name: [nested] if name == "pools" else nested}
    if key.endswith(("trace.file", "lengths.file")):
        check_is_data({key: "mine.csv"})
        return
    for given in (
        {key: "mine.py"},
        {key.replace("_", "-"): "mine.py"},
        nested,
        {sections[0]: repr(nested[sections[0]])},
    ):
        with pytest.raises(ConfigError, match="no Python files"):
            check_is_data(given)


def test_a_link_runs_no_python_file_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath('ran').touch()")
    monkeypatch.chdir(tmp_path)
    for setting in ("router.file", "admission.file", "fleet.controller.file", "disaggregation.decider.file"):
        with pytest.raises(ConfigError, match="no Python files"):
            simulated(to_scenario(PAGE.read(state_of(PAGE.controls, f"?scenario={setting}%3A+mine.py"))))
        with pytest.raises(ConfigError, match="no Python files"):
            loaded("x.yaml", as_upload(f"{setting}: mine.py".encode()))
    assert not (tmp_path / "ran").exists()


def of_link(**state: str) -> Scenario:
    return to_scenario(PAGE.read(state_of(PAGE.controls, "") | state))


@pytest.mark.parametrize(
    "further",
    [
        "workload.trace.file: /etc/passwd",
        "workload.trace.file: ../../secret.csv",
        "workload.trace.file: '\"/etc/passwd\"'",
        "workload.preset: /etc/passwd",
        "workload: {preset: /etc/passwd}",
        "pools: [{timing: {source: profile, path: /etc}}]",
        "pools: '[{replica: {speculative: {num_tokens: 2, draft_model: /etc/passwd}}}]'",
    ],
)
def test_a_link_reads_no_files_elsewhere(further: str) -> None:
    with pytest.raises(ConfigError, match="outside the folder"):
        of_link(workload="other", scenario=further)


def test_a_path_is_not_hidden_in_bytes() -> None:
    with pytest.raises(ConfigError, match="only texts"):
        of_link(workload="other", scenario="workload.preset: !!binary L2V0Yy9wYXNzd2Q=")


def test_a_file_opens_no_preset_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("password: 1")
    with pytest.raises(ConfigError, match="outside the folder") as caught:
        loaded("x.yaml", as_upload(f"workload: {{preset: {tmp_path / 'other.yaml'}}}".encode()))
    assert "password" not in str(caught.value)


LEVELS = ", ".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
BOMB = f"a: &a [x, x, x, x, x, x, x, x, x], {LEVELS}, model: *i"


def test_a_link_stands_for_no_more_than_it_says() -> None:
    with pytest.raises(GnomonError, match="more than 100,000 values"):
        of_link(scenario=BOMB)
    assert of_link(model=f"{{{BOMB}}}").model == f"{{{BOMB}}}"  # A text stays a text: there is no such model.


def test_the_post_training_page_takes_no_more_than_it_is_told() -> None:
    from gnomon.ui.pages.posttrain import PAGE as POSTTRAIN
    from gnomon.ui.pages.posttrain import config_of

    with pytest.raises(GnomonError):
        config_of(POSTTRAIN.read(state_of(POSTTRAIN.controls, "") | {"actor": f"{{{BOMB}}}"}))


def test_what_is_wrong_is_told_briefly() -> None:
    with pytest.raises(ConfigError) as caught:
        load(Scenario, None, {"model": [[["x" * 100] * 100] * 100] * 100})
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "further",
    [
        "num_replicas: 10000",
        "pools: [{num_replicas: 300}, {num_replicas: 300}]",
        "num_replicas: 100, replica.data_parallel: 8",
        "replica.num_kv_blocks: 1000000000000",
        "batching.max_sequences: 1000000000",
    ],
)
def test_a_link_does_not_exhaust_the_server(further: str) -> None:
    with pytest.raises(ConfigError, match="at most"):
        of_link(scenario=further)


def test_too_little_memory_is_told() -> None:
    with pytest.raises(GnomonError, match="more memory than there is"), Question("a view").turn():
        raise MemoryError


def test_a_trace_is_no_longer_than_a_page_can_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_REQUESTS", 10)
    state = state_of(PAGE.controls, "") | loaded(
        "long.csv", as_upload(b"prompt_tokens,output_tokens\n" + b"9,9\n" * 11)
    )
    with pytest.raises(ConfigError, match="at most 10 requests") as caught:
        simulated(to_scenario(PAGE.read(state)))
    assert PAGE.explain(caught.value)["requests"]
    assert len(simulated(to_scenario(PAGE.read(state | {"requests": "10"}))).run.requests) == 10


def test_the_newest_traces_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "KEPT", 2)
    keys = [uploads.keep_trace(f"{name}.csv", LENGTHS) for name in "abca"]
    assert list(uploads.traces()) == [keys[2], keys[0]]
    assert uploads.trace(keys[0]).path.is_file()
    with pytest.raises(ConfigError, match="not on this server any more"):
        uploads.trace(keys[1])


def test_files_that_come_together_do_not_meet() -> None:
    with uploads.passing_file(b"one") as first, uploads.passing_file(b"two") as second:
        assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    assert not first.exists()
