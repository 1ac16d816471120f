"""`gnomon time` and `gnomon catalog`: what they print, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gnomon


def test_time_prints_every_operator_with_share_and_limit(cli) -> None:
    output = cli("time", "--model", "llama-3-70b", "--device", "h100", "--tensor-parallel", "8").output
    for word in ("qkv_proj", "attention_decode", "mlp_all_reduce", "lm_head", "total", "MFU", "network", "100.0%"):
        assert word in output


def test_time_as_json_adds_up(cli) -> None:
    result = json.loads(cli("time", "--source", "roofline", "--prefill", "0", "--decode", "8", "--json").output)
    rows, total = result["roofline"]["operators"], result["roofline"]["total"]
    assert sum(row["seconds"] for row in rows) == pytest.approx(total["seconds"])
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert "attention_prefill" not in {row["name"] for row in rows}
    weights = 2 * (8.03e9 - 128256 * 4096)  # A small decode reads every weight once; the embedding only its rows.
    assert total["bytes"] == pytest.approx(weights, rel=0.15)


@pytest.mark.parametrize(("given", "missing"), [(("--decode", "8"), "prefill"), (("--prefill", "8"), "decode")])
def test_what_is_asked_alone_stands_alone(cli, given: tuple[str, str], missing: str) -> None:
    rows = json.loads(cli("time", "--source", "roofline", *given, "--json").output)["roofline"]["operators"]
    assert f"attention_{missing}" not in {row["name"] for row in rows}


def test_two_sources_stand_side_by_side(cli) -> None:
    from gnomon.timing import Context, timing_source
    from gnomon.timing import sources as sources
    from gnomon.timing.sources.roofline import Roofline

    class Twice(Roofline):
        name = "twice"

        def seconds(self, operator, *sizes):
            return 2 * super().seconds(operator, *sizes)

    def make(context: Context) -> Twice:
        return Twice(context.device, context.node)

    timing_source("twice")(make)
    try:
        output = cli("time", "--source", "roofline", "--source", "twice").output
    finally:
        sources.SOURCES.remove("twice")
    assert "twice / roofline" in output
    assert output.count("2.00") > 10


@pytest.mark.parametrize("what", ["devices", "nodes", "models", "quantization", "sources"])
def test_catalog_lists(cli, what: str) -> None:
    rows = json.loads(cli("catalog", what, "--json").output)
    assert len(rows) >= 4
    first = rows[0].get("name") or rows[0]["source"]
    assert first in cli("catalog", what).output


@pytest.mark.parametrize("words", [["time"], ["catalog"], ["catalog", "devices"], ["catalog", "quantization"]])
def test_help_has_an_example(cli, words: list[str]) -> None:
    assert "Example" in cli(*words, "--help").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llama-9"], "unknown model 'llama-9'"),
        (["--device", "h1000"], "unknown device 'h1000'"),
        (["--node", "nowhere"], "unknown node"),
        (["--tensor-parallel", "3"], "does not divide the 32 attention heads"),
        (["--tensor-parallel", "0"], "tensor_parallel"),
        (["--tensor-parallel", "-2"], "tensor_parallel"),
        (["--model", "llama-3-70b"], "Tensor parallelism 2 would fit"),
        (["--prefill", "-5"], "must not be negative"),
        (["--decode", "-1"], "must not be negative"),
        (["--prefill", "0", "--decode", "0"], "needs tokens"),
        (["--prefill", "100000"], "more than the context of llama-3-8b, 8,192"),
        (["--kv", "9000"], "more than the context"),
        (["--decode", "100000"], "KV tokens"),
        (["--source", "crystal-ball"], "unknown timing source"),
        (["--source", "table"], "no operators"),
        (["--dtype", "fp7"], "unknown dtype 'fp7'"),
        (["--estimator", "guess"], "unknown estimator 'guess'"),
    ],
)
def test_mistakes_are_one_paragraph_and_exit_code_two(cli, arguments: list[str], message: str) -> None:
    output = cli("time", *arguments, code=2).output
    assert message in output
    assert "Traceback" not in output
    assert len(output.strip().splitlines()) == 1


def test_brackets_in_a_table_are_printed(cli) -> None:
    assert "(extra [silicon])" in cli("catalog", "sources").output


def test_a_config_json_with_missing_keys_is_exit_code_two(cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    output = cli("time", "--model", str(tmp_path), code=2).output
    assert "config.json" in output
    assert "'num_hidden_layers' (number of layers)" in output


def test_a_device_without_the_arithmetic_of_a_number_format_multiplies_in_bf16_and_says_so(cli) -> None:
    output = " ".join(cli("time", "--device", "a100", "--dtype", "fp8").output.split())
    assert "a100-80gb has no fp8 arithmetic: fp8 weights are multiplied in bf16." in output


@pytest.mark.parametrize(
    ("words", "tokens"), [([], (512, 64)), (["--decode", "64"], (0, 64)), (["--prefill", "128"], (128, 0))]
)
def test_what_is_asked_alone_comes_alone(words: list[str], tokens: tuple[int, int], cli) -> None:
    asked = gnomon.time(**{name[2:]: int(value) for name, value in zip(words[::2], words[1::2], strict=True)})
    assert (asked.batch.prefill, asked.batch.decode) == tokens
    said = cli("time", "--source", "roofline", *words).output
    assert ("attention_prefill" in said, "attention_decode" in said) == (tokens[0] > 0, tokens[1] > 0)
